"""What leaves a site: one row for every value that it sends or receives.

The rows follow from the declaration of a method's messages (:class:`fedtailor.core.message.Field`),
by which uploads are checked and bytes are counted. ``docs/reference/what-leaves.md`` says what each
kind of value can tell about examples.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedtailor.algorithms import ALGORITHMS
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.engine import holds_examples
from fedtailor.core.errors import find_name
from fedtailor.core.message import BYTES_PER_SCALAR, download_bytes
from fedtailor.core.metrics import CLASS_SHARES, CLIENT_METRICS
from fedtailor.core.reading import content_of
from fedtailor.core.scores import score
from fedtailor.core.task import Task
from fedtailor.core.text import markdown_table
from fedtailor.data.input_specification import InputSpecification, read_input_specification
from fedtailor.data.setup_messages import setup_messages
from fedtailor.experiment.algorithm_card import (
    LeavingValue,
    may_leave_out_rows,
    most_bytes_up,
    sent_by_method,
    shape_in_words,
    shape_of,
)
from fedtailor.experiment.assembly import PreparedRun, assemble, make_algorithm, planned_privacy
from fedtailor.experiment.config import Config, first_training, load_config, make_config
from fedtailor.experiment.demo import SETTINGS
from fedtailor.experiment.reader import PROVENANCE_FILE, RunRecords, read_run
from fedtailor.models import build_model
from fedtailor.privacy import claims

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

_SCORES = {
    ("class_correct", "class_total"): "right and all test examples by class",
    ("confusion",): "test examples by class and prediction",
    ("bin_count", "bin_confidence", "bin_correct"): (
        "test examples, confidence and right ones by bin of confidence"
    ),
    ("loss_sum",): "sum of the cross-entropy",
    ("pairs", "pairs_won"): "pairs of test examples by class, and those in the right order",
    ("histogram",): "test examples by class and bin of score",
}
"""Fields of the scores of a site -> what they are."""


def what_leaves(parts: PreparedRun) -> dict[str, Any]:
    """Return everything that leaves a site in a run, ready for JSON.

    A round on a few examples shows what the declaration does not say: the names of the numbers that
    the method reports, and whether its models hold examples.
    """
    # Nobody else needs an engine for it.
    from fedtailor.simulation.trial import trial_round

    trial = trial_round(parts.algorithm, parts.federation)
    task = parts.algorithm.bind(parts.federation.common_task)
    unknown = ["not known: the method fails on a few examples"]
    reported = _reported(unknown, unknown)
    if trial is not None:
        diagnostics = [name for one in trial.evaluations for name in one.diagnostics]
        reported = _reported(trial.metrics, diagnostics)

    record = _record(parts.config, parts.algorithm, task, parts.inputs, reported)
    holds = trial and any(map(holds_examples, trial.personal.values()))
    planned = []
    if parts.config.privacy.unit != "none":
        planned.append(f"After all rounds: {claims.claim_of(planned_privacy(parts))}")
    return {**record, "model_holds_examples": holds, "claims": planned}


def _record(
    config: Config,
    algorithm: AnyAlgorithm,
    task: Task,
    inputs: InputSpecification,
    reported: Mapping[str, str],
) -> dict[str, Any]:
    """Return everything that leaves a site.

    Args:
        config: of the run.
        algorithm: with its options.
        task: of the clients, bound to the algorithm.
        inputs: how examples become inputs.
        reported: the names of training metrics and of diagnostics.
    """
    schedule = config.schedule
    messages = algorithm.messages(task)
    uploads = sent_by_method(algorithm, task)
    before = _sent_before(inputs, config)
    sent = [*before, *uploads, *_sent_at_evaluations(config, task, reported)]

    # What every site of a cohort gets, whatever it holds.
    received = []
    for name, field in messages.items():
        if field.down:
            size = BYTES_PER_SCALAR * field.scalars()
            received.append(LeavingValue(name, "round", field.kind, shape_of(field), size, ""))

    may_leave_out = [
        may_leave_out_rows(algorithm, field, task)
        for field in messages.values()
        if field.reduction != "none"
    ]

    return {
        "algorithm": config.algorithm.name,
        "model": config.model.name,
        "model_numbers": sum(math.prod(shape) for shape in task.model.shapes.values()),
        "dataset": inputs.dataset,
        "classes": task.num_classes,
        "rounds": schedule.rounds,
        "participation": schedule.participation.as_value(),
        "sent": [{**value._asdict(), "single_sites": value.names_single_sites} for value in sent],
        "received": [value._asdict() for value in received],
        "bytes": {"up": most_bytes_up(uploads), "down": download_bytes(messages)},
        "single_sites_in_rounds": [value.name for value in uploads if value.names_single_sites],
        "rows_may_be_left_out": any(may_leave_out),
        "robust": schedule.robust,
        "model_holds_examples": None,
        "claims": [],
    }


def what_leaves_run(path: Path, changes: Sequence[tuple[str, Any]] = ()) -> dict[str, Any]:
    """Return what leaves a site in the run of a folder.

    The data of a simulation must be there. Of a run across sites, it is what the records of the
    server say, also site by site.

    Args:
        path: the run folder.
        changes: options that may differ from those of the run: the folder of the data.

    Raises:
        ConfigError: the configuration cannot be used here.
        DataError: the folder is not a run, or the data cannot be found.
    """
    records = read_run(path)
    if records.is_across_sites:
        return _across_sites(records)

    config = load_config(path / "experiment.toml", [*changes, *_WITHOUT_ENGINE])
    record = what_leaves(assemble(first_training(config), config.seeds[0]))
    if records.result is not None:
        with content_of(path / "result.json"):
            record["claims"] = claims.claims_of(records.result)
    return record


def _across_sites(records: RunRecords) -> dict[str, Any]:
    """Return what has left the sites of a run, from the folder of the server."""
    config = load_config(records.path / "experiment.toml")
    inputs = read_input_specification(records.path)
    algorithm = make_algorithm(config)
    model = build_model(config.model.name, inputs.shape, inputs.num_classes, config.model.options)
    task = algorithm.bind(Task(model, inputs.num_classes, inputs.shape))

    reported = _reported(
        [name for line in records.rounds for name in line["training_metrics"]],
        [name for line in records.clients for name in line.get("diagnostics", ())],
    )
    record = _record(config, algorithm, task, inputs, reported)
    sites = _sites(records, record["bytes"]["up"])
    if any("verdict" in site["shares"] for site in sites):
        content = "difference from the best own model, and its test"
        verdict = LeavingValue("verdict", "end", content, "6 numbers", None, "each")
        record["sent"].append({**verdict._asdict(), "single_sites": True})

    if records.result is not None:
        record["claims"] = claims.claims_of(records.result)
    return {**record, "sites": sites}


def _sites(records: RunRecords, most_bytes: int) -> list[dict[str, Any]]:
    """Return what each site of a run has sent: in how many rounds, and what it shares.

    A site that did not answer in time may have sent its upload all the same, so it counts.
    """
    attempts: Counter[int] = Counter()
    for event in records.events:
        if "round" in event:
            attempts[event["round"]] = max(attempts[event["round"]], event.get("attempt", 0) + 1)

    sites = []
    with content_of(records.path / PROVENANCE_FILE):
        for number, site in enumerate(records.provenance["sites"]):
            rounds = [line["round"] for line in records.rounds if number in line["cohort"]]
            uploads = sum(max(attempts[round], 1) for round in rounds)
            sites.append(
                {
                    "site": str(site["name"]),
                    "new": bool(site["new"]),
                    "rounds": len(rounds),
                    "bytes": uploads * most_bytes,
                    "shares": list(site["share"]),
                    "examples": _num_examples(site),
                }
            )

    return sites


def _num_examples(site: Mapping[str, Any]) -> int | None:
    """Return how many examples a site has said that it has; None: it has not said it."""
    if not site.get("counts_known", True):
        return None
    return sum(int(site[f"num_{part}"]) for part in ("train", "val", "test"))


def what_leaves_algorithm(name: str, changes: Sequence[tuple[str, Any]] = ()) -> dict[str, Any]:
    """Return what leaves a site with a method, on the model and data of the demo or named others.

    Raises:
        ConfigError: there is no such algorithm, or an option is wrong.
    """
    if ":" not in name:
        name = find_name("algorithm or folder of a run", name, ALGORITHMS, key="subject")

    # Named data comes with its own options, so those of the demo would not fit.
    has_data = any(key in ("data.dataset", "data.path") for key, _ in changes)
    settings = {} if has_data else {key: dict(value) for key, value in SETTINGS.items()}
    config = make_config(settings, [("algorithm.name", name), *changes, *_WITHOUT_ENGINE])
    return what_leaves(assemble(first_training(config), config.seeds[0]))


def _sent_before(inputs: InputSpecification, config: Config) -> list[LeavingValue]:
    """Return what every site sends before the first round; a simulation reads it from all data."""
    counts = "training, validation and test examples, and groups of test examples"
    if config.privacy.secure_sums:
        counts = f"whether there are {counts}, how many only if site.share names single"
    values = [LeavingValue("counts", "setup", counts, "4 numbers", 16, "each")]
    for field in setup_messages(inputs, config.data):
        shape = shape_in_words(field.shape)
        values.append(LeavingValue(field.name, "setup", field.content, shape, None, "each"))

    return values


def _sent_at_evaluations(
    config: Config, task: Task, reported: Mapping[str, str]
) -> list[LeavingValue]:
    """Return scores and other statistics of the data, which training does not need."""
    # With secure sums, scores leave under masks, unless a site shows its own.
    has_sums = config.privacy.secure_sums
    uses = "sum" if has_sums else "each"
    no_logits = torch.zeros(0, task.num_classes)
    no_labels = torch.zeros(0, dtype=torch.int64)
    scores = score(no_logits, no_labels, torch.zeros(0), task.num_classes)

    values = []
    for names, content in _SCORES.items():
        if has_sums and "pairs" in names:
            continue
        numbers = sum(getattr(scores, name).numel() for name in names)
        name = f"scores: {', '.join(names)}"
        shape = shape_in_words((numbers,))
        values.append(LeavingValue(name, "evaluation", content, shape, 8 * numbers, uses))

    if has_sums:
        figures = len(CLIENT_METRICS) + task.num_classes * (1 + len(CLASS_SHARES))
        content = "1, value and square of every metric, also by class"
        shape = shape_in_words((3 * figures,))
        row = LeavingValue("scores: figures", "evaluation", content, shape, 24 * figures, uses)
        values.append(row)

    # What the method reports of its training and of its personal models.
    for kind, content in reported.items():
        values.append(LeavingValue(kind, "evaluation", content, "1 number each", None, uses))

    error = "message of an error, if site.share names errors"
    text = LeavingValue("error", "failure", error, "500 characters", 500, "each")
    return [*values, text]


def _reported(metrics: Iterable[str], diagnostics: Iterable[str]) -> dict[str, str]:
    """Return the names of the numbers that a method reports, in words."""
    names = {"training_metrics": metrics, "diagnostics": diagnostics}
    return {kind: ", ".join(sorted(set(names[kind]))) or "none" for kind in names}


def to_markdown(record: Mapping[str, Any]) -> str:
    """Return what leaves a site as two tables in Markdown, and what follows from them."""
    parts = [
        f"# What leaves a site: {_plain(record['algorithm'])}",
        f"Model `{_plain(record['model'])}` ({record['model_numbers']:,} numbers), data "
        f"`{_plain(record['dataset'])}`, {record['classes']} classes, {record['rounds']:,} rounds, "
        f"participation {_plain(str(record['participation']))}. A number "
        f"counts as {BYTES_PER_SCALAR} bytes, in scores as 8.",
        markdown_table(SENT, [_sent_row(value) for value in record["sent"]]),
        f"In a round, a site sends at most {record['bytes']['up']:,} bytes and receives "
        f"{record['bytes']['down']:,}:",
        markdown_table(RECEIVED, [_received_row(value) for value in record["received"]]),
        *_by_site(record.get("sites", [])),
        "\n".join(f"* {sentence}" for sentence in _notes(record)),
    ]
    return "\n\n".join(parts) + "\n"


def _by_site(sites: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what each site of a run across sites has sent."""
    if not sites:
        return []

    rows = []
    for site in sites:
        name = f"{_plain(site['site'])} (new)" if site["new"] else _plain(site["site"])
        shares = ", ".join(map(_plain, site["shares"])) or "nothing"
        counts = [f"{site[key]:,}" for key in ("rounds", "bytes")]
        examples = "not known" if site["examples"] is None else f"{site['examples']:,}"
        rows.append([name, *counts, examples, shares])

    columns = [
        "site",
        "rounds asked",
        "bytes of uploads, at most",
        "examples",
        "shares beside them",
    ]
    sentence = (
        "By site, from the records of the server. The log of each site says it message by message: "
        "`fedtailor site leaves FOLDER`."
    )
    return [sentence, markdown_table(columns, rows)]


def _notes(record: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the tables must know of this method and this run."""
    notes = [
        "What these values can tell, and what protects them: see reference/what-leaves in the "
        "documentation."
    ]
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
    return [*notes, *record["claims"]]


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


def _plain(text: str) -> str:
    """Return text that cannot change the page, whatever a user's data or method are called."""
    return re.sub(r"[^\w .,:/()=+-]", "_", text)
