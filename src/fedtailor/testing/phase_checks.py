"""Checks of what an algorithm says of its options: which matter for training only, which for
personalization only.
"""

from __future__ import annotations

import types
import typing
from dataclasses import replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fedtailor.core.algorithm import Algorithm
from fedtailor.core.errors import ConfigError
from fedtailor.core.options import Range
from fedtailor.testing.case import Case, Check, same_bits
from fedtailor.testing.engines import Exposed
from fedtailor.testing.isolation import seed_globally
from fedtailor.testing.runs import Disagreement, Trace, assert_same_bits, run
from fedtailor.testing.spy import with_methods

_TRAINING_METHODS = (
    "bind",
    "messages",
    "init_server",
    "init_client",
    "init_per_client",
    "broadcast",
    "local_update",
    "aggregate",
    "global_model",
)
"""The methods that decide what is downloaded, kept and evaluated before clients personalize."""


def check_phases(case: Case) -> str | None:
    """Options that are said to matter only for training, or only for personalization, change
    nothing else.
    """
    cls = type(case.algorithm)
    for name in sorted(cls.only_for_personalization | cls.only_for_training):
        if name not in cls.option_names():
            return f"{cls.__name__} has no option '{name}', which only_for_training or only_for_personalization names."

    for name in sorted(cls.only_for_personalization):
        difference = difference_in_training(case, name)
        if difference:
            return f"only_for_personalization names '{name}', but with another value {difference}."

    for name in sorted(cls.only_for_training):
        difference = difference_in_personalization(case, name)
        if difference:
            return f"only_for_training names '{name}', but with another value of it alone {difference}."

    return None


def difference_in_training(case: Case, name: str) -> str:
    """Return what is different before clients personalize if an option has another value; empty if
    nothing is.
    """
    seed_globally(1)
    other = run(with_other_value(case.algorithm, name), Exposed(), case.federation())
    base = case.base()
    difference = same_bits(_training_of(base), _training_of(other))
    if difference:
        return difference

    for first, second in zip(base.reports, other.reports, strict=True):
        try:
            assert_same_bits(first.state.server, second.state.server)
        except Disagreement as error:
            return f"the server state after round {first.round} is another: {error}"

    return ""


def difference_in_personalization(case: Case, name: str) -> str:
    """Return what is different in personal models of the same training if an option has another
    value.
    """
    seed_globally(1)
    other = with_other_value(case.algorithm, name)
    methods = {method: _of(case.algorithm, method) for method in _TRAINING_METHODS}
    return same_bits(case.base(), run(with_methods(other, methods), Exposed(), case.federation()))


def _of(algorithm: Algorithm[Any, Any, Any], method: str) -> Any:
    """Return a method of an algorithm in the form of a function whose first argument does not
    matter.
    """
    bound = getattr(algorithm, method)

    def call(_: Any, *arguments: Any, **named: Any) -> Any:
        return bound(*arguments, **named)

    return call


def _training_of(trace: Trace) -> Trace:
    """Return the part of a run before clients personalize."""
    return Trace([each for each in trace.outputs if each.program != "personalize"])


def with_other_value(algorithm: Algorithm[Any, Any, Any], name: str) -> Algorithm[Any, Any, Any]:
    """Return an algorithm with another value of an option.

    Raises:
        ValueError: no other value is allowed.
    """
    hint = typing.get_type_hints(type(algorithm), include_extras=True)[name]
    value = getattr(algorithm, name)
    for other in _candidates(value, hint):
        try:
            return replace(algorithm, **{name: other})
        except ConfigError:
            continue
    raise ValueError(f"no other value of '{name}' is known than {value!r}")


def _candidates(value: Any, hint: Any) -> list[Any]:
    """Return values that an option may have in place of its own."""
    bounds = Range()
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        bounds = next((extra for extra in extras if isinstance(extra, Range)), bounds)

    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    found: list[Any] = [
        choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)
    ]
    if isinstance(value, bool):
        found.append(not value)
    elif isinstance(value, int):
        found += [value + 2, value - 1]
    elif isinstance(value, float):
        found += [each for each in (2 * value, value / 2, value + 0.5) if bounds.holds(each)]

    return [each for each in found if each != value]


CHECKS: tuple[Check, ...] = (check_phases,)
