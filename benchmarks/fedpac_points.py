"""FedPAC's evaluation points: what combining the heads costs, and what one epoch of the head wins
back.

    python benchmarks/fedpac_points.py --data-dir DIR [--world NAME ...] [--json]
    python benchmarks/fedpac_points.py --table

Every world is run with the seeds 0, 1 and 2 on one division of the data: seeds vary the initial
model, the cohorts and the order of examples. Each run is ``fedtailor run`` with FedPAC, its
defaults and ``finetune_epochs`` 1. Beside the points of that run, the command scores the averaged
body with each client's own head of the last round, and with the combined head, which is
``personalized`` with ``finetune_epochs`` 0. All clients take part in the last round. Records are
results/fedpac_points-WORLD.json, and --table prints them as Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedtailor.algorithms._head_mixing import mixing_weights
from fedtailor.algorithms.fedpac import FedPAC, ServerState
from fedtailor.core import tree
from fedtailor.core.errors import FedtailorError
from fedtailor.core.federation import Federation
from fedtailor.core.rng import new_key
from fedtailor.data.build import split_record
from fedtailor.experiment import provenance, summary
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.config import make_config
from fedtailor.simulation.rounds import simulate
from fedtailor.toolkit import Cohort, Params, Reduced, cached_features

RESULTS = Path(__file__).parent / "results"
SEEDS = (0, 1, 2)
TRAINING = {"lr": 0.01, "momentum": 0.5, "weight_decay": 5e-4, "epochs": 5, "batch_size": 50}
FASHION = {"dataset": "fashion_mnist", "clients": 100, "fraction": 0.5}
WORLDS: dict[str, dict[str, Any]] = {
    "digits-dir0.5": {
        "data": {"dataset": "digits", "partition": "dirichlet(alpha=0.5)", "clients": 20},
        "model": {"name": "mlp"},
        "federation": {"rounds": 100},
    },
    "fashion_mnist-dir0.5-half": {
        "data": {**FASHION, "partition": "dirichlet(alpha=0.5, min_size=62.5)"},
        "model": {"name": "emnist_cnn"},
        "federation": {"rounds": 20, "participation": 0.3},
    },
    "fashion_mnist-dir0.1-half": {
        "data": {**FASHION, "partition": "dirichlet(alpha=0.1, min_size=62.5)"},
        "model": {"name": "emnist_cnn"},
        "federation": {"rounds": 20, "participation": 0.3},
    },
}
"""The last one is the world of all algorithms in benchmarks/learning.py."""
LABELS = {
    "digits-dir0.5": "digits, Dir(0.5), 20 clients, all in each of 100 rounds",
    "fashion_mnist-dir0.5-half": "Fashion-MNIST, Dir(0.5), 100 clients, 30 % in each of 20 rounds",
    "fashion_mnist-dir0.1-half": "Fashion-MNIST, Dir(0.1), 100 clients, 30 % in each of 20 rounds",
}
POINTS = {
    "local": "`local`",
    "own_head": "averaged body, own head",
    "combined_head": "`personalized`",
    "one_epoch": "`personalized`, one epoch of the head",
}


@dataclass(frozen=True, kw_only=True)
class ObservedFedPAC(FedPAC):
    """FedPAC that remembers the heads of the last round: those of the clients, and the
    combinations.
    """

    last: ClassVar[dict[str, Any]] = {}

    def aggregate(
        self, server: ServerState, received: Mapping[str, Reduced], cohort: Cohort
    ) -> tuple[ServerState, Params | tuple[()]]:
        """Aggregate as usual, and remember what was combined in the last round."""
        new, combined = super().aggregate(server, received, cohort)
        if cohort.round == cohort.rounds:
            self.last["clients"] = cohort.ids.tolist()
            self.last["own_head"] = received["head"].value
            self.last["combined_head"] = combined
            self.last["weights"] = mixing_weights(received["statistics"].value)
        return new, combined


def run_seed(world: str, seed: int, data_dir: str) -> dict[str, Any]:
    """Run FedPAC once; return the accuracies by point, and the mean weight of a client's own
    head.
    """
    values = {
        **WORLDS[world],
        "training": TRAINING,
        "algorithm": {"name": "fedpac", "finetune_epochs": 1},
    }
    parts = assemble(
        make_config({**values, "seed": seed}, [("data.dir", data_dir)] if data_dir else []), seed
    )
    algorithm = ObservedFedPAC(finetune_epochs=1, training=parts.algorithm.training)
    for report in simulate(
        algorithm, parts.federation, parts.engine, parts.config.schedule, seed=seed
    ):
        sys.stderr.write(
            f"\r{world}, seed {seed}: round {report.round} of {parts.config.schedule.rounds} "
        )
    sys.stderr.write("\n")
    metrics, _ = summary.final_metrics(report, parts.federation.roster)
    heads = algorithm.last
    assert heads["clients"] == list(parts.federation.known)
    body = report.state.server.body
    accuracies = {
        "local": figures(metrics["local"]["accuracy"]),
        "own_head": accuracy_with_heads(parts.federation, body, heads["own_head"]),
        "combined_head": accuracy_with_heads(parts.federation, body, heads["combined_head"]),
        "one_epoch": figures(metrics["personalized"]["accuracy"]),
    }
    return {
        "seed": seed,
        "accuracies": accuracies,
        "own_weight": float(heads["weights"].diagonal().mean()),
        "split_sha256": split_record(parts.divided.division, parts.divided.conditions)[
            "split_sha256"
        ],
        "engine": parts.engine.name,
    }


def figures(accuracy: Mapping[str, float]) -> dict[str, float]:
    """Return the mean over clients and the accuracy over all their test examples together."""
    return {"mean": accuracy["mean"], "pooled": accuracy["pooled"]}


def accuracy_with_heads(federation: Federation, body: Params, heads: Params) -> dict[str, float]:
    """Score one body with a head for each client, on the clients' test examples; leaves of heads
    (clients, ...).
    """
    shares = []
    correct = 0
    total = 0
    for client in federation.known:
        task = federation.task(client)
        head = tree.map(lambda leaf, client=client: leaf[client], heads)
        features = cached_features(task, body, federation.test(client), key=new_key(0))
        right = int((task.model.head(head, features.x).argmax(1) == features.labels()).sum())
        shares.append(right / len(features.rows))
        correct += right
        total += len(features.rows)
    return {"mean": statistics.fmean(shares), "pooled": correct / total}


def run_world(world: str, data_dir: str) -> dict[str, Any]:
    """Run all seeds of a world and return its record."""
    return {
        "benchmark": "fedpac_points",
        "world": world,
        "config": {**WORLDS[world], "training": TRAINING},
        "runs": [run_seed(world, seed, data_dir) for seed in SEEDS],
        "provenance": provenance.describe(),
    }


def table() -> str:
    """Return the records as a Markdown table; empty if there are none."""
    records = [json.loads(path.read_text()) for path in map(path_of, WORLDS) if path.exists()]
    if not records:
        return ""
    names = ["", *POINTS.values(), "own head's weight"]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(line_of(record)) + " |" for record in records)])


def line_of(record: Mapping[str, Any]) -> list[str]:
    """Return the cells of a record: means over clients in percent, each with its deviation over the
    seeds.
    """
    cells = [LABELS[record["world"]]]
    for point in POINTS:
        values = [100 * run["accuracies"][point]["mean"] for run in record["runs"]]
        cells.append(f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}")
    weights = [run["own_weight"] for run in record["runs"]]
    return [*cells, f"{statistics.fmean(weights):.2f} ± {statistics.stdev(weights):.2f}"]


def path_of(world: str) -> Path:
    """Return the record of a world."""
    return RESULTS / f"fedpac_points-{world}.json"


def main() -> None:
    """Parse the command line and run what has no record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-dir", default=os.environ.get("FEDTAILOR_DATA", ""), help="folder of the data sets"
    )
    parser.add_argument(
        "--world", nargs="*", choices=sorted(WORLDS), default=list(WORLDS), help="only these"
    )
    parser.add_argument("--table", action="store_true", help="print the records")
    parser.add_argument(
        "--json", action="store_true", help="print each new record as one line of JSON"
    )
    arguments = parser.parse_args()
    if arguments.table:
        print(table() or "no records yet")
        return
    for world in arguments.world:
        if path_of(world).exists():
            print(f"{world} has a record", file=sys.stderr)
            continue
        try:
            record = run_world(world, arguments.data_dir)
        except FedtailorError as error:
            parser.exit(2, f"{parser.prog}: error: {error.message}\n")
        path_of(world).write_text(json.dumps(record, indent=1) + "\n")
        print(json.dumps(record) if arguments.json else "\n".join(line_of(record)), flush=True)


if __name__ == "__main__":
    main()
