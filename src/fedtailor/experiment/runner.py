"""A folder of several experiments: which runs belong to it, and in which folders they are.

A comparison, a sweep and an audit of members have one. Their runs come one after another, each on
all cores; what was interrupted is resumed, and what has finished is read.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedtailor.core.atomic import safe_name, write_json
from fedtailor.core.options import wrong_value
from fedtailor.core.reading import damaged, parse_toml, read_object
from fedtailor.experiment.assembly import make_algorithm, resolved_options
from fedtailor.experiment.config import Config, make_config, to_toml, without_result_free
from fedtailor.experiment.folder import refuse_existing
from fedtailor.experiment.reader import COMPARISON_FILE, holds_run, read_result
from fedtailor.experiment.resume import begun_config, with_first_choices

RUNS = "runs"
"""The folder of the run folders within it."""
_LIST_VERSION = 1


class RunJob(NamedTuple):
    """An experiment to run."""

    config: Config
    folder: Path


def is_finished(job: RunJob) -> bool:
    """Return whether the run of a job has a result for all its seeds."""
    result = read_result(job.folder) if holds_run(job.folder) else None
    return result is not None and set(job.config.seeds) <= set(result.get("seeds", ()))


def make_jobs(configs: Sequence[Config], folder: Path) -> list[RunJob]:
    """Return a job for every configuration, in a folder that depends on the configuration only.

    Raises:
        ConfigError: an option of an algorithm is wrong, which must not come up after hours of other
            runs.
    """
    return [RunJob(config, folder / RUNS / _folder_name(config)) for config in configs]


def _folder_name(config: Config) -> str:
    """Return the name of a run folder: the algorithm, and the beginning of a digest of what is run.

    Raises:
        ConfigError: an option of the algorithm is wrong.
    """
    # What changes no result has no part in the name.
    several = len(config.seeds) > 1  # seeds can be added to a run of several
    algorithm = make_algorithm(config)
    same = dataclasses.replace(
        without_result_free(config),
        seeds=(0, 1) if several else config.seeds,
        algorithm=resolved_options(config.algorithm, algorithm),
        training=algorithm.training,
    )
    digest = hashlib.sha256(to_toml(same).encode()).hexdigest()

    return safe_name(f"{config.algorithm.name}-{digest[:10]}")


def refuse_other_kind(folder: Path, kind: str) -> None:
    """Check that a folder is new, or one that :func:`begin` has made for the same kind.

    Raises:
        ConfigError: it holds something else.
        DataError: it is damaged.
    """
    path = folder / COMPARISON_FILE
    if not path.is_file():
        refuse_existing(folder)
        return

    kind_there = read_object(path, within=folder).get("kind")
    if kind_there != kind:
        got = f"'{folder}', which holds a {kind_there!s:.40}"
        raise wrong_value("--out", f"a folder of a {kind}, or a new one", got)


def refuse_fewer_seeds(jobs: Sequence[RunJob]) -> None:
    """Check that the runs that have begun have no other seeds than they are to have.

    Raises:
        ConfigError: seeds are left out; they can only be added, to runs of several.
    """
    for job in jobs:
        begun = begun_config(job.folder)
        if begun is not None:
            with_first_choices(job.config, begun, job.folder)


def begin(
    folder: Path, kind: str, jobs: Sequence[RunJob], *, shown: Mapping[str, str] | None = None
) -> None:
    """Write which runs belong to a folder of several runs.

    Args:
        folder: it exists; see :func:`refuse_other_kind`.
        kind: what it is for, such as ``comparison``.
        jobs: the runs.
        shown: how they are compared.

    Raises:
        RunError: it cannot be written.
    """
    # Relative, so that the folder can be moved.
    names = [job.folder.relative_to(folder).as_posix() for job in jobs]
    configs = [to_toml(job.config) for job in jobs]
    record = {"version": _LIST_VERSION, "kind": kind, "runs": names, "configs": configs}
    write_json(folder / COMPARISON_FILE, {**record, "shown": dict(shown or {})}, indent=2)


def read_jobs(folder: Path, kind: str) -> list[RunJob]:
    """Read the runs that :func:`begin` has written.

    Raises:
        ConfigError: the folder is of another kind.
        DataError: the file is missing or damaged.
    """
    path = folder / COMPARISON_FILE
    record = read_object(path, within=folder)
    refuse_other_kind(folder, kind)

    texts = record.get("configs")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise damaged(path, "'configs' must be a list of configurations")

    return make_jobs([make_config(parse_toml(text.encode(), path)) for text in texts], folder)


def read_shown(folder: Path) -> dict[str, str]:
    """Read how the runs of a folder are compared, as :func:`begin` has written it.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = folder / COMPARISON_FILE
    shown = read_object(path, within=folder).get("shown", {})
    known = ("against", "point", "metric")
    is_plain = isinstance(shown, dict) and all(isinstance(one, str) for one in shown.values())
    if not is_plain or not set(shown) <= set(known):
        raise damaged(path, f"'shown' must be texts by {', '.join(known)}")

    return dict(shown)
