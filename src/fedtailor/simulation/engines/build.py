"""Building the engine that the options name. Each engine is imported when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedtailor.core.errors import unknown_name
from fedtailor.simulation.engines import TABLE
from fedtailor.simulation.engines.options import EngineChoice, EngineOptions

if TYPE_CHECKING:
    from fedtailor.core.algorithm import Algorithm
    from fedtailor.core.engine import Engine
    from fedtailor.core.federation import Federation
    from fedtailor.core.schedule import Schedule


def build_engine(options: EngineOptions) -> Engine:
    """Build the engine that the options name; ``auto`` gives ``workers``, since there is no run to judge."""
    if options.name == "reference":
        from fedtailor.simulation.engines.reference import Reference

        return Reference()
    if options.name == "batched":
        from fedtailor.simulation.engines.batched import Batched

        return Batched(options.block)
    if options.name == "processes":
        from fedtailor.simulation.engines.processes import Processes

        return Processes(options.workers)
    if options.name in ("auto", "workers"):
        from fedtailor.simulation.engines.workers import Workers

        return Workers(options.workers)
    raise unknown_name("engine", options.name, TABLE, key="engine.name")


def choose_engine(
    options: EngineOptions, algorithm: Algorithm[Any, Any, Any], federation: Federation, schedule: Schedule
) -> EngineChoice:
    """Build the engine that the options name; ``auto`` chooses one that suits the run."""
    if options.name != "auto":
        return EngineChoice(build_engine(options))
    from fedtailor.simulation.engines.auto import choose

    return choose(algorithm, federation, schedule, options.workers)
