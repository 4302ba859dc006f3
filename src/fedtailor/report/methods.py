"""The methods of a comparison: run folders read back, by their labels. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedtailor.core.errors import DataError, one_line
from fedtailor.core.options import show
from fedtailor.core.reading import damaged
from fedtailor.experiment.config import flatten, keys_without_result
from fedtailor.experiment.reader import (
    COMPARISON_FILE,
    RunRecords,
    holds_run,
    list_runs,
    name_runs,
    read_run,
    why_no_run,
)


@dataclass(frozen=True)
class Method:
    """A method with its settings, and its runs."""

    label: str
    """The name of the algorithm; if others have the same name, with the settings in which they
    differ."""
    path: Path
    """The run folder."""
    config: Mapping[str, Any]
    """The configuration of the first run; of the folder, if no run has begun."""
    runs: Mapping[int, RunRecords]
    """The runs by seed, finished or not."""
    seeds: Sequence[int] = ()
    """Those of the configuration, if there are several."""

    @property
    def finished(self) -> dict[int, RunRecords]:
        """The runs that have a result."""
        return {seed: run for seed, run in self.runs.items() if run.result is not None}

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return str(self.config["algorithm"]["name"])

    def split_of(self, seed: int) -> str:
        """Return the digests of data and split of a run; empty if they are not recorded."""
        provenance = self.runs[seed].provenance
        data = provenance.get("data")
        of_data = data.get("sha256") if isinstance(data, Mapping) else None
        of_split = provenance.get("split_sha256")

        return f"{of_data} {of_split}" if of_data and of_split else ""


def read_methods(paths: Sequence[str | Path]) -> list[Method]:
    """Read run folders, and the run folders that belong to comparisons.

    A folder that is given twice is two methods, the second one with a number behind its label.

    Args:
        paths: folders of runs, of one or several seeds, or of comparisons.

    Raises:
        DataError: a folder is neither, or a file is damaged.

    Example:
        >>> import fedtailor
        >>> config = fedtailor.make_config({"data": {"clients": 3}, "federation": {"rounds": 2}})
        >>> result = fedtailor.run(config, out="runs/example")
        >>> [(method.label, list(method.runs)) for method in read_methods(["runs/example"])]
        [('pfedfda', [0])]
    """
    methods = []
    for path in paths:
        for folder in _run_folders(Path(path)):
            run = read_run(folder)
            by_seed = _runs_by_seed(run)
            config = next(iter(by_seed.values()), run).config
            _check_name(config, run)
            seeds = run.config.get("seeds", ())
            methods.append(Method("", run.path, config, by_seed, seeds))

    labels = label_methods([method.config for method in methods])
    return [replace(method, label=label) for method, label in zip(methods, labels, strict=True)]


def label_methods(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return labels: the algorithm, and in brackets the settings that tell it from others.

    No label is given twice: one that came before has a number behind it.

    >>> label_methods([{"algorithm": {"name": "ditto"}}, {"algorithm": {"name": "fedavg"}}])
    ['ditto', 'fedavg']
    >>> label_methods([{"algorithm": {"name": "ditto", "penalty": value}} for value in (0.1, 1.0)])
    ['ditto (penalty=0.1)', 'ditto (penalty=1.0)']
    >>> label_methods([{"algorithm": {"name": "ditto"}}, {"algorithm": {"name": "ditto"}}])
    ['ditto', 'ditto #2']
    """
    names = [str(config["algorithm"]["name"]) for config in configs]
    settings = [flatten(config) for config in configs]
    left_out = keys_without_result() | {"engine.name", "engine.device"}
    labels: list[str] = []
    for name, values in zip(names, settings, strict=True):
        others = [
            other for other, other_name in zip(settings, names, strict=True) if other_name == name
        ]
        # The settings in which it differs from others of the same algorithm.
        words = []
        for key, value in values.items():
            differs = any(other.get(key) != value for other in others)
            if differs and key not in left_out:
                words.append(f"{key.removeprefix('algorithm.')}={show(value)}")

        label = one_line(f"{name} ({', '.join(words)})" if words else name)

        # A label that came before has a number behind it.
        number = 1
        numbered = label
        while numbered in labels:
            number += 1
            numbered = f"{label} #{number}"

        labels.append(numbered)

    return labels


def in_words(value: Any) -> str:
    """Return a value of a configuration or a record in one line; a text has no quotes.

    >>> in_words("digits"), in_words(0.5), in_words([1, 2])
    ('digits', '0.5', '[1, 2]')
    """
    return one_line(value) if isinstance(value, str) else show(value)


def _run_folders(path: Path) -> list[Path]:
    """Return the run folders that a path stands for.

    Raises:
        DataError: it is neither a run nor a comparison.
    """
    if holds_run(path):
        return [path]

    if not os.path.isdir(path):
        raise DataError(why_no_run(path), path=path)

    if not os.path.isfile(path / COMPARISON_FILE):
        raise DataError(
            f"'{path}' is neither the folder of a run nor that of a comparison.{name_runs(path)}",
            path=path,
            allowed=f"a folder that holds experiment.toml or {COMPARISON_FILE}",
        )

    # The others have not begun.
    return [folder for folder in list_runs(path) if holds_run(folder)]


def _runs_by_seed(run: RunRecords) -> dict[int, RunRecords]:
    if "seeds" in run.config:
        return dict(run.seeds)

    seed = run.config.get("seed", 0)
    if type(seed) is not int:
        raise damaged(run.path / "experiment.toml", "seed must be a whole number")

    return {seed: run}


def _check_name(config: Mapping[str, Any], run: RunRecords) -> None:
    """Check that a configuration names its algorithm."""
    section = config.get("algorithm")
    name = section.get("name") if isinstance(section, Mapping) else None
    if not isinstance(name, str) or not name:
        raise damaged(run.path / "experiment.toml", "[algorithm] must hold a name")
