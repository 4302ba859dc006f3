"""Heart disease at four hospitals: the processed files of the UCI repository, one a hospital.

A line is a patient: thirteen measurements and the diagnosis, divided by commas; 0 is healthy, 1 to
4 are diseases. ``?`` or -9 is an empty cell. Janosi, Steinbrunn, Pfisterer and Detrano 1989, "Heart
Disease", UCI Machine Learning Repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedtailor.data.columns import RawColumn, RawTable
from fedtailor.data.dataset import AS_THEY_ARE, Dataset
from fedtailor.data.files import Files, wrong_content

_SITES = {
    "Cleveland": "cleveland",
    "Budapest": "hungarian",
    "Switzerland": "switzerland",
    "Long Beach": "va",
}
"""The part of the file's name, by hospital."""
_COLUMNS = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal".split()
_NEVER_ZERO = ("trestbps", "chol")
"""Blood pressure and cholesterol: 0 is written where nothing was measured."""
_DIAGNOSES = range(5)
_NOT_MEASURED = -9.0


def load(files: Files) -> Dataset:
    """Load the four hospitals, each a domain, from heart/processed.*.data.

    The label is 1 if the diagnosis is any disease. Cells are as read; a blood pressure or
    cholesterol of 0 is an empty one.

    Raises:
        DataError: a file is missing or damaged.
    """
    tables = []
    for part in _SITES.values():
        path = files.find(f"heart/processed.{part}.data")
        tables.append(_read(files.read_text(path), path))

    rows = np.concatenate(tables)
    cells = rows[:, :-1]
    for name in _NEVER_ZERO:
        column = cells[:, _COLUMNS.index(name)]
        column[column == 0] = np.nan

    return Dataset(
        name=files.dataset,
        x=cells.astype(np.float32),
        y=(rows[:, -1] > 0).astype(np.int64),
        num_classes=2,
        class_names=("healthy", "disease"),
        domains=np.repeat(np.arange(len(tables)), [len(table) for table in tables]),
        domain_names=tuple(_SITES),
        raw=RawTable(tuple(RawColumn(name) for name in _COLUMNS)),
        normalize=AS_THEY_ARE,
        white=1.0,
        sources=files.sources,
    )


def _numbers_of(cells: Sequence[str], line: int, path: Path) -> list[float]:
    """Return the cells of a line as numbers; NaN: the cell is empty."""
    numbers = []
    for name, cell in zip((*_COLUMNS, "diagnosis"), cells, strict=True):
        try:
            numbers.append(float("nan" if cell.strip() == "?" else cell))
        except ValueError:
            allowed = f"a number or ? as {name} in line {line}"
            raise wrong_content(path, allowed, repr(cell)) from None

    return numbers


def _read(text: str, path: Path) -> np.ndarray:
    """Return the cells of a hospital and the diagnosis, (rows, 14); NaN: the cell is empty."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.split(",")
        if len(cells) != len(_COLUMNS) + 1:
            allowed = f"{len(_COLUMNS) + 1} values divided by commas in line {number}"
            raise wrong_content(path, allowed, f"{len(cells)}")

        rows.append(_numbers_of(cells, number, path))

    if not rows:
        raise wrong_content(path, "a line for each patient", "none")

    table = np.array(rows)
    table[table == _NOT_MEASURED] = np.nan
    if not np.isin(table[:, -1], _DIAGNOSES).all():  # an empty one would count as healthy
        raise wrong_content(path, "diagnoses from 0 to 4", "another")
    return table
