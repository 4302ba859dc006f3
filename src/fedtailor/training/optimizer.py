"""SGD and Adam on plain tensors, in place; the same arithmetic for one client and for a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.task import Training
from fedtailor.core.torch_private import fused_sgd

# Adam's constants: PyTorch's defaults
_DECAY1 = 0.9
_DECAY2 = 0.999
_TINY = 1e-8


class Optimizer:
    """Optimizer state of one phase, for tensors shaped like ``params``.

    An update may be of the first ``active`` rows of every tensor only (the clients that have not
    finished). The other rows and their momentum stay as they are.
    """

    def __init__(self, training: Training, params: Sequence[Tensor]) -> None:
        self.training = training
        adam = training.optimizer == "adam"
        self.first = [torch.zeros_like(p) for p in params] if adam or training.momentum > 0 else []
        self.second = [torch.zeros_like(p) for p in params] if adam else []

    def update(
        self,
        params: Sequence[Tensor],
        gradients: Sequence[Tensor],
        step: int,
        active: int | None = None,
    ) -> None:
        """Change ``params`` in place, but no gradient: two gradients may be one tensor.

        Args:
            params: the parameters, or their first ``active`` rows.
            gradients: of the same shapes.
            step: the number of the step, from 0.
            active: how many clients of a stack still train; None: there is one client.
        """
        training = self.training
        if not params:
            return

        # The tensors of one client are dense and laid out alike: one pass over memory.
        if active is None and training.optimizer == "sgd":
            fused_sgd(
                list(params),
                list(gradients),
                self.first,
                weight_decay=training.weight_decay,
                momentum=training.momentum,
                lr=training.lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )
            return

        for number, (param, gradient) in enumerate(zip(params, gradients, strict=True)):
            if training.weight_decay:
                gradient = gradient.add(param, alpha=training.weight_decay)

            if training.optimizer == "adam":
                self._adam(number, param, gradient, step, active)
            elif training.momentum:
                # The rows of clients that have finished keep their momentum.
                velocity = self.first[number][:active].mul_(training.momentum).add_(gradient)
                param.add_(velocity, alpha=-training.lr)
            else:
                param.add_(gradient, alpha=-training.lr)

    def _adam(
        self, number: int, param: Tensor, gradient: Tensor, step: int, active: int | None
    ) -> None:
        """Kingma and Ba 2015, with PyTorch's defaults."""
        # The moments: running means of the gradient and of its square.
        mean = self.first[number][:active].mul_(_DECAY1).add_(gradient, alpha=1 - _DECAY1)
        square = self.second[number][:active].mul_(_DECAY2)
        square.addcmul_(gradient, gradient, value=1 - _DECAY2)

        # Both start at 0, which the divisions correct.
        size = self.training.lr / (1 - _DECAY1 ** (step + 1))
        scale = square.sqrt().div_((1 - _DECAY2 ** (step + 1)) ** 0.5).add_(_TINY)
        param.addcdiv_(mean, scale, value=-size)


class AdamMoments(NamedTuple):
    """Adam's memory in custom steps: running means of the gradients and of their squares."""

    mean: tree.Tree
    square: tree.Tree

    @classmethod
    def zeros(cls, params: tree.Tree) -> AdamMoments:
        """Return the moments before the first step."""
        return cls(tree.map(torch.zeros_like, params), tree.map(torch.zeros_like, params))


def adam_step(
    params: tree.Tree, gradients: tree.Tree, moments: AdamMoments, step: Tensor, lr: float
) -> tuple[tree.Tree, AdamMoments]:
    """Return parameters and moments after the step of Adam that :class:`Optimizer` takes in place.

    Gradients have the structure of the parameters; ``step`` () counts from 0.
    """
    mean = tree.map(lambda old, g: _DECAY1 * old + (1 - _DECAY1) * g, moments.mean, gradients)
    square = tree.map(
        lambda old, g: _DECAY2 * old + (1 - _DECAY2) * g * g, moments.square, gradients
    )
    size = lr / (1 - _DECAY1 ** (step + 1))
    scale = (1 - _DECAY2 ** (step + 1)) ** 0.5
    moved = tree.map(
        lambda p, m, s: p - size * m / (s.sqrt() / scale + _TINY), params, mean, square
    )

    return moved, AdamMoments(mean, square)


def clip_factor(norm: Tensor, bound: float) -> Tensor:
    """Return the factor that brings a gradient of this norm to a norm of at most ``bound``."""
    return torch.clamp(bound / (norm + 1e-6), max=1.0)


def sgd_step(
    params: Mapping[str, Tensor],
    momentum: Mapping[str, Tensor],
    gradient: Mapping[str, Tensor],
    training: Training,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return parameters and momentum after a step of SGD, for custom steps.

    Parameters without a gradient stay as they are.
    """
    if training.clip_norm:
        norm = torch.stack([leaf.square().sum() for leaf in gradient.values()]).sum().sqrt()
        factor = clip_factor(norm, training.clip_norm)
        gradient = {name: factor * leaf for name, leaf in gradient.items()}

    decayed = {name: leaf + training.weight_decay * params[name] for name, leaf in gradient.items()}
    velocity = {name: training.momentum * momentum[name] + leaf for name, leaf in decayed.items()}
    moved = {name: params[name] - training.lr * leaf for name, leaf in velocity.items()}
    return {**params, **moved}, velocity
