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
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.federation import ClientInfo
from fedtailor.core.message import BYTES_PER_SCALAR, Field, bytes_of_rows, download_bytes
from fedtailor.core.options import AsReleased, marks_of
from fedtailor.core.rng import new_key
from fedtailor.core.task import ALL, TRAINED, Task


class LeavingValue(NamedTuple):
    """A value that a site sends, or receives."""

    name: str
    when: str
    """``setup``: before the first round; ``round``: in each; ``evaluation``; ``failure``;
    ``end`` of a run."""
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
    uploads = {
        field: spec.reduction for field, spec in messages.items() if spec.reduction != "none"
    }
    single = [field for field, reduction in uploads.items() if reduction == "each"]
    options = [field.name for field in dataclasses.fields(cls) if field.name != "training"]

    return {
        "name": name,
        "description": entry.summary + (f" ({entry.paper})" if entry.paper else ""),
        "paper": entry.paper,
        "downloads": [field for field, spec in messages.items() if spec.down],
        "uploads": uploads,
        "server_sees_single_clients": single,
        "secure_aggregation": not single,
        "kept_by_clients": kept(algorithm, task),
        "bytes_down": download_bytes(messages),
        "bytes_up": most_bytes_up(sent_by_method(algorithm, task)),
        "primary_evaluation": algorithm.primary_evaluation,
        "adaptation": describe(algorithm.adaptation),
        "onboarding": describe(algorithm.onboarding),
        "who_trains": algorithm.trains,
        "presets": sorted(cls.presets),
        "as_released": {name: mark.bug for name, mark in marks_of(cls, AsReleased).items()},
        "options": {option: getattr(algorithm, option) for option in options},
    }


def kept(algorithm: AnyAlgorithm, task: Task) -> list[str]:
    """Return what a client keeps from round to round.

    Parts of the model, or the names of other values.
    """
    # The state of a client with an example of every class.
    counts = torch.ones(task.num_classes)
    state = algorithm.init_client(task, ClientInfo(counts.sum(), counts), new_key(0))
    if not tree.leaves(state):
        return []

    if isinstance(state, Mapping):
        names = set(state)
        for groups in (ALL, TRAINED, ("head",), ("body",)):
            if names == set(task.names(*groups)):
                return [groups[0] if len(groups) == 1 else "model"]

        return ["part of the model"] if names <= set(task.model.groups) else sorted(map(str, names))

    # States of methods are NamedTuples, whose fields have telling names.
    fields = getattr(state, "_fields", ())
    return [field for field in fields if tree.leaves(getattr(state, field))] or ["a number"]


def sent_by_method(algorithm: AnyAlgorithm, task: Task) -> list[LeavingValue]:
    """Return what a site sends in a round: the fields of the method, and their weights.

    Args:
        algorithm: with its options.
        task: with the model that is trained, bound to the algorithm.
    """
    messages = algorithm.messages(task)
    values = []
    fields_of_weight: dict[str, list[str]] = {}
    for name, field in messages.items():
        if field.reduction == "none":
            continue

        shape = shape_of(field)
        numbers = field.scalars()
        if field.rows:  # a site sends at most this many
            shape += f", {field.rows} of the rows"
            numbers = numbers * field.rows // _all_rows(field)

        # A sum holds a bit for every row that may be left out, which says whether it is there.
        size = BYTES_PER_SCALAR * numbers
        if field.reduction == "sum" and may_leave_out_rows(algorithm, field, task):
            size += bytes_of_rows((task.num_classes,))

        values.append(LeavingValue(name, "round", field.kind, shape, size, field.reduction))
        if field.reduction == "mean":
            weight = name if field.weight == "own" else field.weight
            fields_of_weight.setdefault(weight, []).append(name)

    # The site's share in the means: sent once for all fields that have it.
    sizes = {"num_train": 1, "equal": 0, "class_counts": task.num_classes}
    for names in fields_of_weight.values():
        field = messages[names[0]]
        numbers = sizes.get(field.weight, _all_rows(field))
        if numbers:
            title = f"weight of {', '.join(names)}"
            size = BYTES_PER_SCALAR * numbers
            shape = shape_in_words((numbers,))
            values.append(LeavingValue(title, "round", field.weight, shape, size, "sum"))

    return values


def most_bytes_up(values: Sequence[LeavingValue]) -> int:
    """Return the most bytes of an upload; a method may send fewer rows."""
    return sum(value.bytes or 0 for value in values)


def may_leave_out_rows(algorithm: AnyAlgorithm, field: Field, task: Task) -> bool:
    """Return whether a site may send fewer rows of a field than its declaration allows."""
    if algorithm.feature_bound:
        return False

    by_class = all(shape[:1] == (task.num_classes,) for shape in field.leaf_shapes().values())
    return by_class and (field.reduction == "sum" or field.weight == "class_counts")


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
