"""Decimal commas, separators of thousands, and values that mean missing: texts to rewrite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from fedtailor.data.cell_rules import CellRules
from fedtailor.data.own.cells import Cells, Rewrite, Table
from fedtailor.data.own.patterns import (
    DECIMAL_COMMA,
    THOUSANDS_COMMA,
    THOUSANDS_POINT,
    category_in,
    cell_of,
    is_number,
    matches,
    number_or_none,
)

Meaning = Literal["comma", "point"]
"""What a comma is in the numbers of a column: the decimal point, or a separator of thousands."""


def find_meanings(table: Table, names: Iterable[str], rules: CellRules) -> dict[str, Meaning]:
    """Return what commas are in the columns of a table that have numbers with a comma.

    A column is left out if its commas cannot be either, or if they can be both and nothing tells:
    ``1,234`` is a decimal beside a column of ``0,5``, and else what it was in training; without
    that, it is a decimal in a table with semicolons between the cells. Where commas are decimals,
    columns of numbers such as ``1.250`` have thousands.
    """
    columns = {name: table.columns[name] for name in names if not table.columns[name].is_typed}
    meanings: dict[str, Meaning] = {}
    unclear = []
    for name, cells in columns.items():
        possible = _possible_meanings(cells, rules)
        if len(possible) == 1:
            meanings[name] = possible[0]
        elif possible:
            unclear.append(name)

    # Columns of one table are written alike, and tables of one site as those in training.
    decimal = rules.decimal
    if meanings:
        decimal = "comma" if "comma" in meanings.values() else "point"
    elif decimal == "auto":
        decimal = rules.in_training
        if decimal == "comma" and any(map(_has_decimal_point, columns.values())):
            decimal = "auto"

    if decimal == "auto" and unclear and table.delimiter == ";":
        decimal = "comma"

    if decimal != "auto":
        meanings |= dict.fromkeys(unclear, decimal)
    if decimal == "comma":
        for name, cells in columns.items():
            if _has_thousands_only(cells):
                meanings[name] = "comma"

    return meanings


def _possible_meanings(cells: Cells, rules: CellRules) -> list[Meaning]:
    if cells.text_at is None:
        return []

    texts = [text for text in cells.texts if number_or_none(text) is None]
    meanings: list[Meaning] = []
    if rules.decimal != "point" and all(matches(DECIMAL_COMMA, text) for text in texts):
        meanings.append("comma")

    if rules.decimal != "comma" and all(matches(THOUSANDS_COMMA, text) for text in texts):
        meanings.append("point")

    # Beside 1.234,5 a text 1.234 is a thousand; beside 1,5 nobody can know what 1.5 is.
    if meanings == ["comma"] and rules.decimal == "auto":
        has_thousands = any("." in text for text in texts)
        points = _numbers_with_point(cells)
        if any(not has_thousands or not matches(THOUSANDS_POINT, text) for text in points):
            return []

    return meanings


def _numbers_with_point(cells: Cells) -> list[str]:
    return [text for text in cells.texts if "." in text and is_number(text)]


def _has_decimal_point(cells: Cells) -> bool:
    """Return whether some number has a point that cannot separate thousands."""
    points = _numbers_with_point(cells)
    return cells.has_decimal_point or any(not matches(THOUSANDS_POINT, text) for text in points)


def _has_thousands_only(cells: Cells) -> bool:
    """Return whether there are numbers with points alone, all of which can separate thousands."""
    has_points = cells.has_thousands_point or bool(_numbers_with_point(cells))
    return cells.text_at is None and has_points and not _has_decimal_point(cells)


def rewrites(rules: CellRules, meanings: Mapping[str, Meaning]) -> dict[str, Rewrite]:
    """Return how the texts of columns are rewritten; columns whose texts stay are left out."""
    result: dict[str, Rewrite] = {}
    for name in {*rules.missing_values, *meanings}:
        values = rules.missing_values.get(name, ())
        missing = frozenset(category_in(cell_of(value)) for value in values)
        result[name] = _rewrite(meanings.get(name), missing)

    return result


def _rewrite(meaning: Meaning | None, missing: frozenset[str]) -> Rewrite:
    def rewrite(text: str) -> str:
        if meaning == "point" and matches(THOUSANDS_COMMA, text):
            text = text.replace(",", "")
        elif meaning == "comma" and _is_with_comma(text):
            text = text.replace(".", "").replace(",", ".")

        return "" if missing and category_in(text) in missing else text

    return rewrite


def _is_with_comma(text: str) -> bool:
    return matches(DECIMAL_COMMA, text) or matches(THOUSANDS_POINT, text)
