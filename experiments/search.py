"""Table 4 of pFedVEM: its grids, searched on validation examples.

Zhu et al. 2023, "Confidence-aware personalized federated learning via variational expectation
maximization", CVPR, appendix C. The paper searches with 100 clients and does not print what it
chose, nor by which examples. Here a fifth of every client's training examples chooses, and trials
that lag behind get fewer rounds. A search has at most 27 trials, since the best of more is higher
by chance; of a larger grid, they are drawn at random.
``experiments/PAPER/trials.csv`` has every trial.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.cells import Cell, expand
from experiments.paper import FOLDER, Paper, Search
from fedtailor.core.atomic import safe_name, write_whole
from fedtailor.core.errors import find_name
from fedtailor.experiment.config import make_config
from fedtailor.experiment.sweep import sweep
from fedtailor.experiment.tracking import RunProgress

MOST_TRIALS = 27
"""Of a method: the whole grid of most of them."""
_VALIDATION_SHARE = 0.2
_HALVING = 3
_HEAD = ("search", "rounds", "values", "validation_percent")


class Trial(NamedTuple):
    """A line of ``trials.csv``: some rounds with some values."""

    search: str
    rounds: int
    values: str
    validation_percent: float


def run_search(
    paper: Paper,
    name: str,
    *,
    data_dir: str = "",
    folder: Path = FOLDER,
    progress: RunProgress | None = None,
    announce: Callable[[str], None] | None = None,
) -> None:
    """Search the grid of a method, or what is left of it, and write its trials.

    Args:
        paper: of the search.
        name: of the search, which is that of a method.
        data_dir: folder of the data sets.
        folder: the folder of the papers.
        progress: is told about every round.
        announce: is told a sentence before every trial.
    """
    search = find_search(paper, name)
    cell = expand(paper, search.table, search.column, name)
    data = {**cell.values["data"], "val_fraction": _VALIDATION_SHARE}
    overrides = [("data.dir", data_dir)] if data_dir else []
    result = sweep(
        make_config({**cell.values, "data": data}, overrides),
        values=search.values,
        trials=MOST_TRIALS,
        halving=_HALVING,
        out=search_folder(cell),
        progress=progress,
        announce=announce,
    )
    (of_method,) = result["methods"]
    add_trials(paper, name, of_method["trials"], folder)


def find_search(paper: Paper, name: str) -> Search:
    """Return a search of a paper.

    Raises:
        ConfigError: there is no such search.
    """
    return paper.searches[find_name(f"search of {paper.name}", name, paper.searches, key="search")]


def search_folder(cell: Cell) -> Path:
    """Return the folder of a search, where an interrupted one resumes."""
    return Path("runs") / safe_name(f"search-{cell.paper.name}-{cell.column}-{cell.method}")


def read_trials(paper: Paper, folder: Path = FOLDER) -> list[Trial]:
    """Return the trials of all searches of a paper."""
    path = folder / paper.name / "trials.csv"
    if not path.exists():
        return []

    with path.open(newline="") as file:
        return [_trial(line) for line in csv.DictReader(file)]


def trials_of(paper: Paper, name: str, folder: Path = FOLDER) -> list[Trial]:
    """Return the trials of one search."""
    return [trial for trial in read_trials(paper, folder) if trial.search == name]


def add_trials(
    paper: Paper, name: str, trials: Sequence[dict[str, Any]], folder: Path = FOLDER
) -> None:
    """Add the trials of a search to the file, in place of those of an earlier one."""
    kept = [trial for trial in read_trials(paper, folder) if trial.search != name]
    for trial in trials:
        values = ", ".join(f"{key}={value}" for key, value in trial["values"].items())
        for step in trial["steps"]:
            percent = round(100 * step["validation"], 1)
            kept.append(Trial(name, step["rounds"], values, percent))

    path = folder / paper.name / "trials.csv"
    write_whole(path, "".join(map(_line, [_HEAD, *kept])))


def _trial(line: dict[str, str]) -> Trial:
    percent = float(line["validation_percent"])
    return Trial(line["search"], int(line["rounds"]), line["values"], percent)


def _line(cells: Sequence[Any]) -> str:
    """Return a line of the file; only values have commas."""
    return ",".join(f'"{cell}"' if "," in str(cell) else str(cell) for cell in cells) + "\n"
