"""Checks that results do not depend on how clients are run: stacked, padded, in threads, in which order, when."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from fedtailor.core import tree
from fedtailor.core.engine import Engine, Failure
from fedtailor.core.participation import Participation
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.testing.case import Case, Check, close, same_bits
from fedtailor.testing.checks import FIRST, METHODS, check_structure, unusable
from fedtailor.testing.engines import NotStacked, Padded, Shuffled, Strict
from fedtailor.testing.locate import explain

_REFUSED = (
    "Usual causes: `.item()`, `float(tensor)`, `int(tensor)` or `.tolist()`; `if` or `while` on a tensor (use "
    "`torch.where`); boolean indexing (multiply by the mask); writing in place into a tensor that is the same for all "
    "clients; a loss that closes over a tensor (hand it in as `context`)"
)
_RANDOM = (
    "Random numbers of torch (`torch.rand`, `torch.randn`, `torch.randperm`, dropout of one's own) are refused: use "
    "`fedtailor.core.noise` with the key"
)
_PADDED = (
    "Examples of weight 0 are padding and must not count: use `weighted_mean(values, batch.weight)` for means over a "
    "batch, and `data.info` or `data.train.weight` in place of the number of rows"
)
_SHARED = (
    "Something is shared between clients: return what a client keeps as ClientUpdate.state, and what the server keeps "
    "from aggregate; attributes, globals and class variables are everybody's"
)


def check_stacked(case: Case) -> str | None:
    """Clients stacked into one vectorized program give what they give one by one."""
    if not case.comparable:
        return None
    for block in (1, 3, 32):
        try:
            found = case.stacked if block == 3 else case.run(Strict(block))
        except NotStacked as error:
            found = error
        if isinstance(found, NotStacked):
            return _refusal(case, found)
        place = close(case.base(), found)
        if place:
            how = f"stacked in blocks of {block}" if block > 1 else "stacked alone"
            return f"Clients {how} do not get what they get one by one: {place}. {_PADDED if block > 1 else _SHARED}."
    return None


def _refusal(case: Case, error: NotStacked) -> str | None:
    """Return why a program does not run stacked, unless another check says so."""
    failures = any(isinstance(output, Failure) for _, _, _, output in case.base().outputs)
    if failures or check_structure(case):
        return None
    reason = explain(error, type(case.algorithm))
    causes = _RANDOM if "random" in reason else _REFUSED
    return f"{METHODS[error.program]} does not run for several clients at once: {reason}. {causes}."


def _stacks(case: Case) -> bool:
    """Return whether clients run stacked as they do one by one."""
    return not (isinstance(case.stacked, NotStacked) or close(case.base(), case.stacked))


def check_padding(case: Case) -> str | None:
    """Examples of weight 0 anywhere in a client's list change nothing."""
    if not case.comparable:
        return None
    engines: list[Engine] = [Reference(), Strict(3)] if _stacks(case) else [Reference()]
    for engine in engines:
        place = close(case.base(), case.run(Padded(engine)))
        if place:
            return f"Examples of weight 0 in a client's list change results: {place}. {_PADDED}."
    return None


def check_absence(case: Case) -> str | None:
    """Clients that miss rounds agree too."""
    if not (case.comparable and _stacks(case)) or check_structure(case):
        return None
    plan = Participation(plan="fixed", count=3, full_last_round=False)
    loop, stacked = (case.run(engine, rounds=3, participation=plan) for engine in (Reference(), Strict(3)))
    place = close(loop, stacked, tolerance=1e-11)
    if place:
        return f"Where clients miss rounds, stacked clients do not get what they get one by one: {place}. {_SHARED}."
    problem = None if unusable(case, case.base()) else unusable(case, loop)
    return problem and f"Where clients miss rounds: {problem}"


def check_threads(case: Case) -> str | None:
    """Clients in threads give the same bits."""
    if not case.comparable:
        return None
    place = same_bits(case.base(), case.run(Workers(2)))
    return place and f"Clients that run in threads get other results: {place}. {_SHARED}."


def check_order(case: Case) -> str | None:
    """The order in which clients run does not matter."""
    if not case.comparable:
        return None
    place = same_bits(case.base(), case.run(Shuffled(Reference())))
    if not place and not isinstance(case.stacked, NotStacked):
        place = same_bits(case.stacked, case.run(Shuffled(Strict(3))))
    return place and f"The order in which clients run changes results: {place}. {_SHARED}."


def check_randomness(case: Case) -> str | None:
    """All randomness comes from the key: same seed, same bits."""
    if case.spied.changed:
        return None
    if case.unrepeatable:
        place = case.unrepeatable
        return f"Two runs with the same seed differ: {place}. {_SHARED}; nor may results depend on the time. {FIRST}."
    return case.unkeyed and (
        f"Random numbers do not come from the key: with other global random states, {case.unkeyed}. In place of "
        "torch.rand, numpy.random or random, use fedtailor.core.noise (`uniform`, `normal`) with `key.fold(...)`. "
        f"{FIRST}."
    )


def check_seed(case: Case) -> str | None:
    """Another seed gives other models."""
    base, other = case.base(), case.run(Reference(), seed=4)
    for client, personal in base.reports[-1].personal.items():
        found = other.reports[-1].personal.get(client, personal)
        if all(torch.equal(one, two) for one, two in zip(tree.leaves(personal), tree.leaves(found), strict=True)):
            return (
                f"{case.who(client)} gets the same personal model from another seed. Start from "
                '`task.model.init(key.common("model"))`, and hand the key to train.'
            )
    return None


def check_memory(case: Case) -> str | None:
    """Runs leave the algorithm as it was."""
    one = case.algorithm
    for name, value in vars(one).items():
        cached = isinstance(inspect.getattr_static(type(one), name, None), functools.cached_property)
        if not cached and not (name in case.attributes and _equal(case.attributes[name], value)):
            return f"The attribute '{name}' of the algorithm changed during runs. {_SHARED}."
    return None


def _equal(first: Any, second: Any) -> bool:
    try:
        return bool(first == second)
    except Exception:  # whatever comparing a user's values raises
        return first is second


def check_module(case: Case) -> str | None:
    """A network with batch normalization and dropout works too."""
    return _other_model(case, "module", "a network with batch normalization and dropout")


def check_images(case: Case) -> str | None:
    """So does a convolutional network on images."""
    return _other_model(case, "cnn", "a convolutional network on images")


def _other_model(case: Case, model: str, words: str) -> str | None:
    """Check that clients stacked agree with the loop; what the perceptron shows already is not said again."""
    if not (case.comparable and _stacks(case)) or check_structure(case) or unusable(case, case.base()):
        return None
    try:
        base = case.base(model)
    except Exception as error:  # whatever a user's methods raise
        return f"It does not run with {words}: {explain(error, type(case.algorithm))}."
    problem = unusable(case, base, model)
    if problem:
        return f"With {words}: {problem}"
    try:
        place = close(base, case.run(Strict(32), case.federation(model)))
    except NotStacked as error:
        return f"With {words}: {_refusal(case, error)}"
    return place and f"With {words}, stacked clients do not get what they get one by one: {place}. {_PADDED}."


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
    check_memory,
)
