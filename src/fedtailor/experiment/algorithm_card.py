"""Description of an algorithm, from its own declarations: what it sends, keeps and discloses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from fedtailor.algorithms import Entry, load_algorithm
from fedtailor.core import tree
from fedtailor.core.adaptation import describe
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.federation import ClientInfo
from fedtailor.core.message import BYTES_PER_SCALAR, Field, Messages, bytes_of_rows, download_bytes
from fedtailor.core.options import AsReleased, marks_of
from fedtailor.core.rng import new_key
from fedtailor.core.task import ALL, TRAINED, Task


class LeavingValue(NamedTuple):
    """A value that a site sends, or receives."""

    name: str
    when: str
    """``setup``: before the first round; ``round``: in each; ``evaluation``; ``failure``."""
    content: str
    """Its kind, as the method declares it, or what it is in words."""
    shape: str
    bytes: int | None
    """Of one message, at most; None where texts or the method decide."""
    reduction: str
    """What the server uses: ``mean`` or ``sum`` over sites, or the value of ``each`` site."""

    @property
    def names_single_sites(self) -> bool:
        """Whether the server works with the values of single sites."""
        return self.reduction == "each"


def describe_algorithm(name: str, entry: Entry, task: Task) -> dict[str, Any]:
    """Return a description, ready for JSON.

    Args:
        name: name of the algorithm.
        entry: its line in the table.
        task: a task with the model whose bytes are counted.
    """
    cls = load_algorithm(name)
    algorithm = cls()
    messages = algorithm.messages(task)
    sent = {field: spec.reduction for field, spec in messages.items() if spec.reduction != "none"}
    single = [field for field, reduction in sent.items() if reduction == "each"]

    return {
        "name": name,
        "description": entry.summary + (f" ({entry.paper})" if entry.paper else ""),
        "paper": entry.paper,
        "downloads": [field for field, spec in messages.items() if spec.down],
        "uploads": sent,
        "server_sees_single_clients": single,
        "secure_aggregation": not single,
        "kept_by_clients": kept(algorithm, task),
        "bytes_down": download_bytes(messages),
        "bytes_up": most_bytes_up(messages, task),
        "primary_evaluation": algorithm.primary_evaluation,
        "adaptation": describe(algorithm.adaptation),
        "onboarding": describe(algorithm.onboarding),
        "who_trains": algorithm.trains,
        "presets": sorted(cls.presets),
        "as_released": {name: mark.bug for name, mark in marks_of(cls, AsReleased).items()},
        "options": {
            field.name: getattr(algorithm, field.name)
            for field in dataclasses.fields(cls)
            if field.name != "training"
        },
    }


def kept(algorithm: Algorithm[Any, Any, Any], task: Task) -> list[str]:
    """Return what a client keeps from round to round.

    Parts of the model, or the names of other values.
    """
    counts = torch.ones(task.num_classes)
    state = algorithm.init_client(task, ClientInfo(counts.sum(), counts), new_key(0))
    return _parts(state, task, "a number")


def _parts(state: Any, task: Task, otherwise: str) -> list[str]:
    """Return the names of the parts of a client's state; ``otherwise`` where it has none."""
    if not tree.leaves(state):
        return []

    if isinstance(state, Mapping):
        names = set(state)
        for words, groups in (
            ("model", ALL),
            ("model", TRAINED),
            ("head", ("head",)),
            ("body", ("body",)),
        ):
            if names == set(task.names(*groups)):
                return [words]

        return ["part of the model"] if names <= set(task.model.groups) else sorted(map(str, names))

    fields = getattr(state, "_fields", ())
    return [field for field in fields if tree.leaves(getattr(state, field))] or [otherwise]


def sent_by_method(algorithm: Algorithm[Any, Any, Any], task: Task) -> list[LeavingValue]:
    """Return what a site sends in a round: the fields of the method, and their weights.

    Args:
        algorithm: with its options.
        task: with the model that is trained, bound to the algorithm.
    """
    messages = algorithm.messages(task)
    values = []
    for name, field in messages.items():
        if field.reduction != "none":
            bytes_up = field_bytes(field, task)
            shape = shape_of(field)
            if field.rows:
                shape += f", {field.rows} of the rows"
            values.append(LeavingValue(name, "round", field.kind, shape, bytes_up, field.reduction))

    # The site's share in the mean of some fields.
    for kind, numbers, fields in weights_sent(messages, task):
        if numbers:
            name = f"weight of {', '.join(fields)}"
            size = BYTES_PER_SCALAR * numbers
            values.append(
                LeavingValue(name, "round", kind, shape_in_words((numbers,)), size, "sum")
            )

    return values


def most_bytes_up(messages: Messages, task: Task) -> int:
    """Return the most bytes of an upload; a method may send fewer rows."""
    of_weights = BYTES_PER_SCALAR * sum(numbers for _, numbers, _ in weights_sent(messages, task))
    return of_weights + sum(
        field_bytes(field, task) for field in messages.values() if field.reduction != "none"
    )


def field_bytes(field: Field, task: Task) -> int:
    """Return the bytes of a field in an upload, with as many rows as its declaration allows.

    A sum of which rows may be left out holds a bit for every row too, which says whether the row is
    there.
    """
    numbers = field.scalars()
    if field.rows:
        numbers = numbers * field.rows // _all_rows(field)
    mask = 0
    if field.reduction == "sum" and may_leave_out_rows(field, task):
        mask = bytes_of_rows((task.num_classes,))
    return BYTES_PER_SCALAR * numbers + mask


def may_leave_out_rows(field: Field, task: Task) -> bool:
    """Return whether a site may send fewer rows of a field than its declaration allows."""
    by_class = all(shape[:1] == (task.num_classes,) for shape in field.leaf_shapes().values())
    return by_class and (field.reduction == "sum" or field.weight == "class_counts")


def weights_sent(messages: Messages, task: Task) -> list[tuple[str, int, list[str]]]:
    """Return the weights of an upload.

    Their kind, how many numbers they are, and the fields that they weigh.

    A weight of several fields is sent once, but for those that a client computes itself.
    """
    by_name: dict[str, list[str]] = {}
    for name, field in messages.items():
        if field.reduction == "mean":
            by_name.setdefault(_weight_name(name, field), []).append(name)

    numbers = {"num_train": 1, "equal": 0, "class_counts": task.num_classes}
    found: list[tuple[str, int, list[str]]] = []
    for names in by_name.values():
        field = messages[names[0]]
        found.append((field.weight, numbers.get(field.weight, _all_rows(field)), names))

    return found


def shape_of(field: Field) -> str:
    """Return the shape of a field, or how many tensors and numbers it has."""
    shapes = list(field.leaf_shapes().values())
    if len(shapes) == 1:
        return shape_in_words(shapes[0])
    return f"{len(shapes)} tensors, {sum(map(math.prod, shapes)):,} numbers"


def shape_in_words(shape: Sequence[int]) -> str:
    """Return a shape such as ``10 x 64``."""
    if math.prod(shape) == 1:
        return "1 number"
    return " x ".join(f"{length:,}" for length in shape)


def _all_rows(field: Field) -> int:
    """Return the number of rows of a field that is sent by row, each with its weight.

    1 if it is sent whole.
    """
    return next(iter(field.leaf_shapes().values()))[0] if field.rows else 1


def _weight_name(name: str, field: Field) -> str:
    """Return the name under which a weight is sent. Weights of one name are sent once."""
    return name if field.weight == "own" else field.weight
