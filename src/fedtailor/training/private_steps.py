"""Training steps in which every example has a bounded part, which noise hides.

Abadi et al. 2016, "Deep learning with differential privacy", CCS, algorithm 1. Each example is in
the batch of a step with probability q, independently. Its gradient, over all trained parameters
together, is scaled down to a norm of at most C; noise of deviation z C is added to the sum:

    g = (sum_j g_j min(1, C / |g_j|) + z C xi) / B

B is the batch size, and q = B / n. So the divisor does not depend on the draw. Losses are used as
they are, on batches of one example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.linalg import vector_norm

from fedtailor.core import rng
from fedtailor.core.devices import to_device, to_host
from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import Key
from fedtailor.core.task import Batch, ExampleBound
from fedtailor.training.batches import Batches, draw_batches, moving
from fedtailor.training.one_client import PLAN, StepBuffers
from fedtailor.training.optimizer import Optimizer
from fedtailor.training.phase import Phase

_MOST_NUMBERS = 2**21
"""Numbers of the gradients of examples that are held at once: 8 MiB, which stay in the cache."""
_EXAMPLE = 2**32
"""The key of an example's loss is that of the step, moved by this times one more than its row."""


_taken: ContextVar[list[int] | None] = ContextVar("steps of phases", default=None)


@contextmanager
def counting_steps() -> Iterator[list[int]]:
    """Count the steps of every phase in the block whose examples are bounded, in this thread.

    More of them, or a larger rate, than the bound of the task says is an error: epsilon would be
    larger than what is claimed.
    """
    taken: list[int] = []
    token = _taken.set(taken)
    try:
        yield taken
    finally:
        _taken.reset(token)


def _count(bound: ExampleBound, rate: float, steps: int) -> None:
    """Count the steps of a phase, before they are taken."""
    taken = _taken.get()
    if taken is None:
        return

    taken.append(steps)
    if sum(taken) > bound.steps or rate > bound.rate:
        raise RuntimeError(
            f"{sum(taken)} steps with rate {rate:g} would tell more of an example than the "
            f"{bound.steps} with rate {bound.rate:g} that bounded_steps promises"
        )


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
        RuntimeError: there are more steps, or a larger rate, than the bound of the task says.
    """
    _refuse_unbounded(phase)
    training = phase.training
    bound = phase.task.example_bound
    assert bound is not None, "train_private needs a bound"
    weight, *limits = to_host((data.weight, *limits), PLAN)
    amount = phase.amount._replace(epochs=int(limits[0]), steps=int(limits[1]))
    order = _key_of_draws(key, bound.secret)
    planned = draw_batches(weight, order, training, amount, moving(training, data.x, key))
    batches = Batches(data, planned)

    buffers = StepBuffers(params, context)
    optimizer = Optimizer(training, buffers.params)
    steps = _make_steps.get()(phase, bound, buffers, key)
    count = int((weight > 0).sum())
    size = min(training.batch_size or count, count)
    if planned.batches:
        _count(bound, size / count, len(planned.batches))

    losses = []
    for step, rows in enumerate(planned.batches):
        total, loss = steps.clipped_sum(batches[step] if len(rows) else None, rows, step)
        noisy = steps.with_noise(total, step)
        optimizer.update(buffers.params, [leaf / size for leaf in noisy], step)
        losses.append(loss)

    mean_loss = torch.stack(losses).mean() if losses else torch.zeros(())
    return [*buffers.result(), torch.tensor(len(planned.batches)), mean_loss]


def _key_of_draws(key: Key, secret: bytes) -> tuple[int, int, int, int, int]:
    """Return the key that says which examples are in which step."""
    key = key.fold("draws")
    if not secret:
        return rng.plain(key)

    seed, round, client, step, purpose = map(int, rng.secret_words(key, secret, 5))
    return seed, round, client, step, purpose


def _refuse_unbounded(phase: Phase) -> None:
    """Refuse a phase in which examples have a part beside their own gradients."""
    if phase.step is not None or phase.amount.per_step > 1:
        raise TypeError("examples are bounded in gradients of a loss on one batch in a step")
    if phase.has_buffers:
        raise TypeError("what examples add to buffers cannot be bounded")
    if phase.collect != "none":
        raise TypeError("collected values of examples cannot be bounded")


class PrivateSteps:
    """The gradients of examples in the steps of a phase."""

    def __init__(self, phase: Phase, bound: ExampleBound, buffers: StepBuffers, key: Key) -> None:
        self.phase = phase
        self.clip = bound.clip
        self.deviation = bound.noise * bound.clip
        self.secret = bound.secret
        self.buffers = buffers
        self.key = key
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
            for total, gradient in zip(totals, self.bounded(gradients), strict=True):
                total += gradient
            loss = loss + values.sum() / len(rows)

        return totals, loss

    def _gradients(self, batch: Batch, numbers: Tensor, part: slice) -> tuple[list[Tensor], Tensor]:
        """Return the gradients (b, ...) and losses (b,) of a part of the examples."""
        context = self.buffers.context

        def loss_of(
            params: list[Tensor], x: Tensor, y: Tensor, weight: Tensor, number: Tensor
        ) -> Tensor:
            example = Batch(x[None], y[None], weight[None], batch.class_weight)
            loss, *_ = self.phase.evaluate(params, context, example, self.key.at(number))
            return loss

        examples = (batch.x[part], batch.y[part], batch.weight[part], numbers[part])
        of_examples = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0, 0, 0))
        gradients, losses = of_examples(self.buffers.params, *examples)
        return gradients, losses

    def bounded(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the sums over examples of gradients of a norm of at most the bound."""
        if not gradients:
            return []

        rows = [gradient.reshape(len(gradient), -1) for gradient in gradients]
        norms = [vector_norm(row, dim=1, dtype=torch.float64) for row in rows]
        norm = vector_norm(torch.stack(norms), dim=0)
        # An example whose gradient is not finite has no part.
        is_finite = torch.isfinite(norm)
        factor = (self.clip / norm.clamp(min=self.clip)).masked_fill(~is_finite, 0.0)
        if not is_finite.all():
            rows = [torch.where(is_finite[:, None], row, 0.0) for row in rows]

        sums = []
        for row, gradient in zip(rows, gradients, strict=True):
            sums.append((factor.to(row.dtype) @ row).view(gradient.shape[1:]))
        return sums

    def with_noise(self, totals: list[Tensor], step: int) -> list[Tensor]:
        """Return the sums with noise, a number for each of their numbers."""
        if self.deviation == 0:
            return totals

        key = self.key.fold("example noise").at(torch.tensor(step, device="cpu"))
        noisy = []
        for number, total in enumerate(totals):
            drawn = rng.noise(key.fold(number), tuple(total.shape), self.secret)
            noise = drawn.to(total.dtype)
            noisy.append(total.add(to_device(noise, total.device), alpha=self.deviation))
        return noisy


MakeSteps = Callable[[Phase, ExampleBound, StepBuffers, Key], PrivateSteps]
"""Makes the steps of a phase."""
_make_steps: ContextVar[MakeSteps] = ContextVar("steps of bounded examples", default=PrivateSteps)


@contextmanager
def steps_made_by(make: MakeSteps) -> Iterator[None]:
    """Make the steps of all phases in the block by a function, in this thread: for an audit."""
    token = _make_steps.set(make)
    try:
        yield
    finally:
        _make_steps.reset(token)
