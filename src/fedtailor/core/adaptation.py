"""Adaptation: what a method does with a client's own data before the client predicts.

A method states it as values. Tables and reports put them into words with :func:`describe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.task import Params
from fedtailor.core.text import counted

Layers = Literal["all", "head"]
"""The layers that fine-tuning trains."""

TrainedPart = Literal["all", "head", "head_bias", "lower", "normalization", "mixing_weights"]

_PARTS: dict[TrainedPart, str] = {
    "all": "all layers",
    "head": "the head",
    "head_bias": "the bias of the head",
    "lower": "the lower layers",
    "normalization": "the normalization layers",
    "mixing_weights": "mixing weights",
}


@dataclass(frozen=True)
class FineTuning:
    """Gradient steps on a client's training data: a number of epochs, steps or rounds.

    None at all if all three are 0, as in ``FineTuning()``.

    Example:
        >>> str(FineTuning("head", epochs=5)), describe([FineTuning()])
        ('5 epochs of the head', 'none')
    """

    layers: TrainedPart = "all"
    epochs: int = 0
    steps: int = 0
    rounds: int = 0

    def __bool__(self) -> bool:
        return self.epochs + self.steps + self.rounds > 0

    def __str__(self) -> str:
        counts = {"epoch": self.epochs, "step": self.steps, "round": self.rounds}
        parts = [counted(number, unit) for unit, number in counts.items() if number]
        return f"{' and '.join(parts)} of {_PARTS[self.layers]}"


@dataclass(frozen=True)
class RoundOfTraining:
    """A new client trains as the others did.

    For a single round, or for as many rounds as they trained on average.
    """

    layers: TrainedPart = "all"
    as_many_as_others: bool = False

    def __str__(self) -> str:
        if self.as_many_as_others:
            return f"as many rounds of {_PARTS[self.layers]} as the others trained"
        return f"a round's training of {_PARTS[self.layers]}"


@dataclass(frozen=True)
class WithoutTraining:
    """A computation on the client's data that takes no gradient steps.

    ``words`` name it, such as ``closed form``.
    """

    words: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class OtherAdaptation:
    """Anything else, in the words of the method, such as ``choice among 3 models``.

    It takes passes over the client's training data, so runs evaluate less often;
    :class:`WithoutTraining` is for what costs next to nothing.
    """

    words: str

    def __str__(self) -> str:
        return self.words


CLOSED_FORM = WithoutTraining("closed form")
"""Statistics of the client's features, and a classifier computed from them."""

CLASS_FREQUENCIES = WithoutTraining("class frequencies")
"""The frequencies of the classes in the client's training data."""

Adaptation = FineTuning | RoundOfTraining | WithoutTraining | OtherAdaptation
"""One thing that a method does with a client's own data."""


def describe(adaptations: Sequence[Adaptation]) -> str:
    """Put adaptations into words, in their order; ``none`` if there are none.

    >>> describe([RoundOfTraining(), FineTuning("head", epochs=1)])
    "a round's training of all layers, then 1 epoch of the head"
    >>> describe([FineTuning(epochs=0)])
    'none'
    """
    words = [str(adaptation) for adaptation in adaptations if adaptation]
    return ", then ".join(words) or "none"


class FineTuned(NamedTuple):
    """A client's fine-tuned model, and the gradient steps that it took."""

    model: Params
    steps: Tensor  # ()


def untuned(model: Params) -> FineTuned:
    """Return a model as it is, in the form of a fine-tuned one."""
    return FineTuned(model, torch.zeros((), dtype=torch.int64))
