"""The building blocks of a client's program: ``train`` and ``forward``.

Each block has an implementation for one client (``single``) and one for a stack of clients (``stacked``). Under
``torch.func.vmap`` PyTorch hands the block the stacked tensors, so an algorithm still reads as one client's
program. Losses and steps are module-level functions; every tensor they use comes in through ``params``,
``context``, ``batch`` or ``key``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import Key, join_key
from fedtailor.core.task import Batch, LossOutput, Params, Task, Training
from fedtailor.training.augment import moving
from fedtailor.training.batches import Amount, Plan, plan_batches
from fedtailor.training.one_client import chunk_size, forward_one, train_one
from fedtailor.training.phase import Phase, StepOutput, refuse_captured_tensors, structure
from fedtailor.training.stacked import Stacked, StackedExamples, StackedKey, forward_stack, train_stack

_NO_CONTEXT: Mapping[str, Tensor] = MappingProxyType({})
"""A loss receives it as ``{}``, so that ``{**params, **context}`` always works."""


class Trained(NamedTuple):
    """The result of a training phase."""

    params: tree.Tree
    steps: Tensor  # (), steps taken
    loss: Tensor  # (), mean over the steps; 0 for a custom step
    outputs: Tensor | tuple[()] = ()  # (rows, ...), what the loss returned as outputs
    labels: Tensor | tuple[()] = ()  # (rows,)
    weight: Tensor | tuple[()] = ()  # (rows,), 0 for padding

    def sound(self) -> Tensor:
        """Return whether all parameters are finite, ()."""
        finite = [torch.isfinite(leaf).all() for leaf in tree.leaves(self.params)]
        return torch.stack(finite).all() if finite else torch.ones((), dtype=torch.bool)

    def collected_examples(self) -> ExampleSet:
        """Return what was collected as a table of examples.

        Raises:
            TypeError: the phase collected nothing.
        """
        if isinstance(self.outputs, tuple) or isinstance(self.labels, tuple) or isinstance(self.weight, tuple):
            raise TypeError("nothing was collected: call train with collect='all' or 'last'")
        return ExampleSet(self.outputs, self.labels, torch.arange(self.labels.shape[0]), self.weight)


def train(
    task: Task,
    loss: Callable[..., LossOutput] | None,
    params: tree.Tree,
    *,
    data: ExampleSet,
    key: Key,
    training: Training | None = None,
    context: tree.Tree = _NO_CONTEXT,
    epochs: int | Tensor | None = None,
    steps: int | Tensor | None = None,
    collect: Literal["none", "all", "last"] = "none",
    step: Callable[..., StepOutput] | None = None,
    batches_per_step: int = 1,
) -> Trained:
    """Train ``params`` by mini-batches on a client's examples; everything else stays frozen.

    Args:
        task: passed on to ``loss``.
        loss: ``loss(task, params, context, batch, key) -> LossOutput``; None with a custom step. Model buffers
            among ``params`` are replaced by what it returns in ``buffers`` (by path), never trained.
        params: tree of tensors to train.
        context: tree of tensors that the loss uses and that stay as they are; by default ``{}``.
        data: the examples; weight 0 leaves one out.
        key: decides the order of the examples, and is given to the loss with the number of the step.
        training: optimizer, learning rate, batch size and so on, in place of those of ``task``.
        epochs: in place of the epochs or steps of ``training``; a 0-d tensor may differ by client.
        steps: the same, as a number of steps.
        collect: keep ``outputs`` of every batch of ``all`` epochs or the ``last``, with labels and weights.
        step: ``step(task, params, context, batch, key) -> StepOutput`` in place of loss and optimizer.
        batches_per_step: with more than one, loss and step receive a tuple of batches, which wrap around.

    Raises:
        TypeError: ``loss`` or ``step`` holds a tensor, or returns something else than it should.
    """
    if (loss is None) == (step is None):
        raise TypeError("train needs a loss or a step, and not both")
    training = training or task.training
    refuse_captured_tensors(loss or step)  # type: ignore[arg-type]  # one of them is there
    if epochs is None and steps is None:
        epochs, steps = (training.epochs, None) if training.steps == 0 else (None, training.steps)
    amount = Amount(0, 0, training.batch_size, training.drop_last, batches_per_step)
    phase = Phase(task, loss, step, training, amount, collect, key.purpose, structure(params), structure(context))
    limits = [torch.as_tensor(0 if limit is None else limit) for limit in (epochs, steps)]
    inputs = [*tree.leaves(params), *tree.leaves(context), *data, *key[:4], *limits]
    outputs = _Train.apply(phase, *inputs)  # type: ignore[no-untyped-call]
    count = len(tree.leaves(params))
    return Trained(tree.rebuild(params, iter(outputs[:count])), *outputs[count:])


def _divide(phase: Phase, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Split the inputs of the block into parameters, context, and the others."""
    first = len(tree.leaves(phase.params))
    second = first + len(tree.leaves(phase.context))
    return values[:first], values[first:second], values[second:]


def _plan(phase: Phase, data: ExampleSet, key: Key, epochs: Tensor, steps: Tensor) -> Plan:
    """Plan one client's batches."""
    amount = phase.amount._replace(epochs=int(epochs), steps=int(steps))
    return plan_batches(data.weight, rng.plain(key.fold("order")), amount, moving(phase.training, data.x, key))


class _Train(torch.autograd.Function):
    """``train`` as a function that PyTorch hands stacked tensors under ``vmap``."""

    @staticmethod
    def forward(phase: Phase, *inputs: Tensor) -> tuple[Tensor, ...]:
        params, context, rest = _divide(phase, inputs)
        data, key, limits = ExampleSet(*rest[:5]), join_key(rest[5:9], phase.purpose), rest[9:]
        return tuple(train_one(phase, params, context, data, key, _plan(phase, data, key, *limits)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], phase: Phase, *inputs: Tensor) -> tuple[Any, Any]:
        lanes = info.batch_size
        stacked = tuple(Stacked.wrap(t, dim) for t, dim in zip(inputs, in_dims[1:], strict=True))
        params, context, rest = _divide(phase, stacked)
        data, key, limits = StackedExamples(*rest[:5]), StackedKey(rest[5:9], phase.purpose), rest[9:]
        plans = [
            _plan(phase, data.lane(lane), key.lane(lane), *(limit.lane(lane) for limit in limits))
            for lane in range(lanes)
        ]
        result = tuple(train_stack(phase, lanes, params, context, data, key, plans))
        return result, (0,) * len(result)


def forward(
    task: Task,
    function: Callable[..., Tensor],
    params: tree.Tree,
    data: ExampleSet,
    *,
    key: Key,
    context: tree.Tree = _NO_CONTEXT,
) -> Tensor:
    """Run ``function(task, params, context, batch, key)`` over a client's examples, without gradients.

    The function returns one row per example of the batch. Rows come back in the order of the examples; those of
    padding hold arbitrary finite values.
    """
    refuse_captured_tensors(function)
    pack = _Pass(task, function, structure(params), structure(context), key.purpose)
    inputs = [*tree.leaves(params), *tree.leaves(context), *key[:4]]
    result: Tensor = _Forward.apply(pack, *data, *inputs)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True)
class _Pass:
    """The part of a call to ``forward`` that is the same for every client."""

    task: Task
    function: Callable[..., Tensor]
    params: tree.Tree
    context: tree.Tree
    purpose: int

    def __call__(self, *arguments: Any) -> Tensor:
        """Run the function on one batch, which comes last."""
        *flat, batch = arguments
        leaves = iter(flat)
        params, context = tree.rebuild(self.params, leaves), tree.rebuild(self.context, leaves)
        return self.function(self.task, params, context, batch, join_key(list(leaves), self.purpose))


class _Forward(torch.autograd.Function):
    """``forward`` as a function that PyTorch hands stacked tensors under ``vmap``."""

    @staticmethod
    def forward(pack: _Pass, *inputs: Tensor) -> Tensor:
        data = ExampleSet(*inputs[:5])
        return forward_one(pack, data, chunk_size(data.x.shape[1:]), inputs[5:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], pack: _Pass, *inputs: Tensor) -> tuple[Tensor, int]:
        stacked = [Stacked.wrap(t, dim) for t, dim in zip(inputs, in_dims[1:], strict=True)]
        arguments, dims = [item.tensor for item in stacked[5:]], [item.dim for item in stacked[5:]]
        return forward_stack(pack, info.batch_size, StackedExamples(*stacked[:5]), arguments, dims), 0


def cached_features(task: Task, params: Params, data: ExampleSet, *, key: Key) -> ExampleSet:
    """Return the examples as a table of their features, for phases that train only a head."""
    z = forward(task, _features, params, data, key=key)
    return ExampleSet(z, data.labels(), torch.arange(data.rows.shape[0]), data.weight)


def _features(task: Task, params: Params, context: tree.Tree, batch: Batch, key: Key) -> Tensor:
    return task.model.features(params, batch.x, weight=batch.weight, key=key, training=False)[0]
