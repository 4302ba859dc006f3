"""Seconds of whole rounds, for any algorithms on any engines.

    python -m benchmarks.round [--algorithms pfedfda,fedrep] [--model cifar_cnn]
                               [--engines workers,batched] [--alpha 0.5] [--rounds 3] [--json]

A cohort of 30 clients trains 5 epochs on random images in batches of 50, as in a round of the
experiments of pFedFDA. The 18,000 images are divided class by class in proportions drawn from
Dir(alpha), so the clients have different sizes; a fifth of the images is for tests. Seconds are
medians over the rounds, for one engine after another.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
from typing import Any

import numpy as np
import torch

from benchmarks.records import describe_machine, save_record
from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core.federation import Federation, Split
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task, Training
from fedtailor.models import MODELS, build_model
from fedtailor.simulation.engines import EngineOptions
from fedtailor.simulation.engines.build import build_engine
from fedtailor.simulation.rounds import simulate

CLIENTS = 30
EXAMPLES = 480
"""Training examples of a client, on average."""
TEST = 120
"""Test examples of a client, on average."""
CLASSES = 10
TRAINING = Training(
    lr=0.01, momentum=0.5, weight_decay=5e-4, epochs=5, batch_size=50, drop_last=True
)
ALGORITHMS_BY_DEFAULT = "fedavg,fedrep,ditto,pfedfda,fedlda,fedcr,pfedvem"
PARTS = ("train", "aggregate", "evaluate")
"""Parts of a round: training, the server, and personalizing and scoring all clients."""


def make_federation(task: Task, alpha: float) -> Federation:
    """Return clients with random images; their sizes follow from the proportions of classes."""
    generator = torch.Generator().manual_seed(0)
    draw = np.random.default_rng(0)
    rows = CLIENTS * (EXAMPLES + TEST)
    x = torch.randn(rows, *task.input_shape, generator=generator)
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    y = torch.arange(rows) % CLASSES

    # The rows of each class, cut in proportions of their own.
    pieces: list[list[np.ndarray]] = [[] for _ in range(CLIENTS)]
    for label in range(CLASSES):
        members = np.arange(label, rows, CLASSES)
        shares = draw.dirichlet(np.full(CLIENTS, alpha))
        cuts = (np.cumsum(shares)[:-1] * len(members)).astype(int)
        for client, piece in enumerate(np.split(members, cuts)):
            pieces[client].append(piece)

    splits = []
    for client in range(CLIENTS):
        mixed = torch.from_numpy(draw.permutation(np.concatenate(pieces[client])))
        num_test = len(mixed) * TEST // (EXAMPLES + TEST)
        splits.append(Split(mixed[num_test:], mixed[:0], mixed[:num_test]))

    return Federation(x, y, splits, task)


def measure(algorithm: Any, federation: Federation, rounds: int, engine: Any) -> dict[str, float]:
    """Return the median seconds of the parts of a round; the first one is a warm-up."""
    schedule = Schedule(rounds=rounds + 1, evaluate_every=0, personalized_every=1)
    reports = list(simulate(algorithm, federation, engine, schedule, seed=0))[1:]
    return {part: statistics.median(report.seconds[part] for report in reports) for part in PARTS}


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algorithms", default=ALGORITHMS_BY_DEFAULT, help="names, with commas")
    parser.add_argument("--model", default="cifar_cnn", choices=sorted(MODELS))
    parser.add_argument("--engines", default="workers", help="names, with commas")
    parser.add_argument("--alpha", type=float, default=0.5, help="of the Dirichlet distribution")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="write results/round.jsonl too")
    options = parser.parse_args()
    names = options.algorithms.split(",")
    if unknown := sorted(set(names) - set(ALGORITHMS)):
        parser.error(f"--algorithms: unknown: {', '.join(unknown)}; known: {', '.join(ALGORITHMS)}")

    record = {"model": options.model, "alpha": options.alpha, "rounds": options.rounds}
    record |= describe_machine()
    shape = MODELS[options.model].shape
    task = Task(build_model(options.model, shape, CLASSES), CLASSES, shape)
    federation = make_federation(task, options.alpha)
    record["algorithms"] = {name: {"seconds": {}} for name in names}
    for engine_name in options.engines.split(","):
        engine = build_engine(EngineOptions(name=engine_name))
        for name in names:
            # FedCR predicts with many samples, which would hide what its round takes.
            changes = {"prediction_samples": 18} if name == "fedcr" else {}
            algorithm = dataclasses.replace(load_algorithm(name)(training=TRAINING), **changes)
            seconds = measure(algorithm, federation, options.rounds, engine)
            record["algorithms"][name]["seconds"][engine_name] = seconds
            parts = ", ".join(f"{part} {value:.2f} s" for part, value in seconds.items())
            print(f"{name} on {engine_name}: {parts}", flush=True)

        engine.close()

    record["machine"]["load_after"] = os.getloadavg()[0]
    if options.json:
        save_record("round", f"round-{options.model}-{options.alpha:g}", record)


if __name__ == "__main__":
    main()
