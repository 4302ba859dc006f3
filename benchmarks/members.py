"""What models tell about their training examples: the attack of ``fedtailor audit members``.

    python -m benchmarks.members [digits|fashion_mnist ...] --folder FOLDER [--data-dir DIR]

Six methods on two data sets with some 140 training examples for each of 10 clients, Dirichlet(0.5):
8 rounds of five epochs, an MLP with 100 hidden units (one_shot_fda: the inputs as they are), the
rate 0.2 for all; 16 trainings for each of three seeds. Nothing was tuned on the test part.

The records are in ``results/privacy_members.jsonl``; what is there is not measured again. A killed
program continues where it was, from the trainings in FOLDER.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.records import RESULTS, describe_machine, save_record
from fedtailor.core.reading import read_lines
from fedtailor.experiment.audits import audit_members
from fedtailor.experiment.config import Config, make_config
from fedtailor.experiment.methods import with_methods

BENCHMARK = "privacy_members"
METHODS = (
    "local",
    "fedavg",
    "fedavg_ft(finetune=head)",
    "fedrep",
    "pfedfda(preset=tuned)",
    "one_shot_fda",
)
SEEDS = (0, 1, 2)
DATA: dict[str, dict[str, Any]] = {
    "digits": {"fraction": 1.0},
    "fashion_mnist": {"fraction": 0.025},
}
"""By data set, the options that differ."""


def configure(dataset: str, method: str, seed: int, data_dir: str) -> Config:
    """Return the experiment that is audited."""
    data = {"dataset": dataset, "clients": 10, "partition": "dirichlet(alpha=0.5)"}
    if data_dir:
        data["dir"] = data_dir

    config = make_config(
        {
            "seed": seed,
            "data": {**data, **DATA[dataset]},
            # It trains no body, so its features are the inputs.
            "model": {"name": "linear" if method == "one_shot_fda" else "mlp"},
            "training": {"lr": 0.2, "epochs": 5},
            "federation": {"rounds": 8},
            "engine": {"name": "reference"},
        }
    )
    return with_methods(config, [method])[0]


def is_measured(name: str, options: dict[str, Any]) -> bool:
    """Return whether there is a record of this name, made with the same options of the data."""
    path = RESULTS / f"{BENCHMARK}.jsonl"
    for line in read_lines(path) if path.exists() else ():
        if line["name"] == name:
            return bool(line["options"] == options)

    return False


def measure(dataset: str, method: str, seed: int, folder: Path, data_dir: str) -> None:
    """Audit a method and save the record, unless it is there."""
    name = f"{dataset} {method} seed {seed}"
    if is_measured(name, DATA[dataset]):
        return

    machine = describe_machine()
    started = time.perf_counter()
    config = configure(dataset, method, seed, data_dir)
    record = audit_members([config], out=folder / f"{dataset}-seed-{seed}")
    points = record["methods"][0]["points"]
    save_record(
        BENCHMARK,
        name,
        {
            "dataset": dataset,
            "method": method,
            "seed": seed,
            "options": DATA[dataset],
            "trainings": record["trainings"],
            "points": points,
            "seconds": time.perf_counter() - started,
            **machine,
        },
    )
    told = points["personalized"]
    print(name, f"accuracy {told['accuracy']:.3f}, AUC {told['auc']:.3f}", flush=True)


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="*", help="default: all")
    parser.add_argument("--folder", type=Path, required=True, help="of the trainings")
    parser.add_argument("--data-dir", default="", help="where the data sets are")
    options = parser.parse_args()

    # All methods with one seed first: a stopped program leaves a whole table.
    for seed in SEEDS:
        for dataset in options.datasets or DATA:
            for method in METHODS:
                measure(dataset, method, seed, options.folder, options.data_dir)


if __name__ == "__main__":
    main()
