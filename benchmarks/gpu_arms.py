"""The arms of gpu_step.py: the same round of FedAvg, computed in five ways.

Every arm is made from a :class:`gpu_work.Work`; ``round()`` trains all its clients from the common start and returns
the mean of their parameters, weighted by their numbers of examples, as a vector in the layout of the work. Nothing is
read on the host within a round; losses add up on the device.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fedtailor.core.batches import to_values
from fedtailor.core.optimizer import Optimizer
from fedtailor.core.single import Trainable
from fedtailor.core.task import Batch
from gpu_capture import Captured, capture
from gpu_peer import peer_module
from gpu_work import Work

WIDTHS = (30, 24, 16, 12, 8, 6, 4, 2, 1)
"""Numbers of stacked clients that a step is made for."""


class Arm:
    """One way to compute a round."""

    def __init__(self, work: Work, unroll: int) -> None:
        self.work, self.unroll = work, unroll
        self.captured: list[Captured] = []
        self.capture_seconds = 0.0
        self.replays = 0
        """Of the latest round."""
        self.total = torch.zeros_like(work.start)

    def round(self) -> Tensor:
        """Train every client once; return the mean."""
        raise NotImplementedError

    def capture(self, function: Any, places: list[Tensor], inputs: list[Tensor]) -> Captured:
        """Capture a function, and keep the time that it takes."""
        start = time.perf_counter()
        if self.work.device.type == "cuda" and not self.captured:
            self.pool = torch.cuda.graph_pool_handle()  # of this arm: its graphs never run at the same time
        captured = capture(function, places, inputs, pool=getattr(self, "pool", None))
        self.capture_seconds += time.perf_counter() - start
        self.captured.append(captured)
        return captured


class Peer(Arm):
    """What the tools in use do: a module per client, a DataLoader over pairs, batches sent one by one, torch's SGD."""

    def __init__(self, work: Work, unroll: int) -> None:
        super().__init__(work, unroll)
        phase, host = work.phase, [part.cpu() for part in (work.x, work.y, work.scale)]
        values = [to_values(host[0][rows], host[2], work.start.dtype).contiguous() for rows in work.rows]
        self.clients = [
            list(zip(images.unbind(), host[1][rows].unbind(), strict=True))
            for images, rows in zip(values, work.rows, strict=True)
        ]
        module = peer_module(work.name, phase.task.num_classes).to(work.device, work.start.dtype)
        with torch.no_grad():
            for own, given in zip(module.parameters(), work.layout.views(work.start), strict=True):
                own.copy_(given)
        self.common = module

    def round(self) -> Tensor:
        training, total = self.work.phase.training, None
        for examples, plan, share in zip(self.clients, self.work.plans, self.work.shares, strict=True):
            module = copy.deepcopy(self.common).train()
            optimizer = torch.optim.SGD(
                module.parameters(), lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
            )
            for images, labels in DataLoader(examples, batch_sampler=[batch.tolist() for batch in plan]):
                images, labels = images.to(self.work.device), labels.to(self.work.device)
                loss = torch.nn.functional.cross_entropy(module(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            own = [share * parameter.detach() for parameter in module.parameters()]
            total = own if total is None else [a + b for a, b in zip(total, own, strict=True)]
        return self.work.layout.join(total)


class Learner:
    """One client's parameters and momentum, each a vector at a fixed place, and the step of the product on them."""

    def __init__(self, work: Work, params: Tensor, momentum: Tensor, losses: Tensor) -> None:
        self.work, self.params, self.momentum, self.losses = work, params, momentum, losses
        self.own = Trainable(work.layout.views(params))
        self.optimizer = Optimizer(work.phase.training, [])
        self.optimizer.first = work.layout.views(momentum)

    def restart(self) -> None:
        """Start a client from the common parameters."""
        self.params.copy_(self.work.start)
        self.momentum.zero_()

    def step(self, batch: Batch) -> None:
        """Take one step."""
        with torch.enable_grad():
            loss, _, _ = self.work.phase.evaluate(self.own.leaves, [], batch, self.work.key)
            gradients = self.own.gradients(loss)
        self.optimizer.update(self.own.values, gradients, 0)
        self.losses.add_(loss.detach())


class Eager(Arm):
    """One client after the other, everything resident on the device."""

    def __init__(self, work: Work, unroll: int) -> None:
        super().__init__(work, unroll)
        places = torch.zeros_like(work.start), torch.zeros_like(work.start), work.start.new_zeros(())
        self.learner = Learner(work, *places)
        self.sizes = [len(batch) for plan in work.plans for batch in plan]
        chosen = [own[batch] for own, plan in zip(work.rows, work.plans, strict=True) for batch in plan]
        self.rows = work.pin(torch.cat(chosen))
        self.ones = work.start.new_ones(max(self.sizes))

    def round(self) -> Tensor:
        self.total.zero_()
        batches = iter(self.work.upload(self.rows).split(self.sizes))
        for plan, share in zip(self.work.plans, self.work.shares, strict=True):
            self.learner.restart()
            for _ in plan:
                rows = next(batches)
                self.learner.step(self.work.batch(rows, self.ones[: len(rows)]))
            self.total.add_(self.learner.params, alpha=share)
        return self.total


class Graph(Arm):
    """The same step captured once, with the gather: a replay reads its batch at a position on the device."""

    def __init__(self, work: Work, unroll: int) -> None:
        super().__init__(work, unroll)
        self.length = max(unroll, *(len(plan) for plan in work.plans))
        self.load_plans()
        self.rows, self.weight = (work.upload(table[0]).clone() for table in self.tables)
        params, momentum = torch.zeros_like(work.start), torch.zeros_like(work.start)
        position = torch.zeros(1, dtype=torch.int64, device=work.device)
        self.places = [params, momentum, position, work.start.new_zeros(())]
        self.learner = Learner(work, params, momentum, self.places[3])
        inputs = [self.rows, self.weight]
        self.one = self.capture(lambda *places: self.steps(1, *places), self.places, inputs)
        self.many = self.capture(lambda *places: self.steps(unroll, *places), self.places, inputs)

    def load_plans(self) -> None:
        """Take the batches from the work."""
        self.tables = self.work.tables(range(len(self.work.plans)), self.length)

    def steps(self, count: int, params: Tensor, momentum: Tensor, position: Tensor, losses: Tensor) -> list[Tensor]:
        """Take steps at the position, which moves on."""
        learner = Learner(self.work, params, momentum, losses)
        for _ in range(count):
            rows, weight = (table.index_select(0, position)[0] for table in (self.rows, self.weight))
            learner.step(self.work.batch(rows, weight))
            position.add_(1)
        return []

    def round(self) -> Tensor:
        self.total.zero_()
        self.replays = 0
        tables = [self.work.upload(table) for table in self.tables]
        for client, (plan, share) in enumerate(zip(self.work.plans, self.work.shares, strict=True)):
            self.learner.restart()
            self.places[2].zero_()
            self.rows.copy_(tables[0][client])
            self.weight.copy_(tables[1][client])
            self.replays += replay(len(plan), self.many, self.one, self.unroll)
            self.total.add_(self.learner.params, alpha=share)
        return self.total


def replay(steps: int, many: Captured | None, one: Captured | None, unroll: int) -> int:
    """Replay a number of steps; return the number of replays."""
    many_times, rest = divmod(steps, unroll) if many is not None else (0, steps)
    for captured, times in ((many, many_times), (one, rest)):
        for _ in range(times):
            assert captured is not None
            captured.replay()
    return many_times + rest


class Batched(Arm):
    """All clients stacked, the longest first; the stack shrinks to the next width as clients finish."""

    def __init__(self, work: Work, unroll: int) -> None:
        super().__init__(work, unroll)
        order = sorted(range(len(work.plans)), key=lambda client: -len(work.plans[client]))
        lengths = [len(work.plans[client]) for client in order]
        lanes = len(order)
        self.segments = segments(lengths)
        rows, weight = work.tables(order, max(unroll, lengths[0]))
        rates = torch.zeros(lanes, rows.shape[1], 1, dtype=work.start.dtype)
        for lane, length in enumerate(lengths):
            rates[lane, :length] = -work.phase.training.lr
        self.host = [work.pin(table.transpose(0, 1).contiguous()) for table in (rows, weight, rates)]
        self.tables = [work.upload(table).clone() for table in self.host]
        self.shares = torch.tensor([work.shares[client] for client in order], dtype=work.start.dtype).to(work.device)
        position = torch.zeros(1, dtype=torch.int64, device=work.device)
        stack = work.start.new_zeros(lanes, len(work.start))
        self.places = [stack, stack.clone(), position, work.start.new_zeros(lanes)]

    def steps(self, width: int, count: int, *places: Tensor) -> list[Tensor]:
        """Take steps of the first ``width`` clients at the position, which moves on."""
        stack, momenta, position, losses = places
        training, layout = self.work.phase.training, self.work.layout
        params, momentum = stack[:width], momenta[:width]
        for _ in range(count):
            rows, weight, rate = (table.index_select(0, position)[0, :width] for table in self.tables)
            batch = self.work.batch(rows, weight)
            gradients, loss = torch.func.vmap(self._gradients)(layout.views(params), *batch)
            slope = layout.join(gradients).add_(params, alpha=training.weight_decay)
            velocity = slope.add_(momentum, alpha=training.momentum)
            momentum.copy_(torch.where(rate != 0, velocity, momentum))  # a finished client's stays, and so do its
            params.addcmul_(momentum, rate)  # parameters: its rate is 0
            losses[:width].add_(loss)
            position.add_(1)
        return []

    def _gradients(self, leaves: list[Tensor], x: Tensor, y: Tensor, weight: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return gradients and loss of one client."""

        def objective(leaves: list[Tensor]) -> Tensor:
            return self.work.phase.evaluate(leaves, [], Batch(x, y, weight), self.work.key)[0]

        return torch.func.grad_and_value(objective)(leaves)

    def advance(self, width: int, count: int) -> None:
        """Take a segment's steps."""
        for _ in range(count):
            self.steps(width, 1, *self.places)

    def round(self) -> Tensor:
        stack, momenta, position, _ = self.places
        self.replays = 0
        for table, host in zip(self.tables, self.host, strict=True):
            table.copy_(host, non_blocking=True)
        stack.copy_(self.work.start.expand_as(stack))
        momenta.zero_()
        position.zero_()
        for width, count in self.segments:
            self.advance(width, count)
        return self.shares @ stack


def segments(lengths: list[int]) -> list[tuple[int, int]]:
    """Return widths and their numbers of steps for clients whose numbers of steps fall."""
    widths = [len(lengths), *(width for width in WIDTHS if width < len(lengths))]
    result = []
    done = 0
    for number, width in enumerate(widths):
        narrower = widths[number + 1] if number + 1 < len(widths) else 0
        stop = lengths[narrower]  # the first step at which ``narrower`` clients are enough
        if stop > done:
            result.append((width, stop - done))
            done = stop
    return result


class BatchedGraph(Batched):
    """The stacked steps, captured for every width."""

    def __init__(self, work: Work, unroll: int) -> None:
        super().__init__(work, unroll)
        self.graphs: dict[tuple[int, int], Captured] = {}
        for width, count in self.segments:
            if count >= unroll:
                self.graphs[width, unroll] = self._captured(width, unroll)
            if count % unroll and (width, 1) not in self.graphs:
                self.graphs[width, 1] = self._captured(width, 1)

    def _captured(self, width: int, count: int) -> Captured:
        return self.capture(lambda *places: self.steps(width, count, *places), self.places, self.tables)

    def advance(self, width: int, count: int) -> None:
        many, one = self.graphs.get((width, self.unroll)), self.graphs.get((width, 1))
        self.replays += replay(count, many, one, self.unroll)


ARMS: dict[str, type[Arm]] = {
    "peer": Peer,
    "eager": Eager,
    "graph": Graph,
    "batched": Batched,
    "batched_graph": BatchedGraph,
}
