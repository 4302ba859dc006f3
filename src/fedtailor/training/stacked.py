"""``train`` and ``forward`` for a stack of clients: one vectorized step for all of them.

Clients are sorted by their number of steps, so that those still training are a prefix of the stack,
which shrinks; a finished client's parameters and momentum are not touched again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedtailor.core import tree
from fedtailor.core.devices import HOST, to_device
from fedtailor.core.federation import ExampleSet
from fedtailor.core.message import spread
from fedtailor.core.rng import Key, join_key
from fedtailor.core.task import Batch
from fedtailor.core.torch_private import memory_of
from fedtailor.training.batches import Plan, class_weight_of, take, to_values
from fedtailor.training.one_client import (
    blank_batch,
    chunk_size,
    merge_leaves,
    nothing_collected,
    separate_from,
    split_leaves,
    write,
)
from fedtailor.training.optimizer import Optimizer, clip_factor
from fedtailor.training.phase import Phase, collected


class Stacked(NamedTuple):
    """A tensor with a client axis in front (``dim`` 0), or one for all clients (``dim`` None)."""

    tensor: Tensor
    dim: int | None

    @classmethod
    def wrap(cls, tensor: Tensor, dim: int | None) -> Stacked:
        """Move the client axis to the front."""
        return cls(tensor, None) if dim is None else cls(tensor.movedim(dim, 0), 0)

    def select(self, clients: Tensor) -> Stacked:
        """Return the rows of the clients at these indices of the stack."""
        return self if self.dim is None else Stacked(self.tensor[clients], 0)

    def first(self, count: int) -> Stacked:
        """Return the rows of the first ``count`` clients."""
        return self if self.dim is None else Stacked(self.tensor[:count], 0)

    def copy(self, clients: Tensor) -> Tensor:
        """Return a copy for the clients at these indices of the stack, with a client axis."""
        if self.dim == 0:
            return self.tensor[clients]
        return self.tensor.expand(len(clients), *self.tensor.shape).clone()

    def of_client(self, client_index: int) -> Tensor:
        """Return the tensor of one client."""
        return self.tensor if self.dim is None else self.tensor[client_index]


class StackedExamples(NamedTuple):
    """The example sets of a stack of clients."""

    x: Stacked
    y: Stacked
    positions: Stacked
    weight: Stacked
    scale: Stacked
    class_weight: Stacked

    def select(self, clients: Tensor) -> StackedExamples:
        """Return the example sets of the clients at these indices of the stack."""
        return StackedExamples(*(part.select(clients) for part in self))

    def of_client(self, client_index: int) -> ExampleSet:
        """Return the example set of one client."""
        return ExampleSet(*(part.of_client(client_index) for part in self))

    def gather(self, rows: Tensor, present: Tensor, moves: Tensor | None = None) -> Batch:
        """Return batches (clients, b, ...) of rows (clients, b); ``present`` 0 is padding."""
        # Weights belong to a client's rows; clients may share x and y.
        positions = _pick(self.positions, rows)
        weight = _pick(self.weight, rows) * present
        labels = _pick(self.y, positions)
        stored = _pick(self.x, positions, moves)
        values = to_values(stored, self.scale.tensor, weight.dtype)
        class_weight = class_weight_of(self.class_weight.tensor)
        if isinstance(class_weight, Tensor) and self.class_weight.dim is None:
            class_weight = class_weight.expand(len(weight), -1)

        return Batch(values, labels, weight, class_weight)


def _pick(column: Stacked, indices: Tensor, moves: Tensor | None = None) -> Tensor:
    """Return what stands at the indices (clients, b) of a column."""
    if column.dim is None:
        return take(column.tensor, indices, moves)

    clients = torch.arange(len(indices))[:, None]
    if column.tensor.dim() < 5:
        return column.tensor[clients, indices]

    # Images (clients, n, channels, height, width) are gathered from those of all clients together.
    return take(column.tensor.flatten(0, 1), indices + clients * column.tensor.shape[1], moves)


def train_stack(
    phase: Phase,
    params: Sequence[Stacked],
    context: Sequence[Stacked],
    data: StackedExamples,
    words: Sequence[Stacked],
    plans: Sequence[Plan],
) -> list[Tensor]:
    """Train the clients of a stack, one per plan.

    Returns what ``train_one`` returns, with a leading client axis.

    Args:
        phase: what all clients do.
        params: the leaves of the parameters.
        context: the leaves of the context.
        data: the clients' examples.
        words: seed, round, client and step of their keys, on the host.
        plans: of their batches.
    """
    run = _Run(phase, params, context, data, words, plans)
    for step in range(int(run.lengths.max())):
        run.step(step)

    steps = run.lengths.to(data.weight.tensor.device)
    losses = run.loss_sum / torch.clamp(steps, min=1)
    result = [*run.params, steps, losses]
    if phase.collect != "none" and run.kept:
        result += run.collected()
    elif phase.collect != "none":
        blank = nothing_collected(
            phase,
            [leaf.of_client(0) for leaf in params],
            [leaf.of_client(0) for leaf in context],
            data.of_client(0),
            join_key([word.of_client(0) for word in words], phase.purpose),
        )
        result += [tensor.expand(len(plans), *tensor.shape) for tensor in blank]

    # Back in the order of the stack.
    back = torch.argsort(run.order).to(steps.device)
    return [tensor[back] for tensor in result]


class _Run:
    """The state of a stacked phase, clients sorted by their number of steps."""

    def __init__(
        self,
        phase: Phase,
        params: Sequence[Stacked],
        context: Sequence[Stacked],
        data: StackedExamples,
        words: Sequence[Stacked],
        plans: Sequence[Plan],
    ) -> None:
        # The clients with the most steps come first, so that those still training are a prefix.
        steps_of_clients = [len(plan.batches) // phase.amount.per_step for plan in plans]
        lengths = torch.tensor(steps_of_clients, device=HOST)
        self.order = torch.argsort(lengths, descending=True, stable=True)
        self.lengths = lengths[self.order]
        """Steps of every client, the most first; on the host."""

        self.phase = phase
        self.plans = [plans[client_index] for client_index in self.order.tolist()]
        there = self.order.to(data.weight.tensor.device)
        self.context = [leaf.select(there) for leaf in context]
        self.data = data.select(there)
        self.words = [word.select(self.order) for word in words[:3]]
        """Seed, round and client; the step is the same for all clients."""

        # Copies, which the steps overwrite.
        self.params = [leaf.copy(there) for leaf in params]
        self.param_memory = {memory_of(leaf) for leaf in self.params}

        # A custom step returns buffers among its parameters.
        self.is_buffer = phase.buffers if phase.loss is not None else [False] * len(params)
        self.trained, self.model_buffers = split_leaves(self.params, self.is_buffer)
        self.optimizer = Optimizer(phase.training, self.trained)

        self.loss_sum = torch.zeros(len(plans), dtype=self.params[0].dtype if params else None)
        self.kept: list[tuple[Tensor, Tensor, Tensor]] = []
        """Values, labels and weights that each step collected, (clients, batch, ...)."""

    def step(self, step: int) -> None:
        """Take one step of every client that still has one."""
        active = int((self.lengths > step).sum())
        batches = self._batches(step, active)
        outputs = self._advance(step, active, batches)
        if self.phase.collect != "none":
            self._collect(step, active, batches, outputs)

    def _batches(self, step: int, active: int) -> tuple[Batch, ...]:
        """Return the batches of a step, padded to the longest of the active clients."""
        per_step = self.phase.amount.per_step
        data = StackedExamples(*(part.first(active) for part in self.data))
        numbers = range(step * per_step, (step + 1) * per_step)
        return tuple(self._batch(number, active, data) for number in numbers)

    def _batch(self, number: int, active: int, data: StackedExamples) -> Batch:
        """Return batch ``number`` of the active clients, whose examples are ``data``."""
        planned = [plan.batch(number) for plan in self.plans[:active]]

        # Padding repeats the first example, with a weight of 0.
        rows = [rows for rows, _ in planned]
        ones = [torch.ones(len(batch), device=HOST) for batch in rows]
        padded = (pad_sequence(rows, batch_first=True), pad_sequence(ones, batch_first=True))
        batch_rows, present = to_device(padded, data.weight.tensor.device)  # (active, b) each
        present = present.to(data.weight.tensor.dtype)

        # Images are moved in the batches of all clients, or of none.
        all_moves = [moves for _, moves in planned if moves is not None]
        moves = pad_sequence(all_moves, batch_first=True) if all_moves else None
        return data.gather(batch_rows, present, moves)

    def _advance(self, step: int, active: int, batches: tuple[Batch, ...]) -> Tensor | tuple[()]:
        """Run the vectorized step and write its result into the first ``active`` rows.

        Returns the values to collect.
        """
        # A custom step gives new parameters.
        outputs: Tensor | tuple[()]
        if self.phase.step is not None:
            new_leaves, outputs = self._over_clients(self.phase.advance, step, active, batches)
            leaves = [leaf[:active] for leaf in self.params]
            write(leaves, separate_from(self.param_memory, new_leaves))
            return outputs

        # A loss gives gradients for the optimizer.
        function = partial(_gradients, self.phase, self.is_buffer)
        gradients, loss, buffers, outputs = self._over_clients(function, step, active, batches)
        self.loss_sum[:active] += loss
        self._descend(step, active, gradients)
        write([leaf[:active] for leaf in self.model_buffers], buffers)
        return outputs

    def _over_clients(
        self, function: Callable[..., Any], step: int, active: int, batches: tuple[Batch, ...]
    ) -> Any:
        """Run ``function(params, context, batch, key)`` for all active clients at once."""
        leaves = [leaf[:active] for leaf in self.params]
        context = [leaf.first(active) for leaf in self.context]
        words = [word.first(active) for word in self.words]
        step_word = torch.tensor(step, device=HOST)

        def one_client(
            params: list[Tensor], context: list[Tensor], words: list[Tensor], batches: Any
        ) -> Any:
            key = join_key([*words, step_word], self.phase.purpose)
            batch = batches[0] if self.phase.amount.per_step == 1 else batches
            return function(params, context, batch, key)

        in_dims = (0, [leaf.dim for leaf in context], [word.dim for word in words], 0)
        context_tensors = [leaf.tensor for leaf in context]
        word_tensors = [word.tensor for word in words]
        vectorized = torch.func.vmap(one_client, in_dims=in_dims)
        return vectorized(leaves, context_tensors, word_tensors, batches)

    def _descend(self, step: int, active: int, gradients: Sequence[Tensor]) -> None:
        """Take the step of the optimizer."""
        gradients = [gradient.clone() for gradient in gradients]

        # The norm of a client is that of all its gradients together.
        clip_norm = self.phase.training.clip_norm
        if clip_norm and gradients:
            flat = [gradient.reshape(active, -1) for gradient in gradients]
            norms = torch.cat(flat, 1).norm(dim=1)  # (active,)
            factor = clip_factor(norms, clip_norm)
            gradients = [gradient * spread(factor, gradient) for gradient in gradients]

        leaves = [leaf[:active] for leaf in self.trained]
        self.optimizer.update(leaves, gradients, step, active)

    def _collect(
        self, step: int, active: int, batches: Sequence[Batch], outputs: Tensor | tuple[()]
    ) -> None:
        """Keep the values of a step, with their labels and weights."""
        labels = torch.cat([batch.y for batch in batches], 1)  # (active, examples of the step)
        weight = torch.cat([batch.weight for batch in batches], 1)

        # Clients reach their last epoch at different steps, so weights tell what counts.
        if self.phase.collect == "last":
            first_batch = step * self.phase.amount.per_step
            last_epochs = torch.tensor([plan.last_epoch for plan in self.plans[:active]])
            in_last_epoch = last_epochs <= first_batch
            weight = weight * in_last_epoch[:, None]

        columns = (collected(outputs), labels, weight)
        values, labels, weight = map(self._with_finished, columns)
        self.kept.append((values, labels, weight))

    def _with_finished(self, active: Tensor) -> Tensor:
        """Extend the rows of the active clients by zeros for those that have finished."""
        result = active.new_zeros((len(self.plans), *active.shape[1:]))
        result[: len(active)] = active.detach()
        return result

    def collected(self) -> list[Tensor]:
        """Return collected values, labels and weights, (clients, steps x batch, ...) each."""
        return [torch.cat(column, 1) for column in zip(*self.kept, strict=True)]


def _gradients(
    phase: Phase,
    is_buffer: list[bool],
    params: list[Tensor],
    context: list[Tensor],
    batch: Any,
    key: Key,
) -> tuple[list[Tensor], Tensor, list[Tensor], Tensor | tuple[()]]:
    """Return the gradients of the trained leaves, the loss, the new buffers, values to collect."""
    trained, buffers = split_leaves(params, is_buffer)

    def objective(
        leaves: list[Tensor],
    ) -> tuple[Tensor, tuple[Tensor, list[Tensor], Tensor | tuple[()]]]:
        whole = merge_leaves(leaves, buffers, is_buffer)
        loss, updated, outputs = phase.evaluate(whole, context, batch, key)
        return loss, (loss, updated, outputs)

    gradients, (loss, updated, outputs) = torch.func.grad(objective, has_aux=True)(trained)
    return gradients, loss, updated, outputs


def forward_stack(
    function: Callable[..., Tensor], count: int, data: StackedExamples, arguments: Sequence[Stacked]
) -> Tensor:
    """Run ``function(*arguments, batch)`` over all examples of ``count`` clients.

    Returns the rows of all clients, (clients, n, ...).
    """
    # Chunks of examples, so that their activations fit into memory.
    total = data.positions.tensor.shape[-1]
    example_shape = data.x.tensor.shape[1:] if data.x.dim is None else data.x.tensor.shape[2:]
    chunk = chunk_size(example_shape)

    # The batch comes after the other arguments, and has a client axis in front.
    tensors = [argument.tensor for argument in arguments]
    dims = [argument.dim for argument in arguments]
    vectorized = torch.func.vmap(function, in_dims=(*dims, 0))

    # Not every network takes a batch without rows.
    if total == 0:
        blank = blank_batch(data.of_client(0))
        batch = tree.map(lambda leaf: leaf.repeat(count, *(1 for _ in leaf.shape)), blank)
        with torch.no_grad():
            return vectorized(*tensors, batch)[:, :0]

    present = torch.ones((), dtype=data.weight.tensor.dtype)
    outputs = []
    with torch.no_grad():
        for start in range(0, total, chunk):
            rows = torch.arange(start, min(start + chunk, total))
            batch = data.gather(rows.expand(count, -1), present)
            outputs.append(vectorized(*tensors, batch))

    return torch.cat(outputs, 1)
