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

from fedtailor.core.devices import HOST, to_device
from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import Key, join_key
from fedtailor.core.task import Batch
from fedtailor.core.torch_private import memory_of
from fedtailor.training.batches import Plan, class_weight_of, take, to_values
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
        first_rows = torch.arange(clients)[:, None] * count
        return self.tensor.flatten(0, 1), rows + first_rows

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
    class_weight: Stacked

    def select(self, clients: Tensor) -> StackedExamples:
        """Return the example sets of the clients at these places of the stack."""
        return StackedExamples(*(part.select(clients) for part in self))

    def of_client(self, client_index: int) -> ExampleSet:
        """Return the example set of one client."""
        return ExampleSet(*(part.of_client(client_index) for part in self))

    def gather(self, batch_rows: Tensor, present: Tensor, moves: Tensor | None = None) -> Batch:
        """Return batches (clients, b, ...) of rows (clients, b); ``present`` 0 is padding."""
        # Weights belong to a client's examples; x and y may be tables that clients share.
        rows = _pick(self.rows, batch_rows)
        weight = _pick(self.weight, batch_rows) * present
        labels = _pick(self.y, rows)
        stored = _pick(self.x, rows, moves)
        values = to_values(stored, self.scale.tensor, weight.dtype)
        class_weight = class_weight_of(self.class_weight.tensor)
        if isinstance(class_weight, Tensor) and self.class_weight.dim is None:
            class_weight = class_weight.expand(len(weight), -1)

        return Batch(values, labels, weight, class_weight)


def _pick(column: Stacked, rows: Tensor, moves: Tensor | None = None) -> Tensor:
    """Return the rows (clients, b) of a column."""
    if column.dim is None:
        return take(column.tensor, rows, moves)

    if column.tensor.dim() < 5:
        clients = torch.arange(len(rows))[:, None]
        return column.tensor[clients, rows]

    # Images (clients, rows, channels, height, width) are gathered as one table of all clients.
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


class StackedInputs(NamedTuple):
    """What a stack of clients trains with."""

    params: Sequence[Stacked]
    context: Sequence[Stacked]
    data: StackedExamples
    key: StackedKey

    def select(self, clients: Tensor) -> StackedInputs:
        """Return the inputs of the clients at these places of the stack, given on the host."""
        clients_there = clients.to(self.data.weight.tensor.device)
        return StackedInputs(
            [leaf.select(clients_there) for leaf in self.params],
            [leaf.select(clients_there) for leaf in self.context],
            self.data.select(clients_there),
            self.key.select(clients),
        )


def train_stack(phase: Phase, inputs: StackedInputs, plans: Sequence[Plan]) -> list[Tensor]:
    """Train the clients of a stack, one per plan.

    Returns what ``train_one`` returns, with a leading client axis.
    """
    # The clients with the most steps come first, so that those still training are a prefix.
    steps_of_clients = [len(plan.batches) // phase.amount.per_step for plan in plans]
    lengths = torch.tensor(steps_of_clients, device=HOST)
    order = torch.argsort(lengths, descending=True, stable=True)
    sorted_plans = [plans[client_index] for client_index in order.tolist()]

    run = _Run(phase, inputs.select(order), sorted_plans, lengths[order])
    for step in range(int(lengths.max())):
        run.step(step)

    device = inputs.data.weight.tensor.device
    steps = run.lengths.to(device)
    losses = run.loss_sum / torch.clamp(steps, min=1)
    result = [*run.params, steps, losses]
    if phase.collect != "none" and run.rows:
        result += run.collected()
    elif phase.collect != "none":
        result += _nothing_collected(phase, inputs, len(plans))

    # Back in the order of the stack.
    back = torch.argsort(order).to(device)
    return [tensor[back] for tensor in result]


class _Run:
    """The state of a stacked phase, clients sorted by their number of steps."""

    def __init__(
        self, phase: Phase, inputs: StackedInputs, plans: list[Plan], lengths: Tensor
    ) -> None:
        self.phase = phase
        self.context = inputs.context
        self.data = inputs.data
        self.key = inputs.key
        self.plans = plans
        self.lengths = lengths
        """Steps of every client, the most first; on the host."""

        # Copies, which the steps overwrite.
        params = [leaf.full(len(plans)) for leaf in inputs.params]
        self.params = params
        self.param_memory = {memory_of(leaf) for leaf in params}

        # A custom step returns buffers among its parameters.
        self.is_buffer = phase.buffers if phase.loss is not None else [False] * len(params)
        self.trained, self.model_buffers = split_leaves(params, self.is_buffer)
        self.optimizer = Optimizer(phase.training, self.trained)

        self.loss_sum = torch.zeros(len(plans), dtype=params[0].dtype if params else None)
        self.rows: list[tuple[Tensor, Tensor, Tensor]] = []
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
        data = self.data.select(torch.arange(active))
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

        # Seed, round and client; the step is the same for all clients.
        words = [word.first(active) for word in self.key.words[:3]]
        step_word = torch.tensor(step, device=HOST)

        def one_client(
            params: list[Tensor], context: list[Tensor], words: list[Tensor], batches: Any
        ) -> Any:
            key = join_key([*words, step_word], self.key.purpose)
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
            gradients = [_scale_rows(gradient, factor) for gradient in gradients]

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
        self.rows.append((values, labels, weight))

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
    other_axes = [1] * (rows.dim() - 1)
    return rows * factor.view(-1, *other_axes)


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


def _nothing_collected(phase: Phase, inputs: StackedInputs, count: int) -> list[Tensor]:
    """Return empty collected values where none of the ``count`` clients takes a step."""
    first_client = nothing_collected(
        phase,
        [leaf.of_client(0) for leaf in inputs.params],
        [leaf.of_client(0) for leaf in inputs.context],
        inputs.data.of_client(0),
        inputs.key.of_client(0),
    )
    return [tensor.expand(count, *tensor.shape) for tensor in first_client]


def forward_stack(
    function: Callable[..., Tensor], count: int, data: StackedExamples, arguments: Sequence[Stacked]
) -> Tensor:
    """Run ``function(*arguments, batch)`` over all examples of ``count`` clients.

    Returns the rows of all clients, (clients, n, ...).
    """
    # Chunks of examples, so that their activations fit into memory.
    total = data.rows.tensor.shape[-1]
    example_shape = data.x.tensor.shape[1:] if data.x.dim is None else data.x.tensor.shape[2:]
    chunk = chunk_size(example_shape)

    # The batch comes after the other arguments, and has a client axis in front.
    tensors = [argument.tensor for argument in arguments]
    dims = [argument.dim for argument in arguments]
    vectorized = torch.func.vmap(function, in_dims=(*dims, 0))

    present = torch.ones((), dtype=data.weight.tensor.dtype)
    outputs = []
    with torch.no_grad():
        for start in range(0, max(total, 1), chunk):
            rows = torch.arange(start, min(start + chunk, total))
            batch = data.gather(rows.expand(count, -1), present)
            outputs.append(vectorized(*tensors, batch))

    return torch.cat(outputs, 1)
