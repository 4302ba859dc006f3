"""The accuracy of other programs beside ours, on the same split.

    python -m benchmarks.peers.accuracy --data-dir DIR --ours [METHOD ...]
    git clone https://github.com/TsingZ0/PFLlib FOLDER
    python -m benchmarks.peers.accuracy --data-dir DIR --pfllib FOLDER --python PYTHON [METHOD ...]
    python -m benchmarks.peers.accuracy --data-dir DIR --fluke --python PYTHON [METHOD ...]

PYTHON is that of an environment with the other program or with what it imports. Nothing of the
others is part of this repository: they read the split that is written here.

The federation is that of ``skew-0.1`` on the leaderboard, with a perceptron of 100 hidden units,
which all have. All clients train in all rounds, by plain SGD. Every run adds a record to
``results/peers_accuracy.jsonl``, by seed: of the initial model and the order of examples. Those of
PFLlib are its repetitions, of which the second and third begin with the same accuracy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from benchmarks.peers import pfllib
from benchmarks.peers.split import (
    BATCH,
    DATA,
    HIDDEN,
    LR,
    ROUNDS,
    SEEDS,
    ClientExamples,
    examples_of,
)
from benchmarks.records import describe_machine, save_record
from fedtailor import make_config, run
from fedtailor.core.errors import all_done
from fedtailor.experiment.assembly import PreparedRun, assemble

BENCHMARK = "peers_accuracy"
OURS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {},
    "fedrep": {"head_epochs": 1},
    "ditto": {"penalty": 0.1, "personal_epochs": 1},
    "apfl": {"alpha": 0.5, "adaptive": True},
}
"""Options of our methods."""
PERCEPTRON = {"name": "mlp", "options": {"hidden": HIDDEN}}
VARIANTS: Mapping[str, tuple[Mapping[str, Any], bool]] = {
    "whole batches": (PERCEPTRON, True),
    "whole epochs": (PERCEPTRON, False),
    "its divided network": ({"name": "benchmarks.peers.accuracy:divided_network"}, True),
}
"""Of our runs: the model, and whether the last batch of an epoch is left out if it is smaller, as
PFLlib does."""
DIVIDED = ("fedavg", "fedrep")
"""Methods for which PFLlib divides its network."""
Scores = dict[str, list[float]]
"""Accuracies by seed: `pooled` over all test examples, `mean` over clients."""


def divided_network(input_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Return the perceptron as PFLlib divides it into base and head for FedAvg and FedRep.

    Its network ends with a log-softmax. The head is taken out before that and put after it, so the
    base ends with a log-softmax over the hidden units.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), HIDDEN),
        nn.ReLU(),
        nn.LogSoftmax(dim=1),
        nn.Linear(HIDDEN, num_classes),
    )


def configuration(
    method: str,
    seed: int,
    data_dir: str,
    model: Mapping[str, Any] = PERCEPTRON,
    *,
    drop_last: bool = True,
) -> Any:
    """Return the configuration of our run."""
    return make_config(
        {
            "seed": seed,
            "data": {**DATA, "dir": data_dir},
            "model": model,
            "algorithm": {"name": method, **OURS[method]},
            "training": {"lr": LR, "batch_size": BATCH, "epochs": 1, "drop_last": drop_last},
            "federation": {"rounds": ROUNDS},
            "evaluation": {"every": 0},
            "checkpoint": {"every": 0},
            "engine": {"name": "reference"},
        }
    )


def prepare(data_dir: str) -> PreparedRun:
    """Return the federation: the split does not depend on the seed."""
    prepared = assemble(configuration("fedavg", SEEDS[0], data_dir), SEEDS[0])
    with all_done([prepared.engine.close]):
        return prepared


def run_fluke(method: str, python: str, clients: Sequence[ClientExamples]) -> Scores:
    """Run fluke for all seeds, each in a process of its own."""
    program = Path(__file__).with_name("fluke_arm.py")
    scores: Scores = {"pooled": [], "mean": []}
    with tempfile.TemporaryDirectory() as folder:
        examples = Path(folder) / "examples.npz"
        result = Path(folder) / "result.json"
        arrays = {}
        for client, parts in enumerate(clients):
            for part, (x, y) in parts.items():
                arrays |= {f"{part}_x_{client}": x, f"{part}_y_{client}": y}

        np.savez(examples, **arrays)
        for seed in SEEDS:
            words = [method, seed, examples, result, ROUNDS, LR, BATCH]
            command = [python, str(program), *map(str, words)]
            environment = os.environ | {"PYTHONPATH": str(program.parent)}
            subprocess.run(command, cwd=folder, env=environment, check=True)
            counts = json.loads(result.read_text())
            right = sum(client_right for client_right, _ in counts)
            scores["pooled"].append(right / sum(total for _, total in counts))
            scores["mean"].append(statistics.fmean(right / total for right, total in counts))

    return scores


def run_ours(method: str, data_dir: str, variant: str) -> Scores:
    """Run our method for all seeds."""
    model, drop_last = VARIANTS[variant]
    scores: Scores = {"pooled": [], "mean": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            config = configuration(method, seed, data_dir, model, drop_last=drop_last)
            result = run(config, out=Path(folder) / str(seed))
            accuracy = result["metrics"]["personalized"]["accuracy"]
            for averaging, values in scores.items():
                values.append(accuracy[averaging])

    return scores


def variants_of(method: str) -> list[str]:
    """Return the variants in which our method is measured."""
    return [name for name in VARIANTS if "divided" not in name or method in DIVIDED]


def record_name(method: str, variant: str) -> str:
    """Return the name of the record of our runs of a method."""
    return f"fedtailor-{method}-{variant.replace(' ', '-')}"


def main() -> None:
    """Measure methods, and write their records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", default=list(OURS), help="methods (default: all)")
    parser.add_argument("--data-dir", default="", help="folder of the data sets")
    parser.add_argument("--ours", action="store_true", help="measure ours")
    parser.add_argument("--pfllib", type=Path, help="measure PFLlib: its clone")
    parser.add_argument("--fluke", action="store_true", help="measure fluke")
    parser.add_argument("--python", default="python", help="that of the other's environment")
    options = parser.parse_args()

    prepared = prepare(options.data_dir)
    clients = examples_of(prepared)
    shared = {"benchmark": BENCHMARK, "split_sha256": prepared.split["split_sha256"]}
    shared |= {"seeds": list(SEEDS), "rounds": ROUNDS, "lr": LR, "batch": BATCH}
    shared |= describe_machine()

    def save(name: str, method: str, program: str, scores: Scores, **more: str) -> None:
        """Write a record, and say what is in it."""
        record = {"method": method, "program": program, **more, **scores}
        save_record(BENCHMARK, name, {**shared, **record})
        print(name, scores, flush=True)

    if options.pfllib:
        pfllib.write_examples(clients, options.pfllib)

    for method in options.methods:
        if options.ours:
            for variant in variants_of(method):
                scores = run_ours(method, options.data_dir, variant)
                save(record_name(method, variant), method, "fedtailor", scores, variant=variant)

        if options.pfllib:
            scores = pfllib.run_method(method, options.pfllib, options.python, len(clients))
            commit = pfllib.commit_of(options.pfllib)
            save(f"pfllib-{method}", method, "PFLlib", scores, commit=commit)

        if options.fluke:
            scores = run_fluke(method, options.python, clients)
            version = version_of("fluke-fl", options.python)
            save(f"fluke-{method}", method, "fluke", scores, version=version)


def version_of(package: str, python: str) -> str:
    """Return the version of a package in another environment."""
    code = f"from importlib.metadata import version; print(version('{package}'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
