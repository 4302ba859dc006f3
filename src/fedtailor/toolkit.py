"""The one import for authors of an algorithm.

The package's own methods import from here and from the private modules beside them, and nothing else of the package.
Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtailor.core import tree as tree
    from fedtailor.core.adaptation import CLASS_FREQUENCIES as CLASS_FREQUENCIES
    from fedtailor.core.adaptation import CLOSED_FORM as CLOSED_FORM
    from fedtailor.core.adaptation import Adaptation as Adaptation
    from fedtailor.core.adaptation import ChoiceOfModel as ChoiceOfModel
    from fedtailor.core.adaptation import FineTuned as FineTuned
    from fedtailor.core.adaptation import FineTuning as FineTuning
    from fedtailor.core.adaptation import Layers as Layers
    from fedtailor.core.adaptation import NearestNeighbors as NearestNeighbors
    from fedtailor.core.adaptation import ProximalSolve as ProximalSolve
    from fedtailor.core.adaptation import RoundOfTraining as RoundOfTraining
    from fedtailor.core.adaptation import WithoutTraining as WithoutTraining
    from fedtailor.core.adaptation import untuned as untuned
    from fedtailor.core.algorithm import Algorithm as Algorithm
    from fedtailor.core.algorithm import ClientUpdate as ClientUpdate
    from fedtailor.core.algorithm import Download as Download
    from fedtailor.core.algorithm import ModelState as ModelState
    from fedtailor.core.algorithm import Onboarded as Onboarded
    from fedtailor.core.algorithm import OneGlobalModel as OneGlobalModel
    from fedtailor.core.errors import ConfigError as ConfigError
    from fedtailor.core.federation import ClientData as ClientData
    from fedtailor.core.federation import ClientInfo as ClientInfo
    from fedtailor.core.federation import Cohort as Cohort
    from fedtailor.core.federation import ExampleSet as ExampleSet
    from fedtailor.core.message import Each as Each
    from fedtailor.core.message import Field as Field
    from fedtailor.core.message import Mean as Mean
    from fedtailor.core.message import Messages as Messages
    from fedtailor.core.message import Reduced as Reduced
    from fedtailor.core.message import Sum as Sum
    from fedtailor.core.noise import normal as normal
    from fedtailor.core.noise import row_words as row_words
    from fedtailor.core.noise import uniform as uniform
    from fedtailor.core.options import Range as Range
    from fedtailor.core.per_example import PerExample as PerExample
    from fedtailor.core.prediction import predict_features as predict_features
    from fedtailor.core.prediction import predict_logits as predict_logits
    from fedtailor.core.rng import Key as Key
    from fedtailor.core.rng import new_key as new_key
    from fedtailor.core.task import ALL as ALL
    from fedtailor.core.task import BODY as BODY
    from fedtailor.core.task import TRAINED as TRAINED
    from fedtailor.core.task import Batch as Batch
    from fedtailor.core.task import LossOutput as LossOutput
    from fedtailor.core.task import Params as Params
    from fedtailor.core.task import Task as Task
    from fedtailor.core.task import Training as Training
    from fedtailor.statistics import bottleneck as bottleneck
    from fedtailor.statistics import diagonal as diagonal
    from fedtailor.statistics import gaussian as gaussian
    from fedtailor.statistics import gaussian_heads as gaussian_heads
    from fedtailor.training import losses as losses
    from fedtailor.training import optimizer as optimizer
    from fedtailor.training.blocks import Trained as Trained
    from fedtailor.training.blocks import cached_features as cached_features
    from fedtailor.training.blocks import forward as forward
    from fedtailor.training.blocks import train as train
    from fedtailor.training.losses import classification_loss as classification_loss
    from fedtailor.training.losses import cross_entropy as cross_entropy
    from fedtailor.training.losses import weighted_mean as weighted_mean
    from fedtailor.training.phase import StepOutput as StepOutput
    from fedtailor.training.tuning import fine_tune as fine_tune
    from fedtailor.training.tuning import train_head as train_head
    from fedtailor.training.tuning import train_rounds as train_rounds

HOMES = {
    "ALL": "core.task",
    "Adaptation": "core.adaptation",
    "Algorithm": "core.algorithm",
    "BODY": "core.task",
    "Batch": "core.task",
    "CLASS_FREQUENCIES": "core.adaptation",
    "CLOSED_FORM": "core.adaptation",
    "ChoiceOfModel": "core.adaptation",
    "ClientData": "core.federation",
    "ClientInfo": "core.federation",
    "ClientUpdate": "core.algorithm",
    "Cohort": "core.federation",
    "ConfigError": "core.errors",
    "Download": "core.algorithm",
    "Each": "core.message",
    "ExampleSet": "core.federation",
    "Field": "core.message",
    "FineTuned": "core.adaptation",
    "FineTuning": "core.adaptation",
    "Key": "core.rng",
    "Layers": "core.adaptation",
    "LossOutput": "core.task",
    "Mean": "core.message",
    "Messages": "core.message",
    "ModelState": "core.algorithm",
    "NearestNeighbors": "core.adaptation",
    "Onboarded": "core.algorithm",
    "OneGlobalModel": "core.algorithm",
    "Params": "core.task",
    "PerExample": "core.per_example",
    "ProximalSolve": "core.adaptation",
    "Range": "core.options",
    "Reduced": "core.message",
    "RoundOfTraining": "core.adaptation",
    "StepOutput": "training.phase",
    "Sum": "core.message",
    "TRAINED": "core.task",
    "Task": "core.task",
    "Trained": "training.blocks",
    "Training": "core.task",
    "WithoutTraining": "core.adaptation",
    "cached_features": "training.blocks",
    "classification_loss": "training.losses",
    "cross_entropy": "training.losses",
    "fine_tune": "training.tuning",
    "forward": "training.blocks",
    "new_key": "core.rng",
    "normal": "core.noise",
    "predict_features": "core.prediction",
    "predict_logits": "core.prediction",
    "row_words": "core.noise",
    "train": "training.blocks",
    "train_head": "training.tuning",
    "train_rounds": "training.tuning",
    "uniform": "core.noise",
    "untuned": "core.adaptation",
    "weighted_mean": "training.losses",
}
"""Name -> the module that defines it."""

NAMESPACES = {
    "bottleneck": "statistics.bottleneck",
    "diagonal": "statistics.diagonal",
    "gaussian": "statistics.gaussian",
    "gaussian_heads": "statistics.gaussian_heads",
    "losses": "training.losses",
    "optimizer": "training.optimizer",
    "tree": "core.tree",
}
"""Name -> the module that it stands for."""

__all__ = sorted([*HOMES, *NAMESPACES])


def __getattr__(name: str) -> Any:
    if name in NAMESPACES:
        value: Any = importlib.import_module(f"fedtailor.{NAMESPACES[name]}")
    elif name in HOMES:
        value = getattr(importlib.import_module(f"fedtailor.{HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'fedtailor.toolkit' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
