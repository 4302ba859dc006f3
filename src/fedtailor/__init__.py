"""Personalized federated learning: one model per client, without moving data.

Names are imported when they are first used, so that ``fedtailor --help`` starts without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedtailor.core.algorithm import Algorithm as Algorithm
    from fedtailor.core.algorithm import ClientUpdate as ClientUpdate
    from fedtailor.core.algorithm import Onboarded as Onboarded
    from fedtailor.core.errors import FedtailorError as FedtailorError
    from fedtailor.core.message import Each as Each
    from fedtailor.core.message import Field as Field
    from fedtailor.core.message import Mean as Mean
    from fedtailor.core.message import Sum as Sum
    from fedtailor.core.task import Task as Task
    from fedtailor.core.task import Training as Training
    from fedtailor.experiment.config import Config as Config
    from fedtailor.experiment.config import load_config as load_config
    from fedtailor.experiment.config import make_config as make_config
    from fedtailor.experiment.records import read_run as read_run
    from fedtailor.experiment.run import run as run
    from fedtailor.models.module import from_module as from_module
    from fedtailor.testing.check import check_algorithm as check_algorithm

_HOMES = {
    "Algorithm": "core.algorithm",
    "ClientUpdate": "core.algorithm",
    "Config": "experiment.config",
    "Each": "core.message",
    "FedtailorError": "core.errors",
    "Field": "core.message",
    "Mean": "core.message",
    "Onboarded": "core.algorithm",
    "Sum": "core.message",
    "Task": "core.task",
    "Training": "core.task",
    "check_algorithm": "testing.check",
    "from_module": "models.module",
    "load_config": "experiment.config",
    "make_config": "experiment.config",
    "read_run": "experiment.records",
    "run": "experiment.run",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedtailor' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"fedtailor.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
