"""Personalized federated learning: one model per client, without moving data.

Besides the names below, every name of :mod:`fedtailor.toolkit` can be imported from here. Names are
imported when they are first used, so that ``fedtailor --help`` starts without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedtailor.core.errors import FedtailorError as FedtailorError
    from fedtailor.experiment.config import Config as Config
    from fedtailor.experiment.config import load_config as load_config
    from fedtailor.experiment.config import make_config as make_config
    from fedtailor.experiment.run import run as run
    from fedtailor.experiment.sweep import sweep as sweep
    from fedtailor.models.module import from_module as from_module
    from fedtailor.serving.export import export_model as export_model
    from fedtailor.serving.model import PersonalModel as PersonalModel
    from fedtailor.serving.run import Run as Run
    from fedtailor.serving.run import load as load
    from fedtailor.serving.study import Study as Study
    from fedtailor.serving.study import from_dataset as from_dataset
    from fedtailor.serving.study import from_folder as from_folder
    from fedtailor.testing.check import check_algorithm as check_algorithm
    from fedtailor.toolkit import *  # noqa: F403

_HOMES = {
    "Config": "experiment.config",
    "FedtailorError": "core.errors",
    "PersonalModel": "serving.model",
    "Run": "serving.run",
    "Study": "serving.study",
    "check_algorithm": "testing.check",
    "export_model": "serving.export",
    "from_dataset": "serving.study",
    "from_folder": "serving.study",
    "from_module": "models.module",
    "load": "serving.run",
    "load_config": "experiment.config",
    "make_config": "experiment.config",
    "run": "experiment.run",
    "sweep": "experiment.sweep",
}

_TOOLKIT = (
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
)
"""The names of ``fedtailor.toolkit``, in a list of their own so that listing them imports
nothing."""

__all__ = ["__version__", *_HOMES, *_TOOLKIT]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        home = _HOMES[name]
    elif name in _TOOLKIT:
        home = "toolkit"
    else:
        raise AttributeError(f"module 'fedtailor' has no attribute '{name}'")

    value = getattr(importlib.import_module(f"fedtailor.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
