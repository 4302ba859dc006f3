"""Building the engine that the options name. Each engine is imported when it is needed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from fedtailor.core.devices import HOST, find
from fedtailor.core.errors import ConfigError, unknown_name
from fedtailor.simulation.engines import ENGINES
from fedtailor.simulation.engines.options import CPU_ONLY, EngineChoice, EngineOptions

if TYPE_CHECKING:
    from fedtailor.core.algorithm import Algorithm
    from fedtailor.core.engine import Engine
    from fedtailor.core.federation import Federation
    from fedtailor.core.schedule import Schedule


def build_engine(options: EngineOptions, client_timeout: float = 0.0) -> Engine:
    """Build the engine that the options name; ``auto`` gives ``workers``, since there is no run to
    judge.

    Args:
        options: its name and settings.
        client_timeout: seconds that a client's program may take on the engine ``processes``; 0: any
            time.
    """
    if options.name == "reference":
        from fedtailor.simulation.engines.reference import Reference

        return Reference()

    if options.name == "batched":
        from fedtailor.simulation.engines.batched import Batched

        return Batched(options.block)

    if options.name == "processes":
        from fedtailor.simulation.engines.processes import Processes

        return Processes(options.workers, client_timeout)

    if options.name == "ray":
        from fedtailor.simulation.engines.ray_engine import Ray

        return Ray(options.workers, options.ray_address)

    if options.name in ("auto", "workers"):
        from fedtailor.simulation.engines.workers import Workers

        return Workers(options.workers)

    raise unknown_name("engine", options.name, ENGINES, key="engine.name")


def choose_engine(
    options: EngineOptions,
    algorithm: Algorithm[Any, Any, Any],
    federation: Federation,
    schedule: Schedule,
    device: torch.device = HOST,
) -> EngineChoice:
    """Build the engine that the options name; ``auto`` chooses one that suits the run and its
    device.

    Raises:
        ConfigError: the schedule limits the time of clients, which the engine cannot do.
    """
    if options.name == "auto" and device != HOST and schedule.client_timeout == 0:
        reason = f"engine batched: on the device {device}, many clients at a time."
        return EngineChoice(build_engine(dataclasses.replace(options, name="batched")), reason)

    if options.name != "auto":
        if schedule.client_timeout > 0 and options.name != "processes":
            raise _cannot_stop_clients(f"'{options.name}' cannot", options.name)
        return EngineChoice(build_engine(options, schedule.client_timeout))

    from fedtailor.simulation.engines.auto import choose, obstacle

    if schedule.client_timeout == 0:
        return choose(algorithm, federation, schedule, options.workers)

    problem = obstacle(algorithm, federation)
    if problem:
        raise _cannot_stop_clients(f"here it cannot run: {problem.rstrip('.')}", options.name)

    processes = dataclasses.replace(options, name="processes")
    reason = "engine processes: federation.client_timeout needs it."
    return EngineChoice(build_engine(processes, schedule.client_timeout), reason)


def choose_device(options: EngineOptions, schedule: Schedule) -> torch.device:
    """Return the device that the options name; ``auto`` gives the CPU where the engine runs on
    nothing else.

    Raises:
        ConfigError: there is no such device, or it cannot do the arithmetic of a run.
    """
    if options.device == "auto" and (options.name in CPU_ONLY or schedule.client_timeout > 0):
        return HOST
    return find(options.device)


def _cannot_stop_clients(why: str, name: str) -> ConfigError:
    return ConfigError(
        f"federation.client_timeout needs engine.name = 'processes', which can end a client's process; {why}.",
        key="federation.client_timeout",
        allowed=[0],
        got=name,
    )
