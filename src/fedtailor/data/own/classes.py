"""Classes of tables: the labels of all sites, put in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedtailor.data.own.names import safe_name
from fedtailor.data.own.place import MAX_CLASSES, show
from fedtailor.data.own.report import Findings
from fedtailor.data.own.table import Table


def name_classes(
    tables: Sequence[Table], label_column: str, findings: Findings
) -> tuple[tuple[str, ...], list[np.ndarray]] | None:
    """Return the names of the classes and the labels of each table (rows,), int64; None where they cannot be classes.

    If every label of every table is a whole number, however it is written (``3``, ``3.0``), the classes are those
    numbers in their order. Else the classes are the labels as text, sorted, with a warning where some are numbers.
    Names are made safe to print.
    """
    texts = {label for table in tables for label in table.cells.labels}
    numbers = {text: _number(text) for text in texts}
    if None not in numbers.values():
        fraction = next((text for text in sorted(texts) if not isinstance(numbers[text], int)), None)
        if fraction is not None:
            _refuse_fraction(tables, label_column, fraction)
            return None
        order = {
            number: place for place, number in enumerate(sorted({int(n) for n in numbers.values() if n is not None}))
        }
        names = [str(number) for number in order]
        codes = {text: order[int(number)] for text, number in numbers.items() if number is not None}
    else:
        names = sorted({safe_name(text) for text in texts})
        position = {name: place for place, name in enumerate(names)}
        codes = {text: position[safe_name(text)] for text in texts}
        _warn_of_numbers(numbers, label_column, findings)
    if len(names) > MAX_CLASSES:
        shown = show(label_column)
        message = f"Column {shown} holds {len(names)} different labels; at most {MAX_CLASSES} classes are read."
        findings.add("error", "too_many_classes", "", "", message)
        return None
    return tuple(names), [np.array([codes[label] for label in table.cells.labels], dtype=np.int64) for table in tables]


def _number(text: str) -> int | float | None:
    """Return a whole number as int, another number as float, None for text."""
    if "_" in text:  # Python reads 1_2 as 12
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else value


def _warn_of_numbers(numbers: Mapping[str, int | float | None], label_column: str, findings: Findings) -> None:
    """Warn where some labels are numbers and others are not: sites may write the same classes differently."""
    number = next((text for text in sorted(numbers) if numbers[text] is not None), None)
    if number is not None:
        other = next(text for text in sorted(numbers) if numbers[text] is None)
        message = f"Column {show(label_column)} holds numbers such as {show(number)} and text such as {show(other)}."
        findings.add("warning", "mixed_labels", "", "", f"{message} Each is a class of its own.")


def _refuse_fraction(tables: Sequence[Table], label_column: str, fraction: str) -> None:
    """Add the problem of labels that are numbers but no whole ones, where the first is."""
    table = next(table for table in tables if fraction in table.cells.labels)
    line = table.cells.lines[table.cells.labels.index(fraction)]
    message = f"Labels must be text or whole numbers: column {show(label_column)} holds {show(fraction)}."
    table.place.error("float_label", message, line)
