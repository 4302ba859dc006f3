"""``train`` and ``forward`` for a stack of clients: one vectorized step for all that have not finished.

Clients are sorted by their number of steps, so that those still training are a prefix of the stack, which
shrinks; a finished client's parameters and momentum are not touched again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import Key
from fedtailor.core.task import Batch
from fedtailor.training.batches import Plan, take, to_values
from fedtailor.training.one_client import chunk_size, merge, nothing_collected
from fedtailor.training.optimizer import Optimizer, clip_factor
from fedtailor.training.phase import Phase, collected


class Stacked(NamedTuple):
    """A tensor that has a leading client axis (``dim`` 0), or is the same for all clients (``dim`` None)."""

    tensor: Tensor
    dim: int | None

    @classmethod
    def wrap(cls, tensor: Tensor, dim: int | None) -> Stacked:
        """Move the client axis to the front."""
        return cls(tensor, None) if dim is None else cls(tensor.movedim(dim, 0), 0)

    def of(self, lanes: Tensor) -> Stacked:
        """Return the rows of the given clients."""
        return self if self.dim is None else Stacked(self.tensor[lanes], 0)

    def first(self, count: int) -> Stacked:
        """Return the rows of the first ``count`` clients."""
        return self if self.dim is None else Stacked(self.tensor[:count], 0)

    def full(self, count: int) -> Tensor:
        """Return the tensor with a client axis of ``count``, in memory of its own."""
        return self.tensor.clone() if self.dim == 0 else self.tensor.expand(count, *self.tensor.shape).clone()

    def joined(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tables of all clients as one, and the ``rows`` (lanes, n) in it."""
        lanes, count = self.tensor.shape[:2]
        return self.tensor.flatten(0, 1), rows + torch.arange(lanes)[:, None] * count

    def lane(self, number: int) -> Tensor:
        """Return the tensor of one client."""
        return self.tensor if self.dim is None else self.tensor[number]


class StackedExamples(NamedTuple):
    """The example sets of a stack of clients."""

    x: Stacked
    y: Stacked
    rows: Stacked
    weight: Stacked
    scale: Stacked

    def of(self, lanes: Tensor) -> StackedExamples:
        """Return the example sets of the given clients."""
        return StackedExamples(*(part.of(lanes) for part in self))

    def lane(self, number: int) -> ExampleSet:
        """Return the example set of one client."""
        return ExampleSet(*(part.lane(number) for part in self))

    def gather(self, positions: Tensor, present: Tensor, moves: Tensor | None = None) -> Batch:
        """Return batches (lanes, b, ...) at positions (lanes, b); rows with ``present`` 0 are padding."""
        lanes = torch.arange(len(positions))[:, None]

        def pick(column: Stacked, rows: Tensor, moves: Tensor | None = None) -> Tensor:
            if column.dim is None:
                return take(column.tensor, rows, moves)
            return column.tensor[lanes, rows] if column.tensor.dim() < 5 else take(*column.joined(rows), moves)

        rows = pick(self.rows, positions)
        weight = pick(self.weight, positions) * present
        values = to_values(pick(self.x, rows, moves), self.scale.tensor, weight.dtype)
        return Batch(values, pick(self.y, rows), weight)


class StackedKey(NamedTuple):
    """The keys of a stack of clients."""

    words: tuple[Stacked, Stacked, Stacked, Stacked]
    purpose: int

    def of(self, lanes: Tensor) -> StackedKey:
        """Return the keys of the given clients."""
        seed, round_, client, step = (word.of(lanes) for word in self.words)
        return StackedKey((seed, round_, client, step), self.purpose)

    def lane(self, number: int) -> Key:
        """Return the key of one client."""
        seed, round_, client, step = (word.lane(number) for word in self.words)
        return Key(seed, round_, client, step, self.purpose)


def train_stack(
    phase: Phase,
    count: int,
    params: Sequence[Stacked],
    context: Sequence[Stacked],
    data: StackedExamples,
    key: StackedKey,
    plans: Sequence[Plan],
) -> list[Tensor]:
    """Train ``count`` clients; returns what ``train_one`` returns, with a leading client axis."""
    lengths = torch.tensor([len(plan.batches) // phase.amount.per_step for plan in plans])
    order = torch.argsort(lengths, descending=True, stable=True)
    sorted_plans = [plans[lane] for lane in order.tolist()]
    run = _Run(
        phase,
        [leaf.of(order).full(count) for leaf in params],
        [leaf.of(order) for leaf in context],
        data.of(order),
        key.of(order),
        sorted_plans,
        lengths[order],
    )
    for step in range(int(lengths.max())):
        run.step(step)
    back = torch.argsort(order)
    losses = run.loss_sum / torch.clamp(lengths[order], min=1)
    result = [*run.params, lengths[order], losses]
    if phase.collect != "none":
        result += run.collected() if run.rows else _empty(phase, params, context, data, key, count)
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
        self.phase, self.params, self.context, self.data, self.key = phase, params, context, data, key
        self.plans, self.lengths = plans, lengths
        self.is_buffer = phase.buffers if phase.loss is not None else [False] * len(params)
        self.trained = [leaf for leaf, fixed in zip(params, self.is_buffer, strict=True) if not fixed]
        self.optimizer = Optimizer(phase.training, self.trained)
        self.loss_sum = torch.zeros(len(plans), dtype=params[0].dtype if params else None)
        self.rows: list[tuple[Tensor, Tensor, Tensor]] = []

    def step(self, step: int) -> None:
        """Take one step of every client that still has one."""
        active = int((self.lengths > step).sum())
        batches = self._batches(step, active)
        words = [word.first(active) for word in self.key.words[:3]]
        leaves = [leaf[:active] for leaf in self.params]
        context = [leaf.first(active) for leaf in self.context]
        outputs = self._advance(step, active, leaves, context, batches, words)
        if self.phase.collect != "none":
            labels = torch.cat([batch.y for batch in batches], 1)
            weight = torch.cat([batch.weight for batch in batches], 1)
            if self.phase.collect == "last":
                first = [plan.last_epoch for plan in self.plans[:active]]
                late = torch.tensor(first) <= step * self.phase.amount.per_step
                weight = weight * late[:, None]
            self.rows.append((_fill(collected(outputs), self), _fill(labels, self), _fill(weight, self)))

    def _batches(self, step: int, active: int) -> list[Batch]:
        """Return the batches of a step, padded to the longest of the active clients."""
        per_step = self.phase.amount.per_step
        data = self.data.of(torch.arange(active))
        batches = []
        for number in range(step * per_step, (step + 1) * per_step):
            chosen = [plan.batch(number) for plan in self.plans[:active]]
            positions = pad_sequence([rows for rows, _ in chosen], batch_first=True)
            present = pad_sequence([torch.ones(len(rows)) for rows, _ in chosen], batch_first=True)
            drawn = [moves for _, moves in chosen if moves is not None]
            moves = pad_sequence(drawn, batch_first=True) if drawn else None
            batches.append(data.gather(positions, present.to(data.weight.tensor.dtype), moves))
        return batches

    def _advance(
        self,
        step: int,
        active: int,
        leaves: list[Tensor],
        context: list[Stacked],
        batches: list[Batch],
        words: list[Stacked],
    ) -> Tensor | tuple[()]:
        """Run the vectorized step and write its result into the first ``active`` rows."""
        phase, sizes = self.phase, (len(leaves), len(context))
        at = torch.tensor(step)

        def one(*flat: Any) -> Any:
            params, rest = list(flat[: sizes[0]]), list(flat[sizes[0] :])
            own, (seed, round_, client), columns = rest[: sizes[1]], rest[sizes[1] : sizes[1] + 3], rest[sizes[1] + 3 :]
            key = Key(seed, round_, client, at, self.key.purpose)
            lane_batches = tuple(Batch(*columns[i : i + 3]) for i in range(0, len(columns), 3))
            batch = lane_batches[0] if phase.amount.per_step == 1 else lane_batches
            if phase.step is not None:
                return phase.advance(params, own, batch, key)
            return _gradients(phase, params, self.is_buffer, own, batch, key)

        shared = [*context, *words]
        arguments = [*leaves, *(item.tensor for item in shared), *(column for batch in batches for column in batch)]
        dims = (*[0] * sizes[0], *(item.dim for item in shared), *[0] * (3 * len(batches)))
        output = torch.func.vmap(one, in_dims=dims)(*arguments)
        if phase.step is not None:
            for leaf, value in zip(leaves, output[0], strict=True):
                leaf.copy_(value)
            outputs: Tensor | tuple[()] = output[1]
            return outputs
        gradients, loss, buffers, outputs = output
        self._apply(step, active, gradients, buffers)
        self.loss_sum[:active] += loss
        return outputs

    def _apply(self, step: int, active: int, gradients: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        """Take the optimizer's step and write the buffers."""
        gradients = [gradient.clone() for gradient in gradients]
        if self.phase.training.clip_norm and gradients:
            norm = torch.cat([g.reshape(active, -1) for g in gradients], 1).norm(dim=1)
            factor = clip_factor(norm, self.phase.training.clip_norm)
            gradients = [g * factor.view(-1, *[1] * (g.dim() - 1)) for g in gradients]
        self.optimizer.update([leaf[:active] for leaf in self.trained], gradients, step, active)
        own = [leaf for leaf, fixed in zip(self.params, self.is_buffer, strict=True) if fixed]
        for leaf, value in zip(own, buffers, strict=True):
            leaf[:active].copy_(value)

    def collected(self) -> list[Tensor]:
        """Return collected values, labels and weights: (clients, steps x batch, ...), padding of weight 0."""
        return [torch.cat(column, 1) for column in zip(*self.rows, strict=True)]


def _gradients(
    phase: Phase, params: list[Tensor], is_buffer: list[bool], context: list[Tensor], batch: Any, key: Key
) -> tuple[list[Tensor], Tensor, list[Tensor], Tensor | tuple[()]]:
    """Return gradients of the trained leaves, the loss, the updated buffers and the collected values."""
    trained = [leaf for leaf, fixed in zip(params, is_buffer, strict=True) if not fixed]
    buffers = [leaf for leaf, fixed in zip(params, is_buffer, strict=True) if fixed]

    def objective(leaves: list[Tensor]) -> tuple[Tensor, tuple[Tensor, list[Tensor], Tensor | tuple[()]]]:
        loss, updated, outputs = phase.evaluate(merge(leaves, buffers, is_buffer), context, batch, key)
        return loss, (loss, updated, outputs)

    gradients, (loss, updated, outputs) = torch.func.grad(objective, has_aux=True)(trained)
    return gradients, loss, updated, outputs


def _fill(active: Tensor, run: _Run) -> Tensor:
    """Extend the rows of the active clients by zeros for those that have finished."""
    result = active.new_zeros((len(run.plans), *active.shape[1:]))
    result[: len(active)] = active.detach()
    return result


def _empty(
    phase: Phase,
    params: Sequence[Stacked],
    context: Sequence[Stacked],
    data: StackedExamples,
    key: StackedKey,
    count: int,
) -> list[Tensor]:
    """Return empty collected values where no client of the stack takes a step."""
    one = nothing_collected(
        phase, [leaf.lane(0) for leaf in params], [leaf.lane(0) for leaf in context], data.lane(0), key.lane(0)
    )
    return [tensor.expand(count, *tensor.shape) for tensor in one]


def forward_stack(
    function: Callable[..., Tensor], count: int, data: StackedExamples, arguments: Sequence[Any], dims: Sequence[Any]
) -> Tensor:
    """Run ``function(*arguments, batch)`` over all examples of every client: rows (clients, n, ...)."""
    total = data.rows.tensor.shape[-1]
    chunk = chunk_size(data.x.tensor.shape[1 if data.x.dim is None else 2 :])
    ones = torch.ones((), dtype=data.weight.tensor.dtype)
    outputs = []
    with torch.no_grad():
        for start in range(0, max(total, 1), chunk):
            positions = torch.arange(start, min(start + chunk, total)).expand(count, -1)
            batch = StackedExamples(*data).gather(positions, ones)
            outputs.append(torch.func.vmap(function, in_dims=(*dims, 0))(*arguments, batch))
    return torch.cat(outputs, 1)
