"""The methods of a comparison: run folders read back, by the labels under which they are shown. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor.core.errors import DataError
from fedtailor.core.options import show
from fedtailor.core.reading import read_object
from fedtailor.experiment.records import Run, holds_run, read_run

COMPARISON_FILE = "comparison.json"
"""In the folder of a comparison: names the folders of its runs."""
_LEFT_OUT_OF_LABELS = frozenset({"seed", "seeds", "data.dir", "engine.name", "engine.workers", "checkpoint.every"})
"""Keys that never tell two methods apart."""


@dataclass(frozen=True)
class Method:
    """A method with its settings, and its runs."""

    label: str
    """The name of the algorithm; if others have the same name, with the settings in which they differ."""
    path: Path
    """The run folder."""
    runs: Mapping[int, Run]
    """The runs by seed, finished or not."""

    @property
    def finished(self) -> dict[int, Run]:
        """The runs that have a result."""
        return {seed: run for seed, run in self.runs.items() if run.result is not None}

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the first run."""
        return next(iter(self.runs.values())).config

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return str(self.config["algorithm"]["name"])


def read_methods(paths: Sequence[str | Path]) -> list[Method]:
    """Read run folders, and the run folders that belong to comparisons.

    Args:
        paths: folders of runs, of one or several seeds, or of comparisons.

    Raises:
        DataError: a folder is neither, or a file is damaged.
    """
    folders = [folder for path in paths for folder in _run_folders(Path(path))]
    runs = {folder: _runs(read_run(folder)) for folder in folders}
    configs = [next(iter(own.values())).config for own in runs.values()]
    labels = label_methods(configs)
    return [
        Method(label=label, path=folder, runs=own) for label, (folder, own) in zip(labels, runs.items(), strict=True)
    ]


def label_methods(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a label for every configuration: the algorithm, and in brackets the settings that tell it from others.

    >>> label_methods([{"algorithm": {"name": "ditto"}}, {"algorithm": {"name": "fedavg"}}])
    ['ditto', 'fedavg']
    >>> label_methods([{"algorithm": {"name": "ditto", "penalty": penalty}} for penalty in (0.1, 1.0)])
    ['ditto (penalty=0.1)', 'ditto (penalty=1.0)']
    """
    names = [str(config["algorithm"]["name"]) for config in configs]
    labels = []
    for name, config in zip(names, configs, strict=True):
        own = dict(_flat(config))
        others = [dict(_flat(other)) for other, other_name in zip(configs, names, strict=True) if other_name == name]
        keys = [key for key in own if any(other.get(key) != own[key] for other in others)]
        different = [f"{key.removeprefix('algorithm.')}={show(own[key])}" for key in keys]
        labels.append(f"{name} ({', '.join(different)})" if different else name)
    return [_numbered(label, labels[:place]) for place, label in enumerate(labels)]


def _numbered(label: str, before: Sequence[str]) -> str:
    """Return a label with a number if the same one came before."""
    earlier = sum(other == label for other in before)
    return f"{label} #{earlier + 1}" if earlier else label


def _run_folders(path: Path) -> list[Path]:
    """Return the run folders that a path stands for.

    Raises:
        DataError: it is neither a run nor a comparison.
    """
    if holds_run(path):
        return [path]
    if not (path / COMPARISON_FILE).is_file():
        raise DataError(
            f"'{path}' is neither the folder of a run nor that of a comparison.",
            path=str(path),
            allowed=f"a folder that holds experiment.toml or {COMPARISON_FILE}",
        )
    found = read_object(path / COMPARISON_FILE, within=path)
    names = found.get("runs")
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise DataError(f"'{path / COMPARISON_FILE}' is damaged: 'runs' must be a list of folders.", path=str(path))
    return [path / name for name in names if holds_run(path / name)]


def _runs(run: Run) -> dict[int, Run]:
    """Return the runs of the single seeds."""
    return dict(run.seeds) if "seeds" in run.config else {int(run.config.get("seed", 0)): run}


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the values of nested tables by their dotted keys, without those that never tell methods apart."""
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        elif key not in _LEFT_OUT_OF_LABELS:
            yield key, value
