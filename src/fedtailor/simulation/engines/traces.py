"""What a client's program left in its process although :mod:`containment` restores what it can."""

from __future__ import annotations

import signal
import threading
from typing import Any, NamedTuple

from fedtailor.core.torch_private import open_modes
from fedtailor.simulation.engines.containment import running_timers, signal_handlers


class Traces(NamedTuple):
    """What a program may have left in its process."""

    threads: frozenset[int]
    timers: tuple[bool, ...]
    handlers: dict[signal.Signals, Any]
    modes: tuple[Any, ...]
    rounding: tuple[float, ...]

    @classmethod
    def current(cls) -> Traces:
        """Return the traces of this process; call it in the main thread."""
        return cls(
            threads=frozenset(thread.ident or 0 for thread in threading.enumerate()),
            timers=tuple(seconds > 0 for seconds, _ in running_timers().values()),
            handlers=signal_handlers(),
            modes=open_modes(),
            rounding=_rounding(),
        )

    def left_since(self, before: Traces) -> str:
        """Return what a program has left since then, in words; empty if nothing."""
        if self.threads - before.threads:
            return "a thread that still runs"
        if self.timers != before.timers:
            return "a timer that still runs"
        if self.handlers != before.handlers:
            return "a handler of a signal"
        if self.modes != before.modes:
            return "an open mode of PyTorch"
        if self.rounding != before.rounding:
            return "another rounding of numbers"
        return ""


def _rounding() -> tuple[float, ...]:
    """Return numbers of which every rounding mode of the processor changes at least one.

    The last is the smallest normal number divided by two, which is 0 without denormal numbers.
    """
    # To the nearest number, 1/3 is rounded down and 1/5 is rounded up.
    divisors = (3.0, -3.0, 5.0, -5.0)
    smallest = 2.0**-1022
    return (*(1 / divisor for divisor in divisors), smallest / 2)
