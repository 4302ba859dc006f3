"""PyTorch's own random generator, seeded from a key for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedtailor.core import rng
from fedtailor.core.rng import Key

_lock = threading.RLock()  # a user's function, run with a seeded generator, may call from_module


@contextmanager
def preserved_generator() -> Iterator[None]:
    """Restore the state of PyTorch's CPU generator at the end; one thread at a time."""
    with _lock, torch.random.fork_rng(devices=[]):
        yield


@contextmanager
def seeded_generator(key: Key) -> Iterator[None]:
    """Seed PyTorch's CPU generator from a key, and restore its state at the end; one thread at a
    time.
    """
    first_word = int(rng.words(rng.plain(key.fold("torch")), 1)[0])
    with preserved_generator():
        torch.default_generator.manual_seed(first_word >> 1)
        yield
