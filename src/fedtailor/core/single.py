"""``train`` and ``forward`` for one client: the tight loop.

Parameters of convolutions lie channels last, as images do; an optimizer step is one pass over all parameters, their
gradients and their momentum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.batches import Batches, Plan, gather
from fedtailor.core.federation import ExampleSet
from fedtailor.core.optimizer import Optimizer, clip_factor
from fedtailor.core.phase import Phase, collected
from fedtailor.core.rng import Key
from fedtailor.core.task import Batch


class Trainable:
    """Copies of some tensors that are trained; those of convolutions lie channels last, as convolutions want them."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        formats = (torch.channels_last if leaf.dim() == 4 else torch.contiguous_format for leaf in leaves)
        self.values = [leaf.detach().clone(memory_format=form) for leaf, form in zip(leaves, formats, strict=True)]
        self.leaves = [value.detach().requires_grad_() for value in self.values]

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Return the gradients of a loss, each with the memory layout of its leaf: 0 where a leaf does not matter."""
        if not (loss.requires_grad and self.leaves):
            return [torch.zeros_like(value) for value in self.values]
        found = torch.autograd.grad(loss, self.leaves, allow_unused=True, materialize_grads=True)
        return [
            gradient if gradient.stride() == value.stride() else torch.empty_like(value).copy_(gradient)
            for gradient, value in zip(found, self.values, strict=True)
        ]


class Collected:
    """Values collected from the batches of a phase, with their labels and weights."""

    def __init__(self) -> None:
        self.rows: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, aux: Tensor | tuple[()], batches: Sequence[Batch]) -> None:
        """Keep the values of one step."""
        labels = torch.cat([batch.y for batch in batches])
        self.rows.append((collected(aux), labels, torch.cat([batch.weight for batch in batches])))

    def tensors(self) -> list[Tensor]:
        """Return values, labels and weights, concatenated over the steps."""
        return [torch.cat(column) for column in zip(*self.rows, strict=True)]


class GradientSteps:
    """Steps of the optimizer down the gradient of a loss."""

    def __init__(self, phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor]) -> None:
        self.phase, self.context, self.is_buffer = phase, context, phase.buffers
        self.own = Trainable([leaf for leaf, fixed in zip(params, self.is_buffer, strict=True) if not fixed])
        self.buffers = [leaf for leaf, fixed in zip(params, self.is_buffer, strict=True) if fixed]
        self.optimizer = Optimizer(phase.training, self.own.values)
        self.loss_sum = torch.zeros((), dtype=self.own.values[0].dtype if self.own.values else None)

    def take(self, step: int, batch: Any, key: Key) -> Tensor | tuple[()]:
        """Take one step; return the values to collect."""
        own, clip_norm = self.own, self.phase.training.clip_norm
        with torch.enable_grad():
            leaves = merge(own.leaves, self.buffers, self.is_buffer)
            loss, buffers, aux = self.phase.evaluate(leaves, self.context, batch, key)
            gradients = own.gradients(loss)
        self.loss_sum += loss.detach()
        self.buffers = [buffer.detach() for buffer in buffers]
        if clip_norm and gradients:
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            gradients = list(torch._foreach_mul(gradients, clip_factor(norm, clip_norm)))
        self.optimizer.update(own.values, gradients, step)
        return aux

    def leaves(self) -> list[Tensor]:
        """Return the parameters as they are now."""
        return [leaf.detach() for leaf in merge(self.own.leaves, self.buffers, self.is_buffer)]


class CustomSteps:
    """Steps by a rule of the algorithm's own."""

    def __init__(self, phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor]) -> None:
        self.phase, self.context, self.params = phase, context, list(params)
        self.loss_sum = torch.zeros(())

    def take(self, step: int, batch: Any, key: Key) -> Tensor | tuple[()]:
        """Take one step; return the values to collect."""
        with torch.no_grad():
            self.params, aux = self.phase.advance(self.params, self.context, batch, key)
        return aux

    def leaves(self) -> list[Tensor]:
        """Return the parameters as they are now."""
        return [leaf.detach() for leaf in self.params]


def train_one(
    phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor], data: ExampleSet, key: Key, plan: Plan
) -> list[Tensor]:
    """Train one client.

    Returns the parameter leaves, the number of steps, the mean loss over the steps, and with ``collect`` the
    collected values, labels and weights.
    """
    taker = (CustomSteps if phase.step is not None else GradientSteps)(phase, params, context)
    kept = Collected()
    per_step = phase.amount.per_step
    count = len(plan.batches) // per_step
    numbers = torch.arange(max(count, 1)).unbind()
    source = Batches(data, plan)
    for step in range(count):
        chosen = range(step * per_step, (step + 1) * per_step)
        batches = tuple(source[number] for number in chosen)
        aux = taker.take(step, batches[0] if per_step == 1 else batches, key.at(numbers[step]))
        if phase.collect == "all" or (phase.collect == "last" and step * per_step >= plan.last_epoch):
            kept.add(aux, batches)
    result = [*taker.leaves(), torch.tensor(count), taker.loss_sum / max(count, 1)]
    if phase.collect != "none":
        if not kept.rows:
            kept.rows.append(nothing_collected(phase, params, context, data, key))
        result += kept.tensors()
    return result


def nothing_collected(
    phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor], data: ExampleSet, key: Key
) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty collected values of the right shape, for a client that takes no step."""
    blank = Batch(data.weight.new_zeros((1, *data.x.shape[1:])), data.y.new_zeros(1), data.weight.new_zeros(1))
    batch = blank if phase.amount.per_step == 1 else (blank,) * phase.amount.per_step
    evaluate = phase.advance if phase.step is not None else phase.evaluate
    with torch.no_grad():
        aux = collected(evaluate(params, context, batch, key)[-1])
    return aux[:0], blank.y[:0], blank.weight[:0]


def merge(trained: Sequence[Tensor], buffers: Sequence[Tensor], is_buffer: Sequence[bool]) -> list[Tensor]:
    """Join trained leaves and buffers in their original order."""
    if not buffers:
        return list(trained)
    sources = {False: iter(trained), True: iter(buffers)}
    return [next(sources[fixed]) for fixed in is_buffer]


def forward_one(function: Callable[..., Tensor], data: ExampleSet, chunk: int, arguments: Sequence[Any]) -> Tensor:
    """Run ``function(*arguments, batch)`` over all examples in chunks; rows in the order of the examples."""
    count = len(data.rows)
    outputs = []
    with torch.no_grad():
        for start in range(0, max(count, 1), chunk):
            rows = torch.arange(start, min(start + chunk, count))
            outputs.append(function(*arguments, gather(data, rows)))
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def chunk_size(example_shape: Sequence[int]) -> int:
    """Return how many examples a forward pass takes at once: about 2 million input numbers, 50 to 1000."""
    return max(50, min(1000, 2_000_000 // max(math.prod(example_shape), 1)))
