"""Where in a user's own data something was found, and the exception for what cannot be used."""

from __future__ import annotations

from dataclasses import dataclass

from fedtailor.data.own.report import Findings

MAX_TOTAL_BYTES = 2 * 2**30
"""Most bytes of examples, as they are stored once read, that all files of arrays or tables may have together."""

MAX_CLASSES = 10_000
"""More classes than this are refused: a column of numbers taken for labels, as a rule."""

MAX_SHOWN = 80
"""Characters of a value that are shown in a message."""


class Unusable(Exception):
    """A file that cannot be read: becomes a problem of that ``kind`` with that message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


@dataclass(frozen=True)
class Place:
    """A file of a site; problems found in it go to ``findings``."""

    findings: Findings
    site: str
    path: str
    """The file, relative to the data's folder."""

    def error(self, kind: str, message: str, row: int | None = None) -> None:
        """Add a problem for which the data cannot be used, in ``row`` of the file if given."""
        self.findings.add("error", kind, self.site, self._at(row), message)

    def warning(self, kind: str, message: str, row: int | None = None) -> None:
        """Add a problem in spite of which the data is used."""
        self.findings.add("warning", kind, self.site, self._at(row), message)

    def _at(self, row: int | None) -> str:
        return self.path if row is None else f"{self.path}:{row}"


def show(value: object) -> str:
    """Return a value in quotes for a message, cut to ``MAX_SHOWN`` characters, with control characters escaped."""
    text = repr(str(value))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def has_errors(findings: Findings) -> bool:
    """Return whether there is an error, among the problems that are only counted too."""
    return any(severity == "error" for severity, _ in findings.counts)


def no_examples(findings: Findings) -> None:
    """Add the problem that no site has an example."""
    findings.add("error", "no_examples", "", "", "No site has an example.")


def skip_empty(findings: Findings, site: str, path: str) -> None:
    """Add the problem that a site has no examples, for which it is left out; not where the data have no sites."""
    if site:
        findings.add("skipped", "empty_site", site, path, f"Site {show(site)} has no examples and is left out.")
