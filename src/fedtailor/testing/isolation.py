"""Check in float64, on one thread, and leave everything global as it was."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedtailor.core.engine import one_thread

_lock = threading.RLock()


@contextmanager
def isolated() -> Iterator[None]:
    """Make float64 the default type; afterwards restore it, modes of PyTorch, threads and all random states.

    PyTorch has one default type, and libraries one random state, for all threads: one check runs at a time, and other
    threads that make tensors meanwhile would make them in float64.
    """
    with _lock, torch.random.fork_rng(devices=[]), one_thread():
        python, legacy = random.getstate(), np.random.get_state()
        dtype, gradients = torch.get_default_dtype(), torch.is_grad_enabled()
        deterministic = torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(gradients)
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
            random.setstate(python)
            np.random.set_state(legacy)


def disturb(seed: int) -> None:
    """Put every global random state somewhere; called within :func:`isolated`."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
