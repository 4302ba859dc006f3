"""Diagonal Gaussians against numbers worked out by hand, PyTorch's distributions, and plain
loops."""

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from fedtailor.statistics.diagonal import ClassProducts, class_products, kl

CLASSES = 4


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def gaussians(seed=0, n=30, d=3, classes=CLASSES - 1):
    """Return means, deviations and labels; the last class has no row."""
    draw = np.random.default_rng(seed)
    mean, std = draw.normal(size=(n, d)), draw.uniform(0.1, 2.0, size=(n, d))
    return (
        torch.from_numpy(mean),
        torch.from_numpy(std),
        torch.from_numpy(draw.integers(0, classes, n)),
    )


def prior(classes, d):
    """Return a standard normal for every class, as products."""
    return ClassProducts(
        torch.ones(classes, d).double(), torch.zeros(classes, d).double(), torch.ones(classes)
    )


def times(*products):
    return ClassProducts(*(sum(parts) for parts in zip(*products)))


def test_a_product_by_hand():
    """N(1, 1) N(3, 0.25) N(0, 1), variances: precision 1 + 4 + 1, mean (1 + 12) / 6."""
    both = class_products(
        numbers([1.0], [3.0]), numbers([1.0], [0.5]), torch.tensor([0, 0]), torch.ones(2), 1
    )
    assert (float(both.precision), float(both.weighted_mean), float(both.counts)) == (5, 13, 2)
    whole = times(both, prior(1, 1))
    assert float(whole.precision) == 6
    assert float(whole.mean()) == pytest.approx(13 / 6, rel=1e-15)
    assert float(whole.std() ** 2) == pytest.approx(1 / 6, rel=1e-15)


def test_a_product_is_the_normalized_product_of_densities():
    mean, std, labels = gaussians(d=1, n=5, classes=1)
    product = class_products(mean, std, labels, torch.ones(5), 1)
    grid = torch.linspace(-6, 6, 20001, dtype=torch.float64)
    density = Normal(mean, std).log_prob(grid).sum(0).exp()
    density = density / torch.trapezoid(density, grid)
    expected = Normal(product.mean()[0], product.std()[0]).log_prob(grid).exp()
    torch.testing.assert_close(density, expected, rtol=0, atol=1e-9)


def test_order_and_grouping_do_not_matter():
    mean, std, labels = gaussians()
    whole = class_products(mean, std, labels, torch.ones(30), CLASSES)
    order = torch.from_numpy(np.random.default_rng(1).permutation(30))
    shuffled = class_products(mean[order], std[order], labels[order], torch.ones(30), CLASSES)
    parts = [
        class_products(mean[own], std[own], labels[own], torch.ones(len(own)), CLASSES)
        for own in order.split(11)
    ]
    for other in (shuffled, times(*parts)):
        for one, two in zip(times(whole, prior(CLASSES, 3)), times(other, prior(CLASSES, 3))):
            torch.testing.assert_close(one, two, rtol=1e-13, atol=0)


def test_one_gaussian_is_its_own_product_and_none_has_no_precision():
    mean, std, _ = gaussians(n=1)
    product = class_products(mean, std, torch.tensor([1]), torch.ones(1), 2)
    torch.testing.assert_close(product.mean()[1], mean[0], rtol=1e-15, atol=0)
    torch.testing.assert_close(product.std()[1], std[0], rtol=1e-15, atol=0)
    assert product.counts.tolist() == [0, 1]
    assert product.precision[0].tolist() == product.mean()[0].tolist() == [0, 0, 0]
    assert torch.isinf(product.std()[0]).all()


def test_products_are_in_float64_whatever_comes_in():
    """A million Gaussians of deviation 1e-6: a sum of 1e18, to which float32 would stop adding long
    before."""
    product = class_products(
        torch.ones(1, 1), torch.full((1, 1), 1e-6), torch.zeros(1).long(), torch.tensor([1e6]), 1
    )
    assert product.precision.dtype == product.mean().dtype == torch.float64
    assert float(product.precision) == pytest.approx(1e18, rel=1e-6)
    assert float(product.std()) == pytest.approx(1e-9, rel=1e-6)


def test_padding_rows_may_hold_anything_finite():
    mean, std, labels = gaussians()
    expected = class_products(mean, std, labels, torch.ones(30), CLASSES)
    weight = torch.cat([torch.ones(30), torch.zeros(3)])
    padded = [torch.cat([column, torch.zeros(3, 3).double()]) for column in (mean, std)]
    found = class_products(*padded, torch.cat([labels, torch.tensor([0, 99, -1])]), weight, CLASSES)
    for one, two in zip(found, expected):
        torch.testing.assert_close(one, two, rtol=1e-14, atol=0)
    assert torch.equal(
        class_products(*padded, weight.long(), 0 * weight, CLASSES).counts,
        torch.zeros(CLASSES).double(),
    )


def test_stacked_clients_equal_a_loop():
    clients = [gaussians(seed) for seed in range(3)]
    columns = [torch.stack(column) for column in zip(*clients)]
    weight = torch.arange(90).reshape(3, 30) % 3
    stacked = torch.func.vmap(lambda *row: class_products(*row, CLASSES))(*columns, weight)
    for number, client in enumerate(clients):
        for one, two in zip(stacked, class_products(*client, weight[number], CLASSES)):
            torch.testing.assert_close(one[number], two, rtol=1e-13, atol=0)


def test_divergence_by_hand():
    zero, one, two = numbers(0.0), numbers(1.0), numbers(2.0)
    assert float(kl(zero, one, one, two)) == pytest.approx(np.log(2) + 2 / 8 - 1 / 2, rel=1e-15)
    assert round(float(kl(zero, one, one, two)), 6) == 0.443147
    assert round(float(kl(one, two, zero, one)), 6) == 1.306853
    assert float(kl(one, two, one, two)) == 0


def test_divergence_is_that_of_pytorch_and_sums_over_the_last_axis():
    (first, first_std, _), (second, second_std, _) = gaussians(0), gaussians(1)
    found = kl(first, first_std, second, second_std)
    expected = kl_divergence(
        Independent(Normal(first, first_std), 1), Independent(Normal(second, second_std), 1)
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert found.shape == (30,) and (found > 0).all()


def test_the_smallest_deviations_do_not_make_logarithms_infinite():
    value = kl(numbers(0.0), numbers(0.0), numbers(0.0), numbers(1.0))
    assert float(value) == pytest.approx(-np.log(1e-8) - 0.5)


def test_deviations_are_kept_above_a_floor_in_both_logarithms_and_nowhere_else():
    """Below 1e-8 the logarithms cancel, and (std_q^2 + difference^2) / (2 std_p^2) - 1/2 is
    left."""
    both = kl(numbers(0.0), numbers(1e-10), numbers(0.0), numbers(2e-10))
    assert float(both) == pytest.approx(1 / 8 - 1 / 2, rel=1e-12)
    apart = kl(numbers(3e-10), numbers(1e-9), numbers(0.0), numbers(2e-9))
    assert float(apart) == pytest.approx((1 + 0.09) / 8 - 1 / 2, rel=1e-12)
    at_floor = kl(numbers(0.0), numbers(1e-8), numbers(0.0), numbers(2e-8))
    assert float(at_floor) == pytest.approx(np.log(2) + 1 / 8 - 1 / 2, rel=1e-12)
