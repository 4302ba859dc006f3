"""Few examples per client: which class prior and ridge pFedFDA needs, and how many epochs of
fine-tuning FedAvg-FT.

    python benchmarks/scarce_data.py --data-dir DIR [--world NAME ...] [--list]
    python benchmarks/scarce_data.py --table [--world NAME ...]

The command runs what has no record yet, and writes one record per run to results/scarce_data. It
can be stopped at any time. A setting is selected on validation examples, a fifth of each client's
few training examples, by the accuracy over all of them, the mean of three seeds: pFedFDA's prior
with the default ridge, its ridge with the default prior and with the selected one, and FedAvg-FT's
epochs. The records of these runs hold no test scores. The selected settings and the defaults are
then trained on all training examples and tested once, with five seeds. One of a few settings of
pFedFDA is selected in the same way for all federations together, by the mean difference from the
default; two federations that no selection sees check it. A seed drives the division of the data,
the initial model and the cohorts; so what is a validation example with one seed may be a test
example with another. Intervals are 95 % t intervals over the seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.errors import FedtailorError, RunError
from fedtailor.experiment.demo import SETTINGS as DEMO
from train_step import machine

RESULTS = Path(__file__).parent / "results" / "scarce_data"
_NOBODY_TRAINS = "clients did usable work"
"""Part of the error of a run in which no client can train any more. Other errors are not
results."""

SEEDS = {"select": (0, 1, 2), "test": (0, 1, 2, 3, 4)}
"""The seeds of the runs that select, and of those that test."""

_TRAINING = {"lr": 0.01, "momentum": 0.5, "weight_decay": 5e-4, "epochs": 5, "batch_size": 50}
"""As in the experiments of pFedFDA, whose 100 clients have as many examples each and train for more
rounds."""


def _world(dataset: str, fraction: float, *, alpha: float = 0.5, longer: int = 1) -> dict[str, Any]:
    """Return a federation whose clients keep a fraction of their training examples."""
    images = {
        "fashion_mnist": {"subset": 21_000, "model": "emnist_cnn", "rounds": 20},
        "cifar10": {"subset": 18_000, "model": "cifar_cnn", "rounds": 40},
    }[dataset]
    partition = f"dirichlet(alpha={alpha:g}, min_size=62.5)"
    return {
        "data": {
            "dataset": dataset,
            "subset": images["subset"],
            "clients": 30,
            "partition": partition,
            "fraction": fraction,
        },
        "model": {"name": images["model"]},
        "training": _TRAINING,
        "federation": {
            "participation": 0.3,
            "full_last_round": True,
            "rounds": longer * images["rounds"],
        },
    }


SEARCHED: dict[str, dict[str, Any]] = {
    "digits-25": DEMO,
    "fashion_mnist-5": _world("fashion_mnist", 0.05),
    "fashion_mnist-10": _world("fashion_mnist", 0.1),
    "cifar10-5": _world("cifar10", 0.05),
    "cifar10-10": _world("cifar10", 0.1),
    "cifar10-25": _world("cifar10", 0.25),
}
"""Federations in which settings are selected. A name ends with the percentage of examples that
clients keep."""

CHECKS: dict[str, dict[str, Any]] = {
    "fashion_mnist_dir0.1-10": _world("fashion_mnist", 0.1, alpha=0.1),
    "cifar10_longer-25": _world("cifar10", 0.25, longer=3),
}
"""Federations that no selection sees: clients with fewer classes, and three times as many
rounds."""

WORLDS = {**SEARCHED, **CHECKS}
FEDERATIONS = {
    "digits-25": "digits, 25 %",
    "fashion_mnist-5": "Fashion-MNIST, 5 %",
    "fashion_mnist-10": "Fashion-MNIST, 10 %",
    "fashion_mnist_dir0.1-10": "Fashion-MNIST, 10 %, Dirichlet(0.1)",
    "cifar10-5": "CIFAR-10, 5 %",
    "cifar10-10": "CIFAR-10, 10 %",
    "cifar10-25": "CIFAR-10, 25 %",
    "cifar10_longer-25": "CIFAR-10, 25 %, 120 rounds",
}
"""Their names in tables."""

RIDGES = (1.0, 3.0, 0.5, 0.3, 0.1, 0.03, 0.01)
"""The default first: of equal scores, the first is selected."""
PRIORS: dict[str, dict[str, Any]] = {
    "floor0.0001": {},
    "floor0.01": {"prior_smoothing": 0.01},
    "floor0.1": {"prior_smoothing": 0.1},
    "count0.3": {"prior": "pseudo_count", "prior_smoothing": 0.3},
    "count1": {"prior": "pseudo_count", "prior_smoothing": 1.0},
    "count3": {"prior": "pseudo_count", "prior_smoothing": 3.0},
    "blend": {"prior": "blend"},
}
EPOCHS = (1, 2, 5, 10, 20)

SETTINGS: dict[str, dict[str, Any]] = {
    **{
        f"pfedfda-{name}-ridge{ridge:g}": {"name": "pfedfda", **prior, "cov_ridge": ridge}
        for name, prior in PRIORS.items()
        for ridge in RIDGES
    },
    **{
        f"fedavg_ft-epochs{epochs}": {"name": "fedavg_ft", "finetune_epochs": epochs}
        for epochs in EPOCHS
    },
}
"""Options of the algorithms."""

COMMON = [
    f"pfedfda-{prior}-ridge{ridge:g}"
    for prior in ("floor0.0001", "floor0.1")
    for ridge in (1.0, 0.5, 0.3)
]
"""Settings of which one is selected for all federations together."""

DEFAULTS = ("pfedfda-floor0.0001-ridge1", "fedavg_ft-epochs5")


class Run(NamedTuple):
    """One run, which has one record."""

    world: str
    setting: str
    stage: str
    seed: int

    @property
    def path(self) -> Path:
        """The file of the record."""
        return RESULTS / f"{self.world}-{self.setting}-{self.stage}-seed{self.seed}.json"


def configuration(run: Run, data_dir: str) -> dict[str, Any]:
    """Return the configuration of a run."""
    world = WORLDS[run.world]
    data = {
        **world["data"],
        "seed": "run",
        "val_fraction": 0.2 if run.stage == "select" else 0.0,
        "dir": data_dir,
    }
    algorithm = SETTINGS[run.setting]
    return {
        **world,
        "seed": run.seed,
        "data": data,
        "algorithm": algorithm,
        "engine": {"name": "workers"},
    }


def make_record(run: Run, data_dir: str) -> dict[str, Any]:
    """Make a run and return its record; ``ended`` says why a run ended in which no client could
    train any more.
    """
    from fedtailor.experiment import run as experiment
    from fedtailor.experiment.config import make_config
    from fedtailor.experiment.records import read_run

    about = machine()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        try:
            outcome = _scores(
                run, experiment.run(make_config(configuration(run, data_dir)), out=folder)
            )
        except RunError as error:
            if _NOBODY_TRAINS not in error.message:
                raise
            outcome = {"ended": error.message}
        written = read_run(folder)
        final = [line["diagnostics"] for line in written.iterate_clients() if "diagnostics" in line]
    about["load_after"] = os.getloadavg()[0]
    return {
        "benchmark": "scarce_data",
        **run._asdict(),
        "algorithm": SETTINGS[run.setting],
        **outcome,
        "diagnostics": {
            name: _mean([line[name] for line in final]) for name in (final[0] if final else ())
        },
        "rounds": len(written.rounds),
        "events": written.events,
        "machine": about,
        "provenance": {
            "commit": written.provenance["commit"],
            "versions": written.provenance["versions"],
            "data_sha256": written.provenance["data"]["sha256"],
            "split_sha256": written.provenance["split_sha256"],
        },
    }


def _scores(run: Run, result: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a record that a finished run has; without test scores if the run
    selects.
    """
    points = ("validation",) if run.stage == "select" else ("global", "personalized")
    return {
        "accuracy": {point: result["metrics"][point]["accuracy"] for point in points},
        "examples": {point: result["metrics"][point]["examples"] for point in points},
        "seconds": result["seconds"],
    }


def searches(world: str) -> dict[str, list[str]]:
    """Return what is selected, and from which settings: the ridge with the selected prior once that
    is known.
    """
    priors = [f"pfedfda-{name}-ridge1" for name in PRIORS]
    found = {
        "pFedFDA, prior": priors,
        "pFedFDA, ridge": [f"pfedfda-floor0.0001-ridge{ridge:g}" for ridge in RIDGES],
        "FedAvg-FT, epochs": [f"fedavg_ft-epochs{epochs}" for epochs in EPOCHS],
    }
    prior = selected(world, priors)
    if prior is not None:
        found["pFedFDA, ridge with that prior"] = [
            f"{prior.removesuffix('1')}{ridge:g}" for ridge in RIDGES
        ]
    return found


def planned(world: str) -> list[Run]:
    """Return the runs of a world in their order, as far as they follow from the records that are
    there.
    """
    settings: dict[str, None] = {}
    if world in SEARCHED:
        settings = dict.fromkeys(
            [*(setting for search in searches(world).values() for setting in search), *COMMON]
        )
    runs = [Run(world, setting, "select", seed) for setting in settings for seed in SEEDS["select"]]
    return runs + [
        Run(world, setting, "test", seed) for setting in tested(world) for seed in SEEDS["test"]
    ]


def tested(world: str) -> list[str]:
    """Return the settings to test: the defaults, and the selected ones once all scores are
    there.
    """
    common = common_setting()
    if world in CHECKS:
        return [DEFAULTS[0], common] if common else []
    chosen = [selected(world, settings) for settings in searches(world).values()]
    if not all(chosen):
        return []
    return list(dict.fromkeys(setting for setting in [*DEFAULTS, *chosen, common] if setting))


def common_setting() -> str | None:
    """Return the setting with the best mean difference from the default over all federations that
    are searched.

    None if a record is missing. A setting is out if a run of it ended early.
    """
    if not all(
        recorded(Run(world, setting, "select", 0)) for world in SEARCHED for setting in COMMON
    ):
        return None
    means = {}
    for setting in COMMON:
        gains = [_gain(world, setting) for world in SEARCHED]
        found = [gain for gain in gains if gain is not None]
        if len(found) == len(gains):
            means[setting] = _mean(found)
    return max(means, key=lambda setting: means[setting], default=None)


def _gain(world: str, setting: str) -> float | None:
    """Return the mean difference of a setting of pFedFDA from the default on validation examples;
    None if it ended.
    """
    scores = accuracies(Run(world, setting, "select", 0), "validation", "pooled")
    base = accuracies(Run(world, DEFAULTS[0], "select", 0), "validation", "pooled")
    return None if scores is None or base is None else _mean(scores) - _mean(base)


def selected(world: str, settings: Sequence[str]) -> str | None:
    """Return the setting with the best validation accuracy, the mean over seeds; None if a record
    is missing.

    A setting is out if a run of it ended because no client could train any more.
    """
    if not all(recorded(Run(world, setting, "select", 0)) for setting in settings):
        return None
    means = {}
    for setting in settings:
        scores = accuracies(Run(world, setting, "select", 0), "validation", "pooled")
        if scores is not None:
            means[setting] = _mean(scores)
    return max(means, key=lambda setting: means[setting], default=None)


def recorded(run: Run) -> bool:
    """Return whether every seed of a run has a record."""
    return all(run._replace(seed=seed).path.exists() for seed in SEEDS[run.stage])


def accuracies(run: Run, point: str, figure: str) -> list[float] | None:
    """Return a figure of every seed of a run; None if a record is missing, or a run has ended
    early.
    """
    if not recorded(run):
        return None
    records = [json.loads(run._replace(seed=seed).path.read_text()) for seed in SEEDS[run.stage]]
    if any("ended" in record for record in records):
        return None
    return [record["accuracy"][point][figure] for record in records]


def test_table(worlds: list[str], figure: str) -> str:
    """Return a figure of the personalized models on test examples, in Markdown: a row for each
    federation.

    Selected settings are named, with their difference from the default of the method.
    """
    names = [
        "pFedFDA, default",
        "its global model",
        "selected prior",
        "selected ridge",
        "both",
        "common setting",
    ]
    names += ["FedAvg-FT, default", "selected epochs"]
    lines = [f"| {' | '.join(['federation', *names])} |", "|---" * (len(names) + 1) + "|"]
    for world in worlds:
        scores = accuracies(Run(world, DEFAULTS[0], "test", 0), "global", figure)
        cells = [
            _default_cell(world, DEFAULTS[0], figure),
            _with_interval(scores) if scores else "-",
        ]
        chosen = {name: selected(world, settings) for name, settings in searches(world).items()}
        for name in ("pFedFDA, prior", "pFedFDA, ridge", "pFedFDA, ridge with that prior"):
            cells.append(_selected_cell(world, chosen.get(name), figure))
        cells.append(_selected_cell(world, common_setting(), figure))
        cells.append(_default_cell(world, DEFAULTS[1], figure))
        cells.append(_selected_cell(world, chosen["FedAvg-FT, epochs"], figure))
        lines.append(f"| {' | '.join([FEDERATIONS[world], *cells])} |")
    return "\n".join(lines)


def validation_table(worlds: list[str]) -> str:
    """Return the accuracy over all validation examples in Markdown: a row for each setting.

    A row has the differences from the default of the method, and a default its accuracies.
    """
    names = [FEDERATIONS[world] for world in worlds]
    lines = [f"| {' | '.join(['setting', *names])} |", "|---" * (len(names) + 1) + "|"]
    for setting in SETTINGS:
        cells = [_on_validation_examples(world, setting) for world in worlds]
        if any(cell != "-" for cell in cells):
            lines.append(f"| {' | '.join([label(setting), *cells])} |")
    return "\n".join(lines)


def label(setting: str) -> str:
    """Return a setting in words."""
    parts = setting.split("-")
    if parts[0] == "fedavg_ft":
        epochs = parts[1].removeprefix("epochs")
        return f"FedAvg-FT, {epochs} {'epoch' if epochs == '1' else 'epochs'}"
    return f"pFedFDA, {_PRIOR_LABELS[parts[1]]}, ridge {parts[2].removeprefix('ridge')}"


_PRIOR_LABELS = {
    "floor0.0001": "floor 0.0001",
    "floor0.01": "floor 0.01",
    "floor0.1": "floor 0.1",
    "count0.3": "pseudo-count 0.3",
    "count1": "pseudo-count 1",
    "count3": "pseudo-count 3",
    "blend": "blend",
}


def _default_cell(world: str, setting: str, figure: str) -> str:
    """Return the test score of a default, in a cell."""
    scores = accuracies(Run(world, setting, "test", 0), "personalized", figure)
    return "-" if scores is None else _with_interval(scores)


def _selected_cell(world: str, setting: str | None, figure: str) -> str:
    """Return a selected setting with its test score and the difference from the default, in a
    cell.
    """
    if setting is None or not recorded(Run(world, setting, "test", 0)):
        return "-"
    if setting in DEFAULTS:
        return "the default"
    what = label(setting).split(", ", 1)[1]
    scores = accuracies(Run(world, setting, "test", 0), "personalized", figure)
    difference = test_difference(world, setting, figure)
    if scores is None or difference is None:
        return f"{what}: ended"
    return f"{what}: {100 * _mean(scores):.1f} ({difference})"


def test_difference(world: str, setting: str, figure: str, against: str = "") -> str | None:
    """Return the difference of a setting from another, or from the default, on test examples.

    None if there is a run without a score.
    """
    scores = accuracies(Run(world, setting, "test", 0), "personalized", figure)
    base = accuracies(
        Run(world, against or _default_of(setting), "test", 0), "personalized", figure
    )
    return None if scores is None or base is None else _difference(scores, base)


def _on_validation_examples(world: str, setting: str) -> str:
    """Return the validation score of a default, or the difference of another setting from it, in a
    cell.
    """
    if not recorded(Run(world, setting, "select", 0)):
        return "-"
    scores = accuracies(Run(world, setting, "select", 0), "validation", "pooled")
    base = accuracies(Run(world, _default_of(setting), "select", 0), "validation", "pooled")
    if scores is None:
        return "ended"
    if setting == _default_of(setting):
        return _with_interval(scores)
    if base is None:
        return "-"
    return _difference(scores, base)


def _default_of(setting: str) -> str:
    """Return the default setting of the algorithm of a setting."""
    return next(default for default in DEFAULTS if default.split("-")[0] == setting.split("-")[0])


def _difference(scores: list[float], base: list[float]) -> str:
    """Return the difference of two settings over seeds, in points."""
    return _with_interval([a - b for a, b in zip(scores, base, strict=True)], sign="+")


def _with_interval(fractions: list[float], sign: str = "") -> str:
    """Return a mean and half the width of its interval, in percent."""
    from scipy.stats import t

    center = _mean(fractions)
    deviation = math.sqrt(sum((value - center) ** 2 for value in fractions) / (len(fractions) - 1))
    half_width = t.ppf(0.975, len(fractions) - 1) * deviation / math.sqrt(len(fractions))
    return f"{100 * center:{sign}.1f} ± {100 * half_width:.1f}"


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def main() -> None:
    """Parse the command line, and run what has no record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-dir", default=os.environ.get("FEDTAILOR_DATA", ""), help="folder of the data sets"
    )
    parser.add_argument(
        "--world", nargs="*", choices=WORLDS, default=list(WORLDS), help="only these"
    )
    parser.add_argument(
        "--list", action="store_true", help="list the runs and whether they have a record"
    )
    parser.add_argument("--table", action="store_true", help="print the results as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        figures = {"mean over clients": "mean", "mean of the worst tenth of clients": "worst10"}
        for name, figure in figures.items():
            print(f"Test examples, {name}\n\n{test_table(arguments.world, figure)}\n")
        print(f"Validation examples, all together\n\n{validation_table(arguments.world)}")
    elif arguments.list:
        for run in itertools.chain.from_iterable(map(planned, arguments.world)):
            print(f"{run.path.stem:70} {'recorded' if run.path.exists() else 'missing'}")
    else:
        try:
            run_missing(arguments.world, arguments.data_dir)
        except FedtailorError as error:
            parser.exit(2, f"{parser.prog}: error: {error.message}\n")


def run_missing(worlds: list[str], data_dir: str) -> None:
    """Run what has no record; runs that follow from others are planned once those are done."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    while missing := [run for world in worlds for run in planned(world) if not run.path.exists()]:
        for run in missing:
            record = make_record(run, data_dir)
            temporary = run.path.with_suffix(".tmp")
            temporary.write_text(json.dumps(record, indent=1) + "\n")
            temporary.replace(run.path)
            print(f"{run.path.stem}: {record.get('ended', 'done')}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
