"""Names of folders and files, which may be hostile: made safe to print, and checked."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence

from fedtailor.data.own.findings import Findings, show

_HIDDEN_MEANING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, line separators, marks that change the direction of text, bytes that are not
UTF-8."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Spreadsheets treat text with such a beginning as a formula; in some languages, the wide forms of
the signs too."""

MAX_LISTED = 5
"""Most names listed in a sentence; more are counted."""


def safe_name(name: str) -> str:
    """Return a name in which characters that could change a terminal, or are not text, are
    backslash escapes.
    """
    return _HIDDEN_MEANING.sub(_escape, name)


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if 0xDC80 <= code <= 0xDCFF:  # Python's code for a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}"


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet would take a text for a formula; numbers are none."""
    return text.startswith(_FORMULA) and not re.fullmatch(r"[+-]?\d+(\.\d+)?", text)


def inert(text: str) -> str:
    """Return a cell of a table that a spreadsheet shows as text: an apostrophe stands before a
    formula.

    >>> inert("=1+1"), inert("-0.5"), inert("ditto")
    ("'=1+1", '-0.5', 'ditto')
    """
    return f"'{text}" if is_formula(text) else text


def is_utf8(name: str) -> bool:
    """Return whether a name of the file system is UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def listed(names: Iterable[str]) -> str:
    """Return the first names in quotes, and the number of the others."""
    every = list(names)
    shown = ", ".join(show(name) for name in every[:MAX_LISTED])
    if len(every) > MAX_LISTED:
        return f"{shown} and {len(every) - MAX_LISTED} more"
    return shown


def check_names(what: str, names: Sequence[str], findings: Findings) -> None:
    """Warn of unsafe names of sites or classes, and of names that are hard to tell apart.

    Args:
        what: "Site" or "Class".
        names: names after :func:`safe_name`.
        findings: the problems are added to it.
    """
    for name in names:
        reasons = _reasons(name)
        if reasons:
            site = name if what == "Site" else ""
            message = f"{what} {show(name)} {' and '.join(reasons)}; it is used, and escaped in all outputs."
            findings.add("warning", "unsafe_name", site, "", message)
    check_similar(f"{what} names", names, findings)


def check_similar(what: str, names: Iterable[str], findings: Findings) -> None:
    """Warn of names that are hard to tell apart.

    Args:
        what: what they are the names of, such as "Site names".
        names: names after :func:`safe_name`.
        findings: the problems are added to it.
    """
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folded = unicodedata.normalize("NFKC", name).casefold()
        alike[unicodedata.normalize("NFKC", folded).strip()].append(name)
    for group in alike.values():
        if len(group) > 1:
            message = f"{what} {listed(group)} differ only by case, spaces or Unicode form; they are kept apart."
            findings.add("warning", "similar_names", "", "", message)


def _reasons(name: str) -> list[str]:
    """Return the reasons why a name is unsafe, in words."""
    found = []
    if "\\x" in name or "\\u" in name:
        found.append("has control characters or bytes that are not UTF-8 (written as escapes)")
    if any(character in name for character in "<>&\"'"):
        found.append("has HTML characters")
    if is_formula(name):
        found.append("begins like a formula")
    return found
