"""Names of folders and files, which are hostile input: brought to text that is safe to print, and looked at."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence

from fedtailor.data.own.place import show
from fedtailor.data.own.report import Findings

_HIDDEN_MEANING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line separators, marks that change the direction of text, bytes that are not UTF-8."""

_FORMULA = ("=", "+", "-", "@")
"""Spreadsheets take text that begins so for a formula."""

MAX_LISTED = 5
"""Names listed in a sentence; more are counted."""


def safe_name(name: str) -> str:
    """Return a name with every character that could rewrite a terminal or is not text as a backslash escape."""
    return _HIDDEN_MEANING.sub(_escape, name)


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if 0xDC80 <= code <= 0xDCFF:  # how Python keeps a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def is_utf8(name: str) -> bool:
    """Return whether a name of the file system is UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def listed(names: Iterable[str]) -> str:
    """Return the first names in quotes, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - MAX_LISTED} more" if len(every) > MAX_LISTED else ""
    return ", ".join(show(name) for name in every[:MAX_LISTED]) + more


def check_names(what: str, names: Sequence[str], findings: Findings) -> None:
    """Warn of names of sites or classes that need care in print, and of those hardly to be told apart.

    Args:
        what: "Site" or "Class".
        names: as they are used, after :func:`safe_name`.
        findings: the problems are added to it.
    """
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        alike[unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()].append(name)
        reasons = _reasons(name)
        if reasons:
            site = name if what == "Site" else ""
            message = f"{what} {show(name)} {' and '.join(reasons)}; it is used, and escaped wherever it is written."
            findings.add("warning", "unsafe_name", site, "", message)
    for group in alike.values():
        if len(group) > 1:
            message = f"{what} names {listed(group)} differ only by case, spaces or Unicode form; they are kept apart."
            findings.add("warning", "similar_names", "", "", message)


def _reasons(name: str) -> list[str]:
    """Return what is wrong with a name, in words."""
    found = []
    if "\\x" in name or "\\u" in name:
        found.append("has control characters or bytes that are not UTF-8 (written as escapes)")
    if any(character in name for character in "<>&\"'"):
        found.append("has characters of HTML")
    if name.startswith(_FORMULA) and not re.fullmatch(r"[+-]?\d+(\.\d+)?", name):
        found.append("begins like a formula")
    return found
