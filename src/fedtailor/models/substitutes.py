"""Substitutes for layers of a user's module whose behavior depends on more than their input.

Dropout draws from the key of the call. Batch normalization uses the weights of the examples and
returns its new statistics. Both find the call in a variable of the thread, because threads train at
the same time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedtailor.core.rng import Key, uniform
from fedtailor.core.task import Params

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
CHANNEL_DROPOUTS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)

_TRACKED = ("running_mean", "running_var", "num_batches_tracked")


@dataclass
class Call:
    """A call of a model's ``features``: weight and key, and the new buffers."""

    weight: Tensor  # (n,)
    key: Key
    buffers: Params = field(default_factory=dict)
    """Statistics updated so far, by name."""
    draws: dict[str, int] = field(default_factory=dict)
    """Number of draws of every dropout layer so far, by name: a layer that is used twice draws
    twice."""

    def next_key(self, layer: str) -> Key:
        """Return the key of a layer's next draw."""
        number = self.draws.get(layer, 0)
        self.draws[layer] = number + 1
        return self.key.fold(f"dropout/{layer}/{number}")


class _Current(threading.local):
    call: Call | None = None


_current = _Current()


@contextmanager
def calling(call: Call) -> Iterator[None]:
    """Make ``call`` the current one of this thread."""
    before = _current.call
    _current.call = call
    try:
        yield
    finally:
        _current.call = before


def current_call() -> Call:
    """Return the current call of this thread."""
    if _current.call is None:
        raise RuntimeError(
            "this layer belongs to a fedtailor model and runs only within its features()"
        )
    return _current.call


class KeyedDropout(nn.Module):
    """Dropout whose mask depends on the key of the call and the position of an entry.

    ``channels``: drop whole channels (second axis) instead of single entries. The first axis of the
    mask is that of the examples, so that padding rows at the end change nothing.
    """

    def __init__(self, name: str, rate: float, *, channels: bool) -> None:
        super().__init__()
        self.name = name
        self.rate = rate
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries in training and divide the others by 1 - rate."""
        if not self.training or self.rate == 0:
            return x
        if self.rate == 1:
            return x * 0

        # One draw for a whole channel: (n, channels, 1, ...).
        shape = tuple(x.shape)
        if self.channels:
            shape = (*shape[:2], *(1 for _ in shape[2:]))
        keep = uniform(current_call().next_key(self.name), shape) >= self.rate
        return x * keep / (1 - self.rate)


class WeightedBatchNorm(nn.Module):
    """Batch normalization over the rows of weight > 0; new running statistics go to the call.

    As in PyTorch, the batch is normalized by the biased variance, and the running variance follows
    the unbiased variance. If a channel has a single value in the batch (PyTorch raises an error),
    the output is the layer's bias and the running variance stays the same; without rows of weight >
    0 all statistics stay the same. Parameters and buffers have their original names;
    ``num_batches_tracked`` may be a float.
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, name: str, original: BatchNorm) -> None:
        super().__init__()
        self.prefix = f"{name}." if name else ""
        self.eps = original.eps
        self.momentum = original.momentum
        self.weight = original.weight
        self.bias = original.bias
        for buffer in _TRACKED:
            self.register_buffer(buffer, getattr(original, buffer))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize (n, channels, ...) by batch statistics, in evaluation by running ones."""
        # Without running statistics, evaluation uses those of the batch, too.
        broadcast = (1, -1, *(1 for _ in x.shape[2:]))
        if self.training or self.running_mean is None or self.running_var is None:
            centered, var = self._center(x, broadcast)
        else:
            centered = x - self.running_mean.view(broadcast)
            var = self.running_var

        scale = torch.rsqrt(var + self.eps)
        if self.weight is not None:
            scale = scale * self.weight

        result = centered * scale.view(broadcast)
        return result if self.bias is None else result + self.bias.view(broadcast)

    def _center(self, x: Tensor, broadcast: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return ``x`` minus the mean of the real rows, and their biased variance; track both."""
        # Rows of weight 0 are padding: they are in no sum.
        real = _row_weights(x, current_call().weight) > 0
        mask = real.view(-1, *(1 for _ in x.shape[1:]))
        axes = [axis for axis in range(x.dim()) if axis != 1]
        count = real.sum() * math.prod(x.shape[2:])  # values per channel
        divisor = count.clamp(min=1)
        mean = torch.where(mask, x, 0).sum(axes) / divisor
        centered = x - mean.view(broadcast)
        squares = torch.where(mask, centered, 0).square().sum(axes)

        if self.training and self.running_mean is not None:
            self._track(count, mean.detach(), squares.detach())
        return centered, squares / divisor

    def _track(self, count: Tensor, mean: Tensor, squares: Tensor) -> None:
        """Put running statistics after a batch of ``count`` values per channel into the call."""
        # A layer that is used twice in a call continues from its first use.
        buffers = current_call().buffers
        before = {name: buffers.get(self.prefix + name, getattr(self, name)) for name in _TRACKED}
        old_mean = before["running_mean"]
        old_var = before["running_var"]
        old_batches = before["num_batches_tracked"]

        # Without momentum the statistics are the mean over all batches, as in PyTorch.
        batches = torch.where(count > 0, old_batches + 1, old_batches)
        rate = 1 / batches.clamp(min=1) if self.momentum is None else self.momentum
        new_mean = old_mean + rate * (mean - old_mean)
        new_var = old_var + rate * (squares / (count - 1).clamp(min=1) - old_var)

        # A batch of padding changes nothing; one value has no variance.
        buffers[self.prefix + "running_mean"] = torch.where(count > 0, new_mean, old_mean)
        buffers[self.prefix + "running_var"] = torch.where(count > 1, new_var, old_var)
        buffers[self.prefix + "num_batches_tracked"] = batches


def _row_weights(x: Tensor, weight: Tensor) -> Tensor:
    """Return the weight of each row of ``x``; an example has one or several consecutive rows."""
    rows = x.shape[0]
    examples = weight.shape[0]
    repeats, rest = divmod(rows, max(examples, 1))  # a batch may be empty
    if rest:
        raise ValueError(f"batch normalization of {rows} rows, but the batch has {examples}")
    return weight[:, None].expand(-1, repeats).reshape(-1)


def substitute(name: str, layer: nn.Module) -> nn.Module | None:
    """Return the substitute for a layer; None if it can stay, as subclasses of these layers do."""
    if type(layer) not in (nn.Dropout, *CHANNEL_DROPOUTS, *BATCH_NORMS):
        return None
    if isinstance(layer, BATCH_NORMS):
        return WeightedBatchNorm(name, layer)

    assert isinstance(layer, (nn.Dropout, *CHANNEL_DROPOUTS))
    return KeyedDropout(name, layer.p, channels=isinstance(layer, CHANNEL_DROPOUTS))
