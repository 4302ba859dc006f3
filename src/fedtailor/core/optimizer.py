"""SGD and Adam on plain tensors, in place; the same arithmetic for one client and for a stack."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedtailor.core.task import Training


class Optimizer:
    """Optimizer state of one phase, for tensors shaped like ``params``.

    Updates may concern only the first ``active`` rows of every tensor (the clients that have not finished);
    the others, and their momentum, stay untouched.
    """

    def __init__(self, training: Training, params: Sequence[Tensor]) -> None:
        self.training = training
        adam = training.optimizer == "adam"
        self.first = [torch.zeros_like(p) for p in params] if adam or training.momentum > 0 else []
        self.second = [torch.zeros_like(p) for p in params] if adam else []

    def update(
        self, params: Sequence[Tensor], gradients: Sequence[Tensor], step: int, active: int | None = None
    ) -> None:
        """Change ``params`` in place; ``gradients`` are used up. ``step`` counts from 0."""
        training = self.training
        for number, (param, gradient) in enumerate(zip(params, gradients, strict=True)):
            if training.weight_decay:
                gradient.add_(param, alpha=training.weight_decay)
            if training.optimizer == "adam":
                self._adam(number, param, gradient, step, active)
            elif training.momentum:
                velocity = self.first[number][:active].mul_(training.momentum).add_(gradient)
                param.add_(velocity, alpha=-training.lr)
            else:
                param.add_(gradient, alpha=-training.lr)

    def _adam(self, number: int, param: Tensor, gradient: Tensor, step: int, active: int | None) -> None:
        """Kingma and Ba 2015, with PyTorch's defaults."""
        decay1, decay2, tiny = 0.9, 0.999, 1e-8
        mean = self.first[number][:active].mul_(decay1).add_(gradient, alpha=1 - decay1)
        square = self.second[number][:active].mul_(decay2).addcmul_(gradient, gradient, value=1 - decay2)
        size = self.training.lr / (1 - decay1 ** (step + 1))
        scale = square.sqrt().div_((1 - decay2 ** (step + 1)) ** 0.5).add_(tiny)
        param.addcdiv_(mean, scale, value=-size)


def clip_factor(norm: Tensor, bound: float) -> Tensor:
    """Return what to multiply a gradient with, so that its norm is at most ``bound``."""
    return torch.clamp(bound / (norm + 1e-6), max=1.0)
