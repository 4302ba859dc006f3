"""Engines: how many clients run at once, where, and how fast. Listing them imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from fedtailor.core.options import Range, check_options

if TYPE_CHECKING:
    from fedtailor.core.algorithm import Algorithm
    from fedtailor.core.engine import Engine
    from fedtailor.core.federation import Federation
    from fedtailor.core.schedule import Protocol

TABLE = {
    "auto": "on a CPU: processes for a long run of short steps, by a timing, else workers; the same bits either way",
    "batched": "clients stacked into one vectorized program",
    "processes": "one client per physical core, in processes of their own; for models whose step takes under a "
    "millisecond, which threads hold up; the same bits as reference",
    "reference": "a plain loop over clients on one thread; the oracle of the others",
    "workers": "one client per physical core, one thread each; the same bits as reference",
}


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The ``[engine]`` section."""

    name: Literal["auto", "batched", "processes", "reference", "workers"] = "auto"
    """Engine; ``auto`` is written to the resolved configuration as the one it chose."""
    workers: Annotated[int, Range(ge=0)] = 0
    """Threads of ``workers``, processes of ``processes``; 0: one per physical core. Changes no result."""
    block: Annotated[int, Range(ge=1)] = 32
    """Clients that ``batched`` stacks at most."""

    def __post_init__(self) -> None:
        check_options(self, owner="engine")


class EngineChoice(NamedTuple):
    """An engine, and why it is this one."""

    engine: Engine
    reason: str = ""
    """A sentence, where ``auto`` chose."""
    seconds: float | None = None
    """What a step of training takes, if that was measured."""


def build_engine(options: EngineOptions) -> Engine:
    """Build the engine that the options name; ``auto`` without anything to run is ``workers``."""
    from fedtailor.simulation.engines.batched import Batched
    from fedtailor.simulation.engines.processes import Processes
    from fedtailor.simulation.engines.reference import Reference
    from fedtailor.simulation.engines.workers import Workers

    if options.name == "reference":
        return Reference()
    if options.name == "batched":
        return Batched(options.block)
    if options.name == "processes":
        return Processes(options.workers)
    return Workers(options.workers)


def choose_engine(
    options: EngineOptions, algorithm: Algorithm[Any, Any, Any], federation: Federation, protocol: Protocol
) -> EngineChoice:
    """Build the engine that the options name; ``auto`` chooses by what is to be run."""
    if options.name != "auto":
        return EngineChoice(build_engine(options))
    from fedtailor.simulation.engines.auto import choose

    return choose(algorithm, federation, protocol, options.workers)
