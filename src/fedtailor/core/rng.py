"""Randomness as values: keys derived by purpose, read by the counter-based generator Philox4x64-10.

A key says who draws (client), when (round, step) and for which purpose. The same key gives the same
numbers in any order of execution, under any engine. Salmon et al. 2011, "Parallel random numbers:
as easy as 1, 2, 3" define the generator; numpy's implementation produces the raw bits.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.devices import HOST, current

_WORD = 2**64


class Key(NamedTuple):
    """The start of a stream of random numbers: a value, never consumed.

    The first four fields are 0-d int64 tensors, so that a key can be stacked over clients. They lie
    on the host, where numbers are drawn. The purpose is the same for all clients and stays a Python
    number.
    """

    seed: Tensor
    round: Tensor
    client: Tensor
    step: Tensor
    purpose: int

    def fold(self, purpose: str | int) -> Key:
        """Return the key for a purpose within this one."""
        text = f"{self.purpose}/{purpose}".encode()
        word = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)
        return self._replace(purpose=word)

    def at(self, step: Tensor) -> Key:
        """Return the key of a step (a 0-d int64 tensor); this needs no hashing."""
        return self._replace(step=step)

    def common(self, purpose: str) -> Key:
        """Return a key that depends on the seed and ``purpose`` alone.

        The same for every client and round.
        """
        zero = torch.zeros((), dtype=torch.int64, device=HOST)
        return Key(self.seed, zero, zero, zero, 0).fold(f"common/{purpose}")


def new_key(seed: int, *, round: int = 0, client: int = 0, purpose: str = "") -> Key:
    """Return the key of (seed, round, client), folded with ``purpose``.

    Example:
        >>> key = new_key(0, round=3, client=7)
        >>> key.fold("head").purpose == key.fold("body").purpose
        False
    """
    where = [
        torch.tensor(value, dtype=torch.int64, device=HOST) for value in (seed, round, client, 0)
    ]
    return join_key(where, 0).fold(purpose)


def join_key(where: Sequence[Tensor], purpose: int) -> Key:
    """Return the key of (seed, round, client, step) and a purpose.

    The inverse of ``key[:4], key.purpose``.
    """
    seed, round, client, step = where
    return Key(seed, round, client, step, purpose)


class _Generator(threading.local):
    """One numpy generator per thread; its state is set before every read."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=0)
        self.state = self.philox.state


_generator = _Generator()


def philox(counter: tuple[int, int, int, int], key: tuple[int, int], count: int) -> np.ndarray:
    """Return ``count`` raw 64-bit words of Philox4x64-10.

    The first block is that of ``counter`` + 1 (the generator counts up before it draws), a 256-bit
    number whose least significant word comes first.
    """
    # An empty buffer, so that the next word comes from the block after the counter.
    state = _generator.state
    state["state"]["counter"][:] = [word % _WORD for word in counter]
    state["state"]["key"][:] = [word % _WORD for word in key]
    state["buffer_pos"] = 4
    _generator.philox.state = state
    return np.asarray(_generator.philox.random_raw(count))


def words(key: tuple[int, int, int, int, int], count: int, *, start: int = 0) -> np.ndarray:
    """Return words ``start`` to ``start + count`` of the stream of a key given as plain numbers.

    Counter words: block, step, round, client; key words: seed, purpose.
    """
    seed, round_, client, step, purpose = key
    block, skip = divmod(start, 4)
    return philox((block, step, round_, client), (seed, purpose), skip + count)[skip:]


def plain(key: Key) -> tuple[int, int, int, int, int]:
    """Return the five numbers of a key whose fields are single tensors."""
    return int(key.seed), int(key.round), int(key.client), int(key.step), key.purpose


def to_unit(raw: np.ndarray) -> np.ndarray:
    """Turn raw words into float64 in [0, 1) with 53 bits."""
    return np.asarray((raw >> np.uint64(11)) * 2.0**-53)


_CHUNK = 2**16
"""Words read at once (512 KiB): as much as a cache holds, so a long draw needs little memory."""

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


def noise(key: Key, shape: tuple[int, ...], secret: bytes) -> Tensor:
    """Return standard normal numbers in torch's default dtype that hide something.

    Args:
        key: of single tensors.
        shape: of the result.
        secret: without which nobody can tell the numbers, see :func:`secret_words`; empty: whoever
            knows the key can.
    """
    if not secret:
        return normal(key, shape)

    count = math.prod(shape)
    drawn = _box_muller(secret_words(key, secret, count + count % 2))[:count]
    return drawn.to(torch.get_default_dtype()).view(shape).to(current())


def secret_words(key: Key, secret: bytes, count: int) -> np.ndarray:
    """Return random words that cannot be told from others without a secret.

    Philox is made for speed, and its key can be found from its numbers. SHAKE-256 (FIPS 202) over a
    secret of a fixed length and a key is a cryptographic generator.
    """
    where = "/".join(map(str, plain(key)))
    raw = hashlib.shake_256(secret + where.encode()).digest(8 * count)
    return np.frombuffer(raw, "<u8")


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
        flat.copy_(torch.from_numpy(words(key, count).view(np.int64)))
        return out

    for start in range(0, count, _CHUNK):
        size = min(_CHUNK, count - start)
        raw = words(key, size + size % 2, start=start)
        values = torch.from_numpy(to_unit(raw)) if kind == "uniform" else _box_muller(raw)
        flat[start : start + size] = values[:size]

    # Rounding to the default dtype must not reach 1.
    if kind == "uniform":
        flat.clamp_(max=1.0 - torch.finfo(out.dtype).eps / 2)

    return out


def _box_muller(raw: np.ndarray) -> Tensor:
    """Turn pairs of words into pairs of standard normals: two words in, two numbers out, always."""
    pairs = to_unit(raw).reshape(-1, 2)

    # In (0, 1], so that the logarithm is finite.
    first = 1.0 - np.ascontiguousarray(pairs[:, 0])
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
    clients = unroll(where, in_dims[3:], info.batch_size)
    draws = [_draw_operator(kind, shape, purpose, *words) for words in clients]
    return torch.stack(draws), 0


def unroll(
    tensors: Sequence[Tensor], dims: Sequence[int | None], count: int
) -> list[tuple[Tensor, ...]]:
    """Return the tensors of each of ``count`` clients; one that is not stacked is for all."""
    columns = []
    for tensor, dim in zip(tensors, dims, strict=True):
        columns.append([tensor] * count if dim is None else list(tensor.unbind(dim)))
    return list(zip(*columns, strict=True))


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
