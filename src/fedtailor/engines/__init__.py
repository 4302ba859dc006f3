"""Engines: how many clients run at once, where, and how fast. Listing them imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from fedtailor.core.options import Range, check_options

if TYPE_CHECKING:
    from fedtailor.core.engine import Engine

TABLE = {
    "auto": "workers, on a CPU",
    "batched": "clients stacked into one vectorized program",
    "reference": "a plain loop over clients on one thread; the oracle of the others",
    "workers": "one client per physical core, one thread each; the same bits as reference",
}


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The ``[engine]`` section."""

    name: Literal["auto", "batched", "reference", "workers"] = "auto"
    """Engine; ``auto`` is written to the resolved configuration as the one it chose."""
    workers: Annotated[int, Range(ge=0)] = 0
    """Threads of ``workers``; 0: one per physical core. Changes no result."""
    block: Annotated[int, Range(ge=1)] = 32
    """Clients that ``batched`` stacks at most."""

    def __post_init__(self) -> None:
        check_options(self, owner="engine")


def build_engine(options: EngineOptions) -> Engine:
    """Build the engine that the options name."""
    from fedtailor.engines.batched import Batched
    from fedtailor.engines.reference import Reference
    from fedtailor.engines.workers import Workers

    if options.name == "reference":
        return Reference()
    if options.name == "batched":
        return Batched(options.block)
    return Workers(options.workers)
