"""The configuration of an experiment: frozen dataclasses, read from TOML and written back to it.

Reading is strict: an unknown section or key, a wrong type or a value out of range is an error that
names the key, what is allowed, what was given, and the nearest valid name. All keys and names but
the options of an algorithm and of a model are checked without torch, so that a mistake is told at
once.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w

from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core.errors import ConfigError, DataError, did_you_mean, find_name, match_name
from fedtailor.core.options import (
    Flag,
    NoResult,
    Range,
    build,
    check_options,
    check_value,
    hints_of,
    marks_in,
    marks_of,
    wrong_value,
)
from fedtailor.core.reading import read_toml
from fedtailor.core.schedule import (
    SCHEDULE_KEYS,
    Schedule,
    Training,
    read_schedule,
    schedule_annotations,
)
from fedtailor.data.options import DataOptions
from fedtailor.models import MODELS
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.simulation.engines import EngineOptions

_Seed = Annotated[int, Range(ge=0, le=2**53)]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The ``[model]`` section."""

    name: Annotated[
        str,
        Flag("--model", "NAME", "Model (see: fedtailor list models), or package.module:function."),
    ] = ""
    """A model's name, or a user's ``package.module:function``; empty: the default for the data
    set."""
    others: tuple[str, ...] = ()
    """Further models, for methods that share no parameters: clients take ``name`` and these in
    turn."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the model, as a table."""

    def __post_init__(self) -> None:
        check_options(self, owner="model")
        if self.name:
            object.__setattr__(
                self, "name", _find_name_or_target("model", self.name, MODELS, key="model.name")
            )

        others = tuple(
            _find_name_or_target("model", other, MODELS, key="model.others")
            for other in self.others
        )
        object.__setattr__(self, "others", others)


@dataclass(frozen=True, kw_only=True)
class AlgorithmOptions:
    """The ``[algorithm]`` section: a name, a preset, and options of the algorithm.

    Every other key is a field of the algorithm, or a field of ``[training]`` that it overrides.
    """

    name: str = "pfedfda"
    """An algorithm's name, or a user's ``package.module:Class``."""
    preset: str = "reference"
    """Named set of values for the algorithm's fields."""
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self, owner="algorithm")
        if self.name.endswith(")"):
            allowed = "a name; options of a single run are --set algorithm.OPTION=VALUE"
            raise wrong_value("algorithm.name", allowed, self.name)

        object.__setattr__(
            self,
            "name",
            _find_name_or_target("algorithm", self.name, ALGORITHMS, key="algorithm.name"),
        )


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """The ``[checkpoint]`` section."""

    every: Annotated[
        int,
        Range(ge=0),
        NoResult(),
        Flag(
            "--checkpoint-every",
            "NUMBER",
            "Rounds between checkpoints (default: 1; 0: none).",
        ),
    ] = 1
    """Rounds between checkpoints, from which a run can be resumed; 0: no checkpoints. Does not
    change results."""

    def __post_init__(self) -> None:
        check_options(self, owner="checkpoint")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The ``[serve]`` section."""

    fallback: Annotated[Literal["personal", "best"], NoResult()] = "personal"
    """Which model of a client is used after training: always the personalized one, or the best one:
    the personalized one where its verdict is "better", else the best one that the site would use
    alone. Does not change results."""

    def __post_init__(self) -> None:
        check_options(self, owner="serve")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole experiment."""

    seeds: Annotated[
        tuple[int, ...],
        Flag("--seeds", "NUMBERS", "Several seeds, such as 0,1,2: one run for each."),
    ] = (0,)
    """One run per seed."""
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    algorithm: AlgorithmOptions = field(default_factory=AlgorithmOptions)
    training: Training = field(default_factory=Training)
    schedule: Schedule = field(default_factory=Schedule)
    """The sections ``[federation]`` and ``[evaluation]``."""
    engine: EngineOptions = field(default_factory=EngineOptions)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    privacy: PrivacyOptions = field(default_factory=PrivacyOptions)
    serve: ServeOptions = field(default_factory=ServeOptions)


_READ_BY_OTHERS = {"sweep": ": fedtailor sweep reads it.", "deploy": ": fedtailor serve reads it."}
"""Sections that files may have for other commands, and which command that is."""

SECTIONS = (
    "data",
    "model",
    "algorithm",
    "training",
    "federation",
    "engine",
    "evaluation",
    "privacy",
    "checkpoint",
    "serve",
)
"""The sections of a configuration, in the order in which they are written."""

_CLASSES: Mapping[str, type[Any]] = {
    "data": DataOptions,
    "model": ModelOptions,
    "training": Training,
    "engine": EngineOptions,
    "privacy": PrivacyOptions,
    "checkpoint": CheckpointOptions,
    "serve": ServeOptions,
}
"""The sections whose keys are the fields of a dataclass."""


def option_annotations() -> dict[str, Any]:
    """Return the annotation of every option by its key, such as ``data.clients``."""

    def of_section(name: str, cls: type[Any]) -> dict[str, Any]:
        return {f"{name}.{option}": hint for option, hint in hints_of(cls).items()}

    # Help pages list their flags in this order.
    annotations = of_section("data", _CLASSES["data"]) | of_section("model", _CLASSES["model"])
    annotations |= of_section("algorithm", AlgorithmOptions)
    annotations |= of_section("training", _CLASSES["training"])
    annotations |= schedule_annotations()
    annotations["seeds"] = hints_of(Config)["seeds"]
    for name in ("engine", "privacy", "checkpoint", "serve"):
        annotations |= of_section(name, _CLASSES[name])

    return annotations


def config_flags() -> dict[str, Flag]:
    """Return the flags of the command line by the key that they set, such as ``data.clients``."""
    return marks_in(option_annotations(), Flag)


def keys_without_result() -> set[str]:
    """Return the keys whose values change no result of a seed, such as ``engine.workers``."""
    return {"seed", "seeds", *marks_in(option_annotations(), NoResult)}


def without_result_free(config: Config) -> Config:
    """Return a configuration with the defaults of all options that change no result.

    The seeds stay.
    """
    sections = {}
    for name in (*_CLASSES, "algorithm", "schedule"):
        section = getattr(config, name)
        defaults = type(section)()
        marks = marks_of(type(section), NoResult)
        values = {option: getattr(defaults, option) for option in marks}
        sections[name] = dataclasses.replace(section, **values)

    return dataclasses.replace(config, **sections)


def with_fold(config: Config, fold: int) -> Config:
    """Return the configuration of one fold of a cross-validation, from 1; 0: of all folds."""
    return dataclasses.replace(config, data=dataclasses.replace(config.data, fold=fold))


def first_training(config: Config) -> Config:
    """Return the configuration of the first training of a run: of fold 1, if it has folds."""
    return with_fold(config, 1) if config.data.runs_all_folds else config


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted keys, such as ``training.lr``.

    >>> flatten({"training": {"lr": 0.1}, "seed": 0})
    {'training.lr': 0.1, 'seed': 0}
    """
    values: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            values |= flatten(value, f"{prefix}{name}.")
        else:
            values[f"{prefix}{name}"] = value

    return values


def load_config(path: str | Path, overrides: Iterable[tuple[str, Any]] = ()) -> Config:
    """Read a configuration from a TOML file.

    Args:
        path: the file.
        overrides: values by key, such as ``("training.lr", 0.05)``, put in place of the file's.

    Raises:
        ConfigError: the file is missing or no TOML, or a value is wrong.

    Example:
        >>> _ = Path("experiment.toml").write_text('algorithm.name = "ditto"')
        >>> load_config("experiment.toml", [("training.lr", 0.05)]).training.lr
        0.05
    """
    return make_config(read_settings(Path(path)), overrides)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the values of a TOML file.

    Raises:
        ConfigError: it is missing or not TOML.
    """
    try:
        return read_toml(path)
    except DataError as error:
        raise ConfigError(error.message, path=path) from error


def make_config(values: Mapping[str, Any], overrides: Iterable[tuple[str, Any]] = ()) -> Config:
    """Build a configuration from nested mappings, with ``overrides`` put in place.

    Raises:
        ConfigError: an unknown key, a wrong type, or a value out of range.

    Example:
        >>> config = make_config({"data": {"clients": 10}, "training": {"epochs": 1}})
        >>> config.data.clients, config.training.batch_size
        (10, 50)
    """
    argument: object = values
    if not isinstance(argument, Mapping):
        allowed = "sections and their options, such as {'training': {'lr': 0.1}}"
        raise wrong_value("config", allowed, argument, "load_config reads a file.")

    # The caller's own mappings stay as they are.
    values = {
        str(name): dict(item) if isinstance(item, Mapping) else item
        for name, item in values.items()
    }
    overrides = list(overrides)
    given = [key for key, _ in overrides]
    # A known data set takes the place of own data that the file names.
    is_named = "data.dataset" in given and "data.path" not in given
    if is_named and isinstance(values.get("data"), dict):
        values["data"].pop("path", None)

    for key, value in overrides:
        _put(values, key, value)

    names = [*SECTIONS, "seed", "seeds"]
    for name in values:
        if name not in names:
            what = f"section [{name}]" if isinstance(values[name], dict) else f"option '{name}'"
            hint = _hint_of_section(values, name) or did_you_mean(name, names) or "."
            message = f"unknown {what}{hint} Known: {', '.join(names)}."
            raise ConfigError(message, key=name, allowed=names, got=name)

    tables = {name: check_section(name, values.get(name, {})) for name in SECTIONS}
    sections = {
        name: build(cls, with_tuples(tables[name]), section=name) for name, cls in _CLASSES.items()
    }
    return Config(
        seeds=_seeds(values),
        algorithm=_algorithm_options(tables["algorithm"]),
        schedule=read_schedule(with_tuples(tables["federation"]), tables["evaluation"]),
        **sections,
    )


def parse_assignment(text: str) -> tuple[str, Any]:
    """Read ``section.key=value``. The value is in the syntax of TOML; anything else is text.

    >>> parse_assignment("training.lr=0.05"), parse_assignment("data.partition=iid")
    (('training.lr', 0.05), ('data.partition', 'iid'))

    Raises:
        ConfigError: there is no ``=``, or no key before it.
    """
    before, equals, after = text.partition("=")
    key = before.strip()
    if not equals or not key:
        raise wrong_value("an assignment", "section.key=value", text)

    return key, parse_value(after.strip())


def parse_value(text: str) -> Any:
    """Read a value in the syntax of TOML; anything else is text."""
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # not TOML, a number that is too long, or too many levels
        return text
    return read["value"] if list(read) == ["value"] else text


def to_toml(config: Config) -> str:
    """Write a configuration with every value, so that reading it gives an equal one.

    None, which TOML cannot write, is left out.
    """
    values: dict[str, Any] = {}
    if len(config.seeds) == 1:
        values["seed"] = config.seeds[0]
    else:
        values["seeds"] = list(config.seeds)

    sections = config.schedule.sections()
    sections |= {
        name: dataclasses.asdict(getattr(config, name)) for name in (*_CLASSES, "algorithm")
    }

    # Options of the algorithm stand beside its name, as users write them.
    sections["algorithm"] |= sections["algorithm"].pop("options")
    values |= {name: sections[name] for name in SECTIONS}

    return tomli_w.dumps(_without_none(values))


def as_options(cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Check values of ``[algorithm]`` against the fields of a dataclass; lists become tuples.

    Raises:
        ConfigError: a value does not fit its field.
    """
    hints = hints_of(cls)
    tuples = with_tuples(values)
    return {
        name: check_value(value, hints[name], key=f"algorithm.{name}")
        for name, value in tuples.items()
    }


def _find_name_or_target(what: str, name: str, table: Iterable[str], *, key: str) -> str:
    """Return the name of a table that a name stands for; a user's ``package.module:name`` as it is.

    Raises:
        ConfigError: there is no such name.
    """
    return name if ":" in name else find_name(what, name, table, key=key)


def with_tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with tuples in place of lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            values[name] = _without_none(value)
        elif value is not None:
            values[name] = value

    return values


def check_section(name: str, values: Any) -> dict[str, Any]:
    """Return the keys and values of a section."""
    if not isinstance(values, Mapping):
        raise wrong_value(name, f"a section with keys, such as [{name}]", values)
    return dict(values)


def _algorithm_options(table: Mapping[str, Any]) -> AlgorithmOptions:
    """Return the ``[algorithm]`` section; the algorithm itself checks its options later."""
    # Every other key is an option of the algorithm.
    named = {key: table[key] for key in ("name", "preset") if key in table}
    options = {key: value for key, value in table.items() if key not in named}
    return build(AlgorithmOptions, {**named, "options": options}, section="algorithm")


def _hint_of_section(values: Mapping[str, Any], name: str) -> str:
    """Return what an unknown name probably is, if a section has such an option.

    For example ``"; did you mean 'training.lr'?"``.
    """
    if isinstance(values[name], dict):
        return _READ_BY_OTHERS.get(name, "")

    options: dict[str, Iterable[str]] = dict(SCHEDULE_KEYS)
    for section, cls in _CLASSES.items():
        options[section] = [field.name for field in dataclasses.fields(cls)]

    for section, names in options.items():
        if name in names:
            return f"; did you mean '{section}.{name}'?"

    # Last, because an algorithm needs torch, which takes seconds to import.
    algorithm = values.get("algorithm", {})
    chosen = algorithm.get("name", AlgorithmOptions.name) if isinstance(algorithm, Mapping) else ""
    is_algorithm = isinstance(chosen, str) and match_name(chosen, ALGORITHMS)
    if is_algorithm and name in load_algorithm(chosen).option_names():
        return f"; did you mean 'algorithm.{name}'?"

    return ""


def _seeds(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the seeds of ``seed`` or ``seeds``."""
    if "seed" in values and "seeds" in values:
        raise ConfigError("give 'seed' or 'seeds', not both.", key="seeds")
    if "seeds" not in values:
        return (check_value(values.get("seed", 0), _Seed, key="seed"),)

    seeds = values["seeds"]
    if not isinstance(seeds, list | tuple) or not seeds or len(set(map(repr, seeds))) < len(seeds):
        raise wrong_value("seeds", "a list of different whole numbers, such as [0, 1, 2]", seeds)

    return tuple(check_value(seed, _Seed, key="seeds") for seed in seeds)


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    """Put a value at ``section.key``, or deeper, into nested dictionaries, made as needed."""
    *folders, name = key.split(".")

    # They say the same thing: the override replaces both.
    if name in ("seed", "seeds") and not folders:
        values.pop("seed", None)
        values.pop("seeds", None)

    # Inner tables are copied, because those of the caller stay as they are.
    inner_table = values
    for folder in folders:
        inner = inner_table.setdefault(folder, {})
        if not isinstance(inner, dict):
            raise wrong_value(folder, f"a section to set '{key}'", inner)

        inner_table[folder] = dict(inner)
        inner_table = inner_table[folder]

    inner_table[name] = value
