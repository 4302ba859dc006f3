"""What a model says of inputs without labels: probabilities, strangeness, surprise and doubt.

Those of held-out examples of a client say what is usual there. They lie in the folder of a model
that has one, and follow from the data of a run otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from fedtailor.core.atomic import write_whole
from fedtailor.core.engine import one_thread
from fedtailor.core.errors import DataError
from fedtailor.core.reading import content_of, read_file
from fedtailor.serving.model import PersonalModel, batches

HELD_OUT_FILE = "held_out.safetensors"
"""In the folder of a model of one client."""
_LARGEST = 2**31


class Signals(NamedTuple):
    """What a model says of n inputs, without their labels; float64."""

    probabilities: Tensor
    """Of the classes (n, classes)."""
    strangeness: Tensor
    """How far inputs lie from what the model knows (n,): ``ood_score`` of the method, or how far
    the probability of the class is from 1."""
    surprise: Tensor
    """How unlikely inputs are (n,), in nats: their negative log-density. Of a method without one,
    (0,)."""

    @property
    def doubt(self) -> Tensor:
        """The entropy of the probabilities (n,), in nats."""
        entropy: Tensor = torch.special.entr(self.probabilities).sum(1)
        return entropy

    def at_most(self, most: int) -> Signals:
        """Return all inputs, or evenly spaced ones if there are more than wanted."""
        count = len(self.strangeness)
        if count <= most:
            return self

        rows = torch.arange(most) * count // most
        return Signals(*(values[rows] if len(values) else values for values in self))


def signals(model: PersonalModel, stored: Iterable[np.ndarray]) -> Signals:
    """Return what a model says of stored inputs, which come in parts.

    Raises:
        DataError: some probabilities are not finite.
    """
    parts = []
    with torch.no_grad(), one_thread():
        for part in stored:
            parts += [_signals_of(model, batch) for batch in batches(part)]

    if not parts:
        classes = len(model.classes_)
        nothing = torch.zeros(0, dtype=torch.float64)
        return Signals(nothing.new_zeros(0, classes), nothing, nothing)

    joined = Signals(*map(torch.cat, zip(*parts, strict=True)))
    is_finite = joined.probabilities.isfinite().all(1)
    count = int((~is_finite).sum())
    if count:
        message = f"the model gives no probabilities for {count} of {len(is_finite)} inputs."
        raise DataError(message, key="inputs", allowed="finite", got=count)
    return joined


def _signals_of(model: PersonalModel, batch: Tensor) -> Signals:
    probabilities = model.probabilities(model.module(batch))
    strangeness = None
    surprise = None
    if model.scores_strangers:
        strangeness = model.module.ood_score(batch)
        surprise = model.module.surprise(batch)

    # Hendrycks and Gimpel 2017, "A baseline for detecting misclassified and out-of-distribution
    # examples in neural networks", ICLR.
    if strangeness is None:
        strangeness = 1.0 - probabilities.amax(1)
    if surprise is None:
        surprise = torch.zeros(0)

    # Where a number is too large to be one, nothing is stranger.
    return Signals(
        probabilities,
        strangeness.double().nan_to_num(torch.inf, torch.inf, -torch.inf),
        surprise.double().nan_to_num(torch.inf, torch.inf, -torch.inf),
    )


def write_held_out(folder: Path, held_out: Signals) -> None:
    """Write what a model says of held-out examples into its folder.

    Raises:
        RunError: it cannot be written.
    """
    arrays = {name: value.contiguous().numpy() for name, value in held_out._asdict().items()}
    write_whole(folder / HELD_OUT_FILE, save(arrays))


def read_held_out(folder: Path, num_classes: int) -> Signals:
    """Return what a model says of held-out examples, from its folder.

    Raises:
        DataError: the file is damaged, or not of this model.
    """
    path = folder / HELD_OUT_FILE
    raw = read_file(path, limit=_LARGEST, within=folder)
    with content_of(path, SafetensorError):
        arrays = load(raw)
        held_out = Signals(*(torch.from_numpy(arrays[name].copy()) for name in Signals._fields))
        count = len(held_out.strangeness)
        shapes = [tuple(value.shape) for value in held_out]
        wanted = [(count, num_classes), (count,)]
        if shapes not in ([*wanted, (count,)], [*wanted, (0,)]):
            raise ValueError(f"shapes are {shapes}")
        if any(value.dtype != torch.float64 or value.isnan().any() for value in held_out):
            raise ValueError("its numbers are not float64, or NaN")
        if not ((held_out.probabilities >= 0) & (held_out.probabilities <= 1)).all():
            raise ValueError("probabilities must lie between 0 and 1")

    return held_out
