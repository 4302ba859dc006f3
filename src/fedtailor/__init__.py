"""Personalized federated learning: one model per client, without moving data.

Names are imported when they are first used, so that ``fedtailor --help`` starts without torch. The
names that an algorithm is written with are in :mod:`fedtailor.toolkit`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

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

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedtailor' has no attribute '{name}'")

    value = getattr(importlib.import_module(f"fedtailor.{_HOMES[name]}"), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
