"""What checkpoints and containment cost in a round of CIFAR-10 with 100 clients.

    python benchmarks/safety.py --data-dir DIR [--algorithms fedavg,scaffold,pfedfda,fedrep]
    [--rounds 5] [--json]

CIFAR-10 is divided among 100 clients by Dirichlet(0.5); in a round, 30 % of them on average train
the CIFAR-CNN for one epoch in batches of 50, in the plain loop. There is a checkpoint after every
round. A number is a share of the seconds that training takes: the time to write the checkpoint, and
what is spent around the clients' programs, which copies inputs and outputs, checks them, and
restores settings. Shares are medians over the rounds after the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from train_step import machine

RESULTS = Path(__file__).parent / "results"


class Clock:
    """Seconds in calls of functions, by name, since they were last taken."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time counts."""

        def call(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

        return call

    def take(self) -> dict[str, float]:
        """Return the seconds, and begin anew."""
        taken = self.seconds
        self.seconds = {}
        return taken


def configuration(algorithm: str, rounds: int, data_dir: str) -> dict[str, Any]:
    """Return the configuration of a run."""
    return {
        "algorithm": {"name": algorithm},
        "model": {"name": "cifar_cnn"},
        "data": {
            "dataset": "cifar10",
            "dir": data_dir,
            "partition": "dirichlet(alpha=0.5)",
            "clients": 100,
        },
        "federation": {"rounds": rounds, "participation": 0.3, "full_last_round": False},
        "training": {"epochs": 1, "batch_size": 50, "lr": 0.01},
        "evaluation": {"every": 0, "personalized_every": 0},
        "engine": {"name": "reference"},
    }


def measure(algorithm: str, rounds: int, data_dir: str) -> dict[str, list[float]]:
    """Return the shares of every round after the first."""
    from fedtailor.experiment import run as experiment
    from fedtailor.experiment.config import make_config
    from fedtailor.simulation.checkpoint import Checkpoints
    from fedtailor.simulation.engines.reference import Reference

    clock = Clock()
    found: list[dict[str, float]] = []
    plain_map = Reference.map
    plain_save = Checkpoints.save

    def map_timed(self: Reference, program: Any, common: Any, jobs: Any) -> Any:
        timed = clock.timed("programs", program)
        return clock.timed("loop", plain_map)(self, timed, common, jobs)

    def save(self: Checkpoints, *arguments: Any) -> None:
        clock.timed("checkpoint", plain_save)(self, *arguments)
        found.append(clock.take())

    Reference.map = map_timed  # type: ignore[method-assign]
    Checkpoints.save = save  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            experiment.run(
                make_config(configuration(algorithm, rounds, data_dir)), out=Path(folder) / "run"
            )
    finally:
        Reference.map = plain_map  # type: ignore[method-assign]
        Checkpoints.save = plain_save  # type: ignore[method-assign]
    timed = found[1:rounds]
    return {
        "checkpoint": [each["checkpoint"] / each["loop"] for each in timed],
        "containment": [each["loop"] / each["programs"] - 1 for each in timed],
        "training_seconds": [each["loop"] for each in timed],
    }


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True, help="folder with cifar-10-batches-py")
    parser.add_argument(
        "--algorithms", default="fedavg,scaffold,pfedfda,fedrep", help="names, separated by commas"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="write results/safety.json too")
    arguments = parser.parse_args()
    record: dict[str, Any] = {
        "benchmark": "safety",
        "rounds": arguments.rounds,
        "machine": machine(),
        "shares": {},
    }
    for name in arguments.algorithms.split(","):
        measured = measure(name, arguments.rounds, arguments.data_dir)
        record["shares"][name] = measured
        median = {what: statistics.median(values) for what, values in measured.items()}
        shares = f"checkpoint {median['checkpoint']:.2%}, containment {median['containment']:.2%}"
        print(f"{name}: {shares} of {median['training_seconds']:.1f} s", flush=True)
    if arguments.json:
        (RESULTS / "safety.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
