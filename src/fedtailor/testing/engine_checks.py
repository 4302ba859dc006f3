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
from fedtailor.testing.blame import explain
from fedtailor.testing.checks import FIRST, METHODS, check_structure, unusable
from fedtailor.testing.engines import NotStacked, Padded, Shuffled, Strict
from fedtailor.testing.subject import Check, Subject, close, same_bits

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


def check_stacked(subject: Subject) -> str | None:
    """Clients stacked into one vectorized program give what they give one by one."""
    if not subject.comparable:
        return None
    for block in (1, 3, 32):
        try:
            found = subject.stacked if block == 3 else subject.run(Strict(block))
        except NotStacked as error:
            found = error
        if isinstance(found, NotStacked):
            return _refusal(subject, found)
        place = close(subject.base(), found)
        if place:
            how = f"stacked in blocks of {block}" if block > 1 else "stacked alone"
            return f"Clients {how} do not get what they get one by one: {place}. {_PADDED if block > 1 else _SHARED}."
    return None


def _refusal(subject: Subject, error: NotStacked) -> str | None:
    """Return why a program does not run stacked, unless another check says so."""
    failures = any(isinstance(output, Failure) for _, _, _, output in subject.base().outputs)
    if failures or check_structure(subject):
        return None
    reason = explain(error, type(subject.algorithm))
    causes = _RANDOM if "random" in reason else _REFUSED
    return f"{METHODS[error.program]} does not run for several clients at once: {reason}. {causes}."


def _stacks(subject: Subject) -> bool:
    """Return whether clients run stacked as they do one by one."""
    return not (isinstance(subject.stacked, NotStacked) or close(subject.base(), subject.stacked))


def check_padding(subject: Subject) -> str | None:
    """Examples of weight 0 anywhere in a client's list change nothing."""
    if not subject.comparable:
        return None
    engines: list[Engine] = [Reference(), Strict(3)] if _stacks(subject) else [Reference()]
    for engine in engines:
        place = close(subject.base(), subject.run(Padded(engine)))
        if place:
            return f"Examples of weight 0 in a client's list change results: {place}. {_PADDED}."
    return None


def check_absence(subject: Subject) -> str | None:
    """Clients that miss rounds agree too."""
    if not (subject.comparable and _stacks(subject)) or check_structure(subject):
        return None
    plan = Participation(plan="fixed", count=3, full_last_round=False)
    loop, stacked = (subject.run(engine, rounds=3, participation=plan) for engine in (Reference(), Strict(3)))
    place = close(loop, stacked, tolerance=1e-11)
    if place:
        return f"Where clients miss rounds, stacked clients do not get what they get one by one: {place}. {_SHARED}."
    problem = None if unusable(subject, subject.base()) else unusable(subject, loop)
    return problem and f"Where clients miss rounds: {problem}"


def check_threads(subject: Subject) -> str | None:
    """Clients in threads give the same bits."""
    if not subject.comparable:
        return None
    place = same_bits(subject.base(), subject.run(Workers(2)))
    return place and f"Clients that run in threads get other results: {place}. {_SHARED}."


def check_order(subject: Subject) -> str | None:
    """The order in which clients run does not matter."""
    if not subject.comparable:
        return None
    place = same_bits(subject.base(), subject.run(Shuffled(Reference())))
    if not place and not isinstance(subject.stacked, NotStacked):
        place = same_bits(subject.stacked, subject.run(Shuffled(Strict(3))))
    return place and f"The order in which clients run changes results: {place}. {_SHARED}."


def check_randomness(subject: Subject) -> str | None:
    """All randomness comes from the key: same seed, same bits."""
    if subject.watched.changed:
        return None
    if subject.unrepeatable:
        place = subject.unrepeatable
        return f"Two runs with the same seed differ: {place}. {_SHARED}; nor may results depend on the time. {FIRST}."
    return subject.unkeyed and (
        f"Random numbers do not come from the key: with other global random states, {subject.unkeyed}. In place of "
        "torch.rand, numpy.random or random, use fedtailor.core.noise (`uniform`, `normal`) with `key.fold(...)`. "
        f"{FIRST}."
    )


def check_seed(subject: Subject) -> str | None:
    """Another seed gives other models."""
    base, other = subject.base(), subject.run(Reference(), seed=4)
    for client, personal in base.reports[-1].personal.items():
        found = other.reports[-1].personal.get(client, personal)
        if all(torch.equal(one, two) for one, two in zip(tree.leaves(personal), tree.leaves(found), strict=True)):
            return (
                f"{subject.who(client)} gets the same personal model from another seed. Start from "
                '`task.model.init(key.common("model"))`, and hand the key to train.'
            )
    return None


def check_memory(subject: Subject) -> str | None:
    """Runs leave the algorithm as it was."""
    one = subject.algorithm
    for name, value in vars(one).items():
        cached = isinstance(inspect.getattr_static(type(one), name, None), functools.cached_property)
        if not cached and not (name in subject.attributes and _equal(subject.attributes[name], value)):
            return f"The attribute '{name}' of the algorithm changed during runs. {_SHARED}."
    return None


def _equal(first: Any, second: Any) -> bool:
    try:
        return bool(first == second)
    except Exception:  # whatever comparing a user's values raises
        return first is second


def check_module(subject: Subject) -> str | None:
    """A network with batch normalization and dropout works too."""
    return _other_model(subject, "module", "a network with batch normalization and dropout")


def check_images(subject: Subject) -> str | None:
    """So does a convolutional network on images."""
    return _other_model(subject, "cnn", "a convolutional network on images")


def _other_model(subject: Subject, model: str, words: str) -> str | None:
    """Check that clients stacked agree with the loop; what the perceptron shows already is not said again."""
    if not (subject.comparable and _stacks(subject)) or check_structure(subject) or unusable(subject, subject.base()):
        return None
    try:
        base = subject.base(model)
    except Exception as error:  # whatever a user's methods raise
        return f"It does not run with {words}: {explain(error, type(subject.algorithm))}."
    problem = unusable(subject, base, model)
    if problem:
        return f"With {words}: {problem}"
    try:
        place = close(base, subject.run(Strict(32), subject.world(model)))
    except NotStacked as error:
        return f"With {words}: {_refusal(subject, error)}"
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
