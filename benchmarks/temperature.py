"""pFedFDA with a temperature chosen by held-out losses, where a body is trained on few examples.

    python -m benchmarks.temperature [--data-dir DIR] [--only TEXT ...]    # what has no record
    python -m benchmarks.temperature --table

The six federations of docs/results/scarce-data.md, the defaults of pFedFDA and its preset
``tuned``, each with and without the temperature, five seeds with divisions of their own. Every run
adds a line to ``results/temperature.jsonl``: the accuracy and the loss on the clients' test
examples, by which nothing is chosen, and the temperature.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.records import RESULTS, describe_machine, save_record

SEEDS = range(5)
IMAGES: dict[str, dict[str, Any]] = {
    "fashion_mnist": {"subset": 21_000, "model": "emnist_cnn", "rounds": 20},
    "cifar10": {"subset": 18_000, "model": "cifar_cnn", "rounds": 40},
}
FEDERATIONS = (
    "cifar10-25",
    "cifar10-10",
    "cifar10-5",
    "fashion_mnist-10",
    "fashion_mnist-5",
    "digits-25",
)
"""Data and the percentage of their training examples that clients keep."""
SETTINGS: dict[str, dict[str, Any]] = {
    "tuned": {"preset": "tuned"},
    "tuned-temperature": {"preset": "tuned", "temperature": "cross_validated"},
    "reference": {},
    "reference-temperature": {"temperature": "cross_validated"},
}


def names() -> Iterator[str]:
    """Yield the names of all runs: all seeds of a federation and two settings, then the next."""
    for pair in (("tuned", "tuned-temperature"), ("reference", "reference-temperature")):
        for federation in FEDERATIONS:
            for seed in SEEDS:
                for setting in pair:
                    yield f"{federation}_{setting}_{seed}"


def configuration(federation: str, setting: str, seed: int, data_dir: str) -> dict[str, Any]:
    """Return the configuration of a run."""
    from fedtailor.experiment.demo import SETTINGS as DEMO

    algorithm = {"name": "pfedfda", **SETTINGS[setting]}
    dataset, percentage = federation.split("-")
    if dataset == "digits":
        data = {**DEMO["data"], "seed": "run"}
        return {**DEMO, "seed": seed, "data": data, "algorithm": algorithm}

    images = IMAGES[dataset]
    data = {
        "dataset": dataset,
        "dir": data_dir,
        "subset": images["subset"],
        "clients": 30,
        "partition": "dirichlet(alpha=0.5, min_size=62.5)",
        "fraction": int(percentage) / 100,
        "seed": "run",
    }
    return {
        "seed": seed,
        "data": data,
        "algorithm": algorithm,
        "model": {"name": images["model"]},
        "training": {
            "lr": 0.01,
            "momentum": 0.5,
            "weight_decay": 5e-4,
            "epochs": 5,
            "batch_size": 50,
        },
        "federation": {"participation": 0.3, "rounds": images["rounds"]},
        "evaluation": {"every": 0, "baselines": "none"},
        "checkpoint": {"every": 0},
    }


def run_one(name: str, data_dir: str) -> dict[str, Any]:
    """Run and return a record."""
    import fedtailor
    from fedtailor.experiment.reader import read_provenance, read_run

    federation, setting, seed = name.rsplit("_", 2)
    record = describe_machine()
    with tempfile.TemporaryDirectory() as out:
        folder = Path(out) / "run"
        config = fedtailor.make_config(configuration(federation, setting, int(seed), data_dir))
        result = fedtailor.run(config, out=folder)
        commit = read_provenance(folder)["commit"]
        lines = [line for line in read_run(folder).iterate_clients() if "diagnostics" in line]

    temperatures = {line["diagnostics"].get("temperature", 1.0) for line in lines}
    scores = result["metrics"]["personalized"]
    return record | {
        "federation": federation,
        "setting": setting,
        "seed": int(seed),
        "accuracy": scores["accuracy"],
        "loss": scores["loss"],
        "temperature": max(temperatures, default=1.0),
        "split_sha256": result["split_sha256"],
        "commit": commit,
    }


def read_records() -> dict[str, dict[str, Any]]:
    """Return the records by name."""
    path = RESULTS / "temperature.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {record["name"]: record for record in map(json.loads, lines)}


def print_table() -> None:
    """Print accuracies, and what the temperature changes: means over seeds, standard errors."""
    records = read_records()
    for federation in FEDERATIONS:
        for setting in ("tuned", "reference"):
            pairs = []
            for seed in SEEDS:
                without = records.get(f"{federation}_{setting}_{seed}")
                chosen = records.get(f"{federation}_{setting}-temperature_{seed}")
                if without and chosen:
                    pairs.append((without, chosen))

            if len(pairs) > 1:
                print(_row(federation, setting, pairs))


def _row(federation: str, setting: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    accuracies = [100 * without["accuracy"]["mean"] for without, _ in pairs]
    gains = [100 * (two["accuracy"]["mean"] - one["accuracy"]["mean"]) for one, two in pairs]
    error = statistics.stdev(gains) / len(gains) ** 0.5
    losses = [statistics.fmean(record["loss"]["mean"] for record in side) for side in zip(*pairs)]
    temperatures = sorted(chosen["temperature"] for _, chosen in pairs)
    return (
        f"{federation:17} {setting:10} {statistics.fmean(accuracies):5.1f} "
        f"{statistics.fmean(gains):+5.1f} ± {error:.1f}  loss {losses[0]:.2f} -> {losses[1]:.2f}  "
        f"temperatures {temperatures}"
    )


def main() -> None:
    """Run what is missing, or print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="", help="folder of the data sets")
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of runs")
    parser.add_argument("--table", action="store_true", help="only print what there is")
    options = parser.parse_args()
    if options.table:
        print_table()
        return

    done = read_records()
    for name in names():
        if name not in done and all(text in name for text in options.only):
            print(name, flush=True)
            save_record("temperature", name, run_one(name, options.data_dir))


if __name__ == "__main__":
    main()
