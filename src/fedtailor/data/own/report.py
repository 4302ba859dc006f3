"""What was found in a user's own data: sites, examples, classes and problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fedtailor.data.dataset import Dataset

MAX_SITES = 10_000
"""More sites than this are refused: a folder of single files taken for sites, as a rule."""

MAX_PROBLEMS = 1_000
"""Errors that are kept in full, and as many other problems; more are only counted."""


class Problem(NamedTuple):
    """Something that is wrong with a file, a row or a site."""

    severity: Literal["error", "skipped", "warning"]
    """error: the data cannot be used as it is; skipped: that file or row is left out; warning: used all the same."""
    kind: str
    """A short name that does not change, such as ``truncated_image``."""
    site: str
    path: str
    """The file, relative to the data's folder; for a row of a table ``file:row``."""
    message: str
    """A sentence."""


@dataclass
class Site:
    """One site: how many examples of which class it has."""

    name: str
    train: dict[str, int] = field(default_factory=dict)
    """Examples by class name; without an official division all are here."""
    test: dict[str, int] = field(default_factory=dict)


@dataclass
class Findings:
    """All that was found; the readers add to it."""

    layout: str = ""
    """Which layout was recognized, in words."""
    sites: list[Site] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """(severity, kind) -> how many, those beyond ``MAX_PROBLEMS`` included."""
    notes: list[str] = field(default_factory=list)
    """How values were read: sizes, colors, orientation."""

    def add(
        self, severity: Literal["error", "skipped", "warning"], kind: str, site: str, path: str, message: str
    ) -> None:
        """Add a problem."""
        before = sum(count for (level, _), count in self.counts.items() if (level == "error") == (severity == "error"))
        self.counts[severity, kind] = self.counts.get((severity, kind), 0) + 1
        if before < MAX_PROBLEMS:  # of errors and of others, so that many warnings never hide an error
            self.problems.append(Problem(severity, kind, site, path, message))

    @property
    def errors(self) -> Sequence[Problem]:
        """The problems for which the data cannot be used."""
        return [problem for problem in self.problems if problem.severity == "error"]


class OwnData(NamedTuple):
    """A user's data, read; ``dataset`` is None where an error left nothing to use."""

    dataset: Dataset | None
    findings: Findings
