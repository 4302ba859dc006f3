"""The column of the labels, if the user did not name it: taken only if the choice is obvious."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fedtailor.data.own.cells import is_number, text_of
from fedtailor.data.own.csv_table import LONGEST_HEADER, find_delimiter
from fedtailor.data.own.findings import Findings, counted, looks_like_regression, show
from fedtailor.data.own.names import safe_name
from fedtailor.data.own.table import IMAGE, MISSING_LABEL, SPLIT, listed_columns, option_text
from fedtailor.data.own.text_columns import holds_dates

NAMES = ("label", "class", "target", "y", "diagnosis", "outcome")
"""Names of a column of labels; spelled in any case, in the plural, or joined with another of them
(``class_label``)."""

_LIKE = re.compile(r"(label|class|target|y|diagnosis|diagnose|outcome)(e?s)?((label|class)(e?s)?)?")
_ROWS = 1_000
"""Rows of a table that are looked at."""
_BYTES = 2**22
_FEW = 20
"""Most different values of a column that is suggested."""
_SHOWN = 3

Sample = Mapping[str, Sequence[str]]
"""The first cells of every column, by name."""


def is_like_label(name: str) -> bool:
    """Return whether a name says that a column holds the labels.

    >>> is_like_label("Class_Label"), is_like_label("OUTCOME"), is_like_label("age")
    (True, True, False)
    """
    return _LIKE.fullmatch(re.sub(r"[\W_]+", "", name).lower()) is not None


def guess_label(paths: Sequence[Path], group: str, findings: Findings) -> str | None:
    """Return the column of the labels of all tables; None, with the problem added, if it is not
    obvious.

    It is obvious if exactly one name in all tables is like a label, and its column can hold labels.
    """
    samples = [(path, sample) for path in paths if (sample := _sample(path)) is not None]
    if not samples:
        return NAMES[0]  # no table can be read: reading them says why

    ignored = {group, SPLIT, IMAGE}
    names = list(
        dict.fromkeys(name for _, sample in samples for name in sample if name not in ignored)
    )

    def cells_of(name: str) -> list[str]:
        return [cell for _, sample in samples for cell in sample.get(name, ())]

    named = {name: cells_of(name) for name in names if is_like_label(name)}
    fitting = [name for name in named if can_be_label(named[name])]
    if len(fitting) == 1:
        if fitting[0] != NAMES[0]:
            note = f"The labels are in column {show(fitting[0])}, because of its name"
            findings.notes.append(f"{note}; {option_text('label_column', 'NAME')} takes another.")

        return fitting[0]

    cells = {name: cells_of(name) for name in names}
    others = [name for name in names[::-1] if name not in fitting and _is_likely(cells[name])]
    if len(named) == 1 and (NAMES[0] in named or not others):
        return next(iter(named))  # reading it says why it cannot hold labels

    others.sort(key=lambda name: all(is_number(cell) for cell in cells[name]))  # text first
    _refuse(safe_name(samples[0][0].name), fitting, others, cells, findings)
    return None


def can_be_label(cells: Sequence[str]) -> bool:
    """Return whether cells can be labels: text, or whole numbers that do not look like a regression
    target.
    """
    texts = {cell for cell in cells if cell.lower() not in MISSING_LABEL}
    if not texts or holds_dates(texts):
        return False
    if not all(is_number(text) for text in texts):
        return True
    is_whole = all(float(text).is_integer() for text in texts)
    return is_whole and not looks_like_regression(len(texts), len(cells))


def _refuse(
    path: str,
    named: Sequence[str],
    others: Sequence[str],
    cells: Mapping[str, Sequence[str]],
    findings: Findings,
) -> None:
    """Add the problem that no column is obviously that of the labels, with the likely ones."""
    likely = [*named, *others]
    if named:
        message = f"Several columns could hold the labels by their name: {listed_columns(named)}."
    else:
        message = f"No column is obviously the one with the labels; the columns are: {listed_columns(list(cells))}."

    if likely:
        choices = [
            f"{option_text('label_column', name)} ({_count(cells[name])})"
            for name in likely[:_SHOWN]
        ]
        message += f" Say which one it is, such as {' or '.join(choices)}."
    else:
        message += f" Say which one it is: {option_text('label_column', 'NAME')}."

    findings.add("error", "missing_label_column", "", path, message)


def _is_likely(cells: Sequence[str]) -> bool:
    """Return whether a column whose name says nothing has few values that all appear several times
    on average.
    """
    if not can_be_label(cells) or any(cell.lower() in MISSING_LABEL for cell in cells):
        return False
    return 2 <= len(set(cells)) <= min(_FEW, len(cells) / 2)


def _count(cells: Collection[str]) -> str:
    return counted(len({cell for cell in cells if cell}), "value")


def _sample(path: Path) -> Sample | None:
    """Return the first rows of a table; None if it cannot be read, which is reported when it is
    read as a whole.
    """
    try:
        if path.suffix.lower() == ".csv":
            names, rows = _first_of_csv(path)
        else:
            names, rows = _first_of_parquet(path)
    except Exception:  # damaged files raise exceptions of many kinds
        return None

    columns: dict[str, list[str]] = {}
    for place, name in enumerate(names):
        cells = [row[place].strip() for row in rows if len(row) == len(names)]
        if name.strip():
            columns[safe_name(name.strip())] = cells

    return columns or None


def _first_of_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open("rb") as file:
        raw = file.read(_BYTES)
        is_cut = bool(file.read(1))

    text = raw.decode("utf-8-sig", errors="ignore" if is_cut else "strict")
    lines = io.StringIO(text, newline="")
    delimiter = find_delimiter(lines.readline(LONGEST_HEADER), count_like_labels)
    lines.seek(0)
    rows = list(itertools.islice(csv.reader(lines, delimiter=delimiter), _ROWS + 1))

    return rows[0], rows[1 : len(rows) - is_cut]  # the last line may be cut


def _first_of_parquet(path: Path) -> tuple[list[str], list[list[str]]]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        batch = next(file.iter_batches(batch_size=_ROWS), None)
        names = list(file.schema_arrow.names)

    if batch is None:
        return names, []

    columns = [[text_of(value) for value in column.to_pylist()] for column in batch.columns]
    return names, [list(row) for row in zip(*columns, strict=True)]


def count_like_labels(names: Collection[str]) -> int:
    """Return how many names say that a column holds the labels."""
    return sum(is_like_label(name) for name in names)
