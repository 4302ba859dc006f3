"""Trackers: they log runs for other programs that draw and compare them, such as TensorBoard.

A tracker is a module with one small class, which keeps
:class:`fedtailor.experiment.trackers.base.Tracker`. Its library is an extra of the package, and is
imported when a run begins that uses it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from fedtailor.core.errors import ConfigError, find_name

if TYPE_CHECKING:
    from fedtailor.experiment.trackers.base import Tracker


class Entry(NamedTuple):
    """A row of the table of trackers."""

    target: str
    """``module:class`` within this package."""
    title: str
    libraries: tuple[str, ...]
    """The modules that it imports, which an extra with the name of the tracker installs."""
    instead: str = ""
    """A variable of the environment that names a server; only the first library is needed then."""


TRACKERS: Mapping[str, Entry] = {
    "mlflow": Entry(
        "mlflow:MLflow",
        "MLflow",
        ("mlflow", "sqlalchemy", "alembic"),
        instead="MLFLOW_TRACKING_URI",
    ),
    "tensorboard": Entry("tensorboard:TensorBoard", "TensorBoard", ("tensorboard",)),
    "wandb": Entry("wandb:WeightsAndBiases", "Weights & Biases", ("wandb",)),
}
"""The trackers by name."""


def check_trackers(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of trackers as the table has them, each once.

    Raises:
        ConfigError: there is no such tracker, or its library is not installed; the message says
            what to install.
    """
    found = dict.fromkeys(find_name("tracker", name, TRACKERS, key="track") for name in names)
    for name in found:
        entry = TRACKERS[name]
        needed = entry.libraries[:1] if os.environ.get(entry.instead) else entry.libraries
        missing = [library for library in needed if importlib.util.find_spec(library) is None]
        if missing:
            message = f"{entry.title} needs {', '.join(missing)}: pip install 'fedtailor[{name}]'"
            raise ConfigError(
                message, key="track", allowed="a tracker whose library is installed", got=name
            )

    return tuple(found)


def make_tracker(name: str) -> Tracker:
    """Import a tracker and its library, and return it, not started."""
    module, attribute = TRACKERS[name].target.split(":")
    made = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)()
    return cast("Tracker", made)
