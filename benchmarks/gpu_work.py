"""The work of a simulated round, the same for every arm: clients, their batches, and tensors on one device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.batches import Amount, plan_batches, take, to_values
from fedtailor.core.local import classification_loss
from fedtailor.core.phase import Phase, structure
from fedtailor.core.task import Batch, Task, Training
from fedtailor.models import build_model
from train_step import DECAY, LR, MOMENTUM, SETTINGS

MODELS: dict[str, dict[str, Any]] = {
    **{name: {**setting, "model": name} for name, setting in SETTINGS.items()},
    "resnet18": {"model": "resnet18_gn", "shape": (3, 32, 32), "classes": 10, "batch": 50},
}
_ALIGNED = 32
"""Numbers that leaves start at multiples of: 128 bytes in float32, which fast kernels ask for."""


def draw_sizes(alpha: float, active: int = 30, clients: int = 100, examples: int = 50_000, seed: int = 0) -> list[int]:
    """Return the numbers of examples of the active clients, where each of 10 classes is divided by Dir(alpha)."""
    generator = np.random.default_rng(seed)
    shares = generator.dirichlet([alpha] * clients, size=10)
    sizes = np.maximum((shares * (examples / 10)).astype(int).sum(0), 1)
    return [int(size) for size in generator.permutation(sizes)[:active]]


class Layout:
    """Where the leaves of a model lie in one vector, aligned; convolutions channels last or first."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], *, channels_last: bool) -> None:
        self.shapes, self.channels_last = [tuple(shape) for shape in shapes], channels_last
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.gaps = [-size % _ALIGNED for size in self.sizes]
        self.length = sum(self.sizes) + sum(self.gaps)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the leaves (..., *shape) in a tensor (..., length)."""
        parts = flat.split([number for pair in zip(self.sizes, self.gaps, strict=True) for number in pair], -1)[::2]
        return [self._view(part, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _view(self, part: Tensor, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 4 and self.channels_last:
            return part.unflatten(-1, (shape[0], *shape[2:], shape[1])).movedim(-1, -3)
        return part.unflatten(-1, shape)

    def join(self, leaves: Sequence[Tensor]) -> Tensor:
        """Return the tensor (..., length) of leaves (..., *shape), 0 in the gaps."""
        parts: list[Tensor] = []
        for leaf, shape, gap in zip(leaves, self.shapes, self.gaps, strict=True):
            stored = leaf.movedim(-3, -1) if len(shape) == 4 and self.channels_last else leaf
            lead = stored.shape[: stored.dim() - len(shape)]
            parts += [stored.reshape(*lead, -1), *([leaf.new_zeros(*lead, gap)] if gap else [])]
        return torch.cat(parts, -1)


@dataclass
class Work:
    """What a round trains. Positions are on the host, since they are drawn there; what is resident is on the device."""

    name: str
    phase: Phase
    layout: Layout
    x: Tensor  # (rows, channels, height, width), uint8, channels last in memory
    y: Tensor  # (rows,)
    scale: Tensor  # (3, channels): white, mean, deviation
    start: Tensor  # (layout.length,), parameters that every client starts from
    rows: list[Tensor]  # of every client (n,), positions in the table
    plans: list[list[Tensor]]  # of every client, the batches (b,): positions in its rows
    key: Any

    @property
    def device(self) -> torch.device:
        """Return where everything is computed."""
        return self.start.device

    @property
    def shares(self) -> list[float]:
        """Return the weight of every client in the mean."""
        total = sum(map(len, self.rows))
        return [len(rows) / total for rows in self.rows]

    @property
    def steps(self) -> int:
        """Return the number of steps of all clients."""
        return sum(map(len, self.plans))

    def batch(self, rows: Tensor, weight: Tensor) -> Batch:
        """Gather rows (..., b) of the table and normalize them; rows of weight 0 are padding."""
        images = to_values(take(self.x, rows), self.scale, weight.dtype)
        if not self.layout.channels_last:
            images = images.contiguous()
        return Batch(images, self.y.index_select(0, rows.flatten()).view(rows.shape), weight)

    def pin(self, table: Tensor) -> Tensor:
        """Return a table in memory from which the device copies while the host goes on."""
        return table.pin_memory() if self.device.type == "cuda" else table

    def upload(self, table: Tensor) -> Tensor:
        """Return a pinned table on the device."""
        return table.to(self.device, non_blocking=True)

    def tables(self, clients: Sequence[int], length: int) -> tuple[Tensor, Tensor]:
        """Return rows and weights of the batches of some clients, (clients, length, b), padded by weight 0."""
        size = max(len(batch) for plan in self.plans for batch in plan)
        rows = torch.zeros(len(clients), length, size, dtype=torch.int64)
        weight = torch.zeros(len(clients), length, size, dtype=self.start.dtype)
        for lane, client in enumerate(clients):
            for step, batch in enumerate(self.plans[client]):
                rows[lane, step, : len(batch)] = self.rows[client][batch]
                weight[lane, step, : len(batch)] = 1
        return self.pin(rows), self.pin(weight)


def make_phase(model: str, shape: tuple[int, ...], classes: int, training: Training, options: Any = None) -> Phase:
    """Return what the product trains with: FedAvg's loss on one of its models."""
    task = Task(build_model(model, shape, classes, options or {}), classes, shape)
    params = structure({name: torch.empty(0) for name in task.model.shapes})
    amount = Amount(training.epochs, 0, training.batch_size, training.drop_last, 1)
    phase = Phase(task, classification_loss, None, training, amount, "none", 0, params, ())
    if phase.has_buffers:
        raise ValueError(f"the arms train no buffers, which model {model} has")
    return phase


def make_plans(phase: Phase, rows: Sequence[Tensor], key_of: Callable[[int], rng.Key]) -> list[list[Tensor]]:
    """Return every client's batches as ``train`` draws them from its key."""
    return [
        plan_batches(torch.ones(len(own)), rng.plain(key_of(client).fold("order")), phase.amount).batches
        for client, own in enumerate(rows)
    ]


def place(
    name: str,
    phase: Phase,
    data: tuple[Tensor, Tensor, Tensor],
    rows: list[Tensor],
    plans: list[list[Tensor]],
    params: Mapping[str, Tensor],
    *,
    device: str,
    dtype: torch.dtype,
    channels_last: bool = True,
) -> Work:
    """Put a round's data (images, labels, scale) and parameters on a device."""
    layout = Layout(list(phase.task.model.shapes.values()), channels_last=channels_last)
    start = layout.join([params[name] for name in phase.task.model.shapes]).to(device, dtype)
    x, y, scale = (part.to(device) for part in data)
    return Work(name, phase, layout, x, y, scale.to(dtype), start, rows, plans, rng.new_key(0))


def random_work(
    name: str,
    sizes: Sequence[int],
    *,
    device: str,
    dtype: torch.dtype = torch.float32,
    batch: int = 0,
    epochs: int = 1,
    examples: int = 0,
    channels_last: bool = True,
    shape: tuple[int, ...] = (),
    options: Any = None,
) -> Work:
    """Return a round of clients of the given sizes on random images; the same on every device and in every dtype."""
    setting = MODELS[name]
    shape = shape or setting["shape"]
    training = Training(
        lr=LR, momentum=MOMENTUM, weight_decay=DECAY, epochs=epochs, batch_size=batch or setting["batch"]
    )
    phase = make_phase(setting["model"], shape, setting["classes"], training, options)
    generator = torch.Generator().manual_seed(0)
    count = max(examples, sum(sizes))
    channels, *pixels = shape
    x = torch.randint(256, (count, *pixels, channels), generator=generator, dtype=torch.uint8).movedim(-1, 1)
    y = torch.randint(setting["classes"], (count,), generator=generator)
    scale = torch.tensor([[255.0], [0.5], [0.5]]).expand(3, channels)
    rows = list(torch.randperm(count, generator=generator)[: sum(sizes)].split(list(sizes)))
    plans = make_plans(phase, rows, lambda client: rng.new_key(0, client=client))
    params = phase.task.model.init(rng.new_key(0, purpose="start"))
    return place(
        name, phase, (x, y, scale), rows, plans, params, device=device, dtype=dtype, channels_last=channels_last
    )
