"""``train`` and ``forward`` for a stack of clients: one vectorized step for all of them.

Clients are sorted by their number of steps, so that those still training are a prefix of the stack,
which shrinks; a finished client's parameters and momentum are not touched again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedtailor.core.devices import HOST, to_device
from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import Key, join_key
from fedtailor.core.task import Batch
from fedtailor.core.torch_private import memory_of
from fedtailor.training.batches import Plan, take, to_values
from fedtailor.training.one_client import (
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
        """Return the rows of the clients at these places of the stack."""
        return self if self.dim is None else Stacked(self.tensor[clients], 0)

    def first(self, count: int) -> Stacked:
        """Return the rows of the first ``count`` clients."""
        return self if self.dim is None else Stacked(self.tensor[:count], 0)

    def full(self, count: int) -> Tensor:
        """Return a copy with a client axis of ``count``."""
        if self.dim == 0:
            return self.tensor.clone()
        return self.tensor.expand(count, *self.tensor.shape).clone()

    def joined(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tables of all clients as one table, and the ``rows`` (clients, n) in it."""
        clients, count = self.tensor.shape[:2]
        return self.tensor.flatten(0, 1), rows + torch.arange(clients)[:, None] * count

    def of_client(self, client_index: int) -> Tensor:
        """Return the tensor of one client."""
        return self.tensor if self.dim is None else self.tensor[client_index]


class StackedExamples(NamedTuple):
    """The example sets of a stack of clients."""

    x: Stacked
    y: Stacked
    rows: Stacked
    weight: Stacked
    scale: Stacked

    def select(self, clients: Tensor) -> StackedExamples:
        """Return the example sets of the clients at these places of the stack."""
        return StackedExamples(*(part.select(clients) for part in self))

    def of_client(self, client_index: int) -> ExampleSet:
        """Return the example set of one client."""
        return ExampleSet(*(part.of_client(client_index) for part in self))

    def gather(self, batch_rows: Tensor, present: Tensor, moves: Tensor | None = None) -> Batch:
        """Return batches (clients, b, ...) of rows (clients, b); ``present`` 0 is padding."""
        rows = _pick(self.rows, batch_rows)
        weight = _pick(self.weight, batch_rows) * present
        values = to_values(_pick(self.x, rows, moves), self.scale.tensor, weight.dtype)
        return Batch(values, _pick(self.y, rows), weight)


def _pick(column: Stacked, rows: Tensor, moves: Tensor | None = None) -> Tensor:
    """Return the rows (clients, b) of a column."""
    if column.dim is None:
        return take(column.tensor, rows, moves)

    # Images (clients, rows, channels, height, width) are gathered as one table of all clients.
    if column.tensor.dim() < 5:
        clients = torch.arange(len(rows))[:, None]
        return column.tensor[clients, rows]
    table, joined_rows = column.joined(rows)
    return take(table, joined_rows, moves)


class StackedKey(NamedTuple):
    """The keys of a stack of clients."""

    words: Sequence[Stacked]
    """Seed, round, client and step."""
    purpose: int

    def select(self, clients: Tensor) -> StackedKey:
        """Return the keys of the clients at these places of the stack."""
        return StackedKey([word.select(clients) for word in self.words], self.purpose)

    def of_client(self, client_index: int) -> Key:
        """Return the key of one client."""
        return join_key([word.of_client(client_index) for word in self.words], self.purpose)


def train_stack(
    phase: Phase,
    params: Sequence[Stacked],
    context: Sequence[Stacked],
    data: StackedExamples,
    key: StackedKey,
    plans: Sequence[Plan],
) -> list[Tensor]:
    """Train the clients of a stack, one per plan.

    Returns what ``train_one`` returns, with a leading client axis.
    """
    count = len(plans)
    device = data.weight.tensor.device

    # The clients with the most steps come first, so that those still training are a prefix.
    steps_of_clients = [len(plan.batches) // phase.amount.per_step for plan in plans]
    lengths = torch.tensor(steps_of_clients, device=HOST)
    order = torch.argsort(lengths, descending=True, stable=True)
    order_there = order.to(device)
    run = _Run(
        phase,
        [leaf.select(order_there).full(count) for leaf in params],
        [leaf.select(order_there) for leaf in context],
        data.select(order_there),
        key.select(order),
        [plans[client_index] for client_index in order.tolist()],
        lengths[order],
    )
    for step in range(int(lengths.max())):
        run.step(step)

    steps = run.lengths.to(device)
    losses = run.loss_sum / torch.clamp(steps, min=1)
    result = [*run.params, steps, losses]
    if phase.collect != "none" and run.rows:
        result += run.collected()
    elif phase.collect != "none":
        result += _nothing_collected(phase, params, context, data, key, count)

    # Back in the order of the stack.
    back = torch.argsort(order).to(device)
    return [tensor[back] for tensor in result]


class _Run:
    """The state of a stacked phase, clients sorted by their number of steps."""

    def __init__(
        self,
        phase: Phase,
        params: list[Tensor],
        context: list[Stacked],
        data: StackedExamples,
        key: StackedKey,
        plans: list[Plan],
        lengths: Tensor,
    ) -> None:
        self.phase = phase
        self.params = params
        self.param_memory = {memory_of(leaf) for leaf in params}
        self.context = context
        self.data = data
        self.key = key
        self.plans = plans
        self.lengths = lengths
        """Steps of every client, the most first; on the host."""
        self.is_buffer = phase.buffers if phase.loss is not None else [False] * len(params)
        self.trained, self.model_buffers = split_leaves(params, self.is_buffer)
        self.optimizer = Optimizer(phase.training, self.trained)
        self.loss_sum = torch.zeros(len(plans), dtype=params[0].dtype if params else None)
        self.rows: list[tuple[Tensor, Tensor, Tensor]] = []

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
        data = self.data.select(torch.arange(active))
        device = data.weight.tensor.device
        batches = []
        for number in range(step * per_step, (step + 1) * per_step):
            planned = [plan.batch(number) for plan in self.plans[:active]]

            # Padding repeats the first example, with a weight of 0.
            rows = [rows for rows, _ in planned]
            ones = [torch.ones(len(batch), device=HOST) for batch in rows]
            padded = (pad_sequence(rows, batch_first=True), pad_sequence(ones, batch_first=True))
            batch_rows, present = to_device(padded, device)

            all_moves = [moves for _, moves in planned if moves is not None]
            moves = pad_sequence(all_moves, batch_first=True) if all_moves else None
            batches.append(data.gather(batch_rows, present.to(data.weight.tensor.dtype), moves))

        return tuple(batches)

    def _advance(self, step: int, active: int, batches: tuple[Batch, ...]) -> Tensor | tuple[()]:
        """Run the vectorized step and write its result into the first ``active`` rows.

        Returns the values to collect.
        """
        phase = self.phase
        leaves = [leaf[:active] for leaf in self.params]
        context = [leaf.first(active) for leaf in self.context]
        words = [word.first(active) for word in self.key.words[:3]]
        step_word = torch.tensor(step, device=HOST)

        def one_client(
            params: list[Tensor], context: list[Tensor], words: list[Tensor], batches: Any
        ) -> Any:
            key = join_key([*words, step_word], self.key.purpose)
            batch = batches[0] if phase.amount.per_step == 1 else batches
            if phase.step is not None:
                return phase.advance(params, context, batch, key)

            return _gradients(phase, params, self.is_buffer, context, batch, key)

        in_dims = (0, [leaf.dim for leaf in context], [word.dim for word in words], 0)
        output = torch.func.vmap(one_client, in_dims=in_dims)(
            leaves, [leaf.tensor for leaf in context], [word.tensor for word in words], batches
        )

        # A custom step gives new parameters, a loss gives gradients for the optimizer.
        outputs: Tensor | tuple[()]
        if phase.step is not None:
            new_leaves, outputs = output
            write(leaves, separate_from(self.param_memory, new_leaves))
            return outputs

        gradients, loss, buffers, outputs = output
        self.loss_sum[:active] += loss
        self._descend(step, active, gradients)
        write([leaf[:active] for leaf in self.model_buffers], buffers)

        return outputs

    def _descend(self, step: int, active: int, gradients: Sequence[Tensor]) -> None:
        """Take the step of the optimizer."""
        gradients = [gradient.clone() for gradient in gradients]
        clip_norm = self.phase.training.clip_norm
        if clip_norm and gradients:
            flat = [gradient.reshape(active, -1) for gradient in gradients]
            factor = clip_factor(torch.cat(flat, 1).norm(dim=1), clip_norm)  # (active,)
            gradients = [_scale_rows(gradient, factor) for gradient in gradients]

        self.optimizer.update([leaf[:active] for leaf in self.trained], gradients, step, active)

    def _collect(
        self, step: int, active: int, batches: Sequence[Batch], outputs: Tensor | tuple[()]
    ) -> None:
        """Keep the values of a step, with their labels and weights."""
        labels = torch.cat([batch.y for batch in batches], 1)
        weight = torch.cat([batch.weight for batch in batches], 1)
        if self.phase.collect == "last":
            last_epochs = torch.tensor([plan.last_epoch for plan in self.plans[:active]])
            in_last_epoch = last_epochs <= step * self.phase.amount.per_step
            weight = weight * in_last_epoch[:, None]

        values = self._with_finished(collected(outputs))
        self.rows.append((values, self._with_finished(labels), self._with_finished(weight)))

    def _with_finished(self, active: Tensor) -> Tensor:
        """Extend the rows of the active clients by zeros for those that have finished."""
        result = active.new_zeros((len(self.plans), *active.shape[1:]))
        result[: len(active)] = active.detach()
        return result

    def collected(self) -> list[Tensor]:
        """Return collected values, labels and weights, (clients, steps x batch, ...) each."""
        return [torch.cat(column, 1) for column in zip(*self.rows, strict=True)]


def _scale_rows(rows: Tensor, factor: Tensor) -> Tensor:
    """Multiply the row of every client (clients, ...) by its factor (clients,)."""
    return rows * factor.view(-1, *[1] * (rows.dim() - 1))


def _gradients(
    phase: Phase,
    params: list[Tensor],
    is_buffer: list[bool],
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


def _nothing_collected(
    phase: Phase,
    params: Sequence[Stacked],
    context: Sequence[Stacked],
    data: StackedExamples,
    key: StackedKey,
    count: int,
) -> list[Tensor]:
    """Return empty collected values where no client of the stack takes a step."""
    one = nothing_collected(
        phase,
        [leaf.of_client(0) for leaf in params],
        [leaf.of_client(0) for leaf in context],
        data.of_client(0),
        key.of_client(0),
    )
    return [tensor.expand(count, *tensor.shape) for tensor in one]


def forward_stack(
    function: Callable[..., Tensor], count: int, data: StackedExamples, arguments: Sequence[Stacked]
) -> Tensor:
    """Run ``function(*arguments, batch)`` over all examples of ``count`` clients.

    Returns the rows of all clients, (clients, n, ...).
    """
    total = data.rows.tensor.shape[-1]
    example_shape = data.x.tensor.shape[1:] if data.x.dim is None else data.x.tensor.shape[2:]
    chunk = chunk_size(example_shape)
    present = torch.ones((), dtype=data.weight.tensor.dtype)
    tensors = [argument.tensor for argument in arguments]
    run_on = torch.func.vmap(function, in_dims=(*(argument.dim for argument in arguments), 0))
    outputs = []

    with torch.no_grad():
        for start in range(0, max(total, 1), chunk):
            batch_rows = torch.arange(start, min(start + chunk, total)).expand(count, -1)
            outputs.append(run_on(*tensors, data.gather(batch_rows, present)))

    return torch.cat(outputs, 1)
