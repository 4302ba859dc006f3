"""What a run will take, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedtailor.cli.show.console import duration, table
from fedtailor.cli.show.data import size


def show_estimate(found: Mapping[str, Any]) -> None:
    """Print time, memory and disk, with their parts."""
    rows = [
        ["time", duration(found["seconds"]["total"]), _parts(found["seconds"], duration)],
        ["memory", size(found["memory"]["total"]), _parts(found["memory"], size)],
        ["disk", size(found["disk"]["total"]), _parts(found["disk"], size)],
    ]
    seeds = len(found["seeds"])
    runs = "1 seed" if seeds == 1 else f"{seeds} seeds"
    title = (
        f"{found['algorithm']} on {found['dataset']} would take about this: {found['clients']:,} clients, "
        f"{found['rounds']:,} rounds, {runs}, engine {found['engine']}"
    )
    below = "From a trial with a few clients and a few steps, on the machine as busy as it is now. Nothing was written."
    table(title, ["", "total", "parts"], rows, left=3, below=below)


def _parts(found: Mapping[str, Any], show: Callable[[Any], str]) -> str:
    """Return the parts of a total that are not 0."""
    named = {
        name.replace("_", " "): value for name, value in found.items() if name != "total" and value
    }
    return ", ".join(f"{name} {show(value)}" for name, value in named.items())
