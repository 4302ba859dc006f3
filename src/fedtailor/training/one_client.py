"""``train`` and ``forward`` for one client: the tight loop.

An optimizer step is one pass over all parameters, their gradients and their momentum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import Key
from fedtailor.core.task import Batch
from fedtailor.training.batches import Batches, Plan, gather
from fedtailor.training.optimizer import Optimizer, clip_factor
from fedtailor.training.phase import Phase, collected
from fedtailor.training.step_graph.replay import StepBuffers, memory_for


class Trainable:
    """Tensors that are trained in place, and as leaves of automatic differentiation."""

    def __init__(self, values: list[Tensor]) -> None:
        self.values = values
        self.leaves = [value.detach().requires_grad_() for value in values]

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

    def add(self, outputs: Tensor | tuple[()], batches: Sequence[Batch]) -> None:
        """Keep the values of one step."""
        labels = torch.cat([batch.y for batch in batches])
        self.rows.append((collected(outputs).clone(), labels, torch.cat([batch.weight for batch in batches])))

    def tensors(self) -> list[Tensor]:
        """Return values, labels and weights, concatenated over the steps."""
        return [torch.cat(column) for column in zip(*self.rows, strict=True)]


class GradientSteps:
    """Steps of the optimizer down the gradient of a loss."""

    def __init__(self, phase: Phase, memory: StepBuffers) -> None:
        self.phase, self.memory = phase, memory
        pairs = list(zip(memory.params, phase.buffers, strict=True))
        self.own = Trainable([leaf for leaf, fixed in pairs if not fixed])
        self.buffers = [leaf for leaf, fixed in pairs if fixed]
        self.optimizer = Optimizer(phase.training, self.own.values)
        self.loss_sum = torch.zeros((), dtype=self.own.values[0].dtype if self.own.values else None)

    def take(self, step: int, batch: Any, key: Key) -> Tensor | tuple[()]:
        """Take one step; return the values to collect."""
        values = self.memory.run(self._evaluate, batch, key)
        self.loss_sum += values[0]
        end = len(self.own.values) + 1
        gradients, clip_norm = values[1:end], self.phase.training.clip_norm
        if clip_norm and gradients:
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            gradients = list(torch._foreach_mul(gradients, clip_factor(norm, clip_norm)))
        self.optimizer.update(self.own.values, gradients, step)
        if self.buffers:
            self.memory.store(self.buffers, values[end : end + len(self.buffers)])
        return values[-1] if len(values) > end + len(self.buffers) else ()

    def _evaluate(self, batch: Any, key: Key) -> list[Tensor]:
        """Return the loss, the gradients, the updated buffers and the values to collect, if any."""
        with torch.enable_grad():
            leaves = merge(self.own.leaves, self.buffers, self.phase.buffers)
            loss, buffers, outputs = self.phase.evaluate(leaves, self.memory.context, batch, key)
            gradients = self.own.gradients(loss)
        values = [outputs] if isinstance(outputs, Tensor) else []
        return [loss.detach(), *gradients, *self.memory.apart([*buffers, *values])]


class CustomSteps:
    """Steps by a rule of the algorithm's own."""

    def __init__(self, phase: Phase, memory: StepBuffers) -> None:
        self.phase, self.memory = phase, memory
        self.loss_sum = torch.zeros(())

    def take(self, step: int, batch: Any, key: Key) -> Tensor | tuple[()]:
        """Take one step; return the values to collect."""
        values = self.memory.run(self._advance, batch, key)
        end = len(self.memory.params)
        self.memory.store(self.memory.params, values[:end])
        return values[end] if len(values) > end else ()

    def _advance(self, batch: Any, key: Key) -> list[Tensor]:
        """Return the new parameters, and the values to collect, if any."""
        with torch.no_grad():
            params, outputs = self.phase.advance(self.memory.params, self.memory.context, batch, key)
        return self.memory.apart([*params, outputs] if isinstance(outputs, Tensor) else params)


def train_one(
    phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor], data: ExampleSet, key: Key, plan: Plan
) -> list[Tensor]:
    """Train one client.

    Returns the parameter leaves, the number of steps, the mean loss over the steps, and with ``collect`` the
    collected values, labels and weights.
    """
    per_step, collect = phase.amount.per_step, phase.collect
    count = len(plan.batches) // per_step
    numbers = torch.arange(max(count, 1)).unbind()
    source, kept = Batches(data, plan), Collected()
    with memory_for(phase, params, context) as memory:
        taker = (CustomSteps if phase.step is not None else GradientSteps)(phase, memory)
        for step in range(count):
            first = step * per_step
            batch = source[step] if per_step == 1 else tuple(source[first + number] for number in range(per_step))
            outputs = taker.take(step, batch, key.at(numbers[step]))
            if collect == "all" or (collect == "last" and first >= plan.last_epoch):
                kept.add(outputs, (batch,) if isinstance(batch, Batch) else batch)
        result = [*memory.result(), torch.tensor(count), taker.loss_sum / max(count, 1)]
    if collect != "none":
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
        outputs = collected(evaluate(params, context, batch, key)[-1])
    return outputs[:0], blank.y[:0], blank.weight[:0]


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
