"""The ``[training]`` section of a configuration. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fedtailor.core.options import Range, check_options


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
    """Augmentation: images are shifted by up to this many pixels each way and filled with black; 0:
    none."""
    flip: bool = False
    """Augmentation: each image is mirrored, left to right, with probability 1/2."""
    precision: Literal["full", "bfloat16"] = "full"
    """Precision of products and convolutions in training steps. bfloat16 changes results, and is
    not always faster."""

    def __post_init__(self) -> None:
        check_options(self, owner="training")

    def plain(self) -> Training:
        """Return the section without what plain SGD leaves out.

        Momentum, weight decay, clipping, Adam.
        """
        return replace(self, optimizer="sgd", momentum=0.0, weight_decay=0.0, clip_norm=0.0)

    def not_used(self, *names: str) -> list[str]:
        """Return a sentence that names the options that were set and that a method ignores."""
        given = [
            f"training.{name}" for name in names if getattr(self, name) != getattr(Training(), name)
        ]
        return [f"this method does not use {', '.join(given)}."] if given else []

    @property
    def augments(self) -> bool:
        """Whether images are moved or mirrored: then features cannot be computed once and kept."""
        return self.flip or self.crop_padding > 0
