"""The format of a paper's file: its sections, each a checked dataclass. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from fedtailor.core.errors import ConfigError
from fedtailor.core.options import Range, build, check_options

SETTINGS = ("data", "model", "algorithm", "training", "federation", "evaluation")
"""The sections of a configuration that a paper's file may set."""

Point = Literal["", "global", "local", "personalized", "global_complete"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Source:
    """The ``[paper]`` section."""

    title: str
    authors: str
    venue: str
    year: int
    seeds: Annotated[int, Range(ge=1)] = 1
    """Runs that a printed number is the mean of."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A part of a configuration; what comes later wins over what came before."""

    inferred: tuple[str, ...] = ()
    """Keys, such as ``training.lr``, whose values neither paper nor released code states."""
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    algorithm: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    federation: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Column(Layer):
    """A data set in a setting."""

    label: str


@dataclass(frozen=True, kw_only=True)
class Method(Layer):
    """A method with its hyper-parameters; ``columns`` holds those that the paper tunes by data set."""

    label: str
    point: Point
    """The evaluation point of the paper's numbers."""
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Score:
    """How a printed number is read from a result."""

    label: str = "accuracy"
    point: Point = ""
    """Empty: the method's."""
    clients: Literal["known", "new"] = "known"
    condition: str = ""
    """What was done to the clients' images, such as ``frost-3``; empty: all clients together."""
    figure: Literal["mean", "pooled", "smallest10", "worst10"] = "mean"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a paper: by method, numbers in the order of the columns, or such lists by score; nan: none printed."""

    title: str
    columns: tuple[str, ...]
    unit: Literal["fraction", "percent"] = "fraction"
    notes: tuple[str, ...] = ()
    spread: str = ""
    """What the numbers of ``spreads`` are, such as "deviation over clients"."""
    reference: dict[str, Any]
    spreads: dict[str, Any] = field(default_factory=dict)


def build_section(cls: type[T], values: Any, section: str) -> T:
    """Build a part of a paper from a section of its file.

    Raises:
        ConfigError: a key is unknown or lacking, or a value does not fit.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"[{section}] must be a section with keys, got {values!r}.", key=section, got=repr(values))
    known = {each.name: each for each in dataclasses.fields(cls)}  # type: ignore[arg-type]  # cls is a dataclass
    for name, each in known.items():
        needed = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        if needed and name not in values and values.keys() <= known.keys():  # an unknown key says more
            raise ConfigError(f"[{section}] lacks '{name}'.", key=f"{section}.{name}")
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    built = build(cls, plain, section=section)
    check_options(built, owner=section)
    return built
