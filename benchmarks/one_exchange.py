"""Methods of one exchange: seconds of all statistics, beside one product of all features.

    python -m benchmarks.one_exchange gram [--repeats 5]
    python -m benchmarks.one_exchange clients [--numbers 500,2000] [--algorithms fedncm,fedcgs]

``gram``: 100 clients with 600 examples of 1,280 features each send class counts, sums and second
moments through a round of the engine ``reference``, with its checks and the server's addition. In
turn with it, NumPy multiplies the features of all clients with themselves, X^T X, in float64 (one
call, which uses that the result is symmetric; the features are float64 already). Both have one
thread; seconds are those of the processor.

``clients``: a round of many clients with 20 examples of 1,280 features: seconds for a thousand of
them, and the largest resident set of the process. They share one table, so that its size is no part
of the growth. Each number comes from a separate process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from fedtailor.algorithms import load_algorithm
from fedtailor.algorithms._closed_form import ClosedForm, Linear
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.federation import Federation, Splits
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task
from fedtailor.models import build_model
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import simulate
from fedtailor.statistics.class_sums import ClassSums

D = 1280
CLASSES = 10
ROWS = 20_000
"""Rows of the table that many small clients share."""


def make_federation(x: torch.Tensor, clients: int, examples: int) -> Federation:
    """Return clients without test examples; their positions go round the table."""
    y = torch.randint(CLASSES, (len(x),), generator=torch.Generator().manual_seed(1))
    rows = np.arange(clients * examples).reshape(clients, examples) % len(x)
    nothing = rows[0, :0]
    splits = Splits((own, nothing, nothing) for own in rows)
    task = Task(build_model("linear", (D,), CLASSES), CLASSES, (D,))
    return Federation(x, y, splits, task)


def random_features(rows: int) -> torch.Tensor:
    """Return rows of random features in float32."""
    return torch.randn(rows, D, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True, kw_only=True)
class Statistics(ClosedForm):
    """All statistics of a linear head, and no head."""

    def fit(self, sums: ClassSums) -> Linear:
        """Return nothing that takes time."""
        return Linear(torch.zeros_like(sums.sums), torch.zeros_like(sums.counts))


def run_round(algorithm: AnyAlgorithm, federation: Federation) -> float:
    """Run the first round, without evaluation; return the processor's seconds."""
    running = simulate(
        algorithm,
        federation,
        Reference(),
        Schedule(rounds=algorithm.exchanges + 1, evaluate_every=0, personalized_every=0),
        seed=0,
    )
    start = time.process_time()
    next(running)
    return time.process_time() - start


def compare_with_gram(repeats: int) -> None:
    """Print seconds of statistics and of one product, in turn, and their ratio."""
    features = random_features(100 * 600)
    federation = make_federation(features, 100, 600)
    pooled = features.double().numpy()
    ratios = []
    with threadpool_limits(1):
        for _ in range(repeats):
            start = time.process_time()
            pooled.T @ pooled
            product = time.process_time() - start

            sums = run_round(Statistics(), federation)
            ratios.append(sums / product)
            print(f"statistics {sums:.2f} s, one product {product:.2f} s", flush=True)

    print(f"median ratio {statistics.median(ratios):.2f}")


def measure(name: str, clients: int) -> dict[str, float]:
    """Run a round of many small clients in this process."""
    federation = make_federation(random_features(ROWS), clients, 20)
    seconds = run_round(load_algorithm(name)(), federation)
    return {
        "seconds": round(seconds / clients * 1000, 2),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def measure_clients(names: list[str], numbers: list[int]) -> None:
    """Print a line for every method and number of clients."""
    for name in names:
        for number in numbers:
            command = [sys.executable, "-m", "benchmarks.one_exchange", "serve", name, str(number)]
            answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(answer.stdout)
            print(
                f"{name:12} {number:7,} clients: {found['seconds']:.2f} s a thousand, peak "
                f"{found['peak_mb']} MB",
                flush=True,
            )


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands: Any = parser.add_subparsers(dest="command", required=True)
    gram = commands.add_parser("gram")
    gram.add_argument("--repeats", type=int, default=5)
    clients = commands.add_parser("clients")
    clients.add_argument("--numbers", default="500,2000", help="numbers of clients, with commas")
    clients.add_argument("--algorithms", default="fedncm,fedcgs,one_shot_fda", help="names")
    serve = commands.add_parser("serve")
    serve.add_argument("algorithm")
    serve.add_argument("number", type=int)
    options = parser.parse_args()

    if options.command == "gram":
        compare_with_gram(options.repeats)
    elif options.command == "serve":
        print(json.dumps(measure(options.algorithm, options.number)))
    else:
        numbers = [int(number) for number in options.numbers.split(",")]
        measure_clients(options.algorithms.split(","), numbers)


if __name__ == "__main__":
    main()
