"""The functional model, the task of a client, and the values that a loss takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedtailor.core.rng import Key, new_key
from fedtailor.core.schedule import Training as Training

Params = dict[str, Tensor]
"""Model parameters and buffers by name. Algorithms never change one in place."""


class Model(Protocol):
    """A functional model: a body that makes features, and a linear head on top."""

    @property
    def groups(self) -> Mapping[str, str]:
        """Parameter name -> ``body``, ``head``, ``extra`` or ``buffer``, in layer order."""

    @property
    def norm(self) -> frozenset[str]:
        """Names of normalization parameters and buffers (FedBN keeps them personal)."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Parameter name -> shape, in the order of ``groups``."""

    @property
    def feature_dim(self) -> int:
        """Length d of a feature vector."""

    def init(self, key: Key) -> Params:
        """Return fresh parameters in torch's default dtype."""

    def features(
        self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool
    ) -> tuple[Tensor, Params]:
        """Return features (n, d) and updated buffers (an empty dict where nothing changed).

        Rows of weight 0 are padding: they must not influence other rows or buffers.
        """

    def head(self, params: Params, z: Tensor) -> Tensor:
        """Return logits (n, classes) of features (n, d)."""


BODY = ("body", "extra", "buffer")
"""The groups of a body: everything but the head."""

ALL = ("body", "head", "extra", "buffer")
"""Every group of a model."""

TRAINED = ("body", "head", "extra")
"""The groups that training changes by gradients."""


class ExampleBound(NamedTuple):
    """What bounds and hides what every example adds to what a client sends in a round."""

    clip: float
    """Largest norm of an example's own gradient (C)."""
    noise: float
    """Deviation of the noise on the sum of these gradients in a step, over the bound (z)."""
    rate: float
    """Probability with which an example is in a step, at most."""
    steps: int
    """Steps in a round, at most."""
    secret: bytes = b""
    """Of a real site: its draws and its noise follow from it; empty: they follow from the seed."""


class Task(NamedTuple):
    """What a client learns, and how it trains; may differ by client."""

    model: Model
    num_classes: int
    input_shape: tuple[int, ...]
    training: Training = Training()
    """The training options of the method that runs: set by :meth:`Algorithm.bind`, read by
    ``train``."""
    example_bound: ExampleBound | None = None
    """What ``train`` does for the privacy of examples; None: nothing. Batches are then drawn again
    in every step, each example independently."""

    def at_home(self) -> Task:
        """Return the task of training whose result never leaves the client."""
        return self._replace(example_bound=None)

    def names(self, *groups: str) -> list[str]:
        """Return the parameter names of the given groups, in layer order."""
        return [name for name, group in self.model.groups.items() if group in groups]

    def pick(self, params: Mapping[str, Tensor], *groups: str) -> Params:
        """Return the parameters of the given groups."""
        return {name: params[name] for name in self.names(*groups)}

    def shapes(self, *groups: str) -> dict[str, tuple[int, ...]]:
        """Return the parameter shapes of the given groups."""
        return {name: self.model.shapes[name] for name in self.names(*groups)}

    def zeros(self, *groups: str) -> Params:
        """Return zeros of the parameter shapes of the given groups."""
        return {name: torch.zeros(shape) for name, shape in self.shapes(*groups).items()}

    def initial(self, key: Key, *groups: str) -> Params:
        """Return the common initial parameters of the given groups (all if none is given).

        They depend on the run's seed alone, so every client computes the same ones and none are
        sent.
        """
        groups = groups or ALL
        if not self.names(*groups):
            return {}

        return self.pick(self.model.init(key.common("model")), *groups)

    def features(
        self, params: Params, batch: Batch, key: Key, *, training: bool = True
    ) -> tuple[Tensor, Params]:
        """Return the features (b, d) of a batch, and the buffers that the pass updated."""
        return self.model.features(params, batch.x, weight=batch.weight, key=key, training=training)


class LossOutput(NamedTuple):
    """What a loss returns: a scalar, updated buffers, and values to collect per example."""

    loss: Tensor
    buffers: Params = {}
    outputs: Tensor | tuple[()] = ()


class Batch(NamedTuple):
    """Examples of one step; rows of weight 0 are padding."""

    x: Tensor  # (b, *input_shape)
    y: Tensor  # (b,)
    weight: Tensor  # (b,)
    class_weight: Tensor | tuple[()] = ()  # (classes,), see Training.class_weights; (): all are 1

    def weigh(self, losses: Tensor) -> Tensor:
        """Return the losses of the examples (b,), each times the weight of its class."""
        if isinstance(self.class_weight, tuple):
            return losses
        return losses * self.class_weight[self.y].to(losses.dtype)


def predict_features(task: Task, params: Params, x: Tensor) -> Tensor:
    """Return the features (n, d) of inputs in evaluation mode."""
    ones = torch.ones(x.shape[0], dtype=x.dtype)
    return task.model.features(params, x, weight=ones, key=new_key(0), training=False)[0]


def predict_logits(task: Task, params: Params, x: Tensor) -> Tensor:
    """Return the logits (n, classes) of a whole model in evaluation mode."""
    return task.model.head(params, predict_features(task, params, x))
