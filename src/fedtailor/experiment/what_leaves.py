"""What leaves a site: one row for every value that it sends or receives.

The rows follow from the declaration of a method's messages (:class:`fedtailor.core.message.Field`),
by which uploads are checked and bytes are counted. ``docs/what-leaves.md`` says what each kind of
value can tell about examples.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtailor.algorithms import ALGORITHMS
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.engine import holds_examples
from fedtailor.core.errors import ConfigError, did_you_mean, match_name
from fedtailor.core.federation import Federation, Split
from fedtailor.core.message import BYTES_PER_SCALAR, download_bytes
from fedtailor.core.schedule import Schedule
from fedtailor.core.scores import BINS, SCORE_BINS
from fedtailor.core.task import Task
from fedtailor.data.setup_messages import setup_messages
from fedtailor.experiment.algorithm_card import (
    LeavingValue,
    may_leave_out_rows,
    most_bytes_up,
    sent_by_method,
    shape_in_words,
    shape_of,
)
from fedtailor.experiment.assembly import PreparedRun, assemble
from fedtailor.experiment.config import first_training, load_config, make_config
from fedtailor.experiment.demo import SETTINGS
from fedtailor.experiment.reader import read_run
from fedtailor.simulation.report import RoundReport

SENT = ("value", "when", "what it is", "shape", "bytes", "the server uses")
RECEIVED = ("value", "what it is", "shape", "bytes")
"""The columns of the two tables."""

_WITHOUT_ENGINE = (
    ("engine.name", "reference"),
    ("engine.device", "cpu"),
    ("engine.ray_address", ""),
    ("federation.client_timeout", 0.0),
)
"""Only a few examples are trained on, so no engine has to be chosen."""


def what_leaves(parts: PreparedRun) -> dict[str, Any]:
    """Return everything that leaves a site in a run, ready for JSON.

    A round on a few examples shows what the declaration does not say: the names of the numbers that
    the method reports, and whether its models hold examples.
    """
    algorithm = parts.algorithm
    schedule = parts.config.schedule
    task = algorithm.bind(parts.federation.common_task)
    messages = algorithm.messages(task)
    trial = _trial_round(algorithm, parts.federation)
    uploads = sent_by_method(algorithm, task)
    sent = [*_sent_before(parts), *uploads, *_sent_at_evaluations(task, trial)]

    # What every site of a cohort gets, whatever it holds.
    received = []
    for name, field in messages.items():
        if field.down:
            size = BYTES_PER_SCALAR * field.scalars()
            received.append(LeavingValue(name, "round", field.kind, shape_of(field), size, ""))

    may_leave_out = [
        may_leave_out_rows(field, task) for field in messages.values() if field.reduction != "none"
    ]

    return {
        "algorithm": parts.config.algorithm.name,
        "model": parts.config.model.name,
        "model_numbers": sum(math.prod(shape) for shape in task.model.shapes.values()),
        "dataset": parts.divided.dataset.name,
        "classes": task.num_classes,
        "rounds": schedule.rounds,
        "participation": schedule.participation.as_value(),
        "sent": [{**value._asdict(), "single_sites": value.names_single_sites} for value in sent],
        "received": [value._asdict() for value in received],
        "bytes": {"up": most_bytes_up(uploads), "down": download_bytes(messages)},
        "single_sites_in_rounds": [value.name for value in uploads if value.names_single_sites],
        "rows_may_be_left_out": any(may_leave_out),
        "robust": schedule.robust,
        "model_holds_examples": trial and any(map(holds_examples, trial.personal.values())),
    }


def what_leaves_run(path: Path, changes: Sequence[tuple[str, Any]] = ()) -> dict[str, Any]:
    """Return what leaves a site in the run of a folder, whose data must be there.

    Args:
        path: the run folder.
        changes: options that may differ from those of the run: the folder of the data.

    Raises:
        ConfigError: it is a run across sites, each of which has its own log.
        DataError: the folder is not a run, or the data cannot be found.
    """
    if read_run(path).is_across_sites:
        message = (
            f"'{path}' is a run across sites, and each says what has left it: fedtailor site "
            "leaves FOLDER."
        )
        raise ConfigError(message, key="subject", allowed="a run on this machine", got=str(path))

    config = load_config(path / "experiment.toml", [*changes, *_WITHOUT_ENGINE])
    return what_leaves(assemble(first_training(config), config.seeds[0]))


def what_leaves_algorithm(name: str, changes: Sequence[tuple[str, Any]] = ()) -> dict[str, Any]:
    """Return what leaves a site with a method, on the model and data of the demo or named others.

    Raises:
        ConfigError: there is no such algorithm, or an option is wrong.
    """
    if ":" not in name and match_name(name, ALGORITHMS) is None:
        hint = did_you_mean(name, ALGORITHMS) or "."
        names = ", ".join(sorted(ALGORITHMS))
        message = f"'{name}' is neither the folder of a run nor an algorithm{hint} Known: {names}."
        raise ConfigError(message, key="subject", allowed=sorted(ALGORITHMS), got=name)

    # Named data comes with its own options, so those of the demo would not fit.
    has_data = any(key in ("data.dataset", "data.path") for key, _ in changes)
    settings = {} if has_data else {key: dict(value) for key, value in SETTINGS.items()}
    config = make_config(settings, [("algorithm.name", name), *changes, *_WITHOUT_ENGINE])
    return what_leaves(assemble(first_training(config), config.seeds[0]))


def _sent_before(parts: PreparedRun) -> list[LeavingValue]:
    """Return what every site sends before the first round; a simulation reads it from all data."""
    values = [LeavingValue("num_train", "setup", "training examples", "1 number", 4, "each")]
    for field in setup_messages(parts.divided.dataset, parts.config.data):
        shape = shape_in_words(field.shape)
        values.append(LeavingValue(field.name, "setup", field.content, shape, None, "each"))

    return values


def _sent_at_evaluations(task: Task, trial: RoundReport | None) -> list[LeavingValue]:
    """Return scores and other statistics of the data, which training does not need."""
    classes = task.num_classes
    scores = [
        ("confusion", "test examples by class and prediction", classes * classes),
        ("bins", "test examples, right ones and confidence by bin of confidence", 3 * BINS),
        ("loss", "sum of the cross-entropy", 1),
        ("score_bins", "test examples by class and bin of score", 2 * classes * SCORE_BINS),
    ]
    values = []
    for name, content, numbers in scores:
        shape = shape_in_words((numbers,))
        value = LeavingValue(f"scores: {name}", "evaluation", content, shape, 8 * numbers, "each")
        values.append(value)

    # What the method reports of its training and of its personal models.
    evaluations = trial.evaluations if trial else ()
    names = {
        "training_metrics": set(trial.metrics if trial else ()),
        "diagnostics": {name for evaluation in evaluations for name in evaluation.diagnostics},
    }
    for kind, reported in names.items():
        content = ", ".join(sorted(reported)) or "none"
        if trial is None:
            content = "not known: the method fails on a few examples"
        values.append(LeavingValue(kind, "evaluation", content, "1 number each", None, "each"))

    text = LeavingValue("error", "failure", "message of an error", "500 characters", 500, "each")
    return [*values, text]


def _trial_round(algorithm: Algorithm[Any, Any, Any], federation: Federation) -> RoundReport | None:
    """Train one round on a few examples of two clients; None if the method fails on them."""
    from fedtailor.simulation.engines.reference import Reference
    from fedtailor.simulation.rounds import simulate

    # Two clients with a few examples each: enough to see what a method reports.
    clients = [client for client in federation.known if len(federation.splits[client].train)][:2]
    splits = [federation.splits[client] for client in clients]
    small = dataclasses.replace(
        federation,
        splits=[Split(split.train[:8], split.val[:4], split.test[:4]) for split in splits],
        num_new=0,
        client_names=(),
        conditions=(),
        client_tasks=(),
        complete=federation.complete[:0],
    )

    try:
        (report,) = simulate(algorithm, small, Reference(), Schedule(rounds=1), seed=0)
    except Exception:  # a user's method, or one that needs more examples
        return None

    return report


def to_markdown(record: Mapping[str, Any]) -> str:
    """Return what leaves a site as two tables in Markdown, and what follows from them."""
    parts = [
        f"# What leaves a site: {_plain(record['algorithm'])}",
        f"Model `{_plain(record['model'])}` ({record['model_numbers']:,} numbers), data "
        f"`{_plain(record['dataset'])}`, {record['classes']} classes, {record['rounds']:,} rounds, "
        f"participation {_plain(str(record['participation']))}. A number "
        f"counts as {BYTES_PER_SCALAR} bytes, in scores as 8.",
        _table(SENT, [_sent_row(value) for value in record["sent"]]),
        f"In a round, a site sends at most {record['bytes']['up']:,} bytes and receives "
        f"{record['bytes']['down']:,}:",
        _table(RECEIVED, [_received_row(value) for value in record["received"]]),
        "\n".join(f"* {sentence}" for sentence in _notes(record)),
    ]
    return "\n\n".join(parts) + "\n"


def _notes(record: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the tables must know of this method and this run."""
    notes = ["docs/what-leaves.md says what these values can tell, and what protects them."]
    if record["single_sites_in_rounds"]:
        names = ", ".join(f"`{_plain(name)}`" for name in record["single_sites_in_rounds"])
        notes.append(f"**The method works with the values of every single site of {names}.**")

    # Such a rule cannot work with sums of encrypted uploads.
    if record["robust"] != "none":
        notes.append(f"**federation.robust = {record['robust']} compares single uploads.**")
    if record["rows_may_be_left_out"]:
        notes.append("Rows of classes without examples may be left out, and tell which these are.")
    if record["model_holds_examples"]:
        notes.append("**A site's model file holds features and labels of its examples.**")
    return notes


def _sent_row(value: Mapping[str, Any]) -> list[str]:
    uses = {"mean": "weighted mean", "sum": "sum", "each": "**each site's**"}
    return [
        f"`{_plain(value['name'])}`",
        value["when"],
        _plain(value["content"]),
        value["shape"],
        "-" if value["bytes"] is None else f"{value['bytes']:,}",
        uses[value["reduction"]],
    ]


def _received_row(value: Mapping[str, Any]) -> list[str]:
    name = f"`{_plain(value['name'])}`"
    return [name, _plain(value["content"]), value["shape"], f"{value['bytes']:,}"]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _plain(text: str) -> str:
    """Return text that cannot change the page, whatever a user's data or method are called."""
    return re.sub(r"[^\w .,:/()=+-]", "_", text)
