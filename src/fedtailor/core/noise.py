"""Keyed random numbers as tensors; every draw depends on its key and position alone.

Each function is a building block: one implementation for one client, one for a stack of clients. Entry
``i`` (in row order) depends on the key and ``i``, not on the shape, so rows of padding change nothing.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.rng import Key
from fedtailor.training.step_graph.recording import host_call

_CHUNK = 2**20  # words read at once (8 MiB), so that a long draw needs little memory

Kind = Literal["words", "uniform", "normal"]


def random_words(key: Key, count: int) -> Tensor:
    """Return ``count`` random int64 words (the raw bits of the generator)."""
    return _draw("words", key, (count,))


def uniform(key: Key, shape: tuple[int, ...]) -> Tensor:
    """Return uniform numbers in [0, 1) in torch's default dtype."""
    return _draw("uniform", key, shape)


def normal(key: Key, shape: tuple[int, ...]) -> Tensor:
    """Return standard normal numbers in torch's default dtype (Box and Muller 1958)."""
    return _draw("normal", key, shape)


def row_words(key: Key, weight: Tensor) -> Tensor:
    """Return a random word for every row (n,): the k-th row of positive weight gets word k.

    So padding between rows, which differs between engines, does not change the word of any row.
    """
    rank = (weight > 0).long().cumsum(0) - 1
    return random_words(key, weight.shape[0])[rank.clamp(min=0)]


def _draw(kind: Kind, key: Key, shape: tuple[int, ...]) -> Tensor:
    result: Tensor = _Draw.apply(kind, tuple(shape), key.purpose, *key[:4])  # type: ignore[no-untyped-call]
    return result


def _draw_one(kind: Kind, shape: tuple[int, ...], purpose: int, *where: int) -> Tensor:
    """Draw for one client; ``where`` is (seed, round, client, step)."""
    key = (*where, purpose)
    count = math.prod(shape)
    if kind == "words":
        return torch.from_numpy(rng.words(key, count).view(np.int64)).reshape(shape)  # type: ignore[arg-type]
    result = torch.empty(count, dtype=torch.get_default_dtype())
    for start in range(0, count, _CHUNK):
        size = min(_CHUNK, count - start)
        raw = rng.words(key, size + size % 2, start=start)  # type: ignore[arg-type]
        values = torch.from_numpy(rng.to_unit(raw)) if kind == "uniform" else _box_muller(raw)
        result[start : start + size] = values[:size]
    if kind == "uniform":  # rounding to the default dtype must not reach 1
        result.clamp_(max=1.0 - torch.finfo(result.dtype).eps / 2)
    return result.reshape(shape)


def _box_muller(raw: np.ndarray) -> Tensor:
    """Turn pairs of words into pairs of standard normals: two words in, two numbers out, always."""
    pairs = rng.to_unit(raw).reshape(-1, 2)
    first = 1.0 - np.ascontiguousarray(pairs[:, 0])  # in (0, 1], so that the logarithm is finite
    radius = torch.from_numpy(np.sqrt(-2.0 * np.log(first)))
    angle = torch.from_numpy(2.0 * np.pi * np.ascontiguousarray(pairs[:, 1]))
    result = torch.empty(pairs.shape, dtype=torch.float64)
    torch.mul(radius, torch.cos(angle), out=result[:, 0])
    torch.mul(radius, torch.sin(angle), out=result[:, 1])
    return result.view(-1)


class _Draw(torch.autograd.Function):
    """The draw as a function that PyTorch hands stacked keys under ``vmap``."""

    @staticmethod
    def forward(kind: Kind, shape: tuple[int, ...], purpose: int, *where: Tensor) -> Tensor:
        return host_call(partial(_draw_one, kind, shape, purpose), where)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, ...]:
        return (None,) * 7

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], kind: Kind, shape: tuple[int, ...], purpose: int, *where: Tensor
    ) -> tuple[Tensor, int]:
        lanes = zip(*(unroll(word, dim, info.batch_size) for word, dim in zip(where, in_dims[3:], strict=True)))
        draws = [_Draw.apply(kind, shape, purpose, *lane) for lane in lanes]  # type: ignore[no-untyped-call]
        return torch.stack(draws), 0


def unroll(tensor: Tensor, dim: int | None, count: int) -> list[Tensor]:
    """Return the ``count`` slices of a stacked tensor, or the same tensor ``count`` times if it is not stacked."""
    return list(tensor.unbind(dim)) if dim is not None else [tensor] * count
