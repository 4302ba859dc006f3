"""A copy of an algorithm whose methods note what they return, and whether those of the server change their inputs."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import torch

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate
from fedtailor.core.per_example import cut
from fedtailor.testing.runs import Disagreement, assert_same_bits
from fedtailor.training import blocks as local

A = TypeVar("A", bound=Algorithm[Any, Any, Any])
Seen = dict[str, list[Any]]
"""``server``, ``state``, ``own`` and ``personal`` -> all values of it, in order."""
Notes = dict[str, list[Any]]
"""``init_server``, ``init_client`` and ``upload`` -> all values of it, in order.

``METHOD steps`` holds pairs: the steps that a call reports, and those that ``train`` took in it.
"""

SOURCES = {
    "server": "aggregate returns a new server state",
    "state": "local_update or onboard returns a new client state",
    "own": "aggregate returns rows",
    "personal": "local_update, personalize or global_model returns a model",
    "upload": "local_update returns an upload",
    "init_server": "init_server returns a server state",
    "init_client": "init_client returns a client state",
}
"""Kind of value -> where it comes from, in words."""


def spied(algorithm: A, notes: Notes | None = None) -> tuple[A, Seen]:
    """Return a copy of an algorithm, and what its methods have returned; ``notes`` are filled with more of it.

    The copy's class is a subclass made for this purpose, so the algorithm itself and its class stay as they are.
    """
    cls = type(algorithm)
    seen: Seen = {"server": [], "state": [], "own": [], "personal": []}
    notes = defaultdict(list) if notes is None else notes

    def noting(name: str, keep: Callable[..., None], *, guard: tuple[str, ...] = ()) -> Callable[..., Any]:
        method = getattr(cls, name)

        def wrapper(self: Any, *arguments: Any, **named: Any) -> Any:
            inputs = {what: getattr(value, "ids", value) for what, value in zip(guard, arguments, strict=False)}
            before = tree.map(torch.clone, inputs)
            with counted() as taken:
                result = method(self, *arguments, **named)
            _check_inputs(name, before, inputs)
            notes[f"{name} steps"].append((_reported(result), sum(taken)))
            keep(result, *arguments)
            return result

        return wrapper

    def keep_update(update: Any, *_: Any) -> None:
        seen["state"].append(update.state)
        seen["personal"].append(update.personal)
        notes["upload"].append(_values(update.upload))

    def keep_aggregate(result: Any, server: Any, received: Any, cohort: Any) -> None:
        seen["server"].append(result[0])
        seen["own"] += _rows(result[1], len(cohort.ids))

    methods = {
        "aggregate": noting("aggregate", keep_aggregate, guard=("server", "received", "cohort")),
        **{name: noting(name, _keep(notes, name)) for name in ("init_server", "init_client")},
        "broadcast": noting("broadcast", lambda *_: None, guard=("server", "cohort")),
        "local_update": noting("local_update", keep_update),
        "onboard": noting("onboard", lambda onboarded, *_: seen["state"].append(onboarded.state)),
        "personalize": noting("personalize", _keep(seen, "personal")),
        "global_model": noting("global_model", lambda model, *_: seen["personal"].extend(_if_any(model))),
    }
    return _twin(algorithm, methods), seen


def _twin(algorithm: A, methods: dict[str, Any]) -> A:
    """Return a copy of an algorithm with some methods in place of its own."""
    cls, twin = type(algorithm), copy.copy(algorithm)
    object.__setattr__(twin, "__class__", type(cls.__name__, (cls,), {**methods, "__slots__": ()}))
    return twin


def _keep(values: Notes, name: str) -> Callable[..., None]:
    return lambda result, *_: values[name].append(result)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Collect the gradient steps of every call of ``train`` for a single client, meanwhile."""
    taken: list[int] = []
    original = vars(local)["train_one"]

    def train_one(phase: Any, params: Any, *rest: Any) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = original(phase, params, *rest)
        taken.append(int(outputs[len(params)]))
        return outputs

    with mock.patch.object(local, "train_one", train_one):
        yield taken


def _values(upload: Any) -> dict[str, Any]:
    """Return the values of an upload without their weights."""
    entries = upload if isinstance(upload, Mapping) else {}
    return {name: getattr(entry, "value", entry) for name, entry in entries.items()}


def _reported(result: Any) -> float:
    """Return the steps of a :class:`ClientUpdate` or :class:`Onboarded`; -1 if there are none, or no number."""
    found = result.metrics.get("steps", -1) if isinstance(result, ClientUpdate) else getattr(result, "steps", -1)
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError):
        return -1.0


def _if_any(model: Any) -> list[Any]:
    return [] if model is None else [model]


def _check_inputs(name: str, before: Any, inputs: Any) -> None:
    try:
        assert_same_bits(before, inputs)
    except Disagreement as error:
        raise Disagreement(f"{name}: {error}") from None


def _rows(own: Any, count: int) -> list[Any]:
    """Return the rows that ``aggregate`` gives to the clients of a cohort; all in one if they are too many or few."""
    lengths = {len(leaf) if leaf.dim() else 0 for leaf in tree.leaves(own)}
    return [own] if lengths - {count} else tree.unstack(own, count) if lengths else [()]


def structure(value: Any) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Return path, shape and type of every leaf; parts with a row per example count without their rows."""
    return [(path, tuple(leaf.shape), leaf.dtype) for path, leaf in tree.paths(cut(value, 0)).items()]
