"""Differential privacy of examples in sums over features: counts, sums and second moments at once.

An example of class c, whose features z have a norm of at most R, adds to one vector

    (a e_c,  b z / R in the row of c,  s z z^T / R^2)

with fixed shares a, b and s. No example adds more than the norm sqrt(a^2 + b^2 + s^2), so that
noise of z times this norm on every number is one Gaussian release of all three sums (Dwork and Roth
2014, "The algorithmic foundations of differential privacy", appendix A; the accountant is exact).
Divided by the shares, the sums have noise of their own deviations. Of a symmetric matrix, the upper
triangle is released, off-diagonal entries times the root of 2, so that its norm is Frobenius'.

Neighbors differ by one example of one client, which is added or removed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.message import Sum, Upload

SHARES = {"counts": 0.3, "sums": 1.0, "squares": 0.6}
"""Largest norm of what an example adds to a field, where the deviation of the noise is ``noise``
times the norm of all shares. They are those of the prototype."""
_POWERS = {"counts": 0, "sums": 1, "squares": 2}
"""Power of the radius by which what an example adds to a field grows."""


@dataclass(frozen=True)
class SumsMechanism:
    """Adds noise to sums over features.

    Example:
        >>> mechanism = SumsMechanism(radius=2.0, noise=1.0, most_examples=100)
        >>> {name: round(value, 2) for name, value in mechanism.deviations(["counts"]).items()}
        {'counts': 1.0}
        >>> all_three = mechanism.deviations(["counts", "sums", "squares"])
        >>> {name: round(value, 2) for name, value in all_three.items()}
        {'counts': 4.01, 'sums': 2.41, 'squares': 8.03}
    """

    radius: float
    """Largest norm of features (R)."""
    noise: float
    """Deviation of the noise over the largest norm of what an example adds (z)."""
    most_examples: int
    """The most training examples of a client: the larger its sums, the coarser their type."""

    def sensitivity(self, fields: Collection[str]) -> float:
        """Return the largest norm of what an example changes, in units of the shares.

        Messages are rounded. Two neighbors may be rounded in opposite directions, each by a half
        of the precision times their sums.
        """
        shares = [SHARES[name] for name in fields]
        rounded = [SHARES[name] for name in fields if name != "counts"]
        precision = torch.finfo(torch.get_default_dtype()).eps
        return math.hypot(*shares) + precision * self.most_examples * math.hypot(*rounded)

    def deviations(self, fields: Collection[str]) -> dict[str, float]:
        """Return the standard deviation of the noise on every field."""
        deviation = self.noise * self.sensitivity(fields)
        return {name: deviation * self.radius ** _POWERS[name] / SHARES[name] for name in fields}

    def with_noise(
        self, sums: Mapping[str, Tensor], key: rng.Key, secret: bytes = b""
    ) -> dict[str, Tensor]:
        """Return sums with noise, float64.

        Args:
            sums: ``counts`` (classes,), ``sums`` (classes, d) and, if the method has them,
                ``squares``: (classes, d), or upper triangles of (d, d).
            key: of the noise.
            secret: of a real site, from which the noise follows too.
        """
        noisy = {}
        d = sums["sums"].shape[1]
        for name, deviation in self.deviations(sums).items():
            total = sums[name]
            drawn = rng.noise(key.fold(name), tuple(total.shape), secret).double()
            if name == "squares" and total.shape[-1] != d:
                drawn = drawn * of_triangle(d, drawn.device)
            noisy[name] = total.double() + deviation * drawn
        return noisy


class NoisySums(NamedTuple):
    """The noise that clients add to their own sums over features in a round."""

    mechanisms: Mapping[int, SumsMechanism]
    """By client."""
    seed: int
    round: int
    purpose: str
    """Of the key: the same purpose gives the same noise again."""

    def bounded(self, upload: Upload, client: int) -> Upload:
        """Return a sound upload with noise on its sums."""
        key = rng.new_key(self.seed, round=self.round, client=client, purpose=self.purpose)
        return with_noisy_sums(upload, self.mechanisms[client], key)


def of_sums(fields: Iterable[str]) -> list[str]:
    """Return the names of sums over features among those of fields."""
    return [name for name in fields if name in SHARES]


def with_noisy_sums(
    upload: Upload, mechanism: SumsMechanism, key: rng.Key, secret: bytes = b""
) -> Upload:
    """Return an upload with noise on its sums over features.

    Args:
        upload: of a client.
        mechanism: its noise.
        key: of the noise.
        secret: of a real site, from which the noise follows too.
    """
    sums: dict[str, Any] = {name: upload[name].value for name in of_sums(upload)}
    noisy = mechanism.with_noise(sums, key, secret)
    sent = {name: Sum(noisy[name].to(value.dtype)) for name, value in sums.items()}
    return {**upload, **sent}


def of_triangle(d: int, device: torch.device) -> Tensor:
    """Return the deviations of an upper triangle, row by row: less off the diagonal."""
    rows, columns = torch.triu_indices(d, d, device=device)
    return torch.where(rows == columns, 1.0, math.sqrt(0.5)).double()
