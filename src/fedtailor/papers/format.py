"""The format of a paper's file: each section is a checked dataclass. No torch."""

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
    """Number of runs that a printed number is the mean of."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A part of a configuration. A later layer wins over an earlier one."""

    inferred: tuple[str, ...] = ()
    """Keys, such as ``training.lr``, whose values neither the paper nor its released code states.

    In a method, also ``point``."""
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
    """A method with its hyper-parameters. ``columns`` holds those that the paper tunes per data
    set.
    """

    label: str
    point: Point
    """The evaluation point of the paper's numbers."""
    run_of: str = ""
    """Method whose run also has this method's numbers, as FedAvg-FT's has those of FedAvg; empty:
    it has its own run.

    The method then has no settings."""
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Score:
    """How a printed number is read from a result."""

    label: str = "accuracy"
    point: Point = ""
    """Evaluation point; empty: the method's."""
    clients: Literal["known", "new"] = "known"
    condition: str = ""
    """Condition of the clients' images, such as ``frost-3``; empty: all clients together."""
    figure: Literal["mean", "pooled", "smallest10", "worst10"] = "mean"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why cells are outside tolerance: one section ``[[explanations]]``."""

    columns: tuple[str, ...]
    methods: tuple[str, ...]
    scores: tuple[str, ...] = ()
    """Scores of these cells; empty: all."""
    text: str
    """The explanation, and the experiment that could have refuted it; or what experiments have
    ruled out."""
    cause: Literal["found", "elsewhere", "open"] = "found"
    """What is known: ``found``, the text says why; ``elsewhere``, an independent program with the
    same data and choices is as far from print or farther, so our code is not the cause, but the
    cause is not known; ``open``, neither."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a paper.

    ``reference`` holds per method the printed numbers in the order of the columns, or such a list
    per score; nan stands for a number that is not printed.
    """

    title: str
    columns: tuple[str, ...]
    unit: Literal["fraction", "percent"] = "fraction"
    notes: tuple[str, ...] = ()
    spread: str = ""
    """Kind of the numbers in ``spreads``, such as "deviation over clients"."""
    reference: dict[str, Any]
    spreads: dict[str, Any] = field(default_factory=dict)


def build_section(cls: type[T], values: Any, section: str) -> T:
    """Build a part of a paper from a section of its file.

    Raises:
        ConfigError: a key is unknown or missing, or a value does not fit.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"[{section}] must be a section with keys, got {values!r}.",
            key=section,
            got=repr(values),
        )

    known = {each.name: each for each in dataclasses.fields(cls)}  # type: ignore[arg-type]  # cls is a dataclass
    for name, each in known.items():
        needed = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        if (
            needed and name not in values and values.keys() <= known.keys()
        ):  # the error about an unknown key says more
            raise ConfigError(f"[{section}] needs '{name}'.", key=f"{section}.{name}")

    plain = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }
    built = build(cls, plain, section=section)
    check_options(built, owner=section)

    return built
