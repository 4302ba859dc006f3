"""The words and building blocks of an algorithm: ``from fedtailor import toolkit as ft``.

A method's file imports this module, modules of functions from it (``from fedtailor.toolkit import
gaussian, losses, tree``), and nothing else of the package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedtailor.core import tree as tree
from fedtailor.core.adaptation import CLASS_FREQUENCIES as CLASS_FREQUENCIES
from fedtailor.core.adaptation import CLOSED_FORM as CLOSED_FORM
from fedtailor.core.adaptation import Adaptation as Adaptation
from fedtailor.core.adaptation import FineTuned as FineTuned
from fedtailor.core.adaptation import FineTuning as FineTuning
from fedtailor.core.adaptation import Layers as Layers
from fedtailor.core.adaptation import OtherAdaptation as OtherAdaptation
from fedtailor.core.adaptation import RoundOfTraining as RoundOfTraining
from fedtailor.core.adaptation import WithoutTraining as WithoutTraining
from fedtailor.core.adaptation import untuned as untuned
from fedtailor.core.algorithm import Algorithm as Algorithm
from fedtailor.core.algorithm import ClientUpdate as ClientUpdate
from fedtailor.core.algorithm import Download as Download
from fedtailor.core.algorithm import ModelState as ModelState
from fedtailor.core.algorithm import Onboarded as Onboarded
from fedtailor.core.algorithm import OneGlobalModel as OneGlobalModel
from fedtailor.core.devices import to_host as to_host
from fedtailor.core.engine import PerExample as PerExample
from fedtailor.core.errors import ConfigError as ConfigError
from fedtailor.core.federation import ClientData as ClientData
from fedtailor.core.federation import ClientInfo as ClientInfo
from fedtailor.core.federation import Cohort as Cohort
from fedtailor.core.federation import ExampleSet as ExampleSet
from fedtailor.core.message import Each as Each
from fedtailor.core.message import Field as Field
from fedtailor.core.message import Mean as Mean
from fedtailor.core.message import Messages as Messages
from fedtailor.core.message import Received as Received
from fedtailor.core.message import Reduced as Reduced
from fedtailor.core.message import Sum as Sum
from fedtailor.core.options import AsReleased as AsReleased
from fedtailor.core.options import AtZero as AtZero
from fedtailor.core.options import NonNegativeFloat as NonNegativeFloat
from fedtailor.core.options import NonNegativeInt as NonNegativeInt
from fedtailor.core.options import PositiveFloat as PositiveFloat
from fedtailor.core.options import PositiveInt as PositiveInt
from fedtailor.core.options import Range as Range
from fedtailor.core.options import Share as Share
from fedtailor.core.rng import Key as Key
from fedtailor.core.rng import new_key as new_key
from fedtailor.core.rng import normal as normal
from fedtailor.core.rng import row_words as row_words
from fedtailor.core.rng import uniform as uniform
from fedtailor.core.task import ALL as ALL
from fedtailor.core.task import BODY as BODY
from fedtailor.core.task import TRAINED as TRAINED
from fedtailor.core.task import Batch as Batch
from fedtailor.core.task import LossOutput as LossOutput
from fedtailor.core.task import Params as Params
from fedtailor.core.task import Task as Task
from fedtailor.core.task import Training as Training
from fedtailor.core.task import predict_features as predict_features
from fedtailor.core.task import predict_logits as predict_logits
from fedtailor.core.torch_private import is_transformed as is_transformed
from fedtailor.training import losses as losses
from fedtailor.training import optimizer as optimizer
from fedtailor.training.blocks import Trained as Trained
from fedtailor.training.blocks import cached_features as cached_features
from fedtailor.training.blocks import forward as forward
from fedtailor.training.blocks import train as train
from fedtailor.training.losses import classification_loss as classification_loss
from fedtailor.training.losses import cross_entropy as cross_entropy
from fedtailor.training.losses import cross_entropy_of as cross_entropy_of
from fedtailor.training.losses import weighted_mean as weighted_mean
from fedtailor.training.phase import StepOutput as StepOutput

if TYPE_CHECKING:
    from fedtailor.statistics import bottleneck as bottleneck
    from fedtailor.statistics import class_sums as class_sums
    from fedtailor.statistics import diagonal as diagonal
    from fedtailor.statistics import gaussian as gaussian
    from fedtailor.statistics import gaussian_heads as gaussian_heads
    from fedtailor.training.tuning import fine_tune as fine_tune
    from fedtailor.training.tuning import train_head as train_head
    from fedtailor.training.tuning import train_rounds as train_rounds

_LOADED_LATER = {
    "bottleneck": "statistics.bottleneck",
    "class_sums": "statistics.class_sums",
    "diagonal": "statistics.diagonal",
    "gaussian": "statistics.gaussian",
    "gaussian_heads": "statistics.gaussian_heads",
    "fine_tune": "training.tuning",
    "train_head": "training.tuning",
    "train_rounds": "training.tuning",
}
"""Modules that many methods do without, by the names that come from them."""


def __getattr__(name: str) -> Any:
    if name not in _LOADED_LATER:
        raise AttributeError(f"module 'fedtailor.toolkit' has no attribute '{name}'")

    # A name is a module itself, or stands in one.
    module = importlib.import_module(f"fedtailor.{_LOADED_LATER[name]}")
    value = getattr(module, name, module)
    globals()[name] = value
    return value
