"""The building blocks of a client's program: ``train`` and ``forward``.

Each block has an implementation for one client (``one_client``) and one for a stack of clients
(``stacked``). Under ``torch.func.vmap`` PyTorch hands the block the stacked tensors, so an
algorithm still reads as the program of one client. Losses and steps are module-level functions;
every tensor they use comes in through ``params``, ``context``, ``batch`` or ``key``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.devices import HOST, placed, to_host
from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import Key, join_key
from fedtailor.core.task import Batch, LossOutput, Params, Task, Training
from fedtailor.core.torch_private import is_transformed
from fedtailor.training.batches import Amount
from fedtailor.training.one_client import PLAN, forward_one, plan, train_one
from fedtailor.training.phase import Phase, StepOutput, refuse_captured_tensors, structure
from fedtailor.training.private_steps import train_private

NO_CONTEXT: Mapping[str, Tensor] = MappingProxyType({})
"""A loss receives it as ``{}``, so that ``{**params, **context}`` always works."""


class Trained(NamedTuple):
    """The result of a training phase."""

    params: tree.Tree
    steps: Tensor  # (), steps taken
    loss: Tensor  # (), mean over the steps; 0 for a custom step
    outputs: Tensor | tuple[()] = ()  # (rows, ...), what the loss returned as outputs
    labels: Tensor | tuple[()] = ()  # (rows,)
    weight: Tensor | tuple[()] = ()  # (rows,), 0 for padding

    @property
    def metrics(self) -> dict[str, Tensor]:
        """Steps and mean loss, as a client's round reports them."""
        return {"steps": self.steps, "loss": self.loss}

    def sound(self) -> Tensor:
        """Return whether all parameters are finite, ()."""
        finite = [torch.isfinite(leaf).all() for leaf in tree.leaves(self.params)]
        return torch.stack(finite).all() if finite else torch.ones((), dtype=torch.bool)

    def collected_examples(self) -> ExampleSet:
        """Return what was collected as a table of examples.

        Raises:
            TypeError: the phase collected nothing.
        """
        outputs = self.outputs
        labels = self.labels
        weight = self.weight
        if isinstance(outputs, tuple) or isinstance(labels, tuple) or isinstance(weight, tuple):
            raise TypeError("nothing was collected: call train with collect='all' or 'last'")

        positions = torch.arange(labels.shape[0])
        return ExampleSet(outputs, labels, positions, weight)


def train(
    task: Task,
    loss: Callable[..., LossOutput] | None,
    params: tree.Tree,
    *,
    data: ExampleSet,
    key: Key,
    training: Training | None = None,
    context: tree.Tree = NO_CONTEXT,
    epochs: int | Tensor | None = None,
    steps: int | Tensor | None = None,
    collect: Literal["none", "all", "last"] = "none",
    step: Callable[..., StepOutput] | None = None,
    batches_per_step: int = 1,
) -> Trained:
    """Train ``params`` on mini-batches of a client's examples; everything else stays frozen.

    Args:
        task: passed on to ``loss``.
        loss: ``loss(task, params, context, batch, key) -> LossOutput``; None with a custom step.
            Model buffers among ``params`` are replaced by what it returns in ``buffers`` (by path),
            never trained.
        params: tree of tensors to train.
        context: tree of tensors that the loss uses and that stay as they are; by default ``{}``.
        data: the examples; weight 0 leaves one out.
        key: decides the order of the examples; the loss receives it with the number of the step.
        training: optimizer, learning rate, batch size and so on, in place of those of ``task``.
        epochs: replaces the epochs or steps of ``training``; a 0-d tensor may differ by client.
        steps: replaces them too, by a number of steps.
        collect: keep the ``outputs`` of every batch of ``all`` epochs or of the ``last``, with
            labels and weights.
        step: ``step(task, params, context, batch, key) -> StepOutput``, used instead of loss and
            optimizer.
        batches_per_step: if more than one, loss and step receive a tuple of batches, which wrap
            around.

    Raises:
        TypeError: ``loss`` or ``step`` holds a tensor, or returns a value of the wrong type.
    """
    if (loss is None) == (step is None):
        raise TypeError("train needs a loss or a step, and not both")

    training = training or task.training
    refuse_captured_tensors(loss or step)  # type: ignore[arg-type]  # one of them is not None

    # Steps replace epochs where they are positive.
    if epochs is None and steps is None:
        epochs = training.epochs
        steps = training.steps

    # All that is the same for every client; epochs and steps may differ and follow as tensors.
    phase = Phase(
        task=task,
        loss=loss,
        step=step,
        training=training,
        amount=Amount(0, 0, batches_per_step),
        collect=collect,
        purpose=key.purpose,
        params=structure(params),
        context=structure(context),
    )

    leaves = tree.leaves(params)
    context_leaves = tree.leaves(context)
    limits = [_as_tensor(epochs), _as_tensor(steps)]
    outputs: Sequence[Tensor]
    if task.example_bound and is_transformed():
        raise TypeError("bounded examples need clients one by one: not the engine batched")
    if is_transformed():
        # A flat list of tensors, because vmap stacks nothing else.
        inputs = [*leaves, *context_leaves, *data, *key[:4], *limits]
        outputs = _Train.apply(phase, *inputs)  # type: ignore[no-untyped-call]
    else:
        run = train_private if task.example_bound else train_one
        with placed(data.weight.device):
            outputs = run(phase, leaves, context_leaves, data, key, limits)

    # The new parameters come first, in the order of their leaves.
    new_params = tree.rebuild(params, iter(outputs[: len(leaves)]))
    return Trained(new_params, *outputs[len(leaves) :])


def _as_tensor(limit: int | Tensor | None) -> Tensor:
    """Return a number of epochs or steps as a tensor. Batches are planned on the host."""
    if isinstance(limit, Tensor):
        return limit
    return torch.tensor(limit or 0, device=HOST)


def _sorted(phase: Phase, values: Sequence[Any]) -> list[list[Any]]:
    """Return the inputs of the block by purpose.

    They are the leaves of parameters and context, the columns of the examples, the words of the key
    (seed, round, client and step), and the limits (epochs and steps).
    """
    num_leaves = [len(tree.leaves(phase.params)), len(tree.leaves(phase.context))]
    remaining = iter(values)
    return [
        list(islice(remaining, count)) for count in (*num_leaves, len(ExampleSet._fields), 4, 2)
    ]


class _Train(torch.autograd.Function):
    """``train`` as a function that PyTorch hands stacked tensors under ``vmap``."""

    @staticmethod
    def forward(phase: Phase, *inputs: Tensor) -> tuple[Tensor, ...]:
        params, context, columns, words, limits = _sorted(phase, inputs)
        data = ExampleSet(*columns)
        with placed(data.weight.device):
            key = join_key(words, phase.purpose)
            return tuple(train_one(phase, params, context, data, key, limits))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], phase: Phase, *inputs: Tensor) -> tuple[Any, Any]:
        # Only engines that stack clients come here.
        from fedtailor.training.stacked import Stacked, StackedExamples, train_stack

        # The first argument is the phase, which has no client axis.
        stacked = [Stacked.wrap(t, dim) for t, dim in zip(inputs, in_dims[1:], strict=True)]
        params, context, columns, words, limits = _sorted(phase, stacked)
        data = StackedExamples(*columns)

        # Every client has batches of its own, planned as if it were alone.
        weights, *limits = to_host((data.weight, *limits), PLAN)
        plans = []
        for client_index in range(info.batch_size):
            weight = weights.of_client(client_index)
            x = data.x.of_client(client_index)
            key = join_key([word.of_client(client_index) for word in words], phase.purpose)
            client_limits = [limit.of_client(client_index) for limit in limits]
            plans.append(plan(phase, weight, x, key, client_limits))

        # PyTorch has left the device context of the program when it comes here.
        with placed(data.weight.tensor.device):
            result = train_stack(phase, params, context, data, words, plans)

        client_axes = (0,) * len(result)
        return tuple(result), client_axes


def forward(
    task: Task,
    function: Callable[..., Tensor],
    params: tree.Tree,
    data: ExampleSet,
    *,
    key: Key,
    context: tree.Tree = NO_CONTEXT,
) -> Tensor:
    """Run a function over a client's examples, without gradients.

    ``function(task, params, context, batch, key)`` returns one row per example of the batch. Rows
    come back in the order of the examples; those of padding hold arbitrary finite values.
    """
    refuse_captured_tensors(function)
    forward_pass = _Pass(task, function, structure(params), structure(context), key.purpose)
    arguments = [*tree.leaves(params), *tree.leaves(context), *key[:4]]
    if not is_transformed():
        with placed(data.weight.device):
            return forward_one(forward_pass, data, arguments)

    # The examples come first here; what follows are the arguments of the pass.
    inputs = [*data, *arguments]
    result: Tensor = _Forward.apply(forward_pass, *inputs)  # type: ignore[no-untyped-call]
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
        """Run the function on one batch: the last argument, after the leaves of the trees."""
        *flat, batch = arguments
        leaves = iter(flat)
        params = tree.rebuild(self.params, leaves)
        context = tree.rebuild(self.context, leaves)

        # What the trees have left: seed, round, client and step.
        key = join_key(list(leaves), self.purpose)
        return self.function(self.task, params, context, batch, key)


class _Forward(torch.autograd.Function):
    """``forward`` as a function that PyTorch hands stacked tensors under ``vmap``."""

    @staticmethod
    def forward(forward_pass: _Pass, *inputs: Tensor) -> Tensor:
        num_columns = len(ExampleSet._fields)
        data = ExampleSet(*inputs[:num_columns])
        with placed(data.weight.device):
            return forward_one(forward_pass, data, inputs[num_columns:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], forward_pass: _Pass, *inputs: Tensor
    ) -> tuple[Tensor, int]:
        from fedtailor.training.stacked import Stacked, StackedExamples, forward_stack

        stacked = [Stacked.wrap(t, dim) for t, dim in zip(inputs, in_dims[1:], strict=True)]
        num_columns = len(StackedExamples._fields)
        data = StackedExamples(*stacked[:num_columns])
        arguments = stacked[num_columns:]
        with placed(data.weight.tensor.device):
            outputs = forward_stack(forward_pass, info.batch_size, data, arguments)

        client_axis = 0
        return outputs, client_axis


def cached_features(task: Task, params: Params, data: ExampleSet, *, key: Key) -> ExampleSet:
    """Return the examples as a table of their features, for phases that train only a head."""
    z = forward(task, _features, params, data, key=key)
    positions = torch.arange(data.positions.shape[0])
    return ExampleSet(z, data.labels(), positions, data.weight, class_weight=data.class_weight)


def _features(task: Task, params: Params, context: tree.Tree, batch: Batch, key: Key) -> Tensor:
    return task.features(params, batch, key, training=False)[0]
