"""The findings about a user's own data: sites, examples, classes and problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fedtailor.data.dataset import Dataset
from fedtailor.data.own.kinds import SEVERITY, Severity
from fedtailor.data.own.names import safe_name, show

MAX_SITES = 10_000
"""Most sites; more are usually a folder of single files that was read as sites."""

MAX_PROBLEMS = 1_000
"""Most errors that are kept in full, and most other problems; more are only counted."""

MAX_TOTAL_BYTES = 2 * 2**30
"""Most bytes of the examples in all array or table files together, as stored in memory."""


class Problem(NamedTuple):
    """A problem with a file, a row or a site."""

    severity: Severity
    kind: str
    """A short name that never changes, such as ``truncated_image``; see
    ``rules.KINDS``."""
    site: str
    path: str
    """The file, relative to the data's folder; for a row of a table ``file:row``."""
    message: str
    """A sentence."""


@dataclass
class Site:
    """The numbers of examples of one site by class."""

    name: str
    train: dict[str, int] = field(default_factory=dict)
    """Training examples by class name; all examples if the data does not come divided."""
    test: dict[str, int] = field(default_factory=dict)


@dataclass
class Findings:
    """All findings; the readers add to them. All texts are made safe to print."""

    layout: str = ""
    """The recognized layout, in words."""
    sites: list[Site] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    counts: dict[tuple[Severity, str], int] = field(default_factory=dict)
    """The number of problems by (severity, kind), including those beyond ``MAX_PROBLEMS``."""
    notes: list[str] = field(default_factory=list)
    """Notes on sizes, colors, orientation and other conversions."""

    @property
    def errors(self) -> Sequence[Problem]:
        """The problems that make the data unusable."""
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def has_errors(self) -> bool:
        """Whether there is an error, including those that are only counted."""
        return any(severity == "error" for severity, _ in self.counts)

    def add(
        self,
        kind: str,
        message: str,
        *,
        site: str = "",
        path: str = "",
        severity: Severity | None = None,
    ) -> None:
        """Add a problem, of the usual severity of its kind unless another is given."""
        severity = severity or SEVERITY[kind]
        is_error = severity == "error"

        # Errors and others have separate limits, so that many warnings never hide an error.
        before = 0
        for (other, _), count in self.counts.items():
            before += count if (other == "error") == is_error else 0

        self.counts[severity, kind] = self.counts.get((severity, kind), 0) + 1
        if before < MAX_PROBLEMS:
            texts = (safe_name(text) for text in (site, path, message))
            self.problems.append(Problem(severity, kind, *texts))

    def note(self, text: str) -> None:
        """Add a note, unless it is there already."""
        text = safe_name(text)
        if text not in self.notes:
            self.notes.append(text)

    @property
    def place(self) -> Place:
        """Where problems without a site or file are added."""
        return Place(self, "", "")


class OwnData(NamedTuple):
    """A user's data and the findings; ``dataset`` is None after an error."""

    dataset: Dataset | None
    findings: Findings


class Unusable(Exception):
    """A file cannot be read; the reader adds a problem of that ``kind`` with that message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


@dataclass(frozen=True)
class Place:
    """A file of a site, whose problems are added to ``findings``."""

    findings: Findings
    site: str
    path: str
    """The file, relative to the data's folder."""

    def add(
        self, kind: str, message: str, row: int | None = None, severity: Severity | None = None
    ) -> None:
        """Add a problem of the file, or of one of its rows."""
        path = self.path if row is None else f"{self.path}:{row}"
        self.findings.add(kind, message, site=self.site, path=path, severity=severity)

    def skip_empty(self) -> None:
        """Add that the site has no examples; nothing is added if the data has no sites."""
        if self.site:
            self.add("empty_site", f"Site {show(self.site)} has no examples and is left out.")


def no_examples(findings: Findings) -> None:
    """Add that no site has an example, unless an error says why."""
    if not findings.has_errors:
        findings.add("no_examples", "No site has any examples.")
