"""Accuracy against epsilon: what differential privacy costs.

    python -m benchmarks.privacy example [--seeds 0,1,2]

``example``: 10 sites with 143 or 144 training examples of digits each (iid), an MLP with 32 hidden
units, FedAvg, bound 0.5, delta 1e-5, the global model after the last round. ``each site``: 10
rounds of 10 steps with batches of 50, the learning rate 2, noise at every site in every step.
``secure sum``: 100 rounds of one step with all examples, the rate 4; each site adds a share of the
noise, which is enough on the sum of all 10 sites, or with only 4 shares that nobody knows, as
``survivors`` says. Rates are those of a prototype and were not tuned. The records are in
``results/privacy.jsonl``; what is there is not measured again, so a killed program continues.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.records import RESULTS, describe_machine, save_record
from fedtailor.core.reading import read_lines
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.config import make_config
from fedtailor.privacy.accountant import noise_for
from fedtailor.simulation.rounds import simulate

BENCHMARK = "privacy"
EPSILONS = (0.0, 8.0, 4.0, 2.0, 1.0)
"""0: no noise, but the same bound."""
DELTA = 1e-5
CLIP = 0.5
SITES = 10
BATCH = 50
FEWEST = 143
"""Training examples of the smallest site: it has the highest rate."""


class Cell(NamedTuple):
    """A training, and where its noise is added."""

    where: str
    epsilon: float
    rate: float
    """Learning rate."""
    survivors: int
    """Honest shares of noise that are enough; 1: each site has all noise."""
    seed: int

    @property
    def name(self) -> str:
        """The name of its record."""
        return (
            f"example, {self.where}, epsilon {self.epsilon:g}, lr {self.rate:g}, "
            f"survivors {self.survivors}, seed {self.seed}"
        )


def cells(seeds: list[int]) -> Iterator[Cell]:
    """Yield all trainings, seed by seed: a stopped program leaves whole tables."""
    for seed in seeds:
        for epsilon in EPSILONS:
            for survivors in (SITES, 4):
                yield Cell("secure sum", epsilon, 4.0, survivors, seed)
            yield Cell("each site", epsilon, 2.0, 1, seed)


def measure(cell: Cell) -> dict[str, Any]:
    """Train and return the accuracy of the global model."""
    is_sum = cell.where == "secure sum"
    plan = [(1.0, 100)] if is_sum else [(BATCH / FEWEST, 100)]
    noise = noise_for(cell.epsilon, DELTA, plan) if cell.epsilon else 0.0
    training: dict[str, Any] = {"lr": cell.rate, "example_clip": CLIP, "steps": 10}
    training |= {"batch_size": BATCH, "example_noise": noise / math.sqrt(cell.survivors)}
    if is_sum:
        training |= {"steps": 1, "batch_size": 0}

    config = make_config(
        {
            "seed": cell.seed,
            "algorithm": {"name": "fedavg"},
            "training": training,
            "data": {"dataset": "digits", "clients": SITES, "partition": "iid"},
            "model": {"name": "mlp", "options": {"hidden": 32}},
            "federation": {"rounds": 100 if is_sum else 10},
            "evaluation": {"every": 0, "personalized_every": 0},
            "engine": {"name": "reference"},
            "privacy": {"secure_sums": is_sum},
        }
    )
    prepared = assemble(config, cell.seed)
    sizes = prepared.federation.roster.num_train
    assert min(sizes) >= FEWEST, sizes
    reports = simulate(
        prepared.algorithm,
        prepared.federation,
        prepared.engine,
        prepared.config.schedule,
        seed=cell.seed,
        privacy=prepared.config.privacy,
    )
    *_, last = reports
    evaluation = next(part for part in last.evaluations if part.point == "global")
    accuracies = []
    for scores in evaluation.scores.values():
        accuracies.append(float(scores.class_correct.sum() / scores.class_total.sum()))

    return {
        **cell._asdict(),
        "noise": noise,
        "delta": DELTA,
        "clip": CLIP,
        "sites": SITES,
        "num_train": list(sizes),
        "accuracy": sum(accuracies) / len(accuracies),
    }


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=["example"])
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()

    path = RESULTS / f"{BENCHMARK}.jsonl"
    done = {line["name"] for line in read_lines(path)} if path.exists() else set()
    for cell in cells([int(seed) for seed in options.seeds.split(",")]):
        if cell.name in done:
            continue

        machine = describe_machine()
        started = time.perf_counter()
        record = measure(cell)
        seconds = time.perf_counter() - started
        save_record(BENCHMARK, cell.name, {**record, "seconds": seconds, **machine})
        print(cell.name, f"accuracy {record['accuracy']:.3f}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
