"""Isolation of checks: they run in float64 on one thread, and restore every global setting."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedtailor.core.engine import one_thread
from fedtailor.simulation.engines.containment import process_restored, thread_restored

_lock = threading.RLock()


@contextmanager
def isolated() -> Iterator[None]:
    """Make float64 the default type, and restore every global setting at the end.

    The default type and the random states belong to the whole process. So one check runs at a time,
    and tensors that other threads create in the meantime are float64, too.
    """
    with _lock, one_thread(), process_restored(), thread_restored():
        torch.set_default_dtype(torch.float64)
        yield


def seed_globally(seed: int) -> None:
    """Seed every global random generator; call it within :func:`isolated`."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
