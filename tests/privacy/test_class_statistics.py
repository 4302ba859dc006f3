"""Noise on sums over features: what one example adds is bounded, and the noise fits the bound."""

import math

import pytest
import torch

from fedtailor.core import rng
from fedtailor.core.federation import ExampleSet
from fedtailor.core.message import Sum
from fedtailor.privacy.class_statistics import (
    SHARES,
    NoisySums,
    SumsMechanism,
    with_noisy_sums,
)
from fedtailor.statistics.class_sums import add_up, unpack

CLASSES, D, RADIUS = 3, 6, 2.5
FORMS = ("none", "diagonal", "pooled", "by_class")


def sums_of(x, y, squares):
    """Return the fields of an upload, as it is rounded, in float64."""
    examples = ExampleSet(x, y, None, torch.ones(len(x)))
    sums = add_up(examples, CLASSES, squares, torch.float32)
    fields = {name: value.float().double() for name, value in sums._asdict().items()}
    return {name: value for name, value in fields.items() if value.numel()}


def in_shares(sums):
    """Return sums as the vector that is released: fields in units of their shares.

    Off-diagonal products count twice, as in the whole matrix.
    """
    parts = []
    for name, value in sums.items():
        power = {"counts": 0, "sums": 1, "squares": 2}[name]
        if name == "squares" and value.shape[-1] != D:
            value = unpack(value, D)
        parts.append(SHARES[name] * value.flatten() / RADIUS**power)
    return torch.cat(parts)


def bounded_rows(n, seed, norm=RADIUS):
    drawn = torch.Generator().manual_seed(seed)
    z = torch.randn(n, D, generator=drawn)
    y = torch.randint(0, CLASSES, (n,), generator=drawn)
    return z * (norm / z.norm(dim=1, keepdim=True)), y


@pytest.mark.parametrize("squares", FORMS)
@pytest.mark.parametrize("n", [2, 500])
def test_neighbors_differ_by_the_bound_at_most(squares, n):
    x, y = bounded_rows(n, seed=n)
    with_it = sums_of(x, y, squares)
    without = sums_of(x[1:], y[1:], squares)

    change = float((in_shares(with_it) - in_shares(without)).norm())
    bound = SumsMechanism(RADIUS, 1.0, most_examples=n).sensitivity(with_it)
    shares = math.hypot(*(SHARES[name] for name in with_it))
    assert change <= bound
    # A bound that is reached is not too wide; squares of single features are shorter than products.
    assert bound == pytest.approx(shares, rel=1e-3)
    if squares != "diagonal":
        assert change == pytest.approx(shares, rel=1e-3)


def test_a_longer_example_would_break_the_bound():
    x, y = bounded_rows(50, seed=1)
    x[0] *= 1.1
    change = in_shares(sums_of(x, y, "pooled")) - in_shares(sums_of(x[1:], y[1:], "pooled"))
    assert float(change.norm()) > SumsMechanism(RADIUS, 1.0, 50).sensitivity(SHARES)


def test_rounding_of_large_sums_is_covered():
    small = SumsMechanism(RADIUS, 1.0, most_examples=0).sensitivity(SHARES)
    large = SumsMechanism(RADIUS, 1.0, most_examples=10**5).sensitivity(SHARES)
    assert 1.005 < large / small < 1.03


def test_noise_of_every_field_has_its_deviation():
    mechanism = SumsMechanism(RADIUS, noise=2.0, most_examples=100)
    norm = 2.0 * math.hypot(0.3, 1.0, 0.6)
    expected = {"counts": norm / 0.3, "sums": norm * 2.5, "squares": norm * 2.5**2 / 0.6}
    assert mechanism.deviations(SHARES) == pytest.approx(expected, rel=1e-4)

    d = 100
    empty = {
        "counts": torch.zeros(20000),
        "sums": torch.zeros(200, d),
        "squares": torch.zeros(d * (d + 1) // 2),
    }
    noisy = mechanism.with_noise(empty, rng.new_key(0, purpose="test"))
    for name in ("counts", "sums"):
        assert float(noisy[name].std()) == pytest.approx(expected[name], rel=0.02)

    # Off the diagonal of a matrix, an entry stands for two.
    matrix = unpack(noisy["squares"], d)
    above = matrix[torch.triu(torch.ones(d, d, dtype=torch.bool), 1)]
    assert float(above.std()) == pytest.approx(expected["squares"] / math.sqrt(2), rel=0.05)
    assert float(matrix.diagonal().std()) == pytest.approx(expected["squares"], rel=0.2)


def test_without_second_moments_means_have_less_noise():
    mechanism = SumsMechanism(RADIUS, 1.0, 0)
    assert mechanism.deviations(["counts", "sums"])["sums"] == pytest.approx(
        RADIUS * math.hypot(0.3, 1.0)
    )


def test_sites_have_noise_of_their_own_and_an_attempt_repeats_it():
    mechanism = SumsMechanism(RADIUS, 1.0, 100)
    upload = {"counts": Sum(torch.zeros(CLASSES)), "sums": Sum(torch.zeros(CLASSES, D))}
    noise = NoisySums(dict.fromkeys((0, 1), mechanism), seed=1, round=1, purpose="privacy/site")
    first = noise.bounded(upload, client=0)["sums"].value
    again = noise.bounded(upload, client=0)["sums"].value
    other = noise.bounded(upload, client=1)["sums"].value
    key = rng.new_key(1, round=1, purpose="privacy/site")
    secret = with_noisy_sums(upload, mechanism, key, b"a" * 32)["sums"].value
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, secret)
    assert first.dtype == torch.float32
