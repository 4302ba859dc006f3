"""What is told about a run while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Progress(Protocol):
    """What is told about a run while it goes on."""

    def begin(self, title: str, num_rounds: int) -> None:
        """Start a run of one seed."""

    def round(self, record: Mapping[str, Any]) -> None:
        """End a round; ``record`` is its line in ``rounds.jsonl``."""

    def prepare(self, done: int, total: int) -> None:
        """Say how many images of ``total`` have been corrupted, before the first round."""

    def note(self, text: str) -> None:
        """Say something that a user should know."""

    def end(self) -> None:
        """End a run, whatever its end was."""


class Silence:
    """Tells nothing."""

    def begin(self, title: str, num_rounds: int) -> None:
        """Do nothing."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Do nothing."""

    def prepare(self, done: int, total: int) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""
