"""The trials of a sweep: for every method, the values to try and the configurations with them.

Draws depend on the seed of the sweep, the method, the number of the draw and the key only. So a
sweep of more trials begins with those of a sweep of fewer, and a further key leaves the draws of
the others as they are.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fedtailor.algorithms import load_algorithm
from fedtailor.core import rng
from fedtailor.core.atomic import to_json
from fedtailor.core.errors import ConfigError, did_you_mean
from fedtailor.core.options import show
from fedtailor.core.task import Training
from fedtailor.experiment.assembly import make_algorithm
from fedtailor.experiment.config import AlgorithmOptions, Config
from fedtailor.experiment.sweep_space import (
    MOST_TRIALS,
    Choices,
    Space,
    SweepOptions,
    check_keys,
    methods_of,
    with_values,
)

_DRAWS_IN_VAIN = 1000
"""After so many draws in a row that give nothing new, a space is taken to have no further
values."""
_TRAINING_OPTIONS = frozenset(each.name for each in dataclasses.fields(Training))


class Trial(NamedTuple):
    """Values to try."""

    number: int
    """From 1, within the method."""
    values: dict[str, Any]
    config: Config

    def __str__(self) -> str:
        """Return the values in words."""
        return ", ".join(f"{key}={show_value(value)}" for key, value in self.values.items())


class Plan(NamedTuple):
    """The trials of a method."""

    method: str
    """As a user writes it."""
    name: str
    """Of its configuration file: the algorithm, with a number if several methods have the same
    one."""
    trials: list[Trial]
    notes: list[str]


def show_value(value: Any) -> str:
    """Return a value as tables show it: numbers with four digits."""
    return (
        f"{value:.4g}"
        if isinstance(value, float)
        else str(value)
        if isinstance(value, str)
        else show(value)
    )


def make_plans(config: Config, options: SweepOptions) -> list[Plan]:
    """Return the trials of every method.

    Raises:
        ConfigError: a key or a value is wrong for a method.
    """
    check_keys(config, options)
    methods = methods_of(config, options)
    names = [method.name for method in methods]
    _refuse_unknown_options(names, options.space)
    plans = []

    for place, method in enumerate(methods):
        earlier = names[:place].count(method.name)
        name = f"{method.name}-{earlier + 1}" if earlier else method.name
        is_given = bool(options.methods)
        label = _label(method) if is_given else method.name
        space = _space_of(method, names, options.space, is_given=is_given)
        notes: list[str] = []
        if not space:
            notes.append(f"{label} has none of the options that vary: it has one trial.")

        base = dataclasses.replace(config, algorithm=method)
        trials = [
            Trial(number, values, with_values(base, values))
            for number, values in enumerate(_points(label, space, options), start=1)
        ]
        for trial in trials:
            make_algorithm(trial.config)

        if options.trials > len(trials):
            notes.append(
                f"{label} has only {len(trials)} different trials, of {options.trials} that were asked for."
            )

        plans.append(Plan(label, name, trials, notes))

    return plans


def unequal_budgets(plans: Sequence[Plan]) -> list[str]:
    """Return a sentence if methods have different numbers of trials."""
    if len({len(plan.trials) for plan in plans}) == 1:
        return []
    numbers = ", ".join(f"{plan.method} {len(plan.trials)}" for plan in plans)
    return [
        f"methods do not get equal budgets (trials: {numbers}). The more trials a method has, the higher the best of "
        "their scores is by chance. Give sweep.trials, or grids of equal size."
    ]


def optimistic_methods(plans: Sequence[Plan]) -> list[str]:
    """Return a sentence if the scores of a method on validation examples are too high beside those
    of another.
    """
    names = sorted({plan.trials[0].config.algorithm.name for plan in plans})
    optimistic = [name for name in names if load_algorithm(name).chooses_by_validation]
    if not optimistic or len(names) == 1:
        return []
    return [
        f"{', '.join(optimistic)} personalizes with the validation examples too, so its scores on them are too high "
        "beside those of other methods. The choice among its own trials is less affected."
    ]


def _label(method: AlgorithmOptions) -> str:
    """Return a method as a user writes it."""
    options = {} if method.preset == AlgorithmOptions().preset else {"preset": method.preset}
    inside = ", ".join(
        f"{name}={show_value(value)}" for name, value in {**options, **method.options}.items()
    )
    return f"{method.name}({inside})" if inside else method.name


def _options_of(name: str) -> set[str]:
    """Return what ``[algorithm]`` may hold for an algorithm."""
    return {"preset", *load_algorithm(name).option_names(), *_TRAINING_OPTIONS}


def _refuse_unknown_options(names: Sequence[str], space: Space) -> None:
    """Check that every option of an algorithm that varies is one of a method.

    Raises:
        ConfigError: one is not.
    """
    for key in space:
        before, _, option = key.rpartition(".")
        if before == "algorithm":
            known = sorted(set().union(*map(_options_of, names)))
            owner = names[0] if len(names) == 1 else f"any of {', '.join(names)}"
        elif before in names:
            known = sorted(_options_of(before))
            owner = before
        else:
            continue

        if option not in known:
            hint = did_you_mean(option, known) or "."
            message = f"sweep.values.{key}: '{option}' is no option of {owner}{hint} Known: {', '.join(known)}."
            raise ConfigError(message, key=f"sweep.values.{key}", allowed=known, got=option)


def _space_of(
    method: AlgorithmOptions, names: Sequence[str], space: Space, *, is_given: bool
) -> Space:
    """Return what varies for a method, by the keys of its configuration.

    ``METHOD.OPTION`` comes before ``algorithm.OPTION``, and both come before ``training.OPTION``,
    which they override.

    Args:
        method: the method.
        names: the algorithms of all methods.
        space: what varies in the sweep.
        is_given: whether the method was named for the sweep. Its options are then fixed; those of
            the configuration's own algorithm are values that a sweep may replace.

    Raises:
        ConfigError: an option of the method has a fixed value.
    """
    own = load_algorithm(method.name).option_names()
    found: Space = {}
    specific: Space = {}
    for key, values in space.items():
        before, _, option = key.rpartition(".")
        if before == method.name:
            specific[f"algorithm.{option}"] = values
        elif before == "algorithm":
            if option in _options_of(method.name):
                found[key] = values
        elif before not in names:
            found[key] = values

    found |= specific
    for option in _TRAINING_OPTIONS - set(own):
        if f"algorithm.{option}" in found:
            found.pop(f"training.{option}", None)

    for option in method.options:
        _refuse_fixed(method, option, found, is_own=option in own, is_given=is_given)

    return found


def _refuse_fixed(
    method: AlgorithmOptions, option: str, found: Space, *, is_own: bool, is_given: bool
) -> None:
    """Check that an option with a value of the method does not vary."""
    key = f"algorithm.{option}"
    if not is_own and f"training.{option}" in found:
        key = f"training.{option}"
    elif not (is_given and key in found):
        return

    raise ConfigError(
        f"sweep.values varies {key}, but for {method.name} it is fixed: {option} = {show(method.options[option])}.",
        key=f"sweep.values.{key}",
        got=show(method.options[option]),
    )


def _points(label: str, space: Space, options: SweepOptions) -> list[dict[str, Any]]:
    """Return the values of the trials of a method, all different.

    Raises:
        ConfigError: ranges need a number of trials, or the grid is too large.
    """
    lists = {key: values.values for key, values in space.items() if isinstance(values, Choices)}
    size = math.prod(len(values) for values in lists.values())
    if len(lists) < len(space) and options.trials == 0:
        key = next(key for key in space if key not in lists)
        raise ConfigError(
            f"'{key}' of {label} is a range, so the sweep needs a number of trials: set sweep.trials, or --trials.",
            key="sweep.trials",
            allowed="1 or more",
            got=0,
        )

    if len(lists) == len(space) and (options.trials == 0 or options.trials >= size):
        if size > MOST_TRIALS:
            message = f"the grid of {label} has {size} trials; at most {MOST_TRIALS} are run. Set sweep.trials."
            raise ConfigError(
                message, key="sweep.trials", allowed=f"at most {MOST_TRIALS}", got=size
            )

        return [
            dict(zip(lists, point, strict=True)) for point in itertools.product(*lists.values())
        ]

    found: dict[str, dict[str, Any]] = {}
    in_vain = 0
    for point in _draws(label, space, options.seed):
        written = to_json(point)
        in_vain = in_vain + 1 if written in found else 0
        found.setdefault(written, point)
        if len(found) == options.trials or in_vain == _DRAWS_IN_VAIN:
            break

    return list(found.values())


def _draws(label: str, space: Space, seed: int) -> Iterator[dict[str, Any]]:
    """Yield random values of a method, without end."""
    for number in itertools.count(1):
        yield {key: values.at(_share(seed, label, number, key)) for key, values in space.items()}


def _share(seed: int, method: str, number: int, key: str) -> float:
    """Return a random number in [0, 1)."""
    stream = rng.new_key(seed, round=number, purpose=f"sweep/{method}/{key}")
    return float(rng.to_unit(rng.words(rng.plain(stream), 1))[0])
