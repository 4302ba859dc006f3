"""The pages of :mod:`fedtailor.experiment.what_leaves`: of the folder of a run, and of an
algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtailor.algorithms import ALGORITHMS
from fedtailor.core.errors import ConfigError, did_you_mean, match_name
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.config import load_config, make_config
from fedtailor.experiment.demo import SETTINGS
from fedtailor.experiment.records import Run, read_run
from fedtailor.experiment.what_leaves import Record, page_of_parts, reported_names

_WITHOUT_ENGINE = (
    ("engine.name", "reference"),
    ("engine.device", "cpu"),
    ("engine.ray_address", ""),
    ("federation.client_timeout", 0.0),
)
"""Nothing is trained but a few examples, so no engine has to be chosen."""


def page_of_run(path: Path, given: Sequence[tuple[str, Any]] = ()) -> Record:
    """Return the page of a run, with what its rounds so far have sent.

    Args:
        path: the run folder.
        given: options that may differ from those of the run: the folder of the data.

    Raises:
        ConfigError: it is a run across sites, each of which has its own page.
        DataError: the folder is no run, or the data cannot be found.
    """
    run = read_run(path)
    if run.is_across_sites:
        message = f"'{path}' is a run across sites. Each has a page of what has left it: fedtailor site leaves FOLDER."
        raise ConfigError(message, key="subject", allowed="a run on this machine", got=str(path))
    config = load_config(path / "experiment.toml", [*given, *_WITHOUT_ENGINE])
    parts = assemble(config, config.seeds[0])
    return page_of_parts(parts, reported=_reported(run), totals=_totals(run))


def page_of_algorithm(name: str, given: Sequence[tuple[str, Any]] = ()) -> Record:
    """Return the page of an algorithm, with the model and the data of the demo unless options name
    others.

    Raises:
        ConfigError: there is no such algorithm, or an option is wrong.
    """
    known = ":" in name or match_name(name, ALGORITHMS) is not None
    if not known:
        hint = did_you_mean(name, ALGORITHMS) or "."
        message = f"'{name}' is neither the folder of a run nor an algorithm{hint} Known: {', '.join(sorted(ALGORITHMS))}."
        raise ConfigError(message, key="subject", allowed=sorted(ALGORITHMS), got=name)

    has_own_data = any(key in ("data.dataset", "data.path") for key, _ in given)
    settings: dict[str, Any] = (
        {} if has_own_data else {key: dict(value) for key, value in SETTINGS.items()}
    )
    config = make_config(settings, [("algorithm.name", name), *given, *_WITHOUT_ENGINE])
    parts = assemble(config, config.seeds[0])

    return page_of_parts(parts, reported=reported_names(parts.algorithm, parts.federation))


def _reported(run: Run) -> Record | None:
    """Return the names of the numbers that a run has recorded; None before its first round."""
    if not run.rounds:
        return None
    metrics = {name for record in run.rounds for name in record["training_metrics"]}
    diagnostics = {name for line in run.clients for name in line.get("diagnostics", {})}
    return {"training_metrics": sorted(metrics), "diagnostics": sorted(diagnostics)}


def _totals(run: Run) -> Record:
    """Return the bytes of every round so far."""
    return {
        "rounds": len(run.rounds),
        "up": [record["bytes"]["up"] for record in run.rounds],
        "down": [record["bytes"]["down"] for record in run.rounds],
    }
