"""The engine ``auto``: on a CPU, threads, or processes where steps are so short that threads hold
each other up.

Both give the same bits as the reference engine, so no result depends on a timing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from fedtailor.core import rng
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.engine import one_thread
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import Federation
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Training
from fedtailor.simulation.engines.options import EngineChoice
from fedtailor.simulation.engines.workers import Workers, physical_cores
from fedtailor.simulation.programs import TrainRequest, client_program
from fedtailor.training.blocks import train
from fedtailor.training.losses import classification_loss

SHORT_STEP = 1e-3
"""Duration of a training step in seconds; during shorter steps, threads hold each other up."""
WORTH_A_START = 20.0
"""Duration of a run in seconds; shorter runs do not gain from processes, which take time to
start."""
_WARM_UP_STEPS = 3
_TIMED_STEPS = 10
_SLOW = 0.02
"""Duration of a first step in seconds that needs no second measurement."""


def choose(
    algorithm: Algorithm[Any, Any, Any],
    federation: Federation,
    schedule: Schedule,
    workers: int = 0,
    *,
    measure: Callable[[Algorithm[Any, Any, Any], Federation], float] | None = None,
) -> EngineChoice:
    """Choose between threads and processes.

    Args:
        algorithm: the algorithm that will run.
        federation: its clients and data.
        schedule: its rounds, and which clients train in them.
        workers: how many clients run at the same time; 0: one per physical core.
        measure: returns the duration of a training step in seconds; default: :func:`step_seconds`.
    """
    count = workers or physical_cores()
    if count == 1:
        return EngineChoice(Workers(count), "engine workers: only one core is available.")

    steps = expected_steps(algorithm, federation, schedule)
    if steps * SHORT_STEP / count <= WORTH_A_START:
        reason = f"engine workers: for {steps:.0f} steps it is not worth starting processes."
        return EngineChoice(Workers(count), reason)

    try:
        seconds = (measure or step_seconds)(algorithm, federation)
    except (
        Exception
    ) as error:  # a user's model may raise anything; the run will report it for every client
        return EngineChoice(
            Workers(count), f"engine workers: a trial training step failed: {error}"
        )

    duration = f"a training step takes {1e3 * seconds:.2g} ms"
    if seconds >= SHORT_STEP:
        return EngineChoice(
            Workers(count), f"engine workers: {duration}, long enough for threads.", seconds
        )

    total = steps * seconds / count
    if total <= WORTH_A_START:
        reason = f"engine workers: {duration}; for a run of about {total:.0f} s it is not worth starting processes."
        return EngineChoice(Workers(count), reason, seconds)

    problem = obstacle(algorithm, federation)
    if problem:
        reason = f"engine workers: {duration}, too short for threads, but {problem}"
        return EngineChoice(Workers(count), reason, seconds)

    from fedtailor.simulation.engines.processes import Processes

    return EngineChoice(
        Processes(count), f"engine processes: {duration}, too short for threads.", seconds
    )


def expected_steps(
    algorithm: Algorithm[Any, Any, Any], federation: Federation, schedule: Schedule
) -> float:
    """Estimate the training steps of a run: as if every client had the median size and trained
    plainly.
    """
    sizes = _sizes(federation)
    if not sizes:
        return 0.0
    clients = _expected_clients(algorithm, schedule, population=len(sizes))
    return schedule.rounds * clients * _client_steps(algorithm.training, _median(sizes))


def _expected_clients(
    algorithm: Algorithm[Any, Any, Any], schedule: Schedule, population: int
) -> float:
    """Return how many clients of a population train in a round, on average."""
    participation = schedule.participation
    if schedule.everybody_trains(algorithm) or participation.plan == "all":
        return population
    if participation.plan == "fixed":
        return min(participation.count, population)
    return participation.probability * population


def _client_steps(training: Training, size: int) -> int:
    """Return the steps in a round of a client with ``size`` training examples."""
    if training.steps:
        return training.steps
    if training.batch_size:
        batches = math.ceil(size / training.batch_size)
    else:
        batches = 1
    return training.epochs * batches


def step_seconds(algorithm: Algorithm[Any, Any, Any], federation: Federation) -> float:
    """Return the processor time of a plain training step in seconds; other programs do not affect
    it.
    """
    sizes = _sizes(federation)
    client = federation.roster.trainable_clients[sizes.index(_median(sizes))]
    task = federation.task(client)
    data = federation.data(client).train
    key = rng.new_key(0, purpose="timing")
    params = task.model.init(key)

    def seconds(steps: int) -> float:
        start = time.thread_time()
        train(
            task,
            classification_loss,
            params,
            data=data,
            key=key,
            training=algorithm.training,
            steps=steps,
        )

        return (time.thread_time() - start) / steps

    with one_thread():
        first = seconds(1)
        if first > _SLOW:
            return first

        seconds(_WARM_UP_STEPS - 1)
        return seconds(_TIMED_STEPS)


def obstacle(algorithm: Algorithm[Any, Any, Any], federation: Federation) -> str:
    """Return why an algorithm cannot run in other processes, as a sentence; empty if it can."""
    from fedtailor.simulation.engines.requests import encode_map, encode_task

    tasks = {id(task): task for task in (federation.common_task, *federation.client_tasks)}
    try:
        encode_map(client_program(algorithm, TrainRequest()), ())
        for task in tasks.values():
            encode_task(0, task)
    except ConfigError as error:
        return error.message

    return ""


def _sizes(federation: Federation) -> list[int]:
    return [federation.roster.num_train[client] for client in federation.roster.trainable_clients]


def _median(sizes: Sequence[int]) -> int:
    return sorted(sizes)[len(sizes) // 2]
