"""Seconds of a whole round, and where they go, for any algorithms.

    python benchmarks/round.py [--algorithms pfedfda,fedrep] [--model cifar_cnn] [--engines
    workers,batched]
                               [--alpha 0.5] [--rounds 3] [--json]

A cohort of 30 clients trains 5 epochs on random images in batches of 50, as in a round of the
experiments of pFedFDA. The 18,000 images are divided class by class in proportions drawn from
Dir(alpha), so the clients have different sizes; a fifth of the images is for tests. Seconds per
round and per evaluation are medians over the rounds, for one engine after another. The shares are
those of one client's round, and of making its personal model, by function, in processor time of one
thread; each is the median of seven rounds, once small steps are recorded. The time within training
steps and passes over the data is named after the loss or function that ran in them; the rest is the
cost of the method itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core import noise
from fedtailor.core.engine import Failure, Job
from fedtailor.core.federation import Cohort, Federation, Split
from fedtailor.core.rng import new_key
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task, Training
from fedtailor.experiment.provenance import machine, versions
from fedtailor.models import MODELS, build_model
from fedtailor.simulation.engines.build import build_engine
from fedtailor.simulation.engines.containment import run_job
from fedtailor.simulation.engines.options import EngineOptions
from fedtailor.simulation.programs import (
    PersonalizeRequest,
    SharedInputs,
    TrainRequest,
    client_inputs,
    client_program,
)
from fedtailor.simulation.rounds import simulate
from fedtailor.training import blocks
from fedtailor.training.step_graph.replay import ReplayRunner

CLIENTS = 30
EXAMPLES = 480
"""Training examples of a client, on average."""
TEST = 120
"""Test examples of a client, on average."""
CLASSES = 10
REPEATS = 7
"""Rounds of one client whose parts are timed."""
TRAINING = Training(
    lr=0.01, momentum=0.5, weight_decay=5e-4, epochs=5, batch_size=50, drop_last=True
)
BLOCKS = {"train", "forward", "cached_features", "fine_tune", "train_head", "train_rounds"}
"""Building blocks whose time is that of the steps and passes in them."""
SEED_ALGORITHMS = "fedavg,fedrep,ditto,pfedfda,fedlda,fedcr,pfedvem"


class Clock:
    """Processor time by name. Each moment counts once, for the innermost function that is being
    timed.

    Everything within a step, or a pass over the data, belongs to it, except the noise that it
    draws.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.stack: list[str] = ["other"]
        self.last = time.thread_time()

    def _switch(self) -> None:
        now = time.thread_time()
        self.seconds[self.stack[-1]] += now - self.last
        self.last = now

    def wrap(self, function: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        """Return the function, with its time counted under ``name(*arguments)``."""

        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            label = name(*arguments)
            if self.stack[-1].startswith(("steps", "pass")) and not label.startswith("noise"):
                return function(*arguments, **named)
            self._switch()
            self.stack.append(label)
            try:
                return function(*arguments, **named)
            finally:
                self._switch()
                self.stack.pop()

        return timed


def make_federation(task: Task, alpha: float) -> Federation:
    """Return clients with random images; their sizes follow from the proportions of classes."""
    generator = torch.Generator().manual_seed(0)
    draw = np.random.default_rng(0)
    rows = CLIENTS * (EXAMPLES + TEST)
    x = torch.randn(rows, *task.input_shape, generator=generator).contiguous(
        memory_format=torch.channels_last
    )
    y = torch.arange(rows) % CLASSES
    parts: list[list[np.ndarray]] = [[] for _ in range(CLIENTS)]
    for label in range(CLASSES):
        own = np.arange(label, rows, CLASSES)
        cuts = (np.cumsum(draw.dirichlet(np.full(CLIENTS, alpha)))[:-1] * len(own)).astype(int)
        for part, piece in zip(parts, np.split(own, cuts), strict=True):
            part.append(piece)
    splits = []
    for part in parts:
        mixed = torch.from_numpy(draw.permutation(np.concatenate(part)))
        test = len(mixed) * TEST // (EXAMPLES + TEST)
        splits.append(Split(mixed[test:], mixed[:0], mixed[:test]))
    return Federation(x, y, splits, task)


def whole_rounds(
    algorithm: Any, federation: Federation, rounds: int, engine: Any
) -> dict[str, float]:
    """Return median seconds of training a round, of the server, and of personalizing and scoring
    all clients.
    """
    schedule = Schedule(rounds=rounds + 1, evaluate_every=0, personalized_every=1)
    reports = list(simulate(algorithm, federation, engine, schedule, seed=0))[1:]
    kinds = ("train", "aggregate", "evaluate")
    return {kind: statistics.median(report.seconds[kind] for report in reports) for kind in kinds}


def shares(name: str, algorithm: Any, federation: Federation) -> dict[str, dict[str, float]]:
    """Return seconds by function of one client's round and of its personal model, in one thread."""
    torch.set_num_threads(1)
    clock = Clock()
    train_one = clock.wrap(
        blocks.train_one, lambda phase, *_: f"steps: {_name(phase.loss or phase.step)}"
    )
    forward_one = clock.wrap(blocks.forward_one, lambda run, *_: f"pass: {_name(run.function)}")
    draw = clock.wrap(noise._draw, lambda kind, *_: f"noise: {kind}")
    places = [
        (blocks, "train_one", train_one),
        (blocks, "forward_one", forward_one),
        (noise, "_draw", draw),
    ]
    module = importlib.import_module(type(algorithm).__module__)
    for attribute, value in vars(module).items():
        if (
            _is_of_package(value)
            and value.__module__ != module.__name__
            and attribute not in BLOCKS
        ):
            places.append((module, attribute, clock.wrap(value, partial(_fixed, attribute))))
        elif isinstance(value, ModuleType) and value.__name__.startswith("fedtailor.statistics."):
            places.append((module, attribute, _timed_namespace(value, clock)))
    originals = [(place, attribute, getattr(place, attribute)) for place, attribute, _ in places]
    for place, attribute, timed in places:
        setattr(place, attribute, timed)
    try:
        return _one_client(algorithm, federation, clock)
    finally:
        for place, attribute, original in originals:
            setattr(place, attribute, original)


def _is_of_package(value: Any) -> bool:
    return isinstance(value, FunctionType) and value.__module__.startswith("fedtailor.")


def _timed_namespace(module: ModuleType, clock: Clock) -> SimpleNamespace:
    """Return a module's names with its functions timed for the method that calls them, and not
    within the module.
    """
    names = dict(vars(module))
    for name, value in vars(module).items():
        if _is_of_package(value):
            names[name] = clock.wrap(value, partial(_fixed, name))
    return SimpleNamespace(**names)


def _one_client(
    algorithm: Any, federation: Federation, clock: Clock
) -> dict[str, dict[str, float]]:
    key = new_key(0)
    info = federation.info(0)
    server = algorithm.init_server(federation.common_task, key)
    state = algorithm.init_client(federation.common_task, info, key)
    own = algorithm.init_per_client(federation.common_task, info, key)
    found = {}
    programs = {
        "train": client_program(algorithm, TrainRequest()),
        "personalize": client_program(algorithm, PersonalizeRequest(new=False, validate=False)),
    }
    runner = ReplayRunner()
    for what, program in programs.items():
        shared = algorithm.broadcast(server, Cohort(torch.arange(CLIENTS), CLIENTS, 1, 2))
        common = SharedInputs(
            federation.x, federation.y, federation.scale, torch.tensor(0), torch.tensor(1), shared
        )
        parts: dict[str, list[float]] = defaultdict(list)
        for number in range(
            2 + REPEATS
        ):  # the first run warms up; in the second, small steps are recorded
            clock.seconds.clear()
            clock.last = time.thread_time()
            inputs = client_inputs(0, federation.splits[0], info, state, own)
            job = Job(0, federation.common_task, inputs, len(inputs.train.rows))
            output = run_job(program, common, job, runner)
            clock._switch()
            if number >= 2:
                for part, seconds in clock.seconds.items():
                    parts[part].append(seconds)
        assert not isinstance(output, Failure), output
        medians = {part: statistics.median(values) for part, values in parts.items()}
        found[what] = dict(sorted(medians.items(), key=lambda item: -item[1]))
        state = output[0] if what == "train" else state
    return found


def _name(function: Any) -> str:
    while isinstance(function, partial):
        function = function.args[0] if function.func.__name__ == "_predict" else function.func
    return str(getattr(function, "__name__", type(function).__name__)).strip("_")


def _fixed(name: str, *_: Any) -> str:
    return name


def measure(
    name: str, federation: Federation, rounds: int, engines: dict[str, Any]
) -> dict[str, Any]:
    """Return the record of one algorithm."""
    options = {"prediction_samples": 18} if name == "fedcr" else {}
    algorithm = dataclasses.replace(load_algorithm(name)(training=TRAINING), **options)
    seconds = {
        engine: whole_rounds(algorithm, federation, rounds, each)
        for engine, each in engines.items()
    }
    parts = shares(name, algorithm, federation)
    steps = sum(
        value for part, value in parts["train"].items() if part.startswith(("steps", "noise"))
    )
    return {
        "seconds": seconds,
        "outside_steps": 1 - steps / sum(parts["train"].values()),
        "one_client": parts,
    }


def show(record: dict[str, Any]) -> None:
    """Print a record."""
    for name, found in record["algorithms"].items():
        print(f"{name}: outside steps {100 * found['outside_steps']:.1f} %")
        for engine, seconds in found["seconds"].items():
            print(
                f"  {engine}: {', '.join(f'{kind} {value:.2f} s' for kind, value in seconds.items())}"
            )
        for what, parts in found["one_client"].items():
            total = sum(parts.values())
            top = [f"{100 * value / total:.1f} % {part}" for part, value in list(parts.items())[:5]]
            print(f"  {what} ({1000 * total:.0f} ms a client): {', '.join(top)}")


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algorithms", default=SEED_ALGORITHMS, help="names, separated by commas")
    parser.add_argument("--model", default="cifar_cnn", choices=sorted(MODELS))
    parser.add_argument("--engines", default="workers", help="names, separated by commas")
    parser.add_argument("--alpha", type=float, default=0.5, help="of the Dirichlet distribution")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--json", action="store_true", help="write results/round-MODEL-ALPHA.json too"
    )
    arguments = parser.parse_args()
    names = arguments.algorithms.split(",")
    if unknown := sorted(set(names) - set(ALGORITHMS)):
        parser.error(f"--algorithms: unknown: {', '.join(unknown)}; known: {', '.join(ALGORITHMS)}")
    shape = MODELS[arguments.model].shape
    federation = make_federation(
        Task(build_model(arguments.model, shape, CLASSES), CLASSES, shape), arguments.alpha
    )
    before = os.getloadavg()[0]
    engines = {
        name: build_engine(EngineOptions(name=name)) for name in arguments.engines.split(",")
    }
    found = {name: measure(name, federation, arguments.rounds, engines) for name in names}
    for engine in engines.values():
        engine.close()
    record = {
        "model": arguments.model,
        "alpha": arguments.alpha,
        "rounds": arguments.rounds,
        "algorithms": found,
        "machine": {**machine(), "load_before": before, "load_after": os.getloadavg()[0]},
        "versions": versions(),
    }
    show(record)
    if arguments.json:
        path = (
            Path(__file__).parent / "results" / f"round-{arguments.model}-{arguments.alpha:g}.json"
        )
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
