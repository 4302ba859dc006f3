"""What texts in the cells of a table look like: numbers, empty cells, dates, lists, labels."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from fedtailor.core.text import escaped

MISSING_WORDS = ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?")
"""Words for an empty cell. Among text, ``none`` is a category, such as no medication."""

MISSING_AMONG_NUMBERS = (
    *MISSING_WORDS,
    *("-", "--", "–", "—", ".", "..", "n.a.", "n.a", "nd", "n.d.", "unknown", "missing"),
    *("#value!", "#div/0!", "#null!", "#num!", "#ref!", "#name?"),
)
"""Words for an empty cell in a column of numbers; among text, the further ones are categories."""

MISSING_LABELS = ("", "nan")
"""Labels that mean a missing one; other words for an empty cell may be classes."""

_WORDS_OF_NO_LABEL = {*MISSING_AMONG_NUMBERS} - {"none"}

TRUTH = {"true": 1.0, "false": 0.0}

MAX_CLASSES = 10_000
"""Most classes; more are usually a column of numbers that was read as labels."""

_EXACT = 2**53
"""Whole numbers below this are exact as floats."""

_LONGEST = 200
"""Characters of a text that are looked at: its writer must not decide how long this takes."""

DATE = re.compile(
    r"\d{4}-\d{1,2}(-\d{1,2})?([T ]\d{1,2}:\d{2}.*)?"
    r"|\d{4}[/.]\d{1,2}[/.]\d{1,2}( .*)?"
    r"|\d{1,2}[/.-]\d{1,2}[/.-](\d{4}|\d{2})( \d{1,2}:.*)?"
    r"|\d{1,2}\.? ?-?[A-Za-zäé]{3,9}\.?,? ?-?\d{2,4}"
    r"|[A-Za-zäé]{3,9}\.? \d{1,2}(st|nd|rd|th)?,? \d{4}"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AaPp][Mm])?"
)
"""ISO and the usual forms of dates, and times of the day."""

_NUMBER = r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?"
LIST = re.compile(rf"[\[({{]\s*{_NUMBER}.*|{_NUMBER}((\s*[,;|]\s*|\s+){_NUMBER}){{2,}}", re.DOTALL)
IMAGE = re.compile(
    r".*\.(png|jpe?g|jpe|jfif|bmp|gif|tiff?|webp|pgm|ppm|pbm|dcm)", re.IGNORECASE | re.DOTALL
)
DECIMAL_COMMA = re.compile(r"[+-]?(\d*|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d+)?")
THOUSANDS_COMMA = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
THOUSANDS_POINT = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?")
_OPTION = re.compile(
    r"--set (?P<quote>'?)data\.(?P<key>\w+)=(?P<value>.*?)(?P=quote)(?=[\s.;:,)]|$)"
)
"""What :func:`option_text` returns."""
_BRACKETS = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)

_IDENTIFIER = re.compile(
    r"(patient|subject|participant|person)s?(id|no|nr|num|number|code)?|id|mrn|pid"
)
_LABEL = re.compile(
    r"(label|class|target|y|diagnosis|diagnose|outcome)(e?s)?((label|class)(e?s)?)?"
)

REGRESSION_VALUES = 30
_REGRESSION_EXAMPLES = 5
"""More whole numbers than the first as labels, with fewer examples each than the second, look like
a regression."""


def matches(pattern: re.Pattern[str], text: str) -> bool:
    """Return whether a pattern is that of a whole text."""
    return pattern.fullmatch(text[:_LONGEST]) is not None


def share_like(pattern: re.Pattern[str], texts: Collection[str]) -> float:
    """Return the share of the texts that match; 0 if there is none."""
    return sum(matches(pattern, text) for text in texts) / max(len(texts), 1)


def number_in(cell: str) -> float:
    """Return the number in a cell.

    Raises:
        ValueError: it holds none.
    """
    if "_" in cell:  # Python reads 1_2 as 12
        raise ValueError(cell)

    return float(cell)


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        number_in(text)
    except ValueError:
        return False

    return True


def number_or_none(cell: str) -> float | None:
    """Return the number in a cell: NaN for an empty one, None for text.

    True is 1 and false is 0.
    """
    # First what most cells are: a wide table has millions.
    try:
        return number_in(cell)
    except ValueError:
        pass

    word = cell.strip().lower()
    if word in MISSING_AMONG_NUMBERS:
        return float("nan")

    return TRUTH.get(word)


def is_missing_word(label: str) -> bool:
    """Return whether a label may stand for none; ``none`` itself is a usual class."""
    return label.strip().lower() in _WORDS_OF_NO_LABEL


def category_in(cell: str) -> str:
    """Return the name of the category in a cell, safe to print; empty for an empty cell.

    Numbers have one spelling in all tables: ``1``, ``1.0`` and ``01`` are the same.

    >>> [category_in(cell) for cell in (" 1.0 ", "Male", "N/A", "none", "TRUE")]
    ['1', 'Male', '', 'none', 'true']
    """
    text = cell.strip()
    word = text.lower()
    if word in MISSING_WORDS and word != "none":
        return ""

    if word in TRUTH:
        return word

    try:
        number = number_in(text)
    except ValueError:
        return escaped(text)

    if not number.is_integer():
        return repr(number)

    # Identifiers of 20 digits must not collide as floats.
    try:
        return str(int(text))  # exact, however many digits
    except ValueError:
        return str(int(number)) if abs(number) < _EXACT else repr(number)


def cell_of(value: object) -> str:
    """Return a value as the text of a cell, empty if there is none; whole numbers have no point."""
    if value is None:
        return ""

    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return f"{value:.0f}"

    return str(value).strip()


def label_number(text: str) -> int | float | None:
    """Return a whole number as int, another number as float, None for text.

    >>> label_number("3.0"), label_number("0.5"), label_number("flu")
    (3, 0.5, None)
    """
    if not is_number(text):
        return None

    try:
        return int(text)
    except ValueError:
        value = float(text)
        return int(value) if value.is_integer() else value


def looks_like_regression(values: int, examples: int) -> bool:
    """Return whether labels that are ``values`` different whole numbers look like a regression.

    >>> looks_like_regression(10, 20), looks_like_regression(412, 500)
    (False, True)
    """
    return values > REGRESSION_VALUES and examples < _REGRESSION_EXAMPLES * values


def several_labels(texts: Sequence[str]) -> str:
    """Return a label that is several labels in one cell; empty if there is none.

    A list in brackets is one. So is a text with ``;`` or ``|`` whose parts all occur in other
    labels too, and one with commas whose parts all are labels of their own.

    >>> several_labels(["flu", "covid", "flu|covid"]), several_labels(["benign, type 1", "benign"])
    ('flu|covid', '')
    """
    for text in texts:
        if _BRACKETS.fullmatch(text):
            return text

    # Parts that occur elsewhere too are labels, not punctuation.
    labels = set(texts)
    for separator in ";|,":
        parts_of = {text: _split(text, separator) for text in texts if separator in text}
        counts = Counter(part for parts in parts_of.values() for part in parts)
        for text, parts in parts_of.items():
            shared = {part for part in parts if separator in ";|" and counts[part] > 1}
            if len(parts) > 1 and parts <= labels | shared:
                return text

    return ""


def _split(text: str, separator: str) -> set[str]:
    return {part.strip() for part in text.split(separator)}


def is_identifier(name: str) -> bool:
    """Return whether a name is that of an identifier.

    >>> is_identifier("Patient ID"), is_identifier("patient age")
    (True, False)
    """
    return _IDENTIFIER.fullmatch(_letters(name)) is not None


def is_like_label(name: str) -> bool:
    """Return whether a name says that a column holds the labels.

    >>> is_like_label("Class_Label"), is_like_label("OUTCOME"), is_like_label("age")
    (True, True, False)
    """
    return _LABEL.fullmatch(_letters(name)) is not None


def _letters(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def option_text(key: str, value: str) -> str:
    """Return what to type for an option of the data.

    >>> option_text("label_column", "tumor stage")
    "--set 'data.label_column=tumor stage'"
    """
    return f"--set {shlex.quote(f'data.{key}={value}')}"


def leave_out_text(name: str) -> str:
    """Return what to type to leave a column out.

    >>> print(leave_out_text("patient_id"))
    --set 'data.leave_out=["patient_id"]'
    """
    return option_text("leave_out", json.dumps([name], ensure_ascii=False))


def missing_value_text(name: str, value: str) -> str:
    """Return what to type for a value of a column, in TOML, that means a missing value.

    >>> print(missing_value_text("chol", "0"))
    --set 'data.missing_values={chol = [0]}'
    """
    is_bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    key = name if is_bare else json.dumps(name, ensure_ascii=False)
    return option_text("missing_values", f"{{{key} = [{value}]}}")


def reworded(text: str, forms: Mapping[str, str], other: str) -> str:
    """Return a message in which what :func:`option_text` says can be typed where its reader is.

    Args:
        text: the message.
        forms: by name of the option, how it is set where the reader is, with ``{value}``.
        other: the same for all other options, with ``{key}`` and ``{value}``.

    Example:
        >>> where = {"label_column": 'label_column = "{value}" in site.toml'}
        >>> reworded("Say which one: --set data.label_column=NAME.", where, "")
        'Say which one: label_column = "NAME" in site.toml.'
    """

    def form(match: re.Match[str]) -> str:
        template = forms.get(match["key"], other)
        return template.format(key=match["key"], value=match["value"])

    text = _OPTION.sub(form, text)
    for key, template in forms.items():
        text = text.replace(f"(data.{key})", f"({template.format(value='...')})")

    return text
