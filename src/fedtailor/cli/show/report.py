"""The report that was written, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtailor.cli.show.console import say
from fedtailor.cli.show.data import size


def show_report(record: Mapping[str, Any], folder: str) -> None:
    """Say what was written.

    Args:
        record: what ``--json`` prints.
        folder: of the figures; empty if they were not asked for.
    """
    figures = record["figures"]
    say(
        f"{record['report']}: {len(figures)} figures, {size(record['bytes'])}. Open it in any browser."
    )
    if folder:
        say(f"{len(figures)} figures as PNG, SVG and CSV are in {folder}")
