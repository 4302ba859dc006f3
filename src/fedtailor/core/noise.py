"""Keyed random numbers as tensors; every number depends on its key and position alone.

Each function works for one client and for a stack of clients. Entry ``i`` (in row order) depends on
the key and ``i``, not on the shape, so rows of padding change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.devices import HOST, current
from fedtailor.core.rng import Key

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

    So padding between rows, which differs between engines, does not change the word of a row.
    """
    rank = (weight > 0).long().cumsum(0) - 1
    return random_words(key, weight.shape[0])[rank.clamp(min=0)]


def _draw(kind: Kind, key: Key, shape: tuple[int, ...]) -> Tensor:
    result: Tensor = _draw_operator(
        kind, shape, key.purpose, key.seed, key.round, key.client, key.step
    )
    device = current()
    return result if device == HOST else result.to(device)


def _draw_new(
    kind: Kind,
    shape: Sequence[int],
    purpose: int,
    seed: Tensor,
    round: Tensor,
    client: Tensor,
    step: Tensor,
) -> Tensor:
    """Draw for one client, on the host."""
    out = torch.empty(
        shape, dtype=torch.int64 if kind == "words" else torch.get_default_dtype(), device=HOST
    )
    return _draw_into(kind, shape, purpose, seed, round, client, step, out=out)


def _draw_into(
    kind: Kind,
    shape: Sequence[int],
    purpose: int,
    seed: Tensor,
    round: Tensor,
    client: Tensor,
    step: Tensor,
    *,
    out: Tensor,
) -> Tensor:
    """Draw for one client into ``out``, a contiguous tensor of the right shape and type."""
    key = (int(seed), int(round), int(client), int(step), purpose)
    count = math.prod(shape)
    flat = out.view(-1)
    if kind == "words":
        flat.copy_(torch.from_numpy(rng.words(key, count).view(np.int64)))
        return out

    for start in range(0, count, _CHUNK):
        size = min(_CHUNK, count - start)
        raw = rng.words(key, size + size % 2, start=start)
        values = torch.from_numpy(rng.to_unit(raw)) if kind == "uniform" else _box_muller(raw)
        flat[start : start + size] = values[:size]

    if kind == "uniform":  # rounding to the default dtype must not reach 1
        flat.clamp_(max=1.0 - torch.finfo(out.dtype).eps / 2)

    return out


def _box_muller(raw: np.ndarray) -> Tensor:
    """Turn pairs of words into pairs of standard normals: two words in, two numbers out, always."""
    pairs = rng.to_unit(raw).reshape(-1, 2)
    first = 1.0 - np.ascontiguousarray(pairs[:, 0])  # in (0, 1], so that the logarithm is finite
    radius = torch.from_numpy(np.sqrt(-2.0 * np.log(first)))
    angle = torch.from_numpy(2.0 * np.pi * np.ascontiguousarray(pairs[:, 1]))
    result = torch.empty(pairs.shape, dtype=torch.float64, device=HOST)
    torch.mul(radius, torch.cos(angle), out=result[:, 0])
    torch.mul(radius, torch.sin(angle), out=result[:, 1])
    return result.view(-1)


def _draw_shape(kind: Kind, shape: Sequence[int], purpose: int, *where: Tensor) -> Tensor:
    """Return a tensor like the draw, without its numbers, for whoever traces a program."""
    return torch.empty(shape, dtype=torch.int64 if kind == "words" else torch.get_default_dtype())


def _draw_stacked(
    info: Any,
    in_dims: tuple[Any, ...],
    kind: Kind,
    shape: Sequence[int],
    purpose: int,
    *where: Tensor,
) -> tuple[Tensor, int]:
    """Draw for every client of a stack.

    ``where`` is (seed, round, client, step), stacked or the same for all.
    """
    dims = in_dims[3:]
    words = [unroll(word, dim, info.batch_size) for word, dim in zip(where, dims, strict=True)]
    draws = [
        _draw_operator(kind, shape, purpose, *client_words)
        for client_words in zip(*words, strict=True)
    ]
    return torch.stack(draws), 0


def unroll(tensor: Tensor, dim: int | None, count: int) -> list[Tensor]:
    """Return the ``count`` slices of a stacked tensor; one that is not stacked ``count`` times."""
    return list(tensor.unbind(dim)) if dim is not None else [tensor] * count


# The draw is an operator of PyTorch's, so that whatever watches or transforms operators (vmap,
# automatic differentiation, a recording of steps) sees one operation with a name, in place of
# Python that reads numbers.
_ARGUMENTS = (
    "str kind, int[] shape, int purpose, Tensor seed, Tensor round, Tensor client, Tensor step"
)
_library: Any = torch.library.Library("fedtailor", "DEF")  # type: ignore[no-untyped-call]
_library.define(f"draw({_ARGUMENTS}) -> Tensor")
_library.define(f"draw.out({_ARGUMENTS}, *, Tensor(a!) out) -> Tensor(a!)")
_library.impl("draw", _draw_new, "CPU")
_library.impl("draw.out", _draw_into, "CPU")
torch.library.register_vmap("fedtailor::draw", _draw_stacked, lib=_library)
torch.library.register_fake("fedtailor::draw", _draw_shape, lib=_library)
_draw_operator = torch.ops.fedtailor.draw.default
