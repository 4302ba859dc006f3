"""Reports on work that takes long: downloads, and images that are read or corrupted."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""Is told what is done, how many images, bytes or files so far, and of how many (0: unknown)."""

READING = "reading pictures"
CORRUPTING = "corrupting images"


def to_nobody(what: str, done: int, total: int) -> None:
    """Report nothing."""
