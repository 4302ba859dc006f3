"""Isolation of checks: they run in float64 on one thread, and restore every global setting."""

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
    """Make float64 the default type, and restore every global setting at the end.

    The default type and the random states belong to the whole process. So one check runs at a time,
    and tensors that other threads create in the meantime are float64, too.
    """
    with _lock, torch.random.fork_rng(devices=[]), one_thread():
        python_state = random.getstate()
        numpy_state = np.random.get_state()
        dtype = torch.get_default_dtype()
        gradients = torch.is_grad_enabled()
        deterministic = torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.set_default_dtype(torch.float64)

        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(gradients)
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def seed_globally(seed: int) -> None:
    """Seed every global random generator; call it within :func:`isolated`."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
