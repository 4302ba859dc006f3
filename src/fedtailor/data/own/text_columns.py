"""The columns of text of all tables together: categories, or something that is not supported."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from fedtailor.data.columns import MAX_CATEGORIES
from fedtailor.data.own.cells import MAX_TEXTS, Words, is_number
from fedtailor.data.own.findings import Place, counted, show
from fedtailor.data.own.names import check_similar
from fedtailor.data.own.table import option_text

DATES = (
    "Dates are not supported: give a number instead, such as age in years or days since admission, or leave the column "
    "out."
)
LISTS = "Time series are not supported: give one number per cell, such as their mean and their slope, or remove the column."
SEVERAL_LABELS = "Several labels per example (multi-label) are not supported: give one label per row, or a table for each question."
_FREE_TEXT = "Free text is not supported, only numbers and categories: remove the column."
_IMAGES = "A column with the paths of images must be called 'image'."
_COMMAS = "Write numbers with a point and without commas, such as 1.5 or 1500."

_DATE = re.compile(
    r"\d{4}-\d{1,2}(-\d{1,2})?([T ]\d{1,2}:\d{2}.*)?"
    r"|\d{4}[/.]\d{1,2}[/.]\d{1,2}( .*)?"
    r"|\d{1,2}[/.-]\d{1,2}[/.-](\d{4}|\d{2})( \d{1,2}:.*)?"
    r"|\d{1,2}\.? ?-?[A-Za-zäé]{3,9}\.?,? ?-?\d{2,4}"
    r"|[A-Za-zäé]{3,9}\.? \d{1,2}(st|nd|rd|th)?,? \d{4}"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AaPp][Mm])?"
)
"""ISO and the usual forms of dates, and times of the day."""
_NUMBER = r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?"
_LIST = re.compile(rf"[\[({{]\s*{_NUMBER}.*|{_NUMBER}((\s*[,;|]\s*|\s+){_NUMBER}){{2,}}", re.DOTALL)
_IMAGE = re.compile(
    r".*\.(png|jpe?g|jpe|jfif|bmp|gif|tiff?|webp|pgm|ppm|pbm|dcm)", re.IGNORECASE | re.DOTALL
)
_WITH_COMMA = re.compile(r"[+-]?\d+(\.\d{3})*,\d+|[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_WORDS_OF_FREE_TEXT = 5
_MOSTLY = 0.5
_LONGEST = 200  # characters of a text that are looked at
_CELLS_OF_A_CATEGORY = 5
"""A column with fewer cells than this for each of its many texts looks like an identifier."""


class TextColumn(NamedTuple):
    """A feature that holds text, in all tables."""

    name: str
    words: Sequence[tuple[Place, Words]]
    """Its texts in every table."""

    @property
    def texts(self) -> list[str]:
        """All different texts, in the order of appearance."""
        return list(dict.fromkeys(text for _, words in self.words for text in words.codes))

    def first(self, *, number: bool) -> tuple[Place, int, str] | None:
        """Return the first cell that is a number, or is not: its table, line and text."""
        for place, words in self.words:
            if number in words.first:
                return (place, *words.first[number])
        return None


def check_text_column(column: TextColumn) -> bool:
    """Return whether a column holds categories; add the problem if not, and warnings."""
    texts = column.texts
    found = column.first(number=False) or column.first(number=True)
    if found is None:  # no table has a value
        return True

    place, line, example = found
    filled = sum(words.filled for _, words in column.words)
    refused = _find_other_kind(texts, filled)
    shown = f"Column {show(column.name)}"
    if refused:
        kind, what, why = refused
        place.error(
            kind, f"{shown} holds {what}, such as {show(_example_of(kind, texts))}. {why}", line
        )

        return False

    numbers = [text for text in texts if is_number(text)]
    if len(texts) > MAX_CATEGORIES or any(words.is_full for _, words in column.words):
        _refuse_many(column, texts, numbers, filled)
        return False

    if numbers:
        other = f"{show(example)} (row {line} of {show(place.path)})"
        message = f"{shown} holds numbers such as {show(numbers[0])} and text such as {other}: each is a category, also "
        message += "the numbers. If it should hold numbers, correct or empty the cells with text."
        place.warning("mixed_column", message, line)

    check_similar(f"In column {show(column.name)}, the categories", texts, place.findings)
    return True


def _find_other_kind(texts: Sequence[str], filled: int) -> tuple[str, str, str] | None:
    """Return kind, words and remedy if the texts that are not numbers are not categories, but not
    supported.
    """
    others = [text for text in texts if not is_number(text)]
    if others and _share(_WITH_COMMA, others) == 1:
        return "not_a_number", "numbers with a comma", _COMMAS

    for kind, (pattern, what, why) in _OTHER_KINDS.items():
        if others and _share(pattern, others) > _MOSTLY:
            return kind, what, why

    average = sum(len(text.split()) for text in others) / max(len(others), 1)
    many = max(min(_MOSTLY * filled, MAX_CATEGORIES), 2)
    if average >= _WORDS_OF_FREE_TEXT and len(texts) > many:
        return "free_text", "free text", _FREE_TEXT

    return None


_OTHER_KINDS = {
    "dates": (_DATE, "dates or times", DATES),
    "time_series": (_LIST, "lists of numbers", LISTS),
    "image_paths": (_IMAGE, "paths of images", _IMAGES),
}


def _example_of(kind: str, texts: Sequence[str]) -> str:
    """Return the first text that is of a kind that is not supported."""
    pattern = _OTHER_KINDS[kind][0] if kind in _OTHER_KINDS else _WITH_COMMA
    others = [text for text in texts if not is_number(text)]
    return next((text for text in others if _matches(pattern, text)), others[0])


def _refuse_many(
    column: TextColumn, texts: Sequence[str], numbers: Collection[str], filled: int
) -> None:
    """Add the problem of too many categories, with its likely reason."""
    found = column.first(number=False) or column.first(number=True)
    assert found is not None
    place, line, example = found
    is_full = any(words.is_full for _, words in column.words)
    many = f"more than {MAX_TEXTS}" if is_full else str(len(texts))
    message = f"Column {show(column.name)} has {many} different texts, such as {show(example)}"
    message += f"; at most {MAX_CATEGORIES} categories are read."

    if len(numbers) > _MOSTLY * len(texts):
        others = len(texts) - len(numbers)
        message += f" Most are numbers: correct or empty the cells that are not ({counted(others, 'text')})."
    elif filled < _CELLS_OF_A_CATEGORY * len(texts):
        option = option_text("group", column.name)
        message += f" It looks like an identifier or free text, with {filled / len(texts):.1f} cells for each text: remove"
        message += f" the column, or if it says which rows belong together, such as those of a patient: {option}."
    else:
        message += " Remove the column, or merge its categories into fewer."

    place.error("too_many_categories", message, line)


def holds_dates(texts: Collection[str]) -> bool:
    """Return whether most texts are dates."""
    return _share(_DATE, texts) > _MOSTLY


def _share(pattern: re.Pattern[str], texts: Collection[str]) -> float:
    return sum(_matches(pattern, text) for text in texts) / len(texts)


def _matches(pattern: re.Pattern[str], text: str) -> bool:
    return (
        pattern.fullmatch(text[:_LONGEST]) is not None
    )  # whoever wrote the text must not decide how long this takes


def several_labels(texts: Sequence[str]) -> str:
    """Return a label that is several labels in one cell; empty if there is none.

    A list in brackets is one. So is a text with ``;`` or ``|`` whose parts all occur in other
    labels too, and one with commas whose parts all are labels of their own.

    >>> several_labels(["flu", "covid", "flu|covid"]), several_labels(["benign, type 1", "benign, type 2"])
    ('flu|covid', '')
    """
    known = set(texts)
    for text in texts:
        if re.fullmatch(r"\[.*\]|\{.*\}", text, re.DOTALL):
            return text

    for separator in ";|,":
        parts = {
            text: [part.strip() for part in text.split(separator)]
            for text in texts
            if separator in text
        }
        counts: dict[str, int] = {}

        for several in parts.values():
            for part in set(several):
                counts[part] = counts.get(part, 0) + 1

        for text, several in parts.items():
            is_shared = all(
                part in known or (separator in ";|" and counts[part] > 1) for part in several
            )
            if is_shared and len(set(several)) > 1:
                return text

    return ""
