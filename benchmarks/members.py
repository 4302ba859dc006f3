"""What models tell about their training examples: the attack of ``fedtailor audit members``.

    python -m benchmarks.members [digits|fashion_mnist ...] --folder FOLDER [--data-dir DIR]
    python -m benchmarks.members --table

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

from benchmarks.records import Record, describe_machine, read_records, save_record, with_deviation
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
_FOUND = ("tpr_at_1_percent", "tpr_at_01_percent")


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


def measure(dataset: str, method: str, seed: int, folder: Path, data_dir: str) -> None:
    """Audit a method and save the record, unless it is there."""
    name = f"{dataset} {method} seed {seed}"
    earlier = read_records(BENCHMARK).get(name, {})
    if earlier.get("options") == DATA[dataset]:
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


def print_table() -> None:
    """Print a row of Markdown for every data set and method: mean and deviation over seeds."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in read_records(BENCHMARK).values():
        found.setdefault((record["dataset"], record["method"]), []).append(record["points"])

    for (dataset, method), points in found.items():
        personal = [point["personalized"] for point in points]
        of_global = [point["global"]["auc"] for point in points if "global" in point]
        first = personal[0]
        worst = first["clients"][first["worst_client"]]
        cells = [
            dataset,
            method,
            str(len(points)),
            with_deviation([100 * told["accuracy"] for told in personal], 1),
            with_deviation([told["auc"] for told in personal], 3),
            *(with_deviation([100 * told[name] for told in personal], 1) for name in _FOUND),
            with_deviation(of_global, 3),
            f"{worst['auc']:.3f} ({worst['name']}; {worst['num_train']} examples)",
        ]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Measure what is missing, or print what there is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="*", help="default: all")
    parser.add_argument("--folder", type=Path, help="of the trainings")
    parser.add_argument("--data-dir", default="", help="where the data sets are")
    parser.add_argument("--table", action="store_true", help="only print what there is")
    options = parser.parse_args()
    if options.table:
        print_table()
        return
    if options.folder is None:
        parser.error("--folder or --table is needed")

    # All methods with one seed first: a stopped program leaves a whole table.
    for seed in SEEDS:
        for dataset in options.datasets or DATA:
            for method in METHODS:
                measure(dataset, method, seed, options.folder, options.data_dir)


if __name__ == "__main__":
    main()
