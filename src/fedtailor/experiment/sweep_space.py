"""What a sweep tries: the section ``[sweep]`` of a configuration file. No torch."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tomli_w

from fedtailor.core.errors import ConfigError, DataError, did_you_mean
from fedtailor.core.options import Range, build, check_options, show
from fedtailor.core.reading import read_toml
from fedtailor.experiment.config import AlgorithmOptions, Config, make_config, to_toml
from fedtailor.experiment.methods import read_method

SWEEP_FILE = "sweep.toml"
"""In the folder of a sweep: what was asked for."""
_SECTION = "sweep"
_RANGES = ("uniform", "loguniform", "integers")
_FORMS = "a list such as [0.01, 0.1], or uniform(A, B), loguniform(A, B) or integers(A, B)"
_WHOLE = ("training", "algorithm", "model", "federation")
"""Sections whose keys may be varied."""
_OF_DATA = ("normalize", "missing", "image_size", "color")
"""Keys of ``[data]`` that leave the validation examples the same."""
_LARGEST = 2**53
MOST_TRIALS = 10_000
"""Of a method."""


class Choices(NamedTuple):
    """A list of values to try."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """Return the value at a share in [0, 1) of the list."""
        return self.values[int(share * len(self.values))]


class Interval(NamedTuple):
    """A range to draw from: ``uniform``, ``loguniform``, or ``integers`` with both ends."""

    kind: str
    low: float
    high: float

    def at(self, share: float) -> float | int:
        """Return the value below which a share in [0, 1) of the draws lies."""
        if self.kind == "integers":
            return int(self.low) + int(share * (int(self.high) - int(self.low) + 1))
        if self.kind == "loguniform":
            start = math.log(self.low)
            value = math.exp(start + share * (math.log(self.high) - start))
        else:
            value = self.low + share * (self.high - self.low)
        return min(max(value, self.low), self.high)


Space = dict[str, Choices | Interval]
"""Key -> what to try."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The ``[sweep]`` section."""

    methods: tuple[str, ...] = ()
    """Methods, such as ``fedavg_ft(finetune=head)``; empty: the algorithm of the configuration."""
    trials: Annotated[int, Range(ge=0, le=MOST_TRIALS)] = 0
    """Trials of every method; 0: the whole grid."""
    halving: Annotated[int, Range(ge=0)] = 0
    """Successive halving: trials get few rounds first, and one in so many goes on with so many
    times the rounds; 0: all trials get all rounds."""
    seed: Annotated[int, Range(ge=0, le=_LARGEST)] = 0
    """Seed of the random draws of values."""
    values: dict[str, Any] = field(default_factory=dict)
    """What to try: key -> a list, or the text of a range. ``METHOD.OPTION`` is an option of one
    method."""

    def __post_init__(self) -> None:
        check_options(self, owner=_SECTION)
        if self.halving == 1:
            raise ConfigError(
                "sweep.halving must be 0 (no halving) or at least 2, got 1.",
                key="sweep.halving",
                allowed="0, or 2 or more",
                got=1,
            )

        object.__setattr__(self, "values", dict(_flat(self.values)))
        _ = self.space  # every value is checked at once
        for place, method in enumerate(map(read_method, self.methods)):
            if method in map(read_method, self.methods[:place]):
                message = f"the method '{self.methods[place]}' is given twice."
                raise ConfigError(message, key="sweep.methods", got=self.methods[place])

    @property
    def space(self) -> Space:
        """What to try, read.

        Raises:
            ConfigError: a value is neither a list nor a range.
        """
        return {key: _read(key, value) for key, value in self.values.items()}


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables by their dotted keys: ``training.lr = [...]`` needs no
    quotation marks.

    Raises:
        ConfigError: a key is given twice.
    """
    seen = set()
    for name, value in table.items():
        if not isinstance(name, str):
            raise ConfigError(
                f"the keys of sweep.values must be text, got {show(name)}.", key="sweep.values"
            )

        inner = (
            _flat(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else [(f"{prefix}{name}", value)]
        )

        for key, item in inner:
            if key in seen:
                raise ConfigError(
                    f"sweep.values gives '{key}' twice; give it once.", key=f"sweep.values.{key}"
                )

            seen.add(key)
            yield key, item


def _read(key: str, value: Any) -> Choices | Interval:
    """Read what to try for a key.

    Raises:
        ConfigError: it is neither a list of different values nor a range.
    """
    if isinstance(value, str):
        return _read_interval(key, value)
    if not isinstance(value, list | tuple):
        raise _refused(key, _FORMS, value)
    if not value:
        raise _refused(key, "a list with at least one value", value)

    for place, item in enumerate(value):
        if not _is_plain(item):
            raise _refused(
                key,
                "a list of numbers, texts, true or false, or of lists or tables of these",
                value,
            )

        if item in value[:place]:
            raise ConfigError(
                f"sweep.values.{key} holds {show(item)} twice; give it once.",
                key=f"sweep.values.{key}",
                got=show(item),
            )

    return Choices(tuple(value))


def _is_plain(value: Any) -> bool:
    """Return whether a value can be written as JSON: a date of TOML cannot."""
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_plain(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, str | bool | int | float)


def _read_interval(key: str, text: str) -> Interval:
    """Read the text of a range."""
    form = re.fullmatch(r"\s*(\w+)\s*\(([^(),]+),([^(),]+)\)\s*", text)
    if form is None:
        raise _refused(key, _FORMS, text)

    kind = form.group(1)
    if kind not in _RANGES:
        hint = did_you_mean(kind, _RANGES) or "."
        message = f"sweep.values.{key}: unknown range '{kind}'{hint} Known: {', '.join(_RANGES)}."
        raise ConfigError(message, key=f"sweep.values.{key}", allowed=list(_RANGES), got=kind)

    try:
        low = _number(form.group(2), kind)
        high = _number(form.group(3), kind)
    except ValueError:
        numbers = "whole numbers" if kind == "integers" else "numbers"
        raise _refused(key, f"{kind}(A, B) with two {numbers}", text) from None

    if not low < high:
        raise _refused(key, f"{kind}(A, B) with A < B", text)
    if kind == "loguniform" and low <= 0:
        raise _refused(key, "loguniform(A, B) with A > 0", text)

    return Interval(kind, low, high)


def _number(text: str, kind: str) -> float:
    """Read an end of a range.

    Raises:
        ValueError: it is no number that can be used.
    """
    value = int(text) if kind == "integers" else float(text)
    if not abs(value) <= (_LARGEST if kind == "integers" else 1e300):  # NaN too
        raise ValueError(text)
    return value


def _refused(key: str, allowed: str, got: Any) -> ConfigError:
    shown = show(got)
    return ConfigError(
        f"sweep.values.{key} must be {allowed}, got {shown}.",
        key=f"sweep.values.{key}",
        allowed=allowed,
        got=shown,
    )


def load_sweep(
    path: str | Path, overrides: Iterable[tuple[str, Any]] = ()
) -> tuple[Config, SweepOptions]:
    """Read a configuration with a section ``[sweep]`` from a TOML file.

    Args:
        path: the file; empty: none.
        overrides: values by key, put in place of the file's; ``sweep.trials`` and so on too.

    Raises:
        ConfigError: the file is missing or no TOML, or a value is wrong.
    """
    values: dict[str, Any] = {}
    if path:
        try:
            values = read_toml(Path(path))
        except DataError as error:
            raise ConfigError(error.message, path=str(path)) from error

    table = values.pop(_SECTION, {})
    if not isinstance(table, Mapping):
        message = (
            f"'{_SECTION}' must be a section with keys, such as [{_SECTION}], got {show(table)}."
        )
        raise ConfigError(message, key=_SECTION, got=show(table))

    table = dict(table)
    to_try = table.get("values", {})
    if isinstance(to_try, Mapping):  # anything else is refused below
        to_try = dict(_flat(to_try))
        table["values"] = to_try

    others = []
    for key, value in overrides:
        section, _, name = key.partition(".")
        if section != _SECTION:
            others.append((key, value))
        elif name.startswith("values.") and isinstance(to_try, dict):
            to_try[name.removeprefix("values.")] = value
        else:
            table[name] = value

    config = make_config(values, others)
    table = {
        name: tuple(value) if isinstance(value, list) else value for name, value in table.items()
    }
    options = build(SweepOptions, table, section=_SECTION)
    check_keys(config, options)

    return config, options


def sweep_to_toml(config: Config, options: SweepOptions) -> str:
    """Write a configuration with its section ``[sweep]``, so that :func:`load_sweep` gives equal
    ones.
    """
    return f"{to_toml(config)}\n{tomli_w.dumps({_SECTION: asdict(options)})}"


def methods_of(config: Config, options: SweepOptions) -> list[AlgorithmOptions]:
    """Return the methods of a sweep.

    Raises:
        ConfigError: options of the configuration's algorithm would be ignored.
    """
    if not options.methods:
        return [config.algorithm]

    if config.algorithm.options or config.algorithm.preset != AlgorithmOptions().preset:
        given = ", ".join(config.algorithm.options) or "preset"
        raise ConfigError(
            f"[algorithm] holds options ({given}) that no method of the sweep would use. Write them with the method, "
            "such as fedavg_ft(finetune=head), or leave them out.",
            key="algorithm",
            allowed="no options beside sweep.methods",
            got=given,
        )

    return [read_method(text) for text in options.methods]


def check_keys(config: Config, options: SweepOptions) -> None:
    """Check that the keys of a sweep may be varied; whether a method has an option is checked
    later.

    Raises:
        ConfigError: there is nothing to try, or a key is unknown, or would make trials that cannot
            be compared.
    """
    if not options.values:
        raise ConfigError(
            f"the sweep has nothing to try: give values, such as training.lr = [0.01, 0.1], in [{_SECTION}.values] or "
            "with --values.",
            key="sweep.values",
        )

    names = [method.name for method in methods_of(config, options)]
    for key in options.values:
        _check_key(key, names, config, options)


def _check_key(key: str, names: Sequence[str], config: Config, options: SweepOptions) -> None:
    """Check that a key may be varied."""
    before, _, name = key.rpartition(".")
    section = key.partition(".")[0]
    where = f"sweep.values.{key}"
    if not name or not before:
        # names the section of an option that is written without it
        make_config({name: 0, "algorithm": {"name": names[0]}} if name else {})
        raise ConfigError(
            f"{where} must be SECTION.OPTION, such as training.lr.", key=where, got=key
        )

    if before in names:
        return

    if section not in _WHOLE and section != "data":
        known = [*_WHOLE, "data", *names]
        hint = did_you_mean(section, known) or "."
        message = f"{where}: '{before}' is no section that can be varied, and no method of the sweep{hint}"
        raise ConfigError(
            f"{message} Known: {', '.join(known)}.", key=where, allowed=known, got=before
        )

    if section == "data" and name not in _OF_DATA:
        raise ConfigError(
            f"{where} cannot be varied: trials would be scored on other validation examples. Of [data], "
            f"{', '.join(_OF_DATA)} can.",
            key=where,
            allowed=[f"data.{each}" for each in _OF_DATA],
            got=key,
        )

    if key == "algorithm.name":
        raise ConfigError(
            f"{where}: name the methods in sweep.methods, or with -a.", key=where, got=key
        )

    if key == "federation.rounds" and options.halving:
        message = (
            f"{where} cannot be varied with sweep.halving, which sets the rounds of the trials."
        )
        raise ConfigError(message, key=where, got=key)


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a configuration with values put in place.

    Raises:
        ConfigError: a value is wrong.
    """
    return make_config(tomllib.loads(to_toml(config)), values.items())


def as_table(config: Config, options: SweepOptions) -> dict[str, Any]:
    """Return a sweep as nested tables, without the number of trials and the seeds: these can be
    raised later.
    """
    table = tomllib.loads(sweep_to_toml(config, options))
    del table[_SECTION]["trials"]
    return {name: value for name, value in table.items() if name not in ("seed", "seeds")}
