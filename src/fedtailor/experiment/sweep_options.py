"""What a sweep tries: the section ``[sweep]`` of a configuration file. No torch."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import tomli_w

from fedtailor.core.atomic import to_json
from fedtailor.core.errors import (
    ConfigError,
    FedtailorError,
    UsageError,
    did_you_mean,
    unknown_name,
)
from fedtailor.core.extras import install_command
from fedtailor.core.options import Range, build, check_options, wrong_value
from fedtailor.experiment.config import (
    AlgorithmOptions,
    Config,
    check_section,
    flatten,
    make_config,
    read_settings,
    to_toml,
)
from fedtailor.experiment.methods import read_methods, refuse_options_beside

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SWEEP_FILE = "sweep.toml"
"""In the folder of a sweep: what was asked for."""
_SECTION = "sweep"
_FORMS = "a list such as [0.01, 0.1], or uniform(A, B), loguniform(A, B) or integers(A, B)"
_RANGES = ("uniform", "loguniform", "integers")
_SECTIONS_TO_VARY = ("training", "algorithm", "model", "federation")
_DATA_KEYS_TO_VARY = ("normalize", "missing", "numbers", "image_size", "color")
"""Keys of ``[data]`` that leave the validation examples the same."""
_LARGEST = 2**53
MOST_TRIALS = 10_000
"""Of a method."""


Space = dict[str, "BaseDistribution"]
"""Key -> the distribution of what to try: of a list's values, or of the numbers of a range."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The ``[sweep]`` section."""

    methods: tuple[str, ...] = ()
    """Methods, such as ``fedavg_ft(finetune=head)``; empty: the algorithm of the configuration."""
    sampler: Literal["auto", "grid", "random", "tpe"] = "auto"
    """Where the next values come from. ``auto``: the grid if all of it is tried, else random."""
    trials: Annotated[int, Range(ge=0, le=MOST_TRIALS)] = 0
    """Trials of every method; 0: the whole grid."""
    halving: Annotated[int, Range(ge=0)] = 0
    """Pruning: trials get few rounds first, and about one in so many gets so many times the rounds;
    0: all trials get all rounds."""
    seed: Annotated[int, Range(ge=0, le=2**31)] = 0
    """Seed of the random draws of values."""
    values: dict[str, Any] = field(default_factory=dict)
    """What to try: key -> a list, or the text of a range. ``METHOD.OPTION`` is an option of one
    method."""

    def __post_init__(self) -> None:
        check_options(self, owner=_SECTION)
        if self.halving == 1:
            raise wrong_value("sweep.halving", "0 (no pruning), or 2 or more", 1)

        object.__setattr__(self, "values", _flat_values(self.values))

        # All values and methods are checked at once.
        _ = self.space
        read_methods(self.methods)

    @property
    def space(self) -> Space:
        """What to try, read.

        Raises:
            ConfigError: a value is neither a list nor a range.
        """
        return {key: _read_distribution(key, value) for key, value in self.values.items()}


def values_to_try(distribution: BaseDistribution) -> Sequence[Any]:
    """Return the values of a list, or the ends of a range, between which all are right."""
    ends: Any = distribution
    return ends.choices if hasattr(ends, "choices") else (ends.low, ends.high)


def import_optuna() -> Any:
    """Return the package that draws the values.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise UsageError(
            f"a sweep needs Optuna: {install_command('sweep')}.", key="sweep"
        ) from None

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _read_distribution(key: str, value: Any) -> BaseDistribution:
    """Read what to try for a key: a list of values, or a range."""
    if isinstance(value, str):
        return _read_range(key, value)
    if not isinstance(value, list | tuple):
        raise _refuse(key, _FORMS, value)
    if not value:
        raise _refuse(key, "a list with at least one value", value)

    # Records of the sweep hold it: a date of TOML would not do.
    try:
        to_json(value)
    except TypeError:
        allowed = "a list of numbers, texts, true or false, or of lists or tables of these"
        raise _refuse(key, allowed, value) from None

    # Optuna warns of lists and tables, which its databases cannot hold. There is no database here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        distributions = import_optuna().distributions
        return distributions.CategoricalDistribution(value)  # type: ignore[no-any-return]


def _read_range(key: str, text: str) -> BaseDistribution:
    """Read the text of a range."""
    form = re.fullmatch(r"\s*(\w+)\s*\(([^(),]+),([^(),]+)\)\s*", text)
    if form is None:
        raise _refuse(key, _FORMS, text)

    kind = form.group(1)
    if kind not in _RANGES:
        raise unknown_name("range", kind, _RANGES, key=f"sweep.values.{key}")

    # A half is not a number of epochs.
    number: type[int] | type[float] = int if kind == "integers" else float
    try:
        low = number(form.group(2))
        high = number(form.group(3))
    except ValueError:
        numbers = "whole numbers" if kind == "integers" else "numbers"
        raise _refuse(key, f"{kind}(A, B) with two {numbers}", text) from None

    # The comparisons refuse NaN too.
    if not -_LARGEST <= low < high <= _LARGEST:
        raise _refuse(key, f"{kind}(A, B) with A < B, both within ± 2^53", text)
    if kind == "loguniform" and low <= 0:
        raise _refuse(key, "loguniform(A, B) with A > 0", text)

    distributions: Any = import_optuna().distributions
    if kind == "integers":
        return cast("BaseDistribution", distributions.IntDistribution(low, high))
    is_log = kind == "loguniform"
    return cast("BaseDistribution", distributions.FloatDistribution(low, high, log=is_log))


def _refuse(key: str, allowed: str, got: Any) -> FedtailorError:
    return wrong_value(f"sweep.values.{key}", allowed, got)


def _flat_values(table: Any) -> dict[str, Any]:
    """Return what to try by dotted keys.

    Raises:
        ConfigError: it is not a table, or gives a key twice.
    """
    if not isinstance(table, Mapping):
        allowed = "a table of what to try, such as training.lr = [0.01, 0.1]"
        raise wrong_value(f"{_SECTION}.values", allowed, table)

    # training.lr = [...] needs no quotes, so a key may be there twice in two forms.
    values: dict[str, Any] = {}
    for name, item in table.items():
        part = flatten({name: item})
        for key in values.keys() & part.keys():
            message = f"sweep.values gives '{key}' twice; give it once."
            raise ConfigError(message, key=f"sweep.values.{key}")

        values |= part

    return values


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
    values = read_settings(Path(path)) if path else {}

    # Overrides of [sweep] replace single values of the file; all others are those of a run.
    table = check_section(_SECTION, values.pop(_SECTION, {}))
    table["values"] = _flat_values(table.get("values", {}))
    run_overrides = []
    for key, value in overrides:
        if key.startswith(f"{_SECTION}.values."):
            name = key.removeprefix(f"{_SECTION}.values.")
            table["values"] = _flat_values(table["values"]) | {name: value}
        elif key.startswith(f"{_SECTION}."):
            table[key.removeprefix(f"{_SECTION}.")] = value
        else:
            run_overrides.append((key, value))

    config = make_config(values, run_overrides)
    if isinstance(table.get("methods"), list):
        table["methods"] = tuple(table["methods"])
    options = build(SweepOptions, table, section=_SECTION)
    check_keys(config, options)

    return config, options


def sweep_to_toml(config: Config, options: SweepOptions) -> str:
    """Write a configuration with its section ``[sweep]``, as :func:`load_sweep` reads it."""
    return f"{to_toml(config)}\n{tomli_w.dumps({_SECTION: asdict(options)})}"


def methods_of(config: Config, options: SweepOptions) -> list[AlgorithmOptions]:
    """Return the methods of a sweep.

    Raises:
        ConfigError: options of the configuration's algorithm would be ignored.
    """
    if not options.methods:
        return [config.algorithm]

    refuse_options_beside(config, "sweep.methods")
    return read_methods(options.methods)


def check_keys(config: Config, options: SweepOptions) -> None:
    """Check that the keys of a sweep may be varied, without a look at the methods' options.

    Raises:
        ConfigError: there is nothing to try, or a key is unknown, or would make trials that cannot
            be compared.
    """
    if not options.values:
        raise wrong_value("sweep.values", "what to try, such as training.lr = [0.01, 0.1]", {})

    if options.halving and config.schedule.watches_validation:
        allowed = "0 with evaluation.select = 'best' or evaluation.patience, which choose the round"
        raise wrong_value("sweep.halving", allowed, options.halving)

    # The options of methods are checked later, with torch.
    names = [method.name for method in methods_of(config, options)]
    for key in options.values:
        # An option without its section is refused by the configuration, which knows the section.
        if key and "." not in key:
            make_config({key: 0, "algorithm": {"name": names[0]}})

        problem = _problem_with_key(key, names, options)
        if problem:
            where = f"sweep.values.{key}"
            raise ConfigError(f"{where} {problem}", key=where, got=key)


def _problem_with_key(key: str, names: Sequence[str], options: SweepOptions) -> str:
    """Return why a key may not be varied, or an empty text."""
    section, _, name = key.rpartition(".")
    if not section or not name:
        return "must be SECTION.OPTION, such as training.lr."

    if section in names:
        return ""

    top = section.partition(".")[0]
    if top not in (*_SECTIONS_TO_VARY, "data"):
        hint = did_you_mean(top, [*_SECTIONS_TO_VARY, "data", *names]) or "."
        return f"cannot be varied: '{section}' is neither a section nor a method of the sweep{hint}"

    if top == "data" and name not in _DATA_KEYS_TO_VARY:
        return (
            "cannot be varied: trials would be scored on other validation examples. Of [data], "
            f"{', '.join(_DATA_KEYS_TO_VARY)} can."
        )
    if key == "algorithm.name":
        return "cannot be varied: name the methods in sweep.methods, or with -a."
    if key == "federation.rounds" and options.halving:
        return "cannot be varied with sweep.halving, which sets the rounds of the trials."
    return ""


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a configuration with values put in place.

    Raises:
        ConfigError: a value is wrong.
    """
    return make_config(tomllib.loads(to_toml(config)), values.items())


def fixed_table(config: Config, options: SweepOptions) -> dict[str, Any]:
    """Return a sweep as nested tables, without trials and seeds, which can be raised later."""
    table = tomllib.loads(sweep_to_toml(config, options))
    del table[_SECTION]["trials"]
    return {name: value for name, value in table.items() if name not in ("seed", "seeds")}
