"""Progress reporting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class RunProgress(Protocol):
    """Receives the progress of a run."""

    def begin(self, title: str, num_rounds: int, done: int = 0) -> None:
        """Start a run of one seed, of which ``done`` rounds were done before."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Report the end of a round; ``record`` is its line in ``rounds.jsonl``."""

    def prepare(self, what: str, done: int, total: int) -> None:
        """Report for how many images of ``total`` something is done before the first round.

        ``what`` is ``reading pictures`` or ``corrupting images``.
        """

    def note(self, text: str) -> None:
        """Report something that a user should know."""

    def end(self) -> None:
        """Report the end of a run, finished or not, or that its data cannot be prepared."""


class Silence:
    """Reports nothing."""

    def begin(self, title: str, num_rounds: int, done: int = 0) -> None:
        """Do nothing."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Do nothing."""

    def prepare(self, what: str, done: int, total: int) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""
