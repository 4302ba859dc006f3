"""Checks that results do not depend on how clients run: stacked, padded, or in threads."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.engine import Engine, Failure
from fedtailor.core.schedule import Participation
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.testing.case import Case, Check, close, same_bits
from fedtailor.testing.checks import FIRST, METHODS, check_structure, unusable
from fedtailor.testing.engines import Exposed, NotStacked, Padded, Shuffled, Strict
from fedtailor.testing.locate import explain

_REFUSED = (
    "Usual causes: `.item()`, `float(tensor)`, `int(tensor)` or `.tolist()`; `if` or `while` on a "
    "tensor (use `torch.where`); boolean indexing (multiply by the mask); writing in place into a "
    "tensor that is the same for all clients; a loss that closes over a tensor (pass it as "
    "`context`)"
)
_RANDOM = (
    "PyTorch's own random numbers (`torch.rand`, `torch.randn`, `torch.randperm`, `F.dropout`) are "
    "not allowed: use `normal` or `uniform` of `fedtailor.toolkit` with the key"
)
_PADDED = (
    "Examples of weight 0 are padding and must not count: use `weighted_mean(values, "
    "batch.weight)` for means over a batch, and `data.info`, `data.train.weight` or "
    "`data.val.weight` instead of the number of rows, which depends on the engine"
)
_TRAINING = ("local_update", "onboard", "personalize")
"""The methods that train."""
_SHARED = (
    "Something is shared between clients: return what a client keeps as ClientUpdate.state, and "
    "what the server keeps from aggregate; attributes, globals and class variables are shared by "
    "all clients"
)


def check_stacked(case: Case) -> str | None:
    """Clients stacked into one vectorized program get the same results as one by one."""
    if not case.comparable:
        return None

    # Alone, in blocks whose last one is shorter, and all clients at once.
    for block in (1, 3, 32):
        trace = case.stacked(block)
        if isinstance(trace, NotStacked):
            return _refusal(case, trace)

        where = close(case.base(), trace)
        if where:
            cause = _PADDED if block > 1 else _SHARED
            return (
                f"Clients stacked in blocks of {block} get different results than one by one: "
                f"{where}. {cause}."
            )

    return None


def _refusal(case: Case, error: NotStacked) -> str | None:
    """Return why a program does not run stacked; None if another check reports it."""
    fails_alone = any(isinstance(entry.output, Failure) for entry in case.base().outputs)
    if fails_alone or check_structure(case):
        return None

    reason = explain(error, type(case.algorithm))
    causes = _RANDOM if "random" in reason else _REFUSED
    return f"{METHODS[error.program]} does not run for several clients at once: {reason}. {causes}."


def _stacks(case: Case) -> bool:
    """Return whether clients run stacked, with the same results as one by one."""
    trace = case.stacked()
    return not (isinstance(trace, NotStacked) or close(case.base(), trace))


def check_padding(case: Case) -> str | None:
    """Examples of weight 0 anywhere in a client's list, and longer tables, change nothing."""
    if not case.comparable:
        return None

    # Padding may also go wrong where clients are stacked, if they can be.
    engines: list[Engine] = [Exposed()]
    if _stacks(case):
        engines.append(Strict(3))

    for engine in engines:
        where = close(case.base(), case.run(Padded(engine)))
        if where:
            return (
                "Examples of weight 0 in a client's list, or rows of others in `data.train.x`, "
                f"change the results: {where}. {_PADDED}."
            )

    return None


def check_absence(case: Case) -> str | None:
    """Clients that miss rounds get the same results stacked as one by one."""
    if not (case.comparable and _stacks(case)) or check_structure(case):
        return None

    plan = Participation(plan="fixed", count=3, full_last_round=False)
    one_by_one = case.run(Exposed(), rounds=3, participation=plan)
    stacked = case.run(Strict(3), rounds=3, participation=plan)
    where = close(one_by_one, stacked, tolerance=1e-11)
    if where:
        return (
            "When clients miss rounds, stacked clients get different results than one by one: "
            f"{where}. {_SHARED}."
        )
    if unusable(case, case.base()):
        return None

    problem = unusable(case, one_by_one)
    return f"When clients miss rounds: {problem}" if problem else None


def check_threads(case: Case) -> str | None:
    """Clients in threads get the same results, bit for bit."""
    if not case.comparable:
        return None

    where = same_bits(case.run(Reference()), case.run(Workers(2)))
    if not where:
        return None
    return f"Clients that run in threads get different results: {where}. {_SHARED}."


def check_order(case: Case) -> str | None:
    """The order in which clients run does not matter."""
    if not case.comparable:
        return None

    where = same_bits(case.base(), case.run(Shuffled(Exposed())))
    stacked = case.stacked()
    if not where and not isinstance(stacked, NotStacked):
        where = same_bits(stacked, case.run(Shuffled(Strict(3))))
    if not where:
        return None

    return f"The order in which clients run changes the results: {where}. {_SHARED}."


def check_randomness(case: Case) -> str | None:
    """All randomness comes from the key: the same seed gives the same bits."""
    if case.spied.changed:
        return None

    if case.unrepeatable:
        return (
            f"Two runs with the same seed differ: {case.unrepeatable}. {_SHARED}; results must not "
            f"depend on the time either. {FIRST}."
        )

    if case.unkeyed:
        return (
            "Random numbers do not come from the key: if the global random generators are seeded "
            f"differently, {case.unkeyed}. Instead of torch.rand, numpy.random or random, use "
            f"`normal` or `uniform` of `fedtailor.toolkit` with `key.fold(...)`. {FIRST}."
        )

    return None


def check_seed(case: Case) -> str | None:
    """Another seed gives other models, if models are trained."""
    steps = case.spied.observed.steps
    if not any(taken for method in _TRAINING for _, taken in steps[method]):
        return None

    models = case.base().reports[-1].personal
    others = case.run(Exposed(), seed=4).reports[-1].personal
    for client, personal in models.items():
        other = others.get(client, personal)
        pairs = zip(tree.leaves(personal), tree.leaves(other), strict=True)
        if all(torch.equal(first, second) for first, second in pairs):
            return (
                f"With another seed, {case.who(client)} gets the same personal model. Start from "
                "`task.initial(key)`, and pass the key to train."
            )

    return None


def check_attributes(case: Case) -> str | None:
    """Runs do not change the attributes of the algorithm."""
    algorithm = case.algorithm
    for name, value in vars(algorithm).items():
        # What a cached property computes depends on the options alone.
        definition = inspect.getattr_static(type(algorithm), name, None)
        if isinstance(definition, functools.cached_property):
            continue

        if name not in case.attributes or not _equal(case.attributes[name], value):
            return f"The attribute '{name}' of the algorithm changed during runs. {_SHARED}."

    return None


def _equal(first: Any, second: Any) -> bool:
    """Return whether a value is equal to its copy from before the runs."""
    if type(first) is not type(second):
        return False
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second)
    if isinstance(first, list | tuple):
        pairs = zip(first, second, strict=False)
        return len(first) == len(second) and all(_equal(one, other) for one, other in pairs)
    if isinstance(first, dict):
        return list(first) == list(second) and all(_equal(first[key], second[key]) for key in first)

    # A copy of an object without an equality of its own is another one: its attributes count.
    if getattr(type(first), "__eq__", None) is object.__eq__ and hasattr(first, "__dict__"):
        return first is second or _equal(vars(first), vars(second))
    try:
        return bool(first == second)
    except Exception:  # comparing a user's values may raise anything
        return first is second


def check_module(case: Case) -> str | None:
    """The algorithm also works with a network with batch normalization and dropout."""
    return _other_model(case, "module", "a network with batch normalization and dropout")


def check_images(case: Case) -> str | None:
    """The algorithm also works with a convolutional network on images."""
    return _other_model(case, "cnn", "a convolutional network on images")


def _other_model(case: Case, model: str, words: str) -> str | None:
    """Return what goes wrong with another kind of model only."""
    if (
        not (case.comparable and _stacks(case))
        or check_structure(case)
        or unusable(case, case.base())
    ):
        return None

    # Faults that the perceptron shows, too, are reported by the checks above.
    try:
        base = case.base(model)
    except Exception as error:  # a user's methods may raise anything
        return f"The algorithm does not run with {words}: {explain(error, type(case.algorithm))}."

    problem = unusable(case, base, model)
    if problem:
        return f"With {words}: {problem}"

    try:
        where = close(base, case.run(Strict(32), case.federation(model)))
    except NotStacked as error:
        return f"With {words}: {_refusal(case, error)}"

    if not where:
        return None

    return (
        f"With {words}, stacked clients get different results than one by one: {where}. {_PADDED}."
    )


CHECKS: tuple[Check, ...] = (
    check_stacked,
    check_padding,
    check_absence,
    check_threads,
    check_order,
    check_randomness,
    check_seed,
    check_module,
    check_images,
    check_attributes,
)
