"""What an encoder is, how it runs, and the check that it is what it must be."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedtailor.core.errors import ConfigError, describe_error

KEY = "data.encoder"
"""The option that names an encoder, for messages."""
ONNX = "onnx:"
"""How the target of an ONNX file begins."""
BATCH = 32
"""Inputs of a batch. A smaller rest is filled up: every batch has the same shape, because some
kernels round differently for other sizes. So the features of an input do not depend on the others
that are encoded, nor on their number."""
INDEPENDENCE = 1e-4
"""How far the features of an input alone may differ from those in a batch, as a part of the largest
feature."""


class Encoder(Protocol):
    """A deterministic map of raw inputs to vectors, one input independent of the others."""

    target: str
    """By which :func:`fedtailor.encoders.load.load_encoder` finds it."""
    digest: str
    """SHA-256 of weights, code and preprocessing; the same on every machine."""
    license: str
    """What the encoder says of its license; empty: nothing."""
    batch: int
    """Inputs of a batch."""

    def run(self, stored: Tensor, white: float) -> Tensor:
        """Return the features of one batch (batch, d), float32.

        Args:
            stored: values as a data set stores them, in the layout of models: images (batch,
                channels, height, width), series (batch, channels, times), tables (batch, features).
            white: the stored value that the encoder gets as 1.
        """

    def worker(self) -> Encoder:
        """Return an encoder that may run at the same time as this one."""


def encode(encoder: Encoder, stored: Tensor, white: float) -> Tensor:
    """Return the features (n, d) of any number of inputs.

    They have the same bits in any order, and whatever inputs are beside them.

    Raises:
        ConfigError: the encoder failed, or its features are not finite vectors.
    """
    batches = torch.split(stored, encoder.batch)
    parts = [run_batch(encoder, part, white) for part in batches]
    return torch.cat(parts)


def run_batch(encoder: Encoder, stored: Tensor, white: float) -> Tensor:
    """Return the features (n, d) of at most one batch of inputs.

    Raises:
        ConfigError: the encoder failed, or its features are not finite vectors.
    """
    count = len(stored)
    filling = stored[-1:].expand(encoder.batch - count, *stored.shape[1:])
    try:
        features = encoder.run(torch.cat([stored, filling]), white)
    except Exception as reason:  # the code of a user, or a runtime, raises anything
        shape = tuple(stored.shape[1:])
        message = f"failed on {encoder.batch} inputs of shape {shape}: {describe_error(reason)}"
        raise _refuse(encoder, message) from reason

    if features.dim() != 2 or len(features) != encoder.batch or not features.shape[1]:
        expected = f"({encoder.batch}, d) for {encoder.batch} inputs"
        raise _refuse(encoder, f"must return {expected}, and returns {tuple(features.shape)}")

    features = features[:count]
    if not torch.isfinite(features).all():
        raise _refuse(encoder, "gives NaN or infinity")

    return features


def check_encoder(encoder: Encoder, stored: Tensor, white: float) -> int:
    """Check an encoder on some inputs, and return the number of its features.

    The same inputs give the same bits, and an input alone has the features that it has in a batch,
    to a part of :data:`INDEPENDENCE` of the largest one.

    Args:
        encoder: to check.
        stored: a batch of inputs, or fewer.
        white: as of :meth:`Encoder.run`.

    Raises:
        ConfigError: the encoder is random, or mixes inputs; or as of :func:`run_batch`.
    """
    trial = stored[: encoder.batch]
    features = run_batch(encoder, trial, white)
    if not torch.equal(run_batch(encoder, trial, white), features):
        hint = "switch off dropout and random crops"
        raise _refuse(encoder, f"is random: the same inputs give other features; {hint}")

    alone = run_batch(encoder, trial[:1], white)
    difference = float((alone - features[:1]).abs().max())
    limit = INDEPENDENCE * float(features.abs().max())
    if difference > limit:
        message = (
            f"mixes inputs: a feature of one alone differs by {difference:.2g} from that in a "
            f"batch, where {limit:.2g} is allowed"
        )
        raise _refuse(encoder, message)

    return int(features.shape[1])


def _refuse(encoder: Encoder, what: str) -> ConfigError:
    message = f"encoder '{encoder.target}' {what.rstrip('.')}."
    return ConfigError(message, key=KEY, got=encoder.target)
