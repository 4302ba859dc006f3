"""How much rounds of Gaussian noise tell: epsilon of releases, and noise for a budget.

In a release, every unit (a client, or an example) takes part with probability q, its contribution
is bounded by C, and noise of standard deviation z C is added to the sum. Two sets of units are
neighbors if one has one unit more. The privacy loss of a release is bounded from above on a grid
("connect the dots": Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the dots", PETS 2022),
once for a unit that is removed and once for one that is added. Losses of several releases add up,
so their distributions are convolved, by Fourier transforms. If everybody takes part in every
release, the formula of Balle and Wang ("Improving the Gaussian mechanism", ICML 2018, theorem 8)
is exact.

What is returned is an upper bound: epsilon is never below the true one, but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

_TAIL = 1e-15
"""Mass of the losses that are left out on either side; it is added to delta."""
_WIDEST_STEP = 1e-3
_STEP = 0.02
"""Distance of the points of the grid, times the root of the number of releases."""
_SMALL_EPSILON = 0.1
_STEP_OF_EPSILON = 1e-3
"""The largest distance of the points, as a share of epsilon."""
_DEVIATIONS = 9.5
"""Of a normal distribution, beyond which its mass is far below the tail."""
_LEAST_NOISE = 0.05
_MOST_GUESSES = 8
_MARGIN = 1e-5
"""By how much a guess of the noise goes beyond what is found, as a share."""
_Array = np.ndarray[Any, np.dtype[Any]]


class Release(NamedTuple):
    """Equal releases of noisy sums."""

    noise: float
    """Standard deviation of the noise over the bound of a contribution (z)."""
    rate: float
    """Probability with which a unit takes part (q)."""
    times: int
    """How many releases there are."""


class _Losses(NamedTuple):
    """The distribution of a privacy loss on a grid."""

    first: int
    """The number of the first point: its loss is this times the step."""
    mass: _Array
    """Of every point."""
    infinite: float
    """The mass at infinity."""


def epsilon_of(delta: float, releases: Sequence[Release]) -> float:
    """Return epsilon of releases for a delta.

    With noise below 0.05, releases count as if everybody took part.

    Args:
        delta: from 1e-10, below which the rounding of Fourier transforms could decide, to below 1.
        releases: any number, also of different noise and rate.

    Example:
        >>> round(epsilon_of(1e-5, [Release(noise=5.0, rate=1.0, times=30)]), 3)
        4.866
    """
    releases = [release for release in releases if release.times and release.rate]
    if not releases:
        return 0.0
    if any(release.noise == 0 for release in releases):
        return math.inf
    # So little noise needs a huge grid, and hides nobody who is drawn: as if all took part.
    is_small = any(release.noise < _LEAST_NOISE for release in releases)
    if is_small or all(release.rate == 1 for release in releases):
        return _exact_epsilon(delta, releases)

    # The bound of a small epsilon needs a fine grid, which is then narrow.
    step = min(_WIDEST_STEP, _STEP / math.sqrt(sum(release.times for release in releases)))
    epsilon = _epsilon_on_grid(delta, releases, step)
    while step > max(epsilon, _SMALL_EPSILON) * _STEP_OF_EPSILON:
        step /= 5
        epsilon = min(epsilon, _epsilon_on_grid(delta, releases, step))
    return epsilon


def noise_for(
    epsilon: float, delta: float, plan: Sequence[tuple[float, int]], *, near: float = 1.0
) -> float:
    """Return the smallest noise with which releases stay within a budget.

    Args:
        epsilon: above 0.
        delta: from 1e-10 to below 1.
        plan: rate and number of releases.
        near: where the search begins. The noise of similar releases makes it shorter; the result
            is the same.

    Example:
        >>> round(noise_for(8.0, 1e-5, [(1.0, 30)]), 2)
        3.29
    """

    def told_with(noise: float) -> float:
        return epsilon_of(delta, [Release(noise, *part) for part in plan])

    return _smallest(told_with, epsilon, near)


def _smallest(told_with: Callable[[float], float], most: float, near: float) -> float:
    """Return the smallest noise that tells no more, to four digits, and never a smaller one.

    It is that of a bisection, of which a few guesses before it decide nearly all steps.
    """
    short, enough = _bounds(told_with, most, near)

    def is_enough(noise: float) -> bool:
        nonlocal short, enough
        if short < noise < enough:
            if told_with(noise) <= most:
                enough = noise
            else:
                short = noise
        return noise >= enough

    low = _LEAST_NOISE
    high = 1.0
    while not is_enough(high):
        low = high
        high *= 2

    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return high


def _bounds(told_with: Callable[[float], float], most: float, near: float) -> tuple[float, float]:
    """Return a noise that is too small, and one that is enough, close to each other.

    In logarithms, epsilon is nearly a line, so a secant finds the noise in a few steps.
    """
    short = 0.0
    enough = math.inf
    power = -1.0
    noise = near
    last = (0.0, 0.0)
    for _ in range(_MOST_GUESSES):
        noise = max(noise, _LEAST_NOISE)
        told = told_with(noise)
        if told <= most:
            enough = min(enough, noise)
        else:
            short = max(short, noise)
        if enough <= max(_LEAST_NOISE, short * (1 + 3 * _MARGIN)):
            break

        if not 0 < told < math.inf:
            noise *= 4.0 if told else 0.25
            continue
        if last[0] and last[0] != noise and last[1] != told:
            power = min(math.log(told / last[1]) / math.log(noise / last[0]), -0.1)

        # The next guess is a little beyond the line, so that the noise lies between the two.
        last = (noise, told)
        beyond = _MARGIN if told > most else -_MARGIN
        noise *= (most / told) ** (1 / power) * (1 + beyond)
        if not short < noise < enough:
            noise = math.sqrt(short * enough) if short > 0 and enough < math.inf else noise

    return short, enough


# Everybody takes part


def _shift(releases: Sequence[Release]) -> float:
    """Return mu: all releases tell as much as one number of N(mu, 1) against N(0, 1)."""
    return math.sqrt(sum(release.times / release.noise**2 for release in releases))


def _exact_delta(epsilon: float, mu: float) -> float:
    """Return delta of N(mu, 1) against N(0, 1) (Balle and Wang 2018, theorem 8)."""
    reached = float(ndtr(mu / 2 - epsilon / mu))
    logarithm = min(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)), 700.0)
    return reached - math.exp(logarithm)


def _exact_epsilon(delta: float, releases: Sequence[Release]) -> float:
    mu = _shift(releases)
    if _exact_delta(0.0, mu) <= delta:
        return 0.0
    highest = mu**2 / 2 + 40 * mu + 1
    return float(brentq(lambda epsilon: _exact_delta(epsilon, mu) - delta, 0.0, highest))


# A part takes part


def _epsilon_on_grid(delta: float, releases: Sequence[Release], step: float) -> float:
    """Return the larger epsilon of the two directions."""
    return max(
        _epsilon(delta, _compose(releases, step, removes), step) for removes in (True, False)
    )


def _points(losses: _Losses, step: float) -> _Array:
    return (losses.first + np.arange(len(losses.mass))) * step


def _divergence(epsilon: _Array, release: Release, removes: bool) -> _Array:
    """Return the hockey-stick divergence of one release at many epsilons, their least deltas.

    Args:
        epsilon: (n,).
        release: its noise and rate; the rate is below 1, or the release is that of everybody.
        removes: whether a unit is removed, rather than added.
    """
    z = release.noise
    q = release.rate
    if q == 1:
        return ndtr(0.5 / z - epsilon * z) - np.exp(epsilon + log_ndtr(-0.5 / z - epsilon * z))

    # Beyond x, the likelihood ratio of (1 - q) N(0, z^2) + q N(1, z^2) to N(0, z^2) is larger than
    # exp(epsilon), or exp(-epsilon) in the other direction.
    ratio = (np.exp(epsilon if removes else -epsilon) - (1 - q)) / q
    is_reached = ratio > 0
    x = z * z * np.log(np.maximum(ratio, 1e-300)) + 0.5
    if removes:
        mixture = (1 - q) * ndtr(-x / z) + q * ndtr((1 - x) / z)
        divergence = mixture - np.exp(epsilon) * ndtr(-x / z)
        return np.where(is_reached, np.clip(divergence, 0, 1), -np.expm1(epsilon))

    mixture = (1 - q) * ndtr(x / z) + q * ndtr((x - 1) / z)
    divergence = ndtr(x / z) - np.exp(epsilon) * mixture
    return np.where(is_reached, np.clip(divergence, 0, 1), 0.0)


def _losses_of(release: Release, removes: bool, step: float) -> _Losses:
    """Return the losses of one release.

    Between the points of the grid, delta is a line as a function of exp(epsilon), which is never
    below the true one.
    """
    # The loss of N(1, z^2) against N(0, z^2) bounds that of the mixture.
    top = (0.5 + _DEVIATIONS * release.noise) / release.noise**2
    low = -top
    if release.rate < 1:
        edge = -math.log1p(-release.rate)
        low = -edge if removes else -top
        top = top if removes else edge

    first = math.floor(low / step) - 1
    last = math.ceil(top / step) + 1
    epsilon = np.arange(first, last + 1) * step
    with np.errstate(over="ignore"):
        delta = _divergence(epsilon, release, removes)
    ratio = np.exp(epsilon)

    # The mass of a point is the bend of the line there. Before the first point it starts at 1.
    slope = np.diff(delta) / np.diff(ratio)
    before = np.concatenate([[(delta[0] - 1.0) / ratio[0]], slope])
    after = np.concatenate([slope, [0.0]])
    mass = np.maximum(ratio * (after - before), 0.0)

    # What is missing counts as if it told everything.
    infinite = max(0.0, float(delta[-1]))
    missing = 1.0 - infinite - float(mass.sum())
    return _Losses(first, mass, infinite + max(missing, 0.0))


def _compose(releases: Sequence[Release], step: float, removes: bool) -> _Losses:
    """Return the losses of all releases together."""
    parts = [(_losses_of(release, removes, step), release.times) for release in releases]
    low, high = _window(parts, step)
    first = math.floor(low / step)
    last = math.ceil(high / step)
    longest = max(len(losses.mass) for losses, _ in parts)
    size = next_fast_len(max(last - first + 1, longest), real=True)

    # A convolution is a product of transforms. Places beyond the window wrap around, and hold less
    # than the tail.
    spectrum: _Array = np.ones(size // 2 + 1, dtype=np.complex128)
    begin = 0
    infinite = 2 * _TAIL
    for losses, count in parts:
        spectrum = spectrum * rfft(losses.mass, size) ** count
        begin += losses.first * count
        infinite += losses.infinite * count

    mass = np.maximum(irfft(spectrum, size), 0.0)
    places = first + np.arange(size)
    return _Losses(first, mass[(places - begin) % size], min(1.0, infinite))


def _window(parts: Sequence[tuple[_Losses, int]], step: float) -> tuple[float, float]:
    """Return losses outside of which a sum has less than the tail on either side.

    Bounds of Chernoff: P(L > x) <= E exp(t L) / exp(t x) for every t > 0.
    """
    ends = []
    for sign in (-1, 1):
        bound = math.inf
        for t in np.geomspace(1e-3, 1e4, 120):
            logarithm = 0.0
            for losses, count in parts:
                exponents = sign * t * _points(losses, step)
                largest = float(exponents.max())
                expected = float(np.dot(losses.mass, np.exp(exponents - largest)))
                logarithm += count * (largest + math.log(max(expected, 1e-300)))
            bound = min(bound, (logarithm - math.log(_TAIL)) / t)
        ends.append(sign * bound)
    return ends[0], ends[1]


def _epsilon(delta: float, total: _Losses, step: float) -> float:
    """Return the smallest epsilon at which losses reach a delta."""
    if total.infinite >= delta:
        return math.inf

    # delta(e) = infinite + sum over losses beyond e of mass (1 - exp(e - loss)). Exponents are
    # kept from overflow in the direction that makes delta larger.
    losses = _points(total, step)
    masses = np.cumsum(total.mass[::-1])[::-1]
    shrunken = np.cumsum((total.mass * np.exp(-np.maximum(losses, -700.0)))[::-1])[::-1]
    reached = total.infinite + masses - np.exp(np.minimum(losses, 700.0)) * shrunken
    within = np.flatnonzero(reached <= delta)
    index = int(within[0]) if len(within) else len(losses) - 1

    # Between two points, the equation can be solved for e.
    epsilon = float(losses[index])
    rest = total.infinite + float(masses[index]) - delta
    if shrunken[index] > 0 and rest > 0:
        epsilon = min(epsilon, math.log(rest / float(shrunken[index])))
    return max(0.0, epsilon)
