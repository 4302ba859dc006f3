"""What ``auto`` chooses on a CPU: threads, or processes where steps are so short that threads hold each other up.

Both give the bits of the reference engine, so that no result depends on a timing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fedtailor.core import rng
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.engine import one_thread
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import Federation
from fedtailor.core.schedule import Protocol
from fedtailor.core.task import Training
from fedtailor.simulation.engines.options import EngineChoice
from fedtailor.simulation.engines.processes import Processes, encode_map, encode_task
from fedtailor.simulation.engines.workers import Workers, physical_cores
from fedtailor.simulation.programs import train_program
from fedtailor.training.blocks import train
from fedtailor.training.losses import classification_loss

SHORT_STEP = 1e-3
"""Seconds of a step under which threads hold each other up."""
WORTH_A_START = 20.0
"""Seconds of a run that earn the start of processes, which takes some."""
_WARM_UP, _TIMED = 3, 10  # steps
_SLOW = 0.02  # seconds of a first step that need no second look


def choose(
    algorithm: Algorithm[Any, Any, Any],
    federation: Federation,
    protocol: Protocol,
    workers: int = 0,
    *,
    measure: Callable[[Algorithm[Any, Any, Any], Federation], float] | None = None,
) -> EngineChoice:
    """Choose between threads and processes.

    Args:
        algorithm: what will run.
        federation: its clients and data.
        protocol: its rounds, and who trains in them.
        workers: clients at once; 0: one per physical core.
        measure: returns the seconds of a plain step; default: :func:`step_seconds`.
    """
    count = workers or physical_cores()
    if count == 1:
        return EngineChoice(Workers(count), "engine workers: there is one core to use.")
    steps = expected_steps(algorithm, federation, protocol)
    if steps * SHORT_STEP / count <= WORTH_A_START:
        return EngineChoice(
            Workers(count), f"engine workers: processes are not worth their start for {steps:.0f} steps."
        )
    try:
        seconds = (measure or step_seconds)(algorithm, federation)
    except Exception as error:  # whatever a user's model raises: the run will say so of every client
        return EngineChoice(Workers(count), f"engine workers: a plain step of training failed, {error}")
    took = f"a plain step takes {1e3 * seconds:.2g} ms"
    if seconds >= SHORT_STEP:
        return EngineChoice(Workers(count), f"engine workers: {took}, long enough for threads.", seconds)
    total = steps * seconds / count
    if total <= WORTH_A_START:
        rest = f"processes are not worth their start for about {total:.0f} s"
        return EngineChoice(Workers(count), f"engine workers: {took}, and {rest}.", seconds)
    problem = obstacle(algorithm, federation)
    if problem:
        return EngineChoice(Workers(count), f"engine workers: {took}, too short for threads, but {problem}", seconds)
    return EngineChoice(Processes(count), f"engine processes: {took}, too short for threads.", seconds)


def expected_steps(algorithm: Algorithm[Any, Any, Any], federation: Federation, protocol: Protocol) -> float:
    """Return how many steps of training a run has, about: those of plain training on the client of median size."""
    sizes = _sizes(federation)
    if not sizes:
        return 0.0
    training, population, draw = algorithm.training, len(sizes), protocol.participation
    share = {"all": population, "fixed": draw.count, "bernoulli": draw.probability * population}[draw.plan]
    clients = population if protocol.everybody_trains(algorithm) else min(share, population)
    return protocol.rounds * clients * _client_steps(training, _median(sizes))


def _client_steps(training: Training, size: int) -> int:
    """Return the steps of a client of a size in a round."""
    return training.steps or training.epochs * (-(-size // training.batch_size) if training.batch_size else 1)


def step_seconds(algorithm: Algorithm[Any, Any, Any], federation: Federation) -> float:
    """Return what a plain step of training takes, in seconds of processor time: others who work here do not count."""
    sizes = _sizes(federation)
    client = federation.trainable_clients[sizes.index(_median(sizes))]
    task, key = federation.task(client), rng.new_key(0, purpose="timing")
    data, params = federation.data(client).train, task.model.init(key)
    step = partial(train, task, classification_loss, params, data=data, key=key, training=algorithm.training)

    def seconds(steps: int) -> float:
        start = time.thread_time()
        step(steps=steps)
        return (time.thread_time() - start) / steps

    with one_thread():
        first = seconds(1)
        if first > _SLOW:
            return first
        seconds(_WARM_UP - 1)
        return seconds(_TIMED)


def obstacle(algorithm: Algorithm[Any, Any, Any], federation: Federation) -> str:
    """Return why an algorithm cannot run in other processes, as a sentence, or nothing."""
    try:
        encode_map(partial(train_program, algorithm=algorithm, evaluate=False), ())
        for task in {id(task): task for task in (federation.common_task, *federation.own_tasks)}.values():
            encode_task(0, task)
    except ConfigError as error:
        return error.message
    return ""


def _sizes(federation: Federation) -> list[int]:
    return [len(federation.splits[client].train) for client in federation.trainable_clients]


def _median(sizes: Sequence[int]) -> int:
    return sorted(sizes)[len(sizes) // 2]
