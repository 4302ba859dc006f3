"""Every algorithm by one protocol: the records and rows of docs/results/comparison.md.

    python -m benchmarks.comparison --data-dir DIR [NAME ...]    # what has no record
    python -m benchmarks.comparison --table                      # rows in Markdown

Every run adds a line to ``results/comparison.jsonl``. Nothing is tuned: the options of a method are
its defaults.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.records import Record, describe_machine, read_records, save_record
from fedtailor.algorithms import ALGORITHMS, load_algorithm

PROTOCOL: dict[str, Any] = {
    "seed": 0,
    "data": {
        "dataset": "fashion_mnist",
        "partition": "dirichlet(alpha=0.1, min_size=62.5)",
        "clients": 100,
        "fraction": 0.5,
    },
    "model": {"name": "emnist_cnn"},
    "training": {
        "lr": 0.01,
        "momentum": 0.5,
        "weight_decay": 0.0005,
        "epochs": 5,
        "batch_size": 50,
        "drop_last": False,
    },
    "federation": {"rounds": 20, "participation": 0.3},
    "evaluation": {"every": 0, "baselines": "none"},
}
_PREFIX = "fashion_mnist-dir0.1-half-"
_POINTS = ("personalized", "local", "global")


def run_one(algorithm: str, data_dir: str) -> Record:
    """Run a method and return its record."""
    import fedtailor
    from fedtailor.experiment.reader import read_provenance

    values = {**PROTOCOL, "algorithm": {"name": algorithm}}
    config = fedtailor.make_config(values, [("data.dir", data_dir)] if data_dir else [])
    record = describe_machine()
    with tempfile.TemporaryDirectory() as out:
        folder = Path(out) / "run"
        result = fedtailor.run(config, out=folder)
        commit = read_provenance(folder)["commit"]

    kept = ("rounds", "metrics", "seconds", "bytes", "steps", "events", "split_sha256")
    return {
        **record,
        "algorithm": algorithm,
        "config": values,
        **{key: result[key] for key in kept},
        "commit": commit,
    }


def records_of_protocol() -> dict[str, Record]:
    """Return the records of the protocol, by method."""
    return {
        name.removeprefix(_PREFIX): record
        for name, record in read_records("comparison").items()
        if name.startswith(_PREFIX)
    }


def row_of(name: str, record: dict[str, Any]) -> str:
    """Return a row of the table of docs/results/comparison.md."""
    metrics = record["metrics"]
    primary = load_algorithm(record["algorithm"]).primary_evaluation
    accuracy = metrics[primary]["accuracy"]
    means = [metrics[point]["accuracy"]["mean"] if point in metrics else None for point in _POINTS]
    shares = [accuracy["mean"], accuracy["pooled"], accuracy["worst10"], *means]
    seconds = record["seconds"]["train"] / record["rounds"]
    cells = [
        name,
        primary,
        *("-" if share is None else f"{100 * share:.1f}" for share in shares),
        f"{seconds:.1f}",
        *(f"{record['bytes'][way] / 1e6:.0f}" for way in ("up", "down")),
        f"{record['steps'] / 1000:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run the methods without a record, or print rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="methods (default: all)")
    parser.add_argument("--data-dir", default="", help="folder of the data sets")
    parser.add_argument("--table", action="store_true", help="print rows of what has a record")
    arguments = parser.parse_args()

    if arguments.table:
        for name, record in sorted(records_of_protocol().items()):
            print(row_of(name, record))
        return

    for name in arguments.names or sorted(ALGORITHMS):
        if name not in records_of_protocol():
            save_record("comparison", f"{_PREFIX}{name}", run_one(name, arguments.data_dir))
            print(name, flush=True)


if __name__ == "__main__":
    main()
