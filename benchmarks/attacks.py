"""Accuracy of honest clients while others attack, for every robust reduction.

    python benchmarks/attacks.py --data-dir DIR [--algorithms fedavg,fedrep] [--seeds 0,1,2]
    [--rounds 30] [--json]

Fashion-MNIST, a quarter of its training examples, is divided among 20 clients in proportions drawn
from Dir(0.5); all take part in every round. Four of them (20 %) attack: what they change in a field
is multiplied by 1000 or by -10, or its sign is flipped (-1). The reductions expect a quarter of bad
clients (``robust_share``). The number is the accuracy of the personalized models after the last
round, averaged over the honest clients, each on its own test examples, and over the seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core import tree
from fedtailor.core.message import Mean, Sum
from fedtailor.core.metrics import per_client
from fedtailor.core.robust import sent_values
from fedtailor.experiment.assembly import PreparedRun, assemble
from fedtailor.experiment.config import make_config
from fedtailor.experiment.provenance import machine, versions
from fedtailor.simulation.rounds import simulate

CLIENTS = 20
BAD = (3, 8, 13, 18)
"""The clients that attack."""
ATTACKS = {"none": 1.0, "x1000": 1000.0, "x-10": -10.0, "sign flip": -1.0}
"""Factors of what the bad clients change."""
RULES = ("none", "norm_clip", "median", "trimmed_mean", "krum")


def attacked(algorithm: Any, factor: float) -> Any:
    """Return an algorithm whose bad clients multiply what they change by a factor."""
    cls = type(algorithm)

    @dataclass(frozen=True, kw_only=True)
    class Attacked(cls):  # type: ignore[misc, valid-type]
        """The algorithm, attacked."""

        def local_update(self, task: Any, download: Any, state: Any, data: Any, key: Any) -> Any:
            update = super().local_update(task, download, state, data, key)
            if int(key.client) not in BAD:
                return update
            sent = sent_values(download.shared, self.messages(task))
            upload = {
                name: _scaled(entry, sent[name], factor) for name, entry in update.upload.items()
            }
            return update._replace(upload=upload)

    return Attacked(
        **{field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    )


def _scaled(entry: Any, sent: Any, factor: float) -> Any:
    """Return an entry of an upload with its change multiplied."""
    if not isinstance(entry, Mean | Sum):
        return entry
    if sent is None:
        return entry._replace(value=tree.map(lambda leaf: factor * leaf, entry.value))
    return entry._replace(
        value=tree.map(lambda leaf, old: old + factor * (leaf - old), entry.value, sent)
    )


def prepare(name: str, rounds: int, seed: int, data_dir: str) -> PreparedRun:
    """Return the experiment of a seed."""
    values = {
        "algorithm": {"name": name},
        "model": {"name": "mlp"},
        "data": {
            "dataset": "fashion_mnist",
            "dir": data_dir,
            "partition": "dirichlet(alpha=0.5)",
            "fraction": 0.25,
        },
        "federation": {"rounds": rounds},
        "training": {"epochs": 2, "lr": 0.05, "batch_size": 50},
        "evaluation": {"every": 0},
        "engine": {"name": "reference"},
    }
    values["data"]["clients"] = CLIENTS  # type: ignore[index]
    return assemble(make_config(values), seed)


def accuracy(parts: PreparedRun, rule: str, factor: float, seed: int) -> tuple[float | None, int]:
    """Return the accuracy of the honest clients, None if the run ended early, and how many uploads
    were left out.
    """
    schedule = dataclasses.replace(parts.config.schedule, train="auto", robust=rule)  # type: ignore[arg-type]
    algorithm = attacked(parts.algorithm, factor)
    left_out = 0
    try:
        for report in simulate(algorithm, parts.federation, parts.engine, schedule, seed=seed):
            left_out += sum(event["kind"] == "quarantine" for event in report.events)
    except Exception as error:  # a model that is not finite ends the run
        print(f"    {rule}: {error}", flush=True)
        return None, left_out
    (found,) = [
        each for each in report.evaluations if (each.point, each.group) == ("personalized", "known")
    ]
    scores = dict(zip(found.ids, found.scores, strict=True))
    honest = [per_client(scores[client]) for client in range(CLIENTS) if client not in BAD]
    return statistics.mean(each["accuracy"] for each in honest if each), left_out


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-dir", required=True, help="folder with FashionMNIST in torchvision's layout"
    )
    parser.add_argument("--algorithms", default="fedavg,fedrep", help="names, separated by commas")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="write results/attacks.json too")
    arguments = parser.parse_args()
    names = arguments.algorithms.split(",")
    if unknown := sorted(set(names) - set(ALGORITHMS)):
        parser.error(f"--algorithms: unknown: {', '.join(unknown)}; known: {', '.join(ALGORITHMS)}")
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "rounds": arguments.rounds,
        "seeds": seeds,
        "clients": CLIENTS,
        "bad": list(BAD),
        "accuracy": {},
        "machine": machine(),
        "versions": versions(),
    }
    for name in names:
        assert load_algorithm(name)
        prepared = {
            seed: prepare(name, arguments.rounds, seed, arguments.data_dir) for seed in seeds
        }
        for attack, factor in ATTACKS.items():
            for rule in RULES:
                found = [accuracy(prepared[seed], rule, factor, seed) for seed in seeds]
                values = [value for value, _ in found]
                record["accuracy"].setdefault(name, {}).setdefault(attack, {})[rule] = values
                shown = ", ".join(
                    "ended" if value is None else f"{100 * value:.1f}" for value in values
                )
                print(
                    f"{name}, {attack}, {rule}: {shown}; left out {[count for _, count in found]}",
                    flush=True,
                )
    if arguments.json:
        path = Path(__file__).parent / "results" / "attacks.json"
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
