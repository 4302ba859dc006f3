"""The labels of tables: which column holds them, and which classes they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedtailor.data.own.cells import Cells, Table
from fedtailor.data.own.facts import Labels
from fedtailor.data.own.findings import Findings
from fedtailor.data.own.names import At, counted, listed, show
from fedtailor.data.own.patterns import (
    DATE,
    MISSING_LABELS,
    is_like_label,
    is_number,
    looks_like_regression,
    option_text,
    share_like,
)
from fedtailor.data.own.rules import ALL_LABELS, LABELS, check

USUAL_NAME = "label"

_FEW = 20
"""Most different values of a column that is suggested."""
_SUGGESTED = 3
"""Most columns that are suggested."""


def name_classes(
    name: str, tables: Sequence[Table], findings: Findings
) -> tuple[tuple[str, ...], np.ndarray] | None:
    """Return the names of the classes, and the labels of all rows of all tables (rows,), int64.

    If every label of every table is a whole number, however it is written (``3``, ``3.0``), the
    classes are those numbers in their order. Otherwise the classes are the labels as text, sorted,
    with a warning if some are numbers. Names are made safe to print.

    Returns:
        None, with the problems added, if the labels cannot be classes.
    """
    columns = [table.columns[name] for table in tables]
    texts = dict.fromkeys(text for cells in columns for text in cells.texts)
    examples = sum(len(cells) for cells in columns)
    labels = Labels(show(name), list(texts), examples, lambda text: _find(text, name, tables))
    if not check(LABELS, labels, tables[0].place) or not check(ALL_LABELS, labels, findings.place):
        return None

    y = []
    for cells in columns:
        codes = np.array([labels.codes[text] for text in cells.texts], dtype=np.int64)
        y.append(codes[cells.codes])

    return tuple(labels.class_names), np.concatenate(y)


def _find(text: str, name: str, tables: Sequence[Table]) -> At:
    """Return the first row with a label."""
    for table in tables:
        at = table.columns[name].at(lambda other: other == text)
        if at is not None and at.row is not None:
            return At(table.lines[at.row], show(text), place=table.place)

    raise ValueError(text)


def guess_label(tables: Sequence[Table], group: str, findings: Findings) -> str | None:
    """Return the column of the labels; None, with the problem added, if it is not obvious.

    It is obvious if exactly one name in all tables is like a label, and its column can hold labels.
    """
    if not tables:
        return USUAL_NAME  # no table can be read, which is reported

    ignored = {group, "split", "image"}
    names = dict.fromkeys(name for table in tables for name in table.names if name not in ignored)
    columns = {
        name: [table.columns[name] for table in tables if name in table.columns] for name in names
    }
    named = [name for name in names if is_like_label(name)]
    fitting = [name for name in named if _can_be_label(columns[name])]
    if len(fitting) == 1:
        if fitting[0] != USUAL_NAME:
            note = f"The labels are in column {show(fitting[0])}, because of its name"
            findings.note(f"{note}; {option_text('label_column', 'NAME')} takes another.")

        return fitting[0]

    # Columns whose name says nothing: text before numbers, and the last column first.
    candidates = [name for name in reversed(names) if name not in fitting]
    others = [name for name in candidates if _is_likely(columns[name])]
    others.sort(key=lambda name: _are_numbers(_texts_of(columns[name])))
    if len(named) == 1 and (named[0] == USUAL_NAME or not others):
        return named[0]  # reading it says why it cannot hold labels

    _suggest(fitting, others, columns, tables[0], findings)
    return None


def _texts_of(columns: Sequence[Cells]) -> list[str]:
    texts = dict.fromkeys(text for cells in columns for text in cells.texts)
    return [text for text in texts if text.lower() not in MISSING_LABELS]


def _are_numbers(texts: Sequence[str]) -> bool:
    return all(is_number(text) for text in texts)


def _can_be_label(columns: Sequence[Cells]) -> bool:
    """Return whether cells can be labels: text, or whole numbers that are no regression target."""
    texts = _texts_of(columns)
    if not texts or share_like(DATE, texts) > 0.5:
        return False

    if not _are_numbers(texts):
        return True

    is_whole = all(float(text).is_integer() for text in texts)
    return is_whole and not looks_like_regression(len(texts), sum(map(len, columns)))


def _is_likely(columns: Sequence[Cells]) -> bool:
    """Return whether a column has few values that all appear several times on average."""
    if any(cells.is_full for cells in columns) or not _can_be_label(columns):
        return False

    texts = _texts_of(columns)
    has_empty = any(cells.at(lambda text: text.lower() in MISSING_LABELS) for cells in columns)
    return not has_empty and 2 <= len(texts) <= min(_FEW, sum(map(len, columns)) / 2)


def _suggest(
    named: Sequence[str],
    others: Sequence[str],
    columns: Mapping[str, Sequence[Cells]],
    table: Table,
    findings: Findings,
) -> None:
    """Add the problem that no column is obviously that of the labels, with the likely ones."""
    if named:
        message = f"Several columns could hold the labels by their name: {listed(named, 20)}."
    else:
        names = listed(columns, 20)
        message = f"No column is obviously the one with the labels; the columns are: {names}."

    choices = []
    for name in [*named, *others][:_SUGGESTED]:
        values = counted(len(_texts_of(columns[name])), "value")
        choices.append(f"{option_text('label_column', name)} ({values})")

    if choices:
        message += f" Say which one it is, such as {' or '.join(choices)}."
    else:
        message += f" Say which one it is: {option_text('label_column', 'NAME')}."

    findings.add("missing_label_column", message, path=table.place.path)
