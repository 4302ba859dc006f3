"""Randomness as values: keys derived by purpose, read by the counter-based generator Philox4x64-10.

A key says who draws (client), when (round, step) and for which purpose. The same key gives the same
numbers in any order of execution, under any engine. Salmon et al. 2011, "Parallel random numbers:
as easy as 1, 2, 3" define the generator; numpy's implementation produces the raw bits.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.devices import HOST

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
