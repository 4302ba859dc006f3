"""The one import for authors of an algorithm.

The package's own methods import from here and from the private modules beside them, and nothing
else of the package.
"""

from __future__ import annotations

from fedtailor.core import tree
from fedtailor.core.adaptation import (
    CLASS_FREQUENCIES,
    CLOSED_FORM,
    Adaptation,
    ChoiceOfModel,
    FineTuned,
    FineTuning,
    Layers,
    NearestNeighbors,
    ProximalSolve,
    RoundOfTraining,
    WithoutTraining,
    untuned,
)
from fedtailor.core.algorithm import (
    Algorithm,
    ClientUpdate,
    Download,
    ModelState,
    Onboarded,
    OneGlobalModel,
)
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import (
    ClientData,
    ClientInfo,
    Cohort,
    ExampleSet,
)
from fedtailor.core.message import (
    Each,
    Field,
    Mean,
    Messages,
    Reduced,
    Sum,
)
from fedtailor.core.noise import (
    normal,
    row_words,
    uniform,
)
from fedtailor.core.options import Range
from fedtailor.core.per_example import PerExample
from fedtailor.core.prediction import (
    predict_features,
    predict_logits,
)
from fedtailor.core.rng import (
    Key,
    new_key,
)
from fedtailor.core.task import (
    ALL,
    BODY,
    TRAINED,
    Batch,
    LossOutput,
    Params,
    Task,
    Training,
)
from fedtailor.statistics import (
    bottleneck,
    diagonal,
    gaussian,
    gaussian_heads,
)
from fedtailor.training import (
    losses,
    optimizer,
)
from fedtailor.training.blocks import Trained, cached_features, forward, train
from fedtailor.training.losses import (
    classification_loss,
    cross_entropy,
    weighted_mean,
)
from fedtailor.training.phase import StepOutput
from fedtailor.training.tuning import (
    fine_tune,
    train_head,
    train_rounds,
)

__all__ = [
    "ALL",
    "BODY",
    "CLASS_FREQUENCIES",
    "CLOSED_FORM",
    "TRAINED",
    "Adaptation",
    "Algorithm",
    "Batch",
    "ChoiceOfModel",
    "ClientData",
    "ClientInfo",
    "ClientUpdate",
    "Cohort",
    "ConfigError",
    "Download",
    "Each",
    "ExampleSet",
    "Field",
    "FineTuned",
    "FineTuning",
    "Key",
    "Layers",
    "LossOutput",
    "Mean",
    "Messages",
    "ModelState",
    "NearestNeighbors",
    "Onboarded",
    "OneGlobalModel",
    "Params",
    "PerExample",
    "ProximalSolve",
    "Range",
    "Reduced",
    "RoundOfTraining",
    "StepOutput",
    "Sum",
    "Task",
    "Trained",
    "Training",
    "WithoutTraining",
    "bottleneck",
    "cached_features",
    "classification_loss",
    "cross_entropy",
    "diagonal",
    "fine_tune",
    "forward",
    "gaussian",
    "gaussian_heads",
    "losses",
    "new_key",
    "normal",
    "optimizer",
    "predict_features",
    "predict_logits",
    "row_words",
    "train",
    "train_head",
    "train_rounds",
    "tree",
    "uniform",
    "untuned",
    "weighted_mean",
]
