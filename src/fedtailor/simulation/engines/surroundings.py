"""The surroundings of programs: settings of the process and of the thread, restored after a program
changed them.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import torch


class Settings(NamedTuple):
    """The settings of PyTorch in a process, on which results depend."""

    dtype: torch.dtype
    deterministic: bool
    warn_only: bool
    precision: str
    mkldnn: bool
    mkldnn_precision: str
    """Of matrix products; setting ``precision`` changes it."""
    anomalies: bool
    """Whether PyTorch looks for values that are not finite in every gradient."""

    @classmethod
    def current(cls) -> Settings:
        """Return the settings of this process."""
        return cls(
            dtype=torch.get_default_dtype(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            precision=torch.get_float32_matmul_precision(),
            mkldnn=bool(torch.backends.mkldnn.enabled),
            mkldnn_precision=_mkldnn_products().fp32_precision,
            anomalies=torch.is_anomaly_enabled(),
        )

    def apply(self) -> None:
        """Change the settings of this process to these."""
        torch.set_default_dtype(self.dtype)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        torch.set_float32_matmul_precision(self.precision)
        torch.backends.mkldnn.enabled = self.mkldnn  # type: ignore[assignment]
        _mkldnn_products().fp32_precision = self.mkldnn_precision
        torch.set_anomaly_enabled(self.anomalies)


def _mkldnn_products() -> Any:
    """Return the settings of matrix products in mkldnn, which PyTorch's types do not know."""
    return torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def import_path() -> tuple[str, ...]:
    """Return the folders in which Python looks for modules."""
    return tuple(entry for entry in sys.path if isinstance(entry, str))


def set_import_path(path: tuple[str, ...]) -> None:
    """Make Python look for modules in these folders."""
    sys.path[:] = path
    importlib.invalidate_caches()


class Surroundings:
    """The surroundings of programs in a process as they are now, to be restored later."""

    def __init__(self) -> None:
        self._settings = Settings.current()
        self._folder = _current_folder()
        self._environment = dict(os.environ)
        self._raw_environment = dict(_raw_environment())
        self._recursion_limit = sys.getrecursionlimit()
        self._filters = list(warnings.filters)
        self._collects_garbage = gc.isenabled()
        self._streams = (sys.stdin, sys.stdout, sys.stderr)
        self._handlers = _handlers()
        self._random = _RandomStates()

    def restore(self) -> bool:
        """Make everything as it was; return whether settings had changed. No other program may be
        running.
        """
        changed = self.restore_settings()
        if _raw_environment() != self._raw_environment:
            self._restore_environment()

        if warnings.filters != self._filters:
            warnings.filters[:] = self._filters  # type: ignore[index]
            with warnings.catch_warnings():  # tells Python that the filters are other ones
                pass

        if self._collects_garbage:
            gc.enable()

        sys.stdin, sys.stdout, sys.stderr = self._streams
        _restore_handlers(self._handlers)
        self._random.restore()
        return changed

    def restore_settings(self) -> bool:
        """Restore what every program depends on; return whether it had changed.

        Other programs may be running in other threads. So this leaves alone what sound programs
        change: the filters of warnings and the random generator from which a user's network draws
        its parameters, both for a moment, and the environment, when PyTorch imports parts of
        itself.
        """
        changed = False
        if Settings.current() != self._settings:
            self._settings.apply()
            changed = True

        if _current_folder() != self._folder:
            with suppress(OSError):  # it was removed
                os.chdir(self._folder)

            changed = True

        if sys.getrecursionlimit() != self._recursion_limit:
            sys.setrecursionlimit(self._recursion_limit)
            changed = True

        return changed

    def _restore_environment(self) -> None:
        for name in set(os.environ) - set(self._environment):
            del os.environ[name]
        for name, value in self._environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


@contextmanager
def thread_restored() -> Iterator[None]:
    """Restore the settings that every thread has of its own."""
    gradients = torch.is_grad_enabled()
    inference = torch.is_inference_mode_enabled()
    threads = torch.get_num_threads()
    modes = torch._C._len_torch_function_stack()
    device = _default_device()
    autocast = torch.is_autocast_enabled("cpu")
    autocast_type = torch.get_autocast_dtype("cpu")
    autocast_level = _autocast_level()
    flushes = _flushes_denormals()

    try:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch._C._len_torch_function_stack() > modes or _default_device() is not device:
            torch.set_default_device(None)

        if (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")) != (
            autocast,
            autocast_type,
        ):
            torch.set_autocast_enabled("cpu", autocast)
            torch.set_autocast_dtype("cpu", autocast_type)

        if _autocast_level() != autocast_level:  # rounded copies of parameters would stay in use
            for _ in range(_autocast_level() - autocast_level):
                torch.autocast_decrement_nesting()

            torch.clear_autocast_cache()

        if _flushes_denormals() != flushes:
            torch.set_flush_denormal(flushes)


def _default_device() -> Any:
    """Return what ``torch.set_default_device`` has set in this thread; it takes the place of a
    run's own device.
    """
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def _autocast_level() -> int:
    """Return how many contexts of autocast this thread is in."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


class _RandomStates:
    """The global random generators, and their states."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy_generator = _numpy_generator()
        self._numpy = self._numpy_generator.state
        self._numpy_memory = _memory_of(self._numpy_generator)

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        generator = self._numpy_generator
        if _numpy_generator() is not generator:
            np.random.set_bit_generator(generator)  # type: ignore[attr-defined]  # missing in the stubs
        if not self._numpy_memory or _memory_of(generator) != self._numpy_memory:
            generator.state = self._numpy


def _numpy_generator() -> Any:
    return np.random.get_bit_generator()  # type: ignore[attr-defined]  # missing in the stubs


_MT19937_BYTES = 625 * 4
"""The state of NumPy's usual generator: 624 words and a position."""


def _memory_of(generator: Any) -> bytes:
    """Return the state of a generator as it lies in memory: NumPy takes 0.1 ms for it. Empty if it
    is not known.
    """
    if not isinstance(generator, np.random.MT19937):
        return b""
    return ctypes.string_at(int(generator.ctypes.state_address), _MT19937_BYTES)


_SMALLEST = 5e-324
"""A number that is 0 for a thread that flushes denormal numbers to 0."""


def _flushes_denormals() -> bool:
    return _SMALLEST * 1.0 == 0.0


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _raw_environment() -> Any:
    """Return the environment as it is stored: decoding it takes 0.1 ms."""
    return vars(os.environ)["_data"]


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _handlers() -> list[Any]:
    return [signal.getsignal(number) for number in _SIGNALS]


def _restore_handlers(handlers: list[Any]) -> None:
    """Restore the handlers of signals, which only the main thread can change."""
    if threading.current_thread() is not threading.main_thread() or _handlers() == handlers:
        return
    for number, handler in zip(_SIGNALS, handlers, strict=True):
        if handler is not None:  # None: not set by Python
            signal.signal(number, handler)
