"""Progress reporting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fedtailor.core.errors import all_done


class Progress(Protocol):
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


class Several:
    """Passes the progress of a run on to several that receive it, in order."""

    def __init__(self, receivers: Sequence[Progress]) -> None:
        """Take those that receive it."""
        self._receivers = receivers

    def begin(self, title: str, num_rounds: int, done: int = 0) -> None:
        """Start a run of one seed, of which ``done`` rounds were done before."""
        for each in self._receivers:
            each.begin(title, num_rounds, done)

    def round(self, record: Mapping[str, Any]) -> None:
        """Report the end of a round."""
        for each in self._receivers:
            each.round(record)

    def prepare(self, what: str, done: int, total: int) -> None:
        """Report how far the images are prepared."""
        for each in self._receivers:
            each.prepare(what, done, total)

    def note(self, text: str) -> None:
        """Report something that a user should know."""
        for each in self._receivers:
            each.note(text)

    def end(self) -> None:
        """Report the end of a run to all of them, whatever one of them raises."""
        with all_done([each.end for each in self._receivers]):
            pass
