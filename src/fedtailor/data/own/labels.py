"""The labels of tables: which column holds them, and which classes they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fedtailor.core.text import counted, escaped, listed, quoted, sorted_classes
from fedtailor.data.own.cells import Cells, Table
from fedtailor.data.own.findings import Finding, Findings
from fedtailor.data.own.kinds import NO_REGRESSION, SEVERAL_LABELS
from fedtailor.data.own.patterns import (
    DATE,
    MAX_CLASSES,
    MISSING_LABELS,
    REGRESSION_VALUES,
    is_like_label,
    is_missing_word,
    is_number,
    label_number,
    looks_like_regression,
    option_text,
    several_labels,
    share_like,
)

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
    with a warning if some are numbers; a whole number is called the same in both cases. Names are
    made safe to print.

    Returns:
        None, with the problems added, if the labels cannot be classes.
    """
    columns = [table.columns[name] for table in tables]
    texts = dict.fromkeys(text for cells in columns for text in cells.texts)
    numbers = {text: label_number(text) for text in texts}
    examples = sum(len(cells) for cells in columns)
    title = f"Column {quoted(name)}"

    # Wrong kinds of labels first: their number says nothing then.
    several = several_labels(list(texts))
    if several:
        message = f"{title} holds several labels in one cell, such as {quoted(several)}. "
        _refuse("several_labels", message + SEVERAL_LABELS, several, name, tables)
        return None

    if None in numbers.values():
        class_of = {}
        for text, number in numbers.items():
            # A whole number has one name, whatever the other labels are.
            class_of[text] = str(number) if isinstance(number, int) else escaped(text)
        class_names = sorted_classes(class_of.values())
    else:
        fraction = next((text for text in texts if isinstance(numbers[text], float)), "")
        if fraction:
            message = f"Labels must be text or whole numbers: column {quoted(name)} holds "
            message += f"{quoted(fraction)}. {NO_REGRESSION}"
            _refuse("float_label", message, fraction, name, tables)
            return None

        class_of = {text: str(number) for text, number in numbers.items()}
        class_names = sorted_classes(class_of.values())
        tables[0].place.check(find_regression(quoted(name), len(class_names), examples))

    # Numbers among texts are classes of their own, which is rarely meant.
    with_number = [text for text, number in numbers.items() if number is not None]
    if 0 < len(with_number) < len(texts):
        text = next(text for text, number in numbers.items() if number is None)
        message = f"{title} holds numbers such as {quoted(with_number[0])} and text such as "
        findings.add("mixed_labels", f"{message}{quoted(text)}. Each is a separate class.")

    if len(class_names) > MAX_CLASSES:
        message = f"{title} holds {len(class_names)} different labels; at most {MAX_CLASSES} are "
        findings.add("too_many_classes", f"{message}read.")
        return None

    # Labels become numbers of their classes, table by table.
    position = {name: code for code, name in enumerate(class_names)}
    codes = {text: position[name] for text, name in class_of.items()}
    y = np.concatenate([cells.look_up(codes.__getitem__, np.int64) for cells in columns])
    for text, code in codes.items():
        if is_missing_word(text):
            rows = counted(int((y == code).sum()), "row")
            message = f"{title} holds {quoted(text)} in {rows}, which may stand for no label. Here "
            findings.add("doubtful_label", f"{message}it is a class; if not, remove these rows.")

    # Whole numbers like that look like a regression.
    num_single = int((np.bincount(y) == 1).sum())
    if len(class_names) > _FEW and None in numbers.values() and 2 * num_single > len(class_names):
        message = (
            f"{title} holds {len(class_names)} classes, {num_single} of them in one row only, such "
            f"as {quoted(class_names[0])}. Perhaps these are names of cases; "
            f"{option_text('label_column', 'NAME')} takes another column."
        )
        findings.add("single_rows", message)

    return tuple(class_names), y


def _refuse(kind: str, message: str, text: str, name: str, tables: Sequence[Table]) -> None:
    """Add the problem of a label to its first row."""
    for table in tables:
        at = table.columns[name].at(lambda other: other == text)
        if at is not None:
            table.place.add(kind, message, table.lines[at.row])
            return


def find_regression(name: str, values: int, examples: int) -> list[Finding]:
    """Return the problem of labels, different whole numbers, that look like a regression."""
    if values <= REGRESSION_VALUES:
        return []

    if not looks_like_regression(values, examples):
        message = (
            f"The labels in {name} are {values} different whole numbers, each a class of its own. "
            "If they are amounts, such as days, make a few ranges of them."
        )
        return [Finding("many_numbers", message)]

    message = (
        f"The labels in {name} look like a regression target: {values} different whole numbers "
        f"with {examples / values:.1f} examples each. Only classification is supported; if the "
        "numbers are classes, write texts such as 'class 7', or give class_names with arrays."
    )
    return [Finding("likely_regression", message)]


def guess_label(tables: Sequence[Table], others: Collection[str], findings: Findings) -> str | None:
    """Return the column of the labels; None, with the problem added, if it is not obvious.

    It is obvious if exactly one name in all tables is like a label, and its column can hold labels.
    The columns ``others`` are for something else.
    """
    if not tables:
        return USUAL_NAME  # no table can be read, which is reported

    columns: dict[str, list[Cells]] = {}
    for table in tables:
        for name, cells in table.columns.items():
            if name not in ("split", "image", *others):
                columns.setdefault(name, []).append(cells)

    # A name like 'diagnosis' decides, if the cells of its column can be labels.
    named = [name for name in columns if is_like_label(name)]
    fitting = [name for name in named if _can_be_label(columns[name])]
    if len(fitting) == 1:
        if fitting[0] != USUAL_NAME:
            note = f"The labels are in column {quoted(fitting[0])}, because of its name"
            findings.note(f"{note}; {option_text('label_column', 'NAME')} takes another.")

        return fitting[0]

    # Columns whose name says nothing: text before numbers, and the last column first.
    candidates = [name for name in reversed(columns) if name not in fitting]
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
    """Return whether cells can be labels: text, or whole numbers that are not a target."""
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

    has_empty = any(text.lower() in MISSING_LABELS for cells in columns for text in cells.texts)
    most = min(_FEW, sum(map(len, columns)) / 2)
    return not has_empty and 2 <= len(_texts_of(columns)) <= most


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
