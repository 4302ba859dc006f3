"""The findings about a user's own data: sites, examples, classes and problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fedtailor.core.text import escaped, listed, quoted, similar_names
from fedtailor.data.dataset import Dataset
from fedtailor.data.own.kinds import KINDS, Severity

MAX_PROBLEMS = 1_000
"""Most errors that are kept in full, and most other problems; more are only counted."""

_NOTHING_TOLD: Mapping[str, int] = {}

MAX_TOTAL_BYTES = 2 * 2**30
"""Most bytes of the examples in all array or table files together, as stored in memory."""


class DataProblem(NamedTuple):
    """A problem with a file, a row or a site."""

    severity: Severity
    kind: str
    """A short name that never changes, such as ``truncated_image``; see ``kinds.KINDS``."""
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
    problems: list[DataProblem] = field(default_factory=list)
    counts: dict[tuple[Severity, str], int] = field(default_factory=dict)
    """The number of problems by (severity, kind), including those beyond ``MAX_PROBLEMS``."""
    notes: list[str] = field(default_factory=list)
    """Notes on sizes, colors, orientation and other conversions."""

    @property
    def errors(self) -> Sequence[DataProblem]:
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
        severity = severity or KINDS[kind].severities[0]

        # Errors and others have separate limits, so that many warnings never hide an error.
        is_error = severity == "error"
        alike = [count for key, count in self.counts.items() if (key[0] == "error") == is_error]
        self.counts[severity, kind] = self.counts.get((severity, kind), 0) + 1
        if sum(alike) < MAX_PROBLEMS:
            texts = (escaped(text) for text in (site, path, message))
            self.problems.append(DataProblem(severity, kind, *texts))

    def add_empty(self) -> None:
        """Add that no site has an example, unless an error says why."""
        if not self.has_errors:
            self.add("no_examples", "No site has any examples.")

    def note(self, text: str) -> None:
        """Add a note, unless it is there already."""
        text = escaped(text)
        if text not in self.notes:
            self.notes.append(text)

    def warn_of_similar_names(self, what: str, names: Iterable[str]) -> None:
        """Warn of names that readers confuse; ``what`` they are is the beginning of a sentence."""
        for group in similar_names(names):
            message = f"{what} {listed(group)} differ only by case, spaces or Unicode form; "
            self.add("similar_names", f"{message}they are kept apart.")

    def summarize(self, severity: Severity, told: Mapping[str, int] = _NOTHING_TOLD) -> str:
        """Return how many problems there are of each kind, such as ``unreadable images (2)``.

        Args:
            severity: of the problems.
            told: how many of each kind were told before, and do not count.
        """
        parts = []
        for kind in sorted(kind for other, kind in self.counts if other == severity):
            number = self.counts[severity, kind] - told.get(kind, 0)
            if number > 0:
                parts.append(f"{KINDS[kind].words} ({number})")

        return ", ".join(parts)


class OwnData(NamedTuple):
    """A user's data and the findings; ``dataset`` is None after an error."""

    dataset: Dataset | None
    findings: Findings


class Unusable(Exception):
    """Something cannot be read; the reader adds a problem of that ``kind`` with that message."""

    def __init__(self, kind: str, message: str, path: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.path = path


class Finding(NamedTuple):
    """What a check finds; the place where it is becomes known when it is added."""

    kind: str
    message: str
    row: int | None = None


def limit_size(what: str, size: int, limit: int, hint: str = "") -> None:
    """Check that something does not take more memory than it may.

    Raises:
        Unusable: it would.
    """
    if size > limit:
        message = f"{what} would take {size} bytes; at most {limit} can be read. {hint}"
        raise Unusable("too_large", message.rstrip())


@dataclass(frozen=True)
class FindingPlace:
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

    def check(self, wrong: Iterable[Finding]) -> bool:
        """Add what a check yields up to the first error; return whether there is no error.

        What the check would yield later is not computed, so its later conditions may rely on the
        earlier ones.
        """
        for kind, message, row in wrong:
            self.add(kind, message, row)
            if KINDS[kind].severities[0] == "error":
                return False

        return True

    def skip_empty(self) -> None:
        """Add that the site has no examples; nothing is added if the data has no sites."""
        if self.site:
            message = (
                f"Site {quoted(self.site)} has no examples: it is left out, and gets no model."
            )
            self.add("empty_site", message)
