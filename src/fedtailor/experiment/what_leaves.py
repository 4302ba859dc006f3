"""What leaves a site: one page for a method and the model that it trains, for whoever must decide
whether it may.

Everything on the page follows from the declaration of the method's messages
(:class:`fedtailor.core.message.Field`), from which uploads are checked and bytes are counted, and
from what the server's code does with them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fedtailor.core.algorithm import Algorithm
from fedtailor.core.federation import Federation, Split
from fedtailor.core.message import BYTES_PER_SCALAR, Field, Messages
from fedtailor.core.packing import download_bytes
from fedtailor.core.per_example import PerExample
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task
from fedtailor.data.setup_messages import SetupField, setup_messages
from fedtailor.experiment.algorithm_card import (
    field_bytes,
    may_leave_out_rows,
    most_bytes_up,
    weights_sent,
)
from fedtailor.experiment.assembly import PreparedRun

Record = dict[str, Any]

FILE_NAME = "what-leaves.md"
"""The page in a run folder."""

_USES: Mapping[str, str] = {
    "mean": "the weighted mean over the sites of the round",
    "sum": "the sum over the sites of the round",
    "each": "**the value of every single site**",
}
"""What the server's arithmetic needs of a field, by its reduction."""

_WEIGHTS: Mapping[str, str] = {
    "num_train": "the number of the site's training examples",
    "class_counts": "the number of the site's training examples of every class",
    "own": "a weight that the site computes itself",
    "equal": "nothing: every site counts the same",
}


class _Kind(NamedTuple):
    """What is said of a kind of field."""

    name: str
    tells: str


_KINDS: Mapping[str, tuple[str, str]] = {
    "model": (
        "model parameters",
        "**Model parameters** after training on the site's examples. How they differ from what the site received "
        "depends on these examples. From such a difference, training examples were reconstructed where a site trains "
        "on few examples or for few steps (Zhu, Liu and Han 2019, *Deep leakage from gradients*, NeurIPS), and it was "
        "told whether a given record had been used (Nasr, Shokri and Houmansadr 2019, *Comprehensive privacy analysis "
        "of deep learning*, IEEE S&P).",
    ),
    "class_means": (
        "means of features by class",
        "**Means of features by class**: for every class, the mean of the features that the model computes from the "
        "site's examples of it, which a method may mix with values that it received. Where a site has one example of a "
        "class, it can be the features of that example; images were reconstructed from features (Mahendran and Vedaldi "
        "2015, *Understanding deep image representations by inverting them*, CVPR).",
    ),
    "counts": ("counts", "**Counts** of examples or rounds, as whole numbers."),
    "covariance": (
        "covariance of features",
        "**The covariance of features**: how the features of the site's examples vary together. With fewer examples "
        "than features, it can show the space that is spanned by the features of these examples.",
    ),
    "confidence": (
        "a confidence",
        "**A confidence**: how sure the site's model is, as it follows from its data.",
    ),
    "statistics": (
        "statistics",
        "**Statistics** that the method computes from the site's examples or from its training; the method's own words "
        "below say which. Gradients, and what follows from them, tell about examples what model parameters tell.",
    ),
}
"""By the kind of a field: what it is called, and what it can tell."""

_WEIGHT_TELLS: Mapping[str, str] = {
    "num_train": "**The number of training examples** tells how large the site is.",
    "class_counts": (
        "**The number of training examples of every class** tells which classes a site has, and how many examples "
        "(patients, if an example is one) of each."
    ),
    "own": (
        "**A weight that the site computes itself** is one more value about the site; the method's own words say which."
    ),
}

_UNPROTECTED = (
    "This version has no secure aggregation and no differential privacy. Whoever runs the server can see the upload of "
    "every single site before it is added to the others, also where the method needs only a mean or a sum."
)
_CLASS_MEANS = (
    "`evaluation.class_means` is on: after the last round, `class_means.safetensors` holds for every single site how "
    "many training examples of every class it has, and the mean of their features. The mean of a class with a single "
    "example is the feature vector of that example."
)
_CHECKS = (
    "The server looks at every upload by itself to check it: shapes, types, finite values in their range, and weights "
    "against the number of training examples that it knows of the site."
)


def setup_of_run(parts: PreparedRun) -> list[SetupField]:
    """Return what every site sends before the first round. A simulation computes it from all data
    at once.
    """
    content = "how many training examples it has; the server checks weights against it"
    return [
        SetupField("num_train", content, ()),
        *setup_messages(parts.divided.dataset, parts.config.data),
    ]


def describe_leaving(
    algorithm: Algorithm[Any, Any, Any],
    name: str,
    task: Task,
    *,
    setup: Sequence[SetupField],
    schedule: Schedule,
    model: str,
    dataset: str,
    reported: Mapping[str, Sequence[str]] | None = None,
    totals: Record | None = None,
) -> Record:
    """Return the page as one object, ready for JSON.

    Args:
        algorithm: with its options.
        name: of the algorithm.
        task: with the model that is trained.
        setup: what is agreed on before the first round.
        schedule: who takes part when.
        model: name of the model.
        dataset: name of the data.
        reported: names of the ``training_metrics`` and ``diagnostics`` that the method reports;
            None: not known yet.
        totals: of a run that has rounds: ``rounds``, and bytes ``up`` and ``down`` by round.
    """
    task = algorithm.bind(task)
    messages = algorithm.messages(task)
    sent = {field: spec for field, spec in messages.items() if spec.reduction != "none"}
    page: Record = {
        "algorithm": name,
        "model": model,
        "model_numbers": sum(_size(shape) for shape in task.model.shapes.values()),
        "dataset": dataset,
        "classes": task.num_classes,
        "server_sees_single_sites": [
            field for field, spec in sent.items() if spec.reduction == "each"
        ],
        "up": [_field_up(field, spec, task) for field, spec in sent.items()],
        "weights": _weights(messages, task),
        "down": [_field_down(field, spec) for field, spec in messages.items() if spec.down],
        "bytes": {"up": most_bytes_up(messages, task), "down": download_bytes(messages)},
        "tells": [_about(kind).tells for kind in _in_order(spec.kind for spec in sent.values())],
        "rows_may_be_left_out": any(may_leave_out_rows(spec, task) for spec in sent.values()),
        "in_the_words_of_the_method": _words_on_messages(type(algorithm)),
        "who_sends": _who_sends(schedule, algorithm),
        "robust": schedule.robust,
        "setup": [value._asdict() for value in setup],
        "evaluations": _evaluation_values(task.num_classes),
        "class_means": schedule.class_means,
        "reported": None
        if reported is None
        else {key: list(names) for key, names in reported.items()},
        "model_holds_examples": _keeps_examples(type(algorithm)),
    }
    page["tells"] += [
        _WEIGHT_TELLS[each["kind"]] for each in page["weights"] if each["kind"] in _WEIGHT_TELLS
    ]
    if totals is not None:
        page["totals"] = totals

    return page


def page_of_parts(
    parts: PreparedRun, *, reported: Record | None = None, totals: Record | None = None
) -> Record:
    """Return the page of a run that is ready to begin, or has begun; see
    :func:`describe_leaving`.
    """
    return describe_leaving(
        parts.algorithm,
        parts.config.algorithm.name,
        parts.federation.common_task,
        setup=setup_of_run(parts),
        schedule=parts.config.schedule,
        model=parts.config.model.name,
        dataset=parts.divided.dataset.name,
        reported=reported,
        totals=totals,
    )


def _field_up(name: str, field: Field, task: Task) -> Record:
    """Return what is known of a field that sites send."""
    shapes = {path: list(shape) for path, shape in field.leaf_shapes().items()}
    return {
        "field": name,
        "kind": field.kind,
        "shapes": shapes,
        "bytes": field_bytes(field, task),
        "reduction": field.reduction,
        "weight": field.weight if field.reduction == "mean" else None,
        "most_rows": field.rows or None,
    }


def _field_down(name: str, field: Field) -> Record:
    """Return what is known of a field that sites receive."""
    shapes = {path: list(shape) for path, shape in field.leaf_shapes().items()}
    return {
        "field": name,
        "kind": field.kind,
        "shapes": shapes,
        "bytes": BYTES_PER_SCALAR * field.scalars(),
    }


def _about(kind: str) -> _Kind:
    """Return what is said of a kind of field; a user's own method may name any."""
    if kind in _KINDS:
        return _Kind(*_KINDS[kind])
    return _Kind(
        f"`{_plain(kind)}`",
        f"**{_plain(kind)}**: a kind of value of your own method, which its author knows.",
    )


def _weights(messages: Messages, task: Task) -> list[Record]:
    """Return the weights that an upload holds; each is sent once, whatever fields it weighs."""
    found = []
    for kind, numbers, fields in weights_sent(messages, task):
        if numbers:
            found.append(
                {
                    "kind": kind,
                    "numbers": numbers,
                    "bytes": BYTES_PER_SCALAR * numbers,
                    "fields": fields,
                }
            )

    return found


def _in_order(kinds: Iterator[str]) -> list[str]:
    """Return every kind once, in the order of the first."""
    return list(dict.fromkeys(kinds))


def _words_on_messages(cls: type[Any]) -> str:
    """Return what the documentation of a method says of its messages; empty if it says nothing."""
    for text in (inspect.getdoc(inspect.getmodule(cls)), cls.__doc__):
        found = re.search(
            r"^Messages[^\n:]*:\s*(.*?)(?:\n\s*\n|\Z)", text or "", re.MULTILINE | re.DOTALL
        )
        if found:
            return " ".join(found[1].replace("``", "`").split())
    return ""


def _who_sends(schedule: Schedule, algorithm: Algorithm[Any, Any, Any]) -> Record:
    """Return how many rounds there are, and who sends and receives in them."""
    return {
        "rounds": schedule.rounds,
        "participation": schedule.participation.as_value(),
        "full_last_round": schedule.participation.full_last_round,
        "everybody_trains": schedule.everybody_trains(algorithm),
    }


def _evaluation_values(classes: int) -> list[Record]:
    """Return what the scores of a site consist of."""
    from fedtailor.core.metrics import BINS, SCORE_BINS

    return [
        {
            "name": "confusion",
            "content": "test examples by class and prediction",
            "numbers": classes * classes,
        },
        {
            "name": "bins",
            "content": "test examples, right ones and confidence by bin of confidence",
            "numbers": 3 * BINS,
        },
        {"name": "loss", "content": "sum of the cross-entropy", "numbers": 1},
        {
            "name": "score_bins",
            "content": "test examples by class and bin of their score, after the last round; with few test examples "
            "this nearly is the list of scores",
            "numbers": 2 * classes * SCORE_BINS,
        },
    ]


def _keeps_examples(cls: type[Any]) -> bool:
    """Return whether a part of the personal model is declared to have one row per training
    example.
    """
    bases = [base for each in cls.__mro__ for base in vars(each).get("__orig_bases__", ())]
    parts = [
        argument
        for base in bases
        for argument in typing.get_args(base)
        if inspect.isclass(argument)
    ]
    declared = [
        annotation for part in parts for annotation in inspect.get_annotations(part).values()
    ]
    names = [
        getattr(each, "__forward_arg__", each) for each in declared
    ]  # a NamedTuple keeps text as a reference

    return PerExample in names or PerExample.__name__ in names


def reported_names(
    algorithm: Algorithm[Any, Any, Any], federation: Federation
) -> dict[str, list[str]] | None:
    """Return the names of the numbers that a method reports, from a round on a few examples of two
    clients.

    None if the method fails on so few examples.
    """
    from fedtailor.simulation.engines.reference import Reference
    from fedtailor.simulation.rounds import simulate

    chosen = [client for client in federation.known if len(federation.splits[client].train)][:2]
    few = [federation.splits[client] for client in chosen]
    small = dataclasses.replace(
        federation,
        splits=[Split(split.train[:8], split.val[:4], split.test[:4]) for split in few],
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

    diagnostics = {name for evaluation in report.evaluations for name in evaluation.diagnostics}
    return {"training_metrics": sorted(report.metrics), "diagnostics": sorted(diagnostics)}


def _size(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def to_markdown(page: Mapping[str, Any]) -> str:
    """Return the page as Markdown."""
    parts = [
        f"# What leaves a site: {_plain(page['algorithm'])}",
        f"`{_plain(page['algorithm'])}` trains the model `{_plain(page['model'])}` ({page['model_numbers']:,} numbers) "
        f"on `{_plain(page['dataset'])}` with {page['classes']} classes. Every number is counted as "
        f"{BYTES_PER_SCALAR} bytes.",
        "## In short",
        _bullets(_in_short(page)),
        "## What a site sends",
        *_sends(page),
        "## What a site receives",
        *_receives(page),
        "## Before the first round",
        _table(
            ["value", "every site sends", "shape"],
            [
                [f"`{each['name']}`", each["content"], _shape(each["shape"])]
                for each in page["setup"]
            ],
        ),
        "The server sees **the value of every single site**. A simulation reads all data in one place and computes "
        "these values there. Real sites send them first.",
        "## Scores and other numbers",
        *_scores(page),
        "## Models",
        _models(page),
    ]

    return "\n\n".join(part for part in parts if part) + "\n"


def _in_short(page: Mapping[str, Any]) -> list[str]:
    """Return the sentences that matter most."""
    single = page["server_sees_single_sites"]
    sentences = []
    if single:
        names = ", ".join(f"`{name}`" for name in single)
        sentences.append(
            f"**The method discloses single sites: the server works with the values of every single site of {names}.** "
            "Secure aggregation is not possible."
        )
    elif page["up"]:
        sentences.append(
            "The method needs only means or sums over sites of what they send, and no value of a single one."
        )
    else:
        sentences.append("**Sites send nothing for training.**")

    if page["up"]:
        sentences.append(_UNPROTECTED)
        sentences.append(_CHECKS)
        sentences.append(
            "No field is declared to hold examples or labels. But all that is sent is computed from a site's examples, "
            "and can tell something about them: see below."
        )

    if page["robust"] != "none":
        sentences.append(
            f"`federation.robust` is `{page['robust']}`: **the server compares the uploads of single sites** with one "
            "another."
        )

    if page["model_holds_examples"]:
        sentences.append(
            "**A site's model file holds features and labels of its training examples.** No message holds them, but "
            "whoever gets the file gets them."
        )

    return sentences


def _sends(page: Mapping[str, Any]) -> list[str]:
    """Return the section on uploads."""
    words = page["in_the_words_of_the_method"]
    said = f"The method's own words on its messages, down and up: {words}" if words else ""
    if not page["up"]:
        return ["Nothing.", said]

    rows = [
        [
            f"`{each['field']}`",
            _about(each["kind"]).name,
            _shapes(each["shapes"]),
            _bytes_of(each),
            _USES[each["reduction"]],
            _WEIGHTS.get(each["weight"], "a weight") if each["weight"] else "-",
        ]
        for each in page["up"]
    ]
    rows += [
        [
            "weight of " + ", ".join(f"`{field}`" for field in each["fields"]),
            _WEIGHTS.get(each["kind"], "a weight"),
            _shape([each["numbers"]] if each["numbers"] > 1 else []),
            f"{each['bytes']:,}",
            "each site's share in the mean",
            "-",
        ]
        for each in page["weights"]
    ]
    table = _table(
        ["field", "what it is", "shape", "bytes", "the method needs", "weighted by"], rows
    )
    up = page["bytes"]["up"]
    most = ""

    if page["rows_may_be_left_out"]:
        most = (
            ", at most: rows of classes that a site has no example of may be left out, and tell by that which classes "
            "these are"
        )

    frequency = _frequency(page["who_sends"], "sends")
    total = f"Together **{up:,} bytes** for each site and round in which it takes part{most}. {frequency}"
    tells = "What these values can tell about a site:\n\n" + _bullets(page["tells"])
    return [table, total, _totals(page, "up", "sent"), tells, said]


def _bytes_of(entry: Mapping[str, Any]) -> str:
    """Return the bytes of a field."""
    rows = entry["most_rows"]
    return f"{entry['bytes']:,}" + (f" ({rows} of the rows)" if rows else "")


def _receives(page: Mapping[str, Any]) -> list[str]:
    """Return the section on downloads."""
    if not page["down"]:
        return ["Nothing while it trains."]

    rows = []
    for each in page["down"]:
        words = _about(each["kind"]).name
        rows.append([f"`{each['field']}`", words, _shapes(each["shapes"]), f"{each['bytes']:,}"])

    frequency = _frequency(page["who_sends"], "receives")
    total = (
        f"Together **{page['bytes']['down']:,} bytes** for each site that trains in a round. {frequency} "
        "To make its own model for an evaluation, a site needs them once more; this is not counted."
    )
    tells = (
        "After the first round, these values follow from what sites sent, so they tell every site something about the "
        "others. If two sites took part in a round, each can take its own share out of a mean or sum that it receives, "
        "and knows what the other one sent."
    )
    columns = ["field", "what it is", "shape", "bytes"]

    return [_table(columns, rows), total, _totals(page, "down", "received"), tells]


def _frequency(who: Mapping[str, Any], verb: Literal["sends", "receives"]) -> str:
    """Return how often a site sends or receives."""
    rounds = who["rounds"]
    if verb == "receives" and who["everybody_trains"]:
        return f"Every site trains, and receives them, in each of {rounds:,} rounds."

    participation = who["participation"]
    if participation == "all":
        return f"Every site {verb} them in each of {rounds:,} rounds."

    share = f"as the rule `{participation}` draws it"
    if isinstance(participation, float):
        share = f"with probability {participation}"

    last = " All take part in the last round." if who["full_last_round"] else ""
    return f"In each of {rounds:,} rounds, a site {verb} them {share}.{last}"


def _totals(page: Mapping[str, Any], way: Literal["up", "down"], verb: str) -> str:
    """Return what a run has sent so far."""
    totals = page.get("totals")
    if not totals or not totals["rounds"]:
        return ""

    by_round = totals[way]
    least = min(by_round)
    most = max(by_round)
    each = (
        f"{least:,} bytes in every round"
        if least == most
        else f"{least:,} to {most:,} bytes in a round"
    )
    rounds = "round" if totals["rounds"] == 1 else f"{totals['rounds']:,} rounds"

    return f"In the {rounds} of this run so far, all sites together {verb} {each}, {sum(by_round):,} bytes in all."


def _scores(page: Mapping[str, Any]) -> list[str]:
    """Return the section on numbers that training does not need."""
    rows = [
        [f"`{each['name']}`", each["content"], f"{each['numbers']:,}"]
        for each in page["evaluations"]
    ]
    table = _table(["value", "what it is", "numbers at most"], rows)
    reported = page["reported"]
    metrics = "the numbers that the method reports of its training (`training_metrics`"
    diagnostics = "those that it reports of its personal models (`diagnostics`"

    if reported is not None:
        metrics += f": {_names(reported['training_metrics'])}"
        diagnostics += f": {_names(reported['diagnostics'])}"

    return [
        f"A simulation is on one machine: its `clients.jsonl` holds the scores of every single site, {metrics}) and "
        f"{diagnostics}). **Training needs none of them:** the server's arithmetic receives the fields above only. A "
        "real deployment can leave them at the site.",
        "Where a site's program fails, `events.jsonl` holds the message of the error, in at most 500 characters. Such "
        "a message can hold values of the site's data.",
        "Scores over sites need the sums of these values, and no value of a single site:",
        table,
        "Where a site's own scores are sent, they tell how many test examples of every class it has. With "
        '`select = "best"` or `patience`, the server needs the accuracy of every site on validation examples.',
        *([_CLASS_MEANS] if page["class_means"] else []),
    ]


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{_plain(name)}`" for name in names) or "none"


def _models(page: Mapping[str, Any]) -> str:
    """Return the section on model files."""
    text = (
        "A site's own model is made at the site, and no message holds it unless a field above says so. "
        "In a simulation, the models of all sites are in `models/` of the run folder. A model file can tell about "
        "training examples what model parameters tell. Its card (`.json`) holds the number of training examples of "
        "every class."
    )

    if page["model_holds_examples"]:
        text += (
            " **The model file of this method holds features and labels of training examples:** treat it like the data "
            "themselves."
        )

    return text


def _shapes(shapes: Mapping[str, Sequence[int]]) -> str:
    """Return the shape of a value, or how many tensors and numbers it has."""
    if len(shapes) == 1:
        return _shape(next(iter(shapes.values())))
    numbers = sum(_size(shape) for shape in shapes.values())
    return f"{len(shapes)} tensors, {numbers:,} numbers"


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(f"{length:,}" for length in shape) if shape else "1 number"


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"* {sentence}" for sentence in sentences)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _plain(text: str) -> str:
    """Return text that cannot change the page: names of data and of a user's own method can hold
    anything.
    """
    return re.sub(r"[^\w .,:/()=+-]", "_", text)
