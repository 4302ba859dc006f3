"""Reports on images that take long to prepare."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""Is told what is done (:data:`READING` or :data:`CORRUPTING`), for how many images so far, and for
how many in all."""

READING = "reading pictures"
CORRUPTING = "corrupting images"


def to_nobody(what: str, done: int, total: int) -> None:
    """Report nothing."""
