"""Learning runs on real data: accuracy and wall time, with one record per run under
benchmarks/results.

    python benchmarks/learning.py --data-dir DIR [--world NAME] [--list] [--only NAME ...] [--json]
    python benchmarks/learning.py --table fashion_mnist-dir0.1-half

The command runs what has no record yet, in the order of the tables below; an interrupted run starts
again. The protocol is that of the pFedFDA experiments: 100 clients, each drawn with probability
0.3, all clients in the last round; 5 local epochs of SGD (learning rate 0.01, momentum 0.5, weight
decay 5e-4) in batches of 50; evaluation of the personalized models after the last round on the test
examples of each client. The last, shorter batch of an epoch is dropped, except in worlds whose
names end in "half". Nothing is selected on test data. DIR has the layout of torchvision.

The world fashion_mnist-dir0.1-half has every algorithm with its default hyper-parameters under one
[training] section. --table prints its records as Markdown. The world fashion_mnist-dir0.1-small,
which is the same with 20 clients, has the runs that explain a number of that table: they change one
option each, and have three seeds, which vary initial model, cohorts and order of examples on one
division of the data.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from fedtailor import algorithms
from fedtailor.core.errors import FedtailorError
from train_step import machine

RESULTS = Path(__file__).parent / "results"
POINTS = ("personalized", "local", "global")

PROTOCOL = {
    "training": {
        "lr": 0.01, "momentum": 0.5, "weight_decay": 5e-4, "epochs": 5, "batch_size": 50, "drop_last": True,
    },
    "federation": {"participation": 0.3},
    "engine": {"name": "workers"},
}  # fmt: skip

WORLDS: dict[str, dict[str, Any]] = {
    "fashion_mnist-dir0.1": {
        "data": {"dataset": "fashion_mnist", "partition": "dirichlet(alpha=0.1, min_size=62.5)", "clients": 100},
        "model": {"name": "emnist_cnn"},
        "federation": {"rounds": 20},
        "evaluation": {"every": 10},
    },
    "fashion_mnist-dir0.1-half": {
        "data": {
            "dataset": "fashion_mnist", "partition": "dirichlet(alpha=0.1, min_size=62.5)", "clients": 100,
            "fraction": 0.5,
        },
        "model": {"name": "emnist_cnn"},
        "training": {"drop_last": False},
        "federation": {"rounds": 20},
        "evaluation": {"every": 0},
    },
    "fashion_mnist-dir0.1-small": {
        "data": {
            "dataset": "fashion_mnist", "partition": "dirichlet(alpha=0.1, min_size=62.5)", "clients": 20,
            "subset": 14000, "fraction": 0.5,
        },
        "model": {"name": "emnist_cnn"},
        "training": {"drop_last": False},
        "federation": {"rounds": 20},
        "evaluation": {"every": 0},
    },
    "cifar10-dir0.5-quarter": {
        "data": {
            "dataset": "cifar10", "partition": "dirichlet(alpha=0.5, min_size=62.5)", "clients": 100, "fraction": 0.25,
        },
        "model": {"name": "cifar_cnn"},
        "federation": {"rounds": 200},
        "evaluation": {"every": 20},
    },
}  # fmt: skip

ALGORITHMS: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    "fedavg": {"name": "fedavg"},
    "fedavg_ft": {"name": "fedavg_ft"},
    "pfedfda": {"name": "pfedfda"},
    "pfedfda-ridge0.01": {"name": "pfedfda", "cov_ridge": 0.01},
}

VARIANTS: dict[str, dict[str, Any]] = {
    "fedavg_ft-head": {"name": "fedavg_ft", "finetune": "head"},
    "fedrod-hyper": {"name": "fedrod", "variant": "hyper"},
    "fedsr-ft": {"name": "fedsr", "finetune_epochs": 10},
    "perfedavg-fo": {"name": "perfedavg", "variant": "first_order"},
}
"""Algorithms with options other than their defaults; every algorithm runs with its defaults too."""

EXPLANATIONS: dict[str, dict[str, dict[str, Any]]] = {
    "pfedme-outer0.02": {"algorithm": {"name": "pfedme", "outer_lr": 0.02}},
    "perfedavg-lr0.1": {"algorithm": {"name": "perfedavg"}, "training": {"lr": 0.1}},
    "perfedavg-lr0.03": {"algorithm": {"name": "perfedavg"}, "training": {"lr": 0.03}},
    "perfedavg-adapt10": {"algorithm": {"name": "perfedavg", "adapt_epochs": 10}},
    "pfedbayes-scale0.01": {"algorithm": {"name": "pfedbayes", "initial_scale": 0.01}},
    "pfedbayes-penalty0.1": {"algorithm": {"name": "pfedbayes", "penalty": 0.1}},
    "pfedbayes-noise0.001": {
        "algorithm": {"name": "pfedbayes", "initial_scale": 7.89e-5, "penalty": 1e-5}
    },
    "pfedbayes-noise0.001-penalty0.1": {
        "algorithm": {"name": "pfedbayes", "initial_scale": 7.89e-5, "penalty": 1e-7}
    },
}
"""Runs that explain a number and are in no table, with the sections that they change.

pFedBayes without its noise has a thousandth of the deviations and a millionth of the penalty, so
that the global means pull as before.
"""

HALF = "fashion_mnist-dir0.1-half"
SMALL = "fashion_mnist-dir0.1-small"
REPEATED = (
    "fedavg_ft",
    "perfedavg",
    "pfedbayes",
    *(name for name in EXPLANATIONS if not name.startswith("pfedme")),
)
"""What runs with three seeds in the small world."""

RUNS = [
    *(
        ("fashion_mnist-dir0.1", algorithm, 0)
        for algorithm in ("pfedfda", "fedavg_ft", "fedavg", "local")
    ),
    *(("cifar10-dir0.5-quarter", algorithm, 0) for algorithm in ("pfedfda", "fedavg_ft", "fedavg")),
    ("fashion_mnist-dir0.1", "pfedfda-ridge0.01", 0),
    *(
        (HALF, algorithm, 0)
        for algorithm in sorted([*algorithms.ALGORITHMS, *VARIANTS, *EXPLANATIONS])
    ),
    *((SMALL, algorithm, seed) for algorithm in REPEATED for seed in (0, 1, 2)),
]


def run_name(world: str, algorithm: str, seed: int) -> str:
    """Return the name of a run; seed 0 is not mentioned."""
    return f"{world}-{algorithm}-seed{seed}" if seed else f"{world}-{algorithm}"


def configuration(world: str, algorithm: str, seed: int, data_dir: str) -> dict[str, Any]:
    """Return the configuration of a run."""
    values: dict[str, Any] = {section: dict(options) for section, options in PROTOCOL.items()}
    changes = EXPLANATIONS.get(algorithm, {"algorithm": _options(world, algorithm)})
    for layer in (WORLDS[world], changes):
        for section, options in layer.items():
            values.setdefault(section, {}).update(options)
    if algorithm == "local" and world not in (HALF, SMALL):
        values["federation"]["train"] = "cohort"  # as in the experiments of pFedFDA
    values["data"]["dir"] = data_dir
    values["seed"] = seed
    return values


def _options(world: str, algorithm: str) -> dict[str, Any]:
    """Return the options of an algorithm in a table."""
    if world not in (HALF, SMALL):
        return ALGORITHMS[algorithm]
    return VARIANTS.get(algorithm, {"name": algorithm})


def run_one(world: str, algorithm: str, seed: int, data_dir: str) -> dict[str, Any]:
    """Run one configuration and return its record."""
    from fedtailor.experiment.config import make_config
    from fedtailor.experiment.records import read_run
    from fedtailor.experiment.run import run

    values = configuration(world, algorithm, seed, data_dir)
    about = machine()
    with tempfile.TemporaryDirectory() as folder:
        result = run(make_config(values), out=Path(folder) / "run")
        written = read_run(Path(folder) / "run")
        result["diagnostics"] = diagnostics(written)
    kinds = [event["kind"] for event in written.events]
    result["events"] = {kind: kinds.count(kind) for kind in ("quarantine", "failed", "skipped")}
    result["provenance"] = {
        "commit": written.provenance["commit"],
        "versions": written.provenance["versions"],
        "data_sha256": written.provenance["data"]["sha256"],
        "split_sha256": written.provenance["split_sha256"],
    }
    del values["data"]["dir"], result["run"]  # paths on this machine are not results
    about["load_after"] = os.getloadavg()[0]
    result["seconds"]["per_round"] = result["seconds"]["train"] / result["rounds"]
    return {
        "benchmark": "learning",
        "world": world,
        "variant": algorithm,
        "machine": about,
        "config": values,
        **result,
    }


def diagnostics(run: Any) -> dict[str, dict[str, float]]:
    """Return means over clients: training metrics of the last round but one, and diagnostics of the
    final models.
    """
    last = max(record["round"] for record in run.rounds)
    final = [
        line["diagnostics"]
        for line in run.clients
        if line["round"] == last and line.get("diagnostics")
    ]
    names = sorted({name for numbers in final for name in numbers})
    means = {name: sum(numbers[name] for numbers in final) / len(final) for name in names}
    zero = {
        f"{name}_is_0": sum(numbers[name] == 0 for numbers in final) / len(final)
        for name in names
        if "beta" in name
    }
    training = next(
        record["training_metrics"] for record in run.rounds if record["round"] == max(last - 1, 1)
    )
    return {"training": training, "personalized": {**means, **zero}}


def print_table(world: str) -> None:
    """Print the table of a world, if there is one."""
    text = table(world)
    if text:
        print(text)
    else:
        print(
            f"no records yet: run python benchmarks/learning.py --world {world} --data-dir DIR",
            file=sys.stderr,
        )


def table(world: str) -> str:
    """Return the records of a world as a Markdown table: the model a method is judged by, and every
    point.
    """
    records = [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{world}-*.json"))]
    records = [record for record in records if record["world"] == world and record["seeds"] == [0]]
    records = [record for record in records if record["variant"] not in EXPLANATIONS]
    if not records:
        return ""
    names = ["algorithm", "primary evaluation", "mean", "pooled", "worst 10 %"]
    names += [f"{point} mean" for point in POINTS]
    names += ["seconds a round", "MB up", "MB down", "1000 steps"]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(line_of(record)) + " |" for record in records)])


def line_of(record: dict[str, Any]) -> list[str]:
    """Return the cells of a record: accuracies in percent over the 100 clients, for its seed."""
    point = algorithms.load_algorithm(record["config"]["algorithm"]["name"]).primary_evaluation
    scores = {name: metrics["accuracy"] for name, metrics in record["metrics"].items()}
    cells = [record["variant"], point]
    cells += [f"{100 * scores[point][figure]:.1f}" for figure in ("mean", "pooled", "worst10")]
    cells += [f"{100 * scores[name]['mean']:.1f}" if name in scores else "-" for name in POINTS]
    sent = [f"{record['bytes'][way] / 1e6:.0f}" for way in ("up", "down")]
    return [*cells, f"{record['seconds']['per_round']:.1f}", *sent, f"{record['steps'] / 1000:.0f}"]


def main() -> None:
    """Parse the command line and run what has no record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-dir", default=os.environ.get("FEDTAILOR_DATA", ""), help="folder of the data sets"
    )
    parser.add_argument("--world", choices=sorted(WORLDS), help="only this one")
    parser.add_argument("--table", choices=sorted(WORLDS), help="print the records of a world")
    parser.add_argument(
        "--only", nargs="*", default=[], help="names of runs, as --list prints them"
    )
    parser.add_argument(
        "--list", action="store_true", help="list the runs and whether they have a record"
    )
    parser.add_argument(
        "--json", action="store_true", help="print each new record as one line of JSON"
    )
    arguments = parser.parse_args()
    if arguments.table:
        print_table(arguments.table)
        return
    runs = {run_name(*each): each for each in RUNS if arguments.world in (None, each[0])}
    if unknown := [name for name in arguments.only if name not in runs]:
        parser.error(f"--only: no run is named {', '.join(unknown)}; --list prints the names")
    try:
        run_missing(runs, arguments)
    except FedtailorError as error:
        parser.exit(2, f"{parser.prog}: error: {error.message}\n")


def run_missing(runs: dict[str, tuple[str, str, int]], arguments: argparse.Namespace) -> None:
    """Run what has no record, or list all runs."""
    RESULTS.mkdir(exist_ok=True)
    for name, (world, algorithm, seed) in runs.items():
        if arguments.only and name not in arguments.only:
            continue
        path = RESULTS / f"{name}.json"
        if arguments.list:
            print(f"{name:45} {'recorded' if path.exists() else 'missing'}")
        elif path.exists():
            print(f"{name} has a record", file=sys.stderr)
        else:
            print(f"{name} ...", file=sys.stderr, flush=True)
            record = run_one(world, algorithm, seed, arguments.data_dir)
            path.write_text(json.dumps(record, indent=1) + "\n")
            point = record["metrics"]["personalized"]["accuracy"]
            text = f"{name}: personalized {point['mean']:.4f} (mean over clients), {record['seconds']['total']:.0f} s"
            print(json.dumps(record) if arguments.json else text, flush=True)


if __name__ == "__main__":
    main()
