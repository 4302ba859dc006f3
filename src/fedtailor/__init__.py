"""Personalized federated learning: one model per client, without moving data.

Besides the names below, every name of :mod:`fedtailor.toolkit` can be imported from here. Names are imported when they
are first used, so that ``fedtailor --help`` starts without torch.
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
    from fedtailor.experiment.records import read_run as read_run
    from fedtailor.experiment.run import run as run
    from fedtailor.models.module import from_module as from_module
    from fedtailor.testing.check import check_algorithm as check_algorithm
    from fedtailor.toolkit import *  # noqa: F403

_HOMES = {
    "Config": "experiment.config",
    "FedtailorError": "core.errors",
    "check_algorithm": "testing.check",
    "from_module": "models.module",
    "load_config": "experiment.config",
    "make_config": "experiment.config",
    "read_run": "experiment.records",
    "run": "experiment.run",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):  # asked for by Python itself, for example by the import system
        raise AttributeError(f"module 'fedtailor' has no attribute '{name}'")
    home = _HOMES.get(name, "toolkit")
    module = importlib.import_module(f"fedtailor.{home}")
    if name not in _HOMES and name not in module.__all__:
        raise AttributeError(f"module 'fedtailor' has no attribute '{name}'")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    toolkit = importlib.import_module("fedtailor.toolkit")
    return sorted({*globals(), *_HOMES, *toolkit.__all__})
