"""The leaderboard: methods on the same federations, with options that validation examples choose.

A cell is one method on one federation in one repetition: a sweep of at most :data:`TRIALS` trials,
and the test scores of the trial that was chosen, with a verdict for every client: is its model
better than what it would use alone? A repetition has a division of its own, and chooses for itself.
So no test example of a repetition is among the examples that chose its options.

Records are lines of a file. What changes a result is part of a cell's digest: a record of another
protocol, or of another version of a user's own method, is made again. No torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core.atomic import (
    append_lines,
    cut_unfinished_line,
    discard,
    make_folder,
    safe_name,
    writing,
)
from fedtailor.core.errors import ConfigError, DataError, RunError, find_name
from fedtailor.core.options import wrong_value
from fedtailor.core.reading import damaged, read_lines
from fedtailor.core.targets import source_digest
from fedtailor.core.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    Say = Callable[[str], None]

VERSION = 2
"""Of the protocol and of a record."""
_NEEDED = (
    "name",
    "protocol",
    "federation",
    "method",
    "repetition",
    "tried",
    "trials",
    "chosen",
    "validation",
    "engine",
    "rounds",
    "evaluation",
    "uses_validation",
    "accuracies",
    "verdicts",
    "clients",
    "baselines",
    "bytes",
    "split_sha256",
    "trial_seconds",
    "processor_seconds",
    "machine",
    "commit",
)
"""Keys of a record that its page needs."""
TRIALS = 4
"""Combinations of options that are tried for a method, at most."""
REPETITIONS = 3
"""Seeds, or folds, of every method on every federation."""
LOCAL = "local"
"""The method that trains the same model at each client alone."""
SIMPLEST = ("majority", "logistic_regression")
"""Baselines of pictures and features."""
_OF_THE_DATA = ("data.dir", "data.encoder")
"""Keys of errors that concern the data of a federation, and no method."""
_EQUAL_FOR_ALL = ("data", "federation", "model")
"""Sections of the configuration of which no option may be tried."""
_NEEDS_CLONE = (
    "Federations on features run in the root of a clone of the repository: make encoder installs "
    "the encoder there, for .venv/bin/fedtailor."
)
Record = dict[str, Any]


class BoardFederation(NamedTuple):
    """A federation of the leaderboard."""

    what: str
    """In words."""
    sections: Mapping[str, Mapping[str, Any]]
    """Of the configuration: data, model, training."""
    has_folds: bool = False
    """Whether a repetition is a fold of one division; else it is a seed, with its own division."""
    same_clients: bool = False
    """Whether a client of a repetition is the same as in the others; else examples are dealt out
    to clients again."""
    baselines: tuple[str, ...] = SIMPLEST
    """Models of scikit-learn, of each client alone and of all data in one place."""


_ROWS = (*SIMPLEST, "random_forest", "gradient_boosting")
_TRAINING = {"epochs": 2, "batch_size": 20}
ENCODER = "benchmarks.efficientnet:lite0"
"""The frozen encoder of the federations on features: it is in the repository, not in the wheel."""


def _pictures(
    dataset: str, partition: str, model: str, **data: Any
) -> dict[str, Mapping[str, Any]]:
    """Return the sections of a federation of pictures: 4,000 of them at 20 clients."""
    sizes = {"subset": 4000, "clients": 20} | data
    return {
        "data": {"dataset": dataset, "partition": partition, **sizes},
        "model": {"name": model},
        "training": _TRAINING,
    }


def _features(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the same federation on the features of a frozen encoder."""
    data = {**sections["data"], "encoder": ENCODER}
    return {**sections, "data": data, "model": {"name": "mlp"}}


_HALF = {"test_share": 0.5}
"""Half of the pictures are for testing: runs stay short, and clients have enough test examples."""
_SKEW = _pictures("fashion_mnist", "dirichlet(alpha=0.1)", "emnist_cnn", **_HALF)
_CORRUPTED = _pictures(
    "cifar10", "dirichlet(alpha=0.5)", "cifar_cnn", shift="cifar_s(clients=10)", **_HALF
)

FEDERATIONS: Mapping[str, BoardFederation] = {
    "digits": BoardFederation(
        "the digits of scikit-learn at 20 clients, label skew Dirichlet(0.1); no download",
        _pictures("digits", "dirichlet(alpha=0.1)", "mlp", subset=0),
    ),
    "hospitals": BoardFederation(
        "920 patients of four hospitals (heart), three folds",
        {
            "data": {"dataset": "heart", "folds": REPETITIONS},
            "model": {"name": "mlp"},
            "training": _TRAINING,
        },
        has_folds=True,
        same_clients=True,
        baselines=_ROWS,
    ),
    "table": BoardFederation(
        "20 domains of 16 features (synthetic), whose classes are shifted in each; no download",
        {"data": {"dataset": "synthetic"}, "model": {"name": "mlp"}, "training": _TRAINING},
        same_clients=True,
        baselines=_ROWS,
    ),
    "skew-0.1": BoardFederation(
        "4,000 pictures of Fashion-MNIST at 20 clients, label skew Dirichlet(0.1)",
        _SKEW,
    ),
    "skew-0.5": BoardFederation(
        "the same with label skew Dirichlet(0.5)",
        _pictures("fashion_mnist", "dirichlet(alpha=0.5)", "emnist_cnn", **_HALF),
    ),
    "scarce": BoardFederation(
        "Fashion-MNIST at 40 clients with 50 training pictures each, classes by Dirichlet(0.5)",
        _pictures(
            "fashion_mnist",
            "dirichlet_quota(alpha=0.5, quota=100)",
            "emnist_cnn",
            subset=0,
            clients=40,
            **_HALF,
        ),
    ),
    "corrupted": BoardFederation(
        "4,000 pictures of CIFAR-10 at 20 clients, Dirichlet(0.5), corrupted at ten of them",
        _CORRUPTED,
    ),
    "skew-0.1-features": BoardFederation(
        "skew-0.1 on features of a frozen EfficientNet-Lite0", _features(_SKEW)
    ),
    "corrupted-features": BoardFederation(
        "corrupted on features of a frozen EfficientNet-Lite0", _features(_CORRUPTED)
    ),
}
"""The federations by name, those of the shortest runs first."""
_SCHEDULE = {"rounds": 20}

_RATES = [0.01, 0.03, 0.1, 0.3]
_TWO_RATES = [0.03, 0.1]
_LR = "training.lr"


def _with(option: str, values: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Return two learning rates, and two values of an option of the method."""
    return {_LR: _TWO_RATES, f"algorithm.{option}": values}


VALUES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "apfl": _with("alpha", [0.25, 0.5]),
    "ditto": _with("penalty", [0.1, 1.0]),
    "fed3r": {"algorithm.ridge": [0.01, 1.0, 100.0, "cross_validated"]},
    "fedavg_ft": _with("finetune", ["all", "head"]),
    "fedcgs": {"algorithm.head": ["shared", "lda", "naive_bayes", "qda"]},
    "fedcof": {"algorithm.ridge": [0.01, 0.1, 1.0, 10.0]},
    "fedcr": _with("beta", [0.0005, 0.01]),
    "feddyn": _with("alpha", [0.01, 0.1]),
    "fedncm": {_LR: [0.1]},
    "fedpac": _with("penalty", [0.1, 1.0]),
    "fedproto": _with("penalty", [0.1, 1.0]),
    "fedprox": _with("penalty", [0.01, 0.1]),
    "fedrep": _with("head_epochs", [2, 10]),
    "fedsr": _with("l2_weight", [0.001, 0.01]),
    "ifca": _with("clusters", [2, 4]),
    "knn_per": _with("mixing", [0.25, 0.5]),
    "moon": _with("penalty", [0.1, 1.0]),
    "mr_mtl": _with("penalty", [0.1, 1.0]),
    "one_shot_fda": {"algorithm.blend": [False, True]},
    "perfedavg": _with("inner_lr", [0.01, 0.1]),
    "pfedbayes": {"algorithm.personal_lr": [0.001, 0.01], "algorithm.penalty": [1.0, 10.0]},
    "pfedhn": _with("server_lr", [0.01, 0.1]),
    "pfedme": {"algorithm.outer_lr": [0.005, 0.05], "algorithm.penalty": [1.0, 15.0]},
    "pfedvem": _with("head_lr", [0.001, 0.01]),
}
"""What is tried for a method; for others, four learning rates."""
METHODS = tuple(ALGORITHMS)
"""Of the package."""
ONE_MODEL_HERE = ("fedbn", "fedsr")
"""Methods with which all clients end with the same model here, though not everywhere: there are no
normalization layers and no fine-tuning."""


@dataclass(frozen=True)
class Cell:
    """A method on a federation in one repetition."""

    federation: str
    method: str
    """The name of an algorithm, or ``package.module:Class``."""
    repetition: int
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict, hash=False)
    """What is tried; empty: as :data:`VALUES` says."""

    @property
    def name(self) -> str:
        """The name of the record."""
        return f"{self.federation}/{self.method}/{self.repetition}"

    @property
    def tried(self) -> Mapping[str, Sequence[Any]]:
        """What is tried."""
        return self.values or VALUES.get(self.method, {_LR: _RATES})

    def sections(self) -> dict[str, Any]:
        """Return the configuration of every trial, without what is tried and where the data are."""
        federation = FEDERATIONS[self.federation]
        data = {**federation.sections["data"], "val_fraction": 0.2}
        seed = self.repetition
        if federation.has_folds:
            # One division into folds, each of which is tested on once.
            data |= {"fold": self.repetition + 1}
            seed = 0
        else:
            data |= {"seed": "run"}

        sections: dict[str, Any] = {
            **federation.sections,
            "seed": seed,
            "data": data,
            "algorithm": {"name": self.method},
            "federation": _SCHEDULE,
            "evaluation": {"every": 0, "baselines": ",".join(federation.baselines)},
            "checkpoint": {"every": 0},
        }
        # Methods of few exchanges train no body.
        if load_algorithm(self.method).exchanges:
            sections["model"] = {"name": "linear"}

        return sections

    @property
    def digest(self) -> str:
        """The beginning of a SHA-256 of all that decides the result, but data and versions."""
        source = ""
        if self.method not in ALGORITHMS:
            source = source_digest(self.method, what="algorithm", key="method")

        facts = [VERSION, TRIALS, self.sections(), dict(self.tried), source]
        text = json.dumps(facts, sort_keys=True, default=list)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def make_cells(
    methods: Sequence[str] = (),
    *,
    only: Sequence[str] = (),
    values: Mapping[str, Sequence[Any]] | None = None,
) -> list[Cell]:
    """Return cells: one repetition of all federations before the next repetition.

    Args:
        methods: names, or ``package.module:Class``; empty: all of the package.
        only: parts of the names of cells, all of which a name must have.
        values: what is tried; None: as :data:`VALUES` says.

    Raises:
        ConfigError: a method is unknown, no cell has such a name, or what is tried is equal for all
            methods, or no lists of at most :data:`TRIALS` combinations.

    Example:
        >>> [cell.name for cell in make_cells(["ditto"], only=["digits/", "/0"])]
        ['digits/ditto/0']
    """
    names: dict[str, None] = {}
    for method in methods or METHODS:
        if ":" not in method:
            method = find_name("algorithm", method, ALGORITHMS, key="method")
        load_algorithm(method)  # a method that is not there is told at once
        names[method] = None

    _check_values(values or {})
    cells = []
    for repetition in range(REPETITIONS):
        for federation in FEDERATIONS:
            for method in names:
                cell = Cell(federation, method, repetition, values or {})
                if all(text in cell.name for text in only):
                    cells.append(cell)

    if not cells:
        allowed = "parts of the name of a cell, such as digits/ or /0"
        hint = "A name is FEDERATION/METHOD/REPETITION, and none has all of these."
        raise wrong_value("--only", allowed, ", ".join(only), hint)

    return cells


def _check_values(values: Mapping[str, Sequence[Any]]) -> None:
    """Check what is to be tried.

    Raises:
        ConfigError: it is equal for all methods, or no lists of at most so many combinations.
    """
    for key, tried in values.items():
        if key.partition(".")[0] in _EQUAL_FOR_ALL:
            allowed = "options of the method or of training"
            hint = "Data, model and rounds are the same for all methods."
            raise wrong_value("--values", allowed, key, hint)
        if not isinstance(tried, list | tuple) or not tried:
            allowed = f"a list of values to try, such as {key}=[0.1, 1]"
            raise wrong_value("--values", allowed, tried)

    combinations = math.prod(map(len, values.values()))
    if combinations > TRIALS:
        allowed = f"at most {TRIALS} combinations, as for every method"
        raise wrong_value("--values", allowed, combinations)


# Records.


def read_board(path: Path) -> dict[str, Record]:
    """Return the records of a file by name; the last one of a name counts.

    Raises:
        DataError: the file is damaged, or has records of another version.
    """
    if not path.exists():
        return {}

    records = {}
    for record in read_lines(path):
        _check_record(record, path)
        records[record["name"]] = record

    return records


def _check_record(record: Record, path: Path) -> None:
    absent = [key for key in ("version", *_NEEDED) if key not in record]
    if "version" in record and record["version"] != VERSION:
        raise DataError(
            f"'{path}' has a record of version {record['version']!r}, and this program writes "
            f"version {VERSION}. Use another file.",
            path=str(path),
        )
    if absent:
        raise damaged(path, f"a line lacks {', '.join(absent)}")


def is_done(cell: Cell, records: Mapping[str, Record]) -> bool:
    """Return whether there is a record of a cell, of the same protocol and method."""
    record = records.get(cell.name)
    return record is not None and record["protocol"] == cell.digest


def without_older(records: Mapping[str, Record], cells: Sequence[Cell]) -> dict[str, Record]:
    """Return the records without those of the cells' methods that are not of these cells.

    Those are of another version of a method, or of other values that were tried.
    """
    methods = {cell.method for cell in cells}
    current = {cell.name for cell in cells if is_done(cell, records)}
    return {
        name: record
        for name, record in records.items()
        if record["method"] not in methods or name in current
    }


def run_cells(
    cells: Iterable[Cell],
    path: Path,
    *,
    data_dir: str = "",
    engine: str = "auto",
    hours: float = math.inf,
    work: Path = Path("runs/leaderboard"),
    say: Say = lambda _: None,
) -> dict[str, str]:
    """Run the cells that have no record, and add a line to the file for each.

    A cell that was interrupted resumes in its folder, which goes when it is done. Whatever the
    order, the records are the same.

    Args:
        cells: from :func:`make_cells`.
        path: the file of the records.
        data_dir: folder of the data sets.
        engine: changes nothing but the time.
        hours: no cell begins after so many of them.
        work: folder of unfinished cells.
        say: is told a sentence about every cell.

    Returns:
        Why cells failed, by their names.

    Raises:
        ConfigError: an option is wrong.
        DataError: the file is damaged.
        RunError: it cannot be written.
        UsageError: Optuna is not installed.
    """
    begin = time.monotonic()
    overrides = [("engine.name", engine)]
    if data_dir:
        overrides.append(("data.dir", data_dir))

    records = read_board(path)
    missing = [cell for cell in cells if not is_done(cell, records)]
    if missing:
        _check_options(missing, overrides)
        _check_writable(path)

    failures: dict[str, str] = {}
    without_data: dict[str, str] = {}
    for number, cell in enumerate(missing, 1):
        if time.monotonic() - begin > 3600 * hours:
            say(f"note: {hours:g} hours are over; {len(missing) - number + 1} cells are missing.")
            break

        if cell.federation in without_data:
            failures[cell.name] = without_data[cell.federation]
            continue

        say(f"{number} of {len(missing)}: {cell.name}")
        try:
            record, folder = run_cell(cell, overrides, work, say)
        except (ConfigError, DataError, RunError) as error:
            reason = f"{error} {_NEEDS_CLONE}" if error.key == "data.encoder" else str(error)
            failures[cell.name] = reason
            say(f"{cell.name} failed: {reason}")
            # Files, or an encoder, are missing for all methods alike.
            if error.key in _OF_THE_DATA:
                without_data[cell.federation] = reason
            continue

        # Only what has its line is not needed any more.
        cut_unfinished_line(path)
        append_lines(path, [record])
        shutil.rmtree(folder, ignore_errors=True)

    return failures


def _check_options(cells: Sequence[Cell], overrides: Sequence[tuple[str, Any]]) -> None:
    """Check the options that are tried for each method, before anything is trained for it.

    Raises:
        ConfigError: one is wrong.
        UsageError: Optuna is not installed.
    """
    from fedtailor.experiment.config import make_config
    from fedtailor.experiment.sweep import make_searches
    from fedtailor.experiment.sweep_options import SweepOptions

    for cell in {cell.method: cell for cell in cells}.values():
        config = make_config(cell.sections(), overrides)
        make_searches(config, SweepOptions(sampler="grid", values=dict(cell.tried)))


def _check_writable(path: Path) -> None:
    """Check that lines can be appended to a file, and cut what a killed process has left there.

    Raises:
        RunError: they cannot.
    """
    make_folder(path.parent)
    cut_unfinished_line(path)
    is_new = not path.exists()
    with writing(path), path.open("ab"):
        pass

    if is_new:
        discard(path)


def run_cell(
    cell: Cell, overrides: Sequence[tuple[str, Any]], work: Path, say: Say
) -> tuple[Record, Path]:
    """Run a cell: a sweep of its trials, and the record of the one that was chosen.

    The folder of the sweep is returned with it: it is of no use once the record is written.

    Args:
        cell: the method on the federation.
        overrides: values of the configuration that change no result, such as the data folder.
        work: folder of unfinished cells.
        say: is told if trials failed.

    Raises:
        ConfigError: the method cannot work on the federation.
        DataError: data are missing or damaged.
        RunError: all trials failed, or a file cannot be written.
    """
    from fedtailor.experiment.board_baselines import train_own_baselines
    from fedtailor.experiment.config import make_config
    from fedtailor.experiment.provenance import commit, machine, versions
    from fedtailor.experiment.sweep import sweep

    # What clients would use alone is the same for all methods.
    config = make_config(cell.sections(), overrides)
    own = train_own_baselines(config, work, f"{cell.federation}-{cell.repetition}")

    # A sweep continues with the engine that it began with.
    folder = work / f"{safe_name(cell.name)}-{cell.digest}-{config.engine.name}"
    is_new = not folder.exists()
    begin = _processor_seconds()
    result = sweep(config, values=cell.tried, sampler="grid", out=folder)
    processor_seconds = round(_processor_seconds() - begin, 1)

    (method,) = result["methods"]
    best = method["best"]
    if best is None:
        raise ConfigError(f"no trial of {cell.name} went through all rounds.")

    errors = [trial["error"] for trial in method["trials"] if trial["error"]]
    if errors:
        say(f"note: {counted(len(errors), 'trial')} of {cell.name} failed: {errors[0]}")

    record = {
        "version": VERSION,
        "name": cell.name,
        "protocol": cell.digest,
        "federation": cell.federation,
        "method": cell.method,
        "repetition": cell.repetition,
        "tried": {key: list(values) for key, values in cell.tried.items()},
        "trials": [
            {"values": trial["values"], "validation": trial["validation"]}
            for trial in method["trials"]
        ],
        "chosen": best["values"],
        "validation": best["validation"],
        **_scores(folder / best["run"], config.seeds[0]),
        "baselines": own,
        "trial_seconds": round(method["seconds"], 1),
        "processor_seconds": processor_seconds if is_new else None,
        "machine": machine(),
        "versions": dict(versions()),
        "commit": commit(),
    }
    return record, folder


def _processor_seconds() -> float:
    """Return the seconds that this process and those it has ended have computed."""
    return sum(os.times()[:4])


def _scores(folder: Path, seed: int) -> Record:
    """Return what the record of a cell has of the chosen run."""
    from fedtailor.experiment.assembly import make_algorithm
    from fedtailor.experiment.board_baselines import judge_clients
    from fedtailor.experiment.config import load_config
    from fedtailor.experiment.reader import CONFIG_FILE, read_provenance, read_run

    run = read_run(folder)
    result = run.result
    assert result is not None, "the sweep has chosen a finished run"
    algorithm = make_algorithm(load_config(folder / CONFIG_FILE))
    personalized = result["metrics"]["personalized"]
    lines = run.iterate_clients()
    accuracies = list(_accuracies(lines, result["rounds"], clients=result["clients"]))
    return {
        "engine": result["engine"],
        "rounds": result["rounds"],
        "evaluation": algorithm.primary_evaluation,
        "uses_validation": algorithm.chooses_by_validation,
        "accuracies": accuracies,
        "verdicts": judge_clients(folder, seed, len(accuracies)),
        "clients": run.client_names,
        "balanced_accuracy": personalized["balanced_accuracy"]["mean"],
        "bytes": result["bytes"],
        "split_sha256": result["split_sha256"],
        "data_sha256": read_provenance(folder)["data"]["sha256"],
    }


def _accuracies(lines: Iterable[Record], last: int, *, clients: int) -> Iterator[float | None]:
    """Yield the accuracy of every client's final model on its test examples; None without any."""
    by_client = {}
    for line in lines:
        is_final = line["round"] == last and line["point"] == "personalized"
        if is_final and line.get("test_set") == "clients":
            by_client[line["client"]] = line.get("accuracy")

    for client in range(clients):
        accuracy = by_client.get(client)
        yield None if accuracy is None else round(accuracy, 6)
