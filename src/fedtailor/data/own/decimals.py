"""Decimal commas, separators of thousands, and values that mean missing: texts to rewrite."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from fedtailor.data.cell_rules import CellRules
from fedtailor.data.own.cells import Cells, Rewrite, Table
from fedtailor.data.own.patterns import (
    DECIMAL_COMMA,
    THOUSANDS_COMMA,
    category_in,
    cell_of,
    is_number,
    matches,
    number_or_none,
)

Meaning = Literal["comma", "point"]
"""What a comma is in the numbers of a column: the decimal point, or a separator of thousands."""

_THOUSANDS_POINT = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?")


def find_meanings(table: Table, names: Iterable[str], rules: CellRules) -> dict[str, Meaning]:
    """Return what commas are in the columns of a table that have numbers with a comma.

    A column is left out if its commas cannot be either, or if they can be both and nothing tells:
    ``1,234`` is a decimal in a table with semicolons between the cells, or beside a column of
    ``0,5``.
    """
    meanings: dict[str, Meaning] = {}
    unclear = []
    for name in names:
        possible = _possible_meanings(table.columns[name], rules)
        if len(possible) == 1:
            meanings[name] = possible[0]
        elif possible:
            unclear.append(name)

    # Columns of one table are written alike.
    if table.delimiter == ";" or "comma" in meanings.values():
        meanings |= dict.fromkeys(unclear, "comma")
    elif meanings:
        meanings |= dict.fromkeys(unclear, "point")

    return meanings


def _possible_meanings(cells: Cells, rules: CellRules) -> list[Meaning]:
    texts = [text for text in cells.texts if number_or_none(text) is None]
    if not texts:
        # Where the user says that commas are decimal points, 1.250 is a thousand, also alone.
        has_thousands = any(matches(_THOUSANDS_POINT, text) for text in cells.texts)
        return ["comma"] if rules.decimal == "comma" and has_thousands else []

    meanings: list[Meaning] = []
    if rules.decimal != "point" and all(matches(DECIMAL_COMMA, text) for text in texts):
        meanings.append("comma")

    if rules.decimal != "comma" and all(matches(THOUSANDS_COMMA, text) for text in texts):
        meanings.append("point")

    # Beside 1.234,5 a text 1.234 is a thousand; beside 1,5 nobody can know what 1.5 is.
    if meanings == ["comma"] and rules.decimal == "auto":
        has_thousands = any("." in text for text in texts)
        points = [text for text in cells.texts if "." in text and is_number(text)]
        if any(not has_thousands or not matches(_THOUSANDS_POINT, text) for text in points):
            return []

    return meanings


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
    return matches(DECIMAL_COMMA, text) or matches(_THOUSANDS_POINT, text)
