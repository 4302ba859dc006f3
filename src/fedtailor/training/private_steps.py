"""Training steps in which every example has a bounded part, which noise hides.

Abadi et al. 2016, "Deep learning with differential privacy", CCS, algorithm 1. Each example is in
the batch of a step with probability q, independently. Its gradient, over all trained parameters
together, is scaled down to a norm of at most C; noise of deviation z C is added to the sum:

    g = (sum_j g_j min(1, C / |g_j|) + z C xi) / B

B is the batch size, and q = B / n. So the divisor does not depend on the draw. Losses are used as
they are, on batches of one example.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedtailor.core import rng
from fedtailor.core.devices import to_device, to_host
from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import Key
from fedtailor.core.task import Batch
from fedtailor.training.batches import Batches, draw_batches, moving
from fedtailor.training.one_client import PLAN, StepBuffers
from fedtailor.training.optimizer import Optimizer
from fedtailor.training.phase import Phase

_MOST_NUMBERS = 2**24
"""Numbers of the gradients of examples that are held at once: 64 MiB."""
_EXAMPLE = 2**32
"""The key of an example's loss is that of the step, moved by this times one more than its row."""


class PrivatePhase(NamedTuple):
    """What a phase has released."""

    noise: float
    """Deviation over the bound of an example (z)."""
    rate: float
    """Probability of an example in a step (q)."""
    steps: int


_phases: ContextVar[list[PrivatePhase] | None] = ContextVar("private phases", default=None)


@contextmanager
def counting_private_phases() -> Iterator[list[PrivatePhase]]:
    """Note the phases of the block whose steps bound examples, in this thread."""
    phases: list[PrivatePhase] = []
    token = _phases.set(phases)
    try:
        yield phases
    finally:
        _phases.reset(token)


@torch.no_grad()
def train_private(
    phase: Phase,
    params: Sequence[Tensor],
    context: Sequence[Tensor],
    data: ExampleSet,
    key: Key,
    limits: Sequence[Tensor],
) -> list[Tensor]:
    """Train one client as ``train_one`` does, with bounded examples and noise.

    Returns the parameter leaves, the number of steps, and the mean loss of the examples drawn: it
    has no noise.

    Raises:
        TypeError: the phase has a custom step, several batches in a step, buffers, or collects
            values of examples.
    """
    _refuse_unbounded(phase)
    training = phase.training
    weight, *limits = to_host((data.weight, *limits), PLAN)
    amount = phase.amount._replace(epochs=int(limits[0]), steps=int(limits[1]))
    order = rng.plain(key.fold("draws"))
    planned = draw_batches(weight, order, training, amount, moving(training, data.x, key))
    batches = Batches(data, planned)

    buffers = StepBuffers(params, context)
    optimizer = Optimizer(training, buffers.params)
    steps = _PrivateSteps(phase, buffers, key)
    count = int((weight > 0).sum())
    size = min(training.batch_size or count, count)
    losses = []
    for step, rows in enumerate(planned.batches):
        total, loss = steps.clipped_sum(batches[step] if len(rows) else None, rows, step)
        noisy = steps.with_noise(total, step)
        optimizer.update(buffers.params, [leaf / size for leaf in noisy], step)
        losses.append(loss)

    taken = len(planned.batches)
    phases = _phases.get()
    if phases is not None and taken:
        phases.append(PrivatePhase(training.example_noise, size / count, taken))

    mean_loss = torch.stack(losses).mean() if losses else torch.zeros(())
    return [*buffers.result(), torch.tensor(taken), mean_loss]


def _refuse_unbounded(phase: Phase) -> None:
    """Refuse a phase in which examples have a part beside their own gradients."""
    if phase.step is not None or phase.amount.per_step > 1:
        raise TypeError("training.example_clip bounds gradients of a loss on one batch in a step")
    if phase.has_buffers:
        raise TypeError("training.example_clip cannot bound what examples add to buffers")
    if phase.collect != "none":
        raise TypeError("training.example_clip cannot bound collected values of examples")


class _PrivateSteps:
    """The gradients of examples in the steps of a phase."""

    def __init__(self, phase: Phase, buffers: StepBuffers, key: Key) -> None:
        self.phase = phase
        self.buffers = buffers
        self.key = key
        self.bound = phase.training.example_clip
        numbers = sum(leaf.numel() for leaf in buffers.params)
        self.chunk = max(1, _MOST_NUMBERS // max(numbers, 1))

    def clipped_sum(
        self, batch: Batch | None, rows: Tensor, step: int
    ) -> tuple[list[Tensor], Tensor]:
        """Return the sum of bounded gradients, and the mean loss of the batch.

        Args:
            batch: of the step; None: nobody was drawn.
            rows: (b,), of the batch in the client's table, on the host.
            step: its number.
        """
        totals = [torch.zeros_like(leaf) for leaf in self.buffers.params]
        loss = torch.zeros(())
        if batch is None:
            return totals, loss

        # Every example has a key of its own, for models and losses that draw.
        numbers = step + _EXAMPLE * (rows + 1)
        for start in range(0, len(rows), self.chunk):
            part = slice(start, start + self.chunk)
            gradients, values = self._gradients(batch, numbers, part)
            for total, gradient in zip(totals, self._bounded(gradients), strict=True):
                total += gradient
            loss = loss + values.sum() / len(rows)

        return totals, loss

    def _gradients(self, batch: Batch, numbers: Tensor, part: slice) -> tuple[list[Tensor], Tensor]:
        """Return the gradients (b, ...) and losses (b,) of a part of the examples."""

        def loss_of(
            params: list[Tensor], x: Tensor, y: Tensor, weight: Tensor, number: Tensor
        ) -> Tensor:
            example = Batch(x[None], y[None], weight[None], batch.class_weight)
            return self.phase.evaluate(params, self.buffers.context, example, self.key.at(number))[
                0
            ]

        examples = (batch.x[part], batch.y[part], batch.weight[part], numbers[part])
        of_examples = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0, 0, 0))
        gradients, losses = of_examples(self.buffers.params, *examples)
        return gradients, losses

    def _bounded(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the sums over examples of gradients of a norm of at most the bound."""
        if not gradients:
            return []

        rows = [gradient.reshape(len(gradient), -1) for gradient in gradients]
        squares = [row.double().square().sum(1) for row in rows]
        norm = torch.stack(squares).sum(0).sqrt()
        # An example whose gradient is not finite has no part.
        is_finite = torch.isfinite(norm)
        factor = (self.bound / norm.clamp(min=self.bound)).masked_fill(~is_finite, 0.0)
        sums = []
        for row, gradient in zip(rows, gradients, strict=True):
            finite = torch.where(is_finite[:, None], row, 0.0)
            sums.append((factor.to(finite.dtype) @ finite).view(gradient.shape[1:]))
        return sums

    def with_noise(self, totals: list[Tensor], step: int) -> list[Tensor]:
        """Return the sums with noise, a number for each of their numbers."""
        deviation = self.phase.training.example_noise * self.bound
        if deviation == 0:
            return totals

        key = self.key.fold("example noise").at(torch.tensor(step, device="cpu"))
        noisy = []
        for number, total in enumerate(totals):
            noise = rng.normal(key.fold(number), tuple(total.shape)).to(total.dtype)
            noisy.append(total.add(to_device(noise, total.device), alpha=deviation))
        return noisy
