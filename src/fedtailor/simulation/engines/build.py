"""Building the engine that the options name. Each engine is imported when it is needed."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from fedtailor.core.devices import HOST, find
from fedtailor.core.errors import ConfigError, FedtailorError
from fedtailor.core.options import wrong_value
from fedtailor.simulation.engines import CPU_ONLY, EngineOptions

if TYPE_CHECKING:
    from fedtailor.core.algorithm import AnyAlgorithm
    from fedtailor.core.engine import Engine
    from fedtailor.core.federation import Federation
    from fedtailor.core.schedule import Schedule


class EngineChoice(NamedTuple):
    """An engine and the reason for choosing it."""

    engine: Engine
    reason: str = ""
    """A sentence if ``auto`` chose; otherwise empty."""


def build_engine(options: EngineOptions, client_timeout: float = 0.0) -> Engine:
    """Build the engine that the options name.

    ``auto`` gives ``workers``, since there is no run to judge.

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

    from fedtailor.simulation.engines.workers import Workers

    return Workers(options.workers)


def choose_engine(
    options: EngineOptions,
    algorithm: AnyAlgorithm,
    federation: Federation,
    schedule: Schedule,
    device: torch.device = HOST,
    *,
    one_by_one: bool = False,
) -> EngineChoice:
    """Build the engine that the options name.

    ``auto`` chooses one that suits the run and its device.

    Args:
        options: name it.
        algorithm: what it runs.
        federation: the clients.
        schedule: whether the time of clients is limited.
        device: where their programs run.
        one_by_one: whether clients cannot be stacked, because their examples are bounded.

    Raises:
        ConfigError: the schedule limits the time of clients, which the engine cannot do.
    """
    if options.name == "batched" and one_by_one:
        allowed = "not 'batched' with privacy.unit = 'example', for which clients run one by one"
        raise wrong_value("engine.name", allowed, options.name)

    if options.name != "auto":
        if schedule.client_timeout > 0 and options.name != "processes":
            raise _cannot_stop_clients(schedule.client_timeout, f"'{options.name}' cannot.")
        return EngineChoice(build_engine(options, schedule.client_timeout))

    # Threads cannot be ended, so a limit of time decides.
    if schedule.client_timeout == 0:
        name, why = _choose_name(options, algorithm, federation, schedule, device, one_by_one)
        engine = build_engine(dataclasses.replace(options, name=cast(Any, name)))
        return EngineChoice(engine, f"engine {name}: {why.rstrip('.')}.")

    problem = _obstacle_to_processes(algorithm, federation)
    if problem:
        raise _cannot_stop_clients(schedule.client_timeout, f"Here it cannot run: {problem}")

    processes = dataclasses.replace(options, name="processes")
    reason = "engine processes: federation.client_timeout needs it."
    return EngineChoice(build_engine(processes, schedule.client_timeout), reason)


_SMALL_MODEL = 200_000
"""Parameters of a model whose steps are so short that threads hold each other up, if it has no
convolutions.

Measured on two cores (docs/results/performance.md): a step of the perceptron takes 0.13 ms in
threads and 0.09 ms in processes; steps of convolutional networks take 0.9 to 3.6 ms, also with
90,000 parameters, and threads are as fast. A perceptron of 800,000 parameters takes four times as
long as one of 80,000."""
_WORTH_A_START = 100_000
"""Steps of every worker that make up for the seconds in which processes start."""


def _choose_name(
    options: EngineOptions,
    algorithm: AnyAlgorithm,
    federation: Federation,
    schedule: Schedule,
    device: torch.device,
    one_by_one: bool,
) -> tuple[str, str]:
    """Choose an engine; return its name, and why. Threads and processes give the same bits."""
    from fedtailor.core.engine import physical_cores

    if device != HOST and one_by_one:
        return "reference", "privacy.unit = 'example' needs clients one by one"
    if device != HOST:
        return "batched", f"on the device {device}, many clients at a time"

    count = options.workers or physical_cores()
    if count == 1:
        return "workers", "only one core is available"

    # Kernels of convolutions have more than two dimensions.
    shapes = federation.common_task.model.shapes.values()
    has_convolutions = any(len(shape) > 2 for shape in shapes)
    if has_convolutions or sum(map(math.prod, shapes)) > _SMALL_MODEL:
        return "workers", "steps of this model are long enough for threads"

    steps = expected_steps(algorithm, federation, schedule)
    if steps < _WORTH_A_START * count:
        return "workers", f"for {steps:.0f} steps it is not worth starting processes"

    problem = _obstacle_to_processes(algorithm, federation)
    if problem:
        return "workers", f"steps of this model are too short for threads, but {problem}"
    return "processes", "steps of this model are too short for threads"


def expected_steps(algorithm: AnyAlgorithm, federation: Federation, schedule: Schedule) -> float:
    """Estimate the training steps of a run.

    As if every client had the median size and trained plainly.
    """
    roster = federation.roster
    sizes = sorted(roster.num_train[client] for client in roster.trainable_clients)
    if not sizes:
        return 0.0

    clients = float(len(sizes))
    if not schedule.everybody_trains(algorithm.trains):
        clients *= schedule.participation.share(len(sizes))

    median = sizes[len(sizes) // 2]
    return schedule.rounds * clients * algorithm.training.num_steps(median)


def _obstacle_to_processes(algorithm: AnyAlgorithm, federation: Federation) -> str:
    """Return why an algorithm cannot run in other processes, as a sentence; empty if it can."""
    from fedtailor.simulation.engines.requests import encode_map, encode_task
    from fedtailor.simulation.programs import TrainRequest, client_program

    # Whatever would be sent is tried out; it is far less than a run.
    tasks = {id(task): task for task in (federation.common_task, *federation.client_tasks)}
    try:
        encode_map(client_program(algorithm, TrainRequest()), ())
        for task in tasks.values():
            encode_task(0, task)
    except ConfigError as error:
        return error.message

    return ""


def choose_device(options: EngineOptions, schedule: Schedule) -> torch.device:
    """Return the device that the options name.

    ``auto`` gives the CPU where the engine runs on nothing else.

    Raises:
        ConfigError: there is no such device, or it cannot do the arithmetic of a run.
    """
    if options.device == "auto" and (options.name in CPU_ONLY or schedule.client_timeout > 0):
        return HOST
    return find(options.device)


def _cannot_stop_clients(seconds: float, why: str) -> FedtailorError:
    allowed = "0 unless engine.name = 'processes', which can end a client's process"
    return wrong_value("federation.client_timeout", allowed, seconds, why)
