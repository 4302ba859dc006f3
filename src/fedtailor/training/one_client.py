"""``train`` and ``forward`` for one client: the tight loop.

An optimizer step is one pass over all parameters, their gradients and their momentum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.devices import HOST, to_host
from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import Key
from fedtailor.core.task import Batch
from fedtailor.core.torch_private import foreach_mul, memory_of
from fedtailor.training.batches import (
    Batches,
    Plan,
    class_weight_of,
    gather,
    moving,
    plan_batches,
    to_values,
)
from fedtailor.training.optimizer import Optimizer, clip_factor
from fedtailor.training.phase import Phase, collected

StepFunction = Callable[[Any, Key], list[Tensor]]
"""``function(batch or tuple of batches, key)``: the tensors that a step gives; it reads the buffers
of its phase."""


class StepBuffers:
    """The tensors of a phase: a copy of its parameters, trained in place, and its context."""

    def __init__(self, params: Sequence[Tensor], context: Sequence[Tensor]) -> None:
        self.params = [_copy_to_train(leaf) for leaf in params]
        self.context = [_with_standard_layout(leaf) for leaf in context]
        self._param_memory = {memory_of(leaf) for leaf in self.params}

    def prepare(self, function: StepFunction) -> StepFunction:
        """Return what to call in every step; the tensors of a call are valid until the next one."""
        return function

    def separate(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return values detached, and copied where they share memory with the parameters."""
        return separate_from(self._param_memory, values)

    def result(self) -> list[Tensor]:
        """Return the trained parameters; no later phase writes to them."""
        return self.params


def _copy_to_train(leaf: Tensor) -> Tensor:
    """Return a copy of a parameter: channels last for convolutions, which are fastest so."""
    layout = torch.channels_last if leaf.dim() == 4 else torch.contiguous_format
    return leaf.detach().clone(memory_format=layout)


def _with_standard_layout(leaf: Tensor) -> Tensor:
    """Return a tensor that lies in memory as a copy would: bits of sums depend on the layout."""
    dense = leaf.is_contiguous()
    if leaf.dim() == 4:
        dense = dense or leaf.is_contiguous(memory_format=torch.channels_last)

    aligned = leaf.data_ptr() % 64 == 0
    return leaf if dense and aligned else leaf.detach().clone()


def separate_from(memory: Container[int], values: Sequence[Tensor]) -> list[Tensor]:
    """Return values detached, and copied where they lie in ``memory``; see :func:`memory_of`."""
    results = []
    for value in values:
        value = value.detach()
        results.append(value.clone() if memory_of(value) in memory else value)
    return results


def write(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into tensors, with which they share no memory."""
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


class StepRunner:
    """Runs the steps of phases: here, every step as it is written."""

    @contextmanager
    def lend(
        self, phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor]
    ) -> Iterator[StepBuffers]:
        """Lend a phase its buffers, which hold these parameters and this context."""
        yield StepBuffers(params, context)


PLAIN = StepRunner()
_current: ContextVar[StepRunner] = ContextVar("step runner", default=PLAIN)


def current_runner() -> StepRunner:
    """Return the runner of the program that this thread runs."""
    return _current.get()


@contextmanager
def steps_run_by(runner: StepRunner) -> Iterator[None]:
    """Run the steps of all phases inside by a runner, in this thread."""
    token = _current.set(runner)
    try:
        yield
    finally:
        _current.reset(token)


class GradientSteps:
    """Steps of the optimizer down the gradient of a loss."""

    def __init__(self, phase: Phase, buffers: StepBuffers) -> None:
        self.phase = phase
        self.buffers = buffers
        self.trained, self.model_buffers = split_leaves(buffers.params, phase.buffers)
        self.differentiated = [leaf.detach().requires_grad_() for leaf in self.trained]
        self.optimizer = Optimizer(phase.training, self.trained)
        self.loss_sum = torch.zeros((), dtype=self.trained[0].dtype if self.trained else None)

    def take(self, evaluate: StepFunction, step: int, batch: Any, key: Key) -> Tensor | tuple[()]:
        """Take one step; return the values to collect."""
        # A step gives its loss, the gradients, the new buffers and the values, in this order.
        loss, *rest = evaluate(batch, key)
        first_buffer = len(self.trained)
        first_output = first_buffer + len(self.model_buffers)
        gradients = rest[:first_buffer]
        outputs = rest[first_output:]

        clip_norm = self.phase.training.clip_norm
        if clip_norm and gradients:
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            gradients = list(foreach_mul(gradients, clip_factor(norm, clip_norm)))

        self.loss_sum += loss
        self.optimizer.update(self.trained, gradients, step)
        write(self.model_buffers, rest[first_buffer:first_output])

        return outputs[0] if outputs else ()

    def evaluate(self, batch: Any, key: Key) -> list[Tensor]:
        """Return the loss, the gradients, the updated buffers and the values to collect, if any.

        A gradient has the memory layout of its parameter; it is 0 where the loss does not depend on
        the parameter.
        """
        with torch.enable_grad():
            params = merge_leaves(self.differentiated, self.model_buffers, self.phase.buffers)
            loss, buffers, outputs = self.phase.evaluate(params, self.buffers.context, batch, key)
            if loss.requires_grad and self.trained:
                gradients = torch.autograd.grad(
                    loss, self.differentiated, allow_unused=True, materialize_grads=True
                )
            else:
                gradients = tuple(torch.zeros_like(leaf) for leaf in self.trained)

            # The optimizer goes over parameters and gradients in one pass, if they are laid out
            # alike.
            aligned = []
            for gradient, leaf in zip(gradients, self.trained, strict=True):
                if gradient.stride() != leaf.stride():
                    gradient = torch.empty_like(leaf).copy_(gradient)
                aligned.append(gradient)

        values = [*buffers, outputs] if isinstance(outputs, Tensor) else buffers
        return [loss.detach(), *aligned, *self.buffers.separate(values)]


class CustomSteps:
    """Steps by a rule that the algorithm gives."""

    def __init__(self, phase: Phase, buffers: StepBuffers) -> None:
        self.phase = phase
        self.buffers = buffers
        self.loss_sum = torch.zeros(())

    def take(self, evaluate: StepFunction, step: int, batch: Any, key: Key) -> Tensor | tuple[()]:
        """Take one step; return the values to collect."""
        values = evaluate(batch, key)
        count = len(self.buffers.params)
        write(self.buffers.params, values[:count])
        outputs = values[count:]
        return outputs[0] if outputs else ()

    def evaluate(self, batch: Any, key: Key) -> list[Tensor]:
        """Return the new parameters, and the values to collect, if any."""
        with torch.no_grad():
            params, outputs = self.phase.advance(
                self.buffers.params, self.buffers.context, batch, key
            )
        values = [*params, outputs] if isinstance(outputs, Tensor) else params
        return self.buffers.separate(values)


class Collected:
    """Values collected from the batches of a phase, with their labels and weights."""

    def __init__(self) -> None:
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, outputs: Tensor | tuple[()], batches: Sequence[Batch]) -> None:
        """Keep the values of one step."""
        values = collected(outputs).clone()
        labels = torch.cat([batch.y for batch in batches])
        weight = torch.cat([batch.weight for batch in batches])
        self.steps.append((values, labels, weight))

    def tensors(self) -> list[Tensor]:
        """Return values, labels and weights, concatenated over the steps."""
        return [torch.cat(column) for column in zip(*self.steps, strict=True)]


PLAN = "the examples that count, from which batches are planned"


def plan(phase: Phase, weight: Tensor, x: Tensor, key: Key, limits: Sequence[Tensor]) -> Plan:
    """Plan one client's batches on the host, where all tensors but the examples ``x`` lie.

    ``limits`` are epochs and steps.
    """
    epochs, steps = limits
    amount = phase.amount._replace(epochs=int(epochs), steps=int(steps))
    order = rng.plain(key.fold("order"))
    moves = moving(phase.training, x, key)
    return plan_batches(weight, order, phase.training, amount, moves)


@torch.no_grad()
def train_one(
    phase: Phase,
    params: Sequence[Tensor],
    context: Sequence[Tensor],
    data: ExampleSet,
    key: Key,
    limits: Sequence[Tensor],
) -> list[Tensor]:
    """Train one client, for at most these epochs or steps.

    Returns the parameter leaves, the number of steps, the mean loss over the steps, and with
    ``collect`` the collected values, labels and weights.
    """
    # Only the weights of the examples come to the host, and not the examples.
    weight, *limits = to_host((data.weight, *limits), PLAN)
    planned = plan(phase, weight, data.x, key, limits)
    per_step = phase.amount.per_step
    count = len(planned.batches) // per_step
    numbers = torch.arange(max(count, 1), device=HOST).unbind()
    all_batches = Batches(data, planned)
    values = Collected()

    with current_runner().lend(phase, params, context) as buffers:
        steps: GradientSteps | CustomSteps
        if phase.step is None:
            steps = GradientSteps(phase, buffers)
        else:
            steps = CustomSteps(phase, buffers)

        # It stays here and not in the steps, which it refers to: a cycle would keep the tensors of
        # finished phases alive.
        evaluate = buffers.prepare(steps.evaluate)

        for step in range(count):
            first = step * per_step
            batches = tuple(all_batches[first + number] for number in range(per_step))
            batch = batches[0] if per_step == 1 else batches
            outputs = steps.take(evaluate, step, batch, key.at(numbers[step]))

            in_last_epoch = first >= planned.last_epoch
            if phase.collect == "all" or (phase.collect == "last" and in_last_epoch):
                values.add(outputs, batches)

        result = [*buffers.result(), torch.tensor(count), steps.loss_sum / max(count, 1)]

    if phase.collect == "none":
        return result
    if not values.steps:
        values.steps.append(nothing_collected(phase, params, context, data, key))

    return [*result, *values.tensors()]


def nothing_collected(
    phase: Phase, params: Sequence[Tensor], context: Sequence[Tensor], data: ExampleSet, key: Key
) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty collected values of the right shape, for a client that takes no step."""
    blank = blank_batch(data)
    batch = blank if phase.amount.per_step == 1 else (blank,) * phase.amount.per_step
    evaluate = phase.advance if phase.step is not None else phase.evaluate
    with torch.no_grad():
        outputs = collected(evaluate(params, context, batch, key)[-1])
    return outputs[:0], blank.y[:0], blank.weight[:0]


def blank_batch(data: ExampleSet) -> Batch:
    """Return a batch of one row of zeros, of weight 0, for a client without examples."""
    stored = data.x.new_zeros((1, *data.x.shape[1:]))
    weight = data.weight.new_zeros(1)
    values = to_values(stored, data.scale, weight.dtype)
    return Batch(values, data.y.new_zeros(1), weight, class_weight_of(data.class_weight))


def split_leaves(
    leaves: Sequence[Tensor], is_buffer: Sequence[bool]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the leaves that are trained, and the model's buffers."""
    trained = []
    buffers = []
    for leaf, belongs_to_model in zip(leaves, is_buffer, strict=True):
        if belongs_to_model:
            buffers.append(leaf)
        else:
            trained.append(leaf)
    return trained, buffers


def merge_leaves(
    trained: Sequence[Tensor], buffers: Sequence[Tensor], is_buffer: Sequence[bool]
) -> list[Tensor]:
    """Join trained leaves and buffers in their original order: undo :func:`split_leaves`."""
    if not buffers:
        return list(trained)

    next_trained = iter(trained)
    next_buffer = iter(buffers)
    leaves = []
    for buffer in is_buffer:
        leaves.append(next(next_buffer if buffer else next_trained))
    return leaves


def forward_one(
    function: Callable[..., Tensor], data: ExampleSet, arguments: Sequence[Any]
) -> Tensor:
    """Run ``function(*arguments, batch)`` over all examples in chunks; rows in their order."""
    # Not every network takes a batch without rows.
    count = len(data.positions)
    if count == 0:
        with torch.no_grad():
            return function(*arguments, blank_batch(data))[:0]

    chunk = chunk_size(data.x.shape[1:])
    outputs = []
    with torch.no_grad():
        for start in range(0, count, chunk):
            rows = torch.arange(start, min(start + chunk, count))
            outputs.append(function(*arguments, gather(data, rows)))
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def chunk_size(example_shape: Sequence[int]) -> int:
    """Return how many examples, 50 to 1000, a forward pass takes: about 2 million numbers."""
    numbers = max(math.prod(example_shape), 1)
    return max(50, min(1000, 2_000_000 // numbers))
