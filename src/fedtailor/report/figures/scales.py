"""Scales: from numbers to places in a picture, and the ticks of an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_SMALLEST_LABEL = 1e-3
_LARGEST_LABEL = 1e5


class Scale(Protocol):
    """Places numbers along an axis."""

    def __call__(self, value: float) -> float:
        """Return the place of a number, in pixels."""

    def ticks(self, most: int) -> list[float]:
        """Return round numbers along the axis, about ``most`` of them."""


@dataclass(frozen=True)
class Linear:
    """A linear scale from ``low`` at the place ``start`` to ``high`` at the place ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a number, in pixels."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """Return multiples of 1, 2, 2.5 or 5 times a power of ten, between ``low`` and ``high``."""
        step = round_step((self.high - self.low) / max(most, 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


@dataclass(frozen=True)
class Logarithmic:
    """A logarithmic scale of positive numbers from ``low`` at ``start`` to ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a number, in pixels."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """Return 1, 2 and 5 times powers of ten between ``low`` and ``high``, or fewer of them."""
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            found = [digit * 10.0**exponent for exponent in exponents for digit in digits]
            found = [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]
            if len(found) <= most:
                break
        return found


def round_step(step: float) -> float:
    """Return the next number that is 1, 2, 2.5 or 5 times a power of ten.

    >>> round_step(0.3), round_step(0.21), round_step(13.0)
    (0.5, 0.25, 20.0)
    """
    power = 10.0 ** math.floor(math.log10(step))
    return next(
        power * digit for digit in (1.0, 2.0, 2.5, 5.0, 10.0) if step <= power * digit * (1 + 1e-9)
    )


def linear(
    values: Sequence[float], start: float, end: float, *, include: Sequence[float] = ()
) -> Linear:
    """Return a linear scale that holds all values and what is to be included, from and to round
    numbers.
    """
    low = min([*values, *include], default=0.0)
    high = max([*values, *include], default=1.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) / 2 or 0.5
        low -= margin
        high += margin

    step = round_step((high - low) / 5)
    return Linear(
        math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, end
    )


def logarithmic(values: Sequence[float], start: float, end: float) -> Logarithmic:
    """Return a logarithmic scale that holds all values, which are positive, with a little space
    beside them.
    """
    low = min(values)
    high = max(values)
    if high < 2 * low:
        low /= 2
        high *= 2
    margin = (high / low) ** 0.04
    return Logarithmic(low / margin, high * margin, start, end)


def label(value: float) -> str:
    """Return a number as it is written at a tick.

    >>> label(0.25), label(2000.0), label(2500000.0), label(0.00012)
    ('0.25', '2,000', '2.5e6', '1.2e-4')
    """
    size = abs(value)
    if size < 1e-12:
        return "0"
    if size < _SMALLEST_LABEL or size >= _LARGEST_LABEL:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:,.6g}" if size >= 1000 else f"{value:.6g}"
