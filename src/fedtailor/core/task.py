"""What is learned and how: the functional model, the task, and the ``[training]`` section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, Protocol

from torch import Tensor

from fedtailor.core.options import Range, check_options
from fedtailor.core.rng import Key

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

    def features(self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool) -> tuple[Tensor, Params]:
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


@dataclass(frozen=True, kw_only=True)
class Training:
    """The ``[training]`` section: how a client trains. An algorithm may override fields."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimizer; its state starts anew in every phase."""
    lr: Annotated[float, Range(gt=0)] = 0.01
    """Learning rate."""
    momentum: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Momentum of SGD."""
    weight_decay: Annotated[float, Range(ge=0)] = 0.0
    """Weight decay, coupled (added to the gradient)."""
    epochs: Annotated[int, Range(ge=0)] = 5
    """Local epochs per round."""
    steps: Annotated[int, Range(ge=0)] = 0
    """Local steps per round in place of epochs; 0: use epochs."""
    batch_size: Annotated[int, Range(ge=0)] = 50
    """Examples per batch; a client with fewer uses one batch of what it has. 0: all examples."""
    drop_last: bool = False
    """Leave out a last, shorter batch of an epoch (never the only one)."""
    clip_norm: Annotated[float, Range(ge=0)] = 0.0
    """Bound of the gradient's norm over all trained parameters; 0: none."""
    crop_padding: Annotated[int, Range(ge=0)] = 0
    """Augmentation: images are moved by up to so many pixels each way, black comes in; 0: none."""
    flip: bool = False
    """Augmentation: every other image is mirrored, left to right."""
    precision: Literal["full", "bfloat16"] = "full"
    """Of products and convolutions in training steps. bfloat16 changes results; time it before taking it for speed."""

    def __post_init__(self) -> None:
        check_options(self, owner="training")

    def plain(self) -> Training:
        """Return the section without what plain SGD leaves out: momentum, weight decay, clipping, Adam."""
        return replace(self, optimizer="sgd", momentum=0.0, weight_decay=0.0, clip_norm=0.0)

    def not_used(self, *names: str) -> list[str]:
        """Return a sentence that names those of the given options that were set, for methods that ignore them."""
        given = [f"training.{name}" for name in names if getattr(self, name) != getattr(Training(), name)]
        return [f"this method does not use {', '.join(given)}."] if given else []

    @property
    def augments(self) -> bool:
        """Whether images are moved or mirrored: then features cannot be computed once and kept."""
        return self.flip or self.crop_padding > 0


class Task(NamedTuple):
    """What a client learns, and how it trains; may differ by client."""

    model: Model
    num_classes: int
    input_shape: tuple[int, ...]
    training: Training = Training()
    """The training options of the method that runs: set by :meth:`Algorithm.bind`, read by ``train``."""

    def names(self, *groups: str) -> list[str]:
        """Return the parameter names of the given groups, in layer order."""
        return [name for name, group in self.model.groups.items() if group in groups]

    def pick(self, params: Mapping[str, Tensor], *groups: str) -> Params:
        """Return the parameters of the given groups."""
        return {name: params[name] for name in self.names(*groups)}

    def shapes(self, *groups: str) -> dict[str, tuple[int, ...]]:
        """Return the parameter shapes of the given groups."""
        return {name: self.model.shapes[name] for name in self.names(*groups)}

    def initial(self, key: Key, *groups: str) -> Params:
        """Return the common initial parameters of the given groups (all if none is given).

        They depend on the run's seed alone, so every client computes the same ones and none are sent.
        """
        return self.pick(self.model.init(key.common("model")), *(groups or ALL))


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
