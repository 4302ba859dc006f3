"""Bisection: where a condition that holds for small numbers ends. No torch."""

from __future__ import annotations

from collections.abc import Callable


def bisect(
    is_below: Callable[[float], bool], low: float, high: float, *, steps: int
) -> tuple[float, float]:
    """Return the ends of the interval in which the condition ends, halved so many times.

    Args:
        is_below: the condition: it holds at every number below the end that is looked for.
        low: a number below it.
        high: a number above it.
        steps: how often the interval is halved.

    Example:
        >>> bisect(lambda value: value**2 < 2, 0.0, 2.0, steps=3)
        (1.25, 1.5)
    """
    for _ in range(steps):
        middle = (low + high) / 2
        if is_below(middle):
            low = middle
        else:
            high = middle

    return low, high
