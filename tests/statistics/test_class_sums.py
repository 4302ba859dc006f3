"""Sums by class against NumPy, in blocks, with padding, and stacked over clients."""

import numpy as np
import pytest
import threadpoolctl
import torch

from fedtailor.core.engine import one_thread
from fedtailor.core.federation import ExampleSet
from fedtailor.statistics import class_sums

CLASSES = 3
ALL_SQUARES = ("none", "diagonal", "pooled", "by_class")


def table(n=40, d=7, seed=0, classes=CLASSES):
    draw = np.random.default_rng(seed)
    z = torch.from_numpy(3.0 + draw.normal(size=(n, d)))
    labels = torch.from_numpy(draw.integers(0, classes, n))
    return ExampleSet(z, labels, torch.arange(n), torch.ones(n))


def add_up(examples, squares="pooled"):
    return class_sums.add_up(examples, CLASSES, squares)


def joined(parts):
    return class_sums.ClassSums(*(sum(column) for column in zip(*parts)))


def rows(examples, chosen):
    return examples._replace(
        x=examples.x[chosen], y=examples.y[chosen], weight=examples.weight[chosen]
    )


@pytest.mark.parametrize("size", [1, 3, 100])
def test_second_moments_in_blocks_are_those_of_numpy(monkeypatch, size):
    monkeypatch.setattr(class_sums, "_ROWS", size)
    monkeypatch.setattr(class_sums, "_COLUMNS", size)
    examples = table()
    z, y = examples.x.numpy(), examples.y.numpy()
    sums = add_up(examples)
    np.testing.assert_allclose(class_sums.unpack(sums.squares, 7), z.T @ z, rtol=1e-13)
    assert sums.counts.tolist() == np.bincount(y).tolist()

    by_class = class_sums.unpack(add_up(examples, "by_class").squares, 7)
    diagonal = add_up(examples, "diagonal").squares
    for label in range(CLASSES):
        own = z[y == label]
        np.testing.assert_allclose(by_class[label], own.T @ own, rtol=1e-13)
        np.testing.assert_allclose(diagonal[label], (own**2).sum(0), rtol=1e-13)
        np.testing.assert_allclose(sums.means()[label], own.mean(0), rtol=1e-13)


def test_covariances_are_those_of_the_pool():
    examples = table()
    z, y = examples.x.numpy(), examples.y.numpy()
    expected = [np.cov(z[y == label].T, bias=True) for label in range(CLASSES)]
    sizes = np.bincount(y)
    within = sum(size * matrix for size, matrix in zip(sizes, expected)) / len(y)
    np.testing.assert_allclose(add_up(examples).within_covariance(), within, rtol=1e-11, atol=1e-12)

    by_class = add_up(examples, "by_class").covariance_by_class()
    np.testing.assert_allclose(by_class, expected, rtol=1e-11, atol=1e-12)
    variances = add_up(examples, "diagonal").variance_by_class()
    np.testing.assert_allclose(variances, by_class.diagonal(0, 1, 2), rtol=1e-11)


@pytest.mark.parametrize("squares", ALL_SQUARES)
def test_sums_of_ten_partitions_are_those_of_the_pool(squares):
    examples = table()
    pooled = add_up(examples, squares)
    for parts in range(1, 11):
        order = torch.from_numpy(np.random.default_rng(parts).permutation(40))
        clients = [rows(examples, chosen) for chosen in order.tensor_split(parts)]
        total = joined([add_up(client, squares) for client in clients])
        for ours, theirs in zip(total, pooled):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


@pytest.mark.parametrize("squares", ALL_SQUARES)
def test_padding_and_stacking_change_no_bit(squares):
    """Rows of weight 0 hold anything; the clients have 5, 12 and no examples."""
    sizes = (5, 12, 0)
    clients = [rows(table(seed=size), torch.arange(size)) for size in sizes]
    x = torch.full((3, 12, 7), 1e6, dtype=torch.float64)
    y = torch.zeros(3, 12, dtype=torch.int64)
    weight = torch.zeros(3, 12)
    for number, client in enumerate(clients):
        x[number, : sizes[number]] = client.x
        y[number, : sizes[number]] = client.y
        weight[number, : sizes[number]] = 1

    def of_client(x, y, weight):
        return add_up(ExampleSet(x, y, torch.arange(12), weight), squares)

    stacked = torch.func.vmap(of_client)(x, y, weight)
    for number, client in enumerate(clients):
        alone = add_up(client, squares)
        assert all(torch.equal(ours[number], theirs) for ours, theirs in zip(stacked, alone))


def test_one_thread_holds_for_products_of_numpy_too():
    def threads():
        libraries = threadpoolctl.threadpool_info()
        return {each["num_threads"] for each in libraries if each["user_api"] == "blas"}

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        with one_thread():
            assert threads() == {1}
        assert threads() == {2}


@pytest.mark.parametrize("squares", ["pooled", "by_class"])
def test_products_are_rounded_once(squares):
    examples = table()
    exact = add_up(examples, squares)
    rounded = class_sums.add_up(examples, CLASSES, squares, torch.float32)
    assert torch.equal(rounded.squares, exact.squares.float())
    assert torch.equal(rounded.sums, exact.sums)


def test_without_variance_a_shrunk_covariance_is_the_identity():
    nothing = torch.zeros(2, 4, 4)
    shrunk = class_sums.shrunk(nothing, torch.ones(2), "oas")
    assert torch.equal(shrunk, torch.eye(4, dtype=torch.float64).expand(2, 4, 4))
    half = class_sums.shrunk(torch.diag(torch.tensor([0.0, 2.0])), torch.tensor(3), 0.5)
    assert half.tolist() == [[0.5, 0.0], [0.0, 1.5]]


def noisy_sums(noise, squares="pooled", *, d=8, n=300, seed=0, gap=1.0):
    """Return sums over examples of three classes with noise of some deviations, and the noise."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = torch.randn(n, d, generator=draw, dtype=torch.float64) + gap * y[:, None]
    examples = ExampleSet(x, y, None, torch.ones(n))
    sums = class_sums.add_up(examples, 3, squares)
    draw.manual_seed(seed)
    noisy = [
        part + deviation * torch.randn(part.shape, generator=draw, dtype=torch.float64)
        for part, deviation in zip(sums, noise, strict=True)
    ]
    return class_sums.ClassSums(*noisy), noise


@pytest.mark.parametrize("deviation", [0.1, 30.0, 3000.0])
def test_a_repaired_covariance_is_positive_definite_above_its_noise(deviation):
    sums, noise = noisy_sums(class_sums.SumsNoise(1.0, 1.0, deviation))
    clean = class_sums.repaired(sums, noise, most_norm=10.0)
    eigenvalues = torch.linalg.eigvalsh(clean.within_covariance()) * clean.counts.sum()
    assert float(eigenvalues.min()) > 0

    level = deviation * 8**0.5
    is_multiple_of_identity = torch.allclose(eigenvalues, eigenvalues.mean().expand(8))
    assert is_multiple_of_identity == (deviation == 3000.0)
    if not is_multiple_of_identity:
        assert float(eigenvalues.min()) >= 0.5 * level * (1 - 1e-9)


@pytest.mark.parametrize("squares", ["diagonal", "by_class"])
def test_repaired_variances_of_classes_are_positive(squares):
    sums, noise = noisy_sums(class_sums.SumsNoise(1.0, 1.0, 200.0), squares)
    clean = class_sums.repaired(sums, noise, most_norm=10.0)
    if squares == "diagonal":
        assert float(clean.variance_by_class().min()) > 0
    else:
        assert float(torch.linalg.eigvalsh(clean.covariance_by_class()).min()) > 0


def test_repaired_counts_and_means_are_within_their_bounds():
    sums, noise = noisy_sums(class_sums.SumsNoise(500.0, 1000.0, 0.0), "none")
    clean = class_sums.repaired(sums, noise, most_norm=2.0)
    assert float(clean.counts.min()) >= 500.0
    assert float(clean.means().norm(dim=1).max()) <= 2.0 * (1 + 1e-12)


def test_sums_of_almost_no_noise_stay():
    sums, noise = noisy_sums(class_sums.SumsNoise(1e-9, 1e-9, 1e-9))
    clean = class_sums.repaired(sums, noise, most_norm=100.0)
    for one, other in zip(clean, sums, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("squares", ["diagonal", "pooled", "by_class"])
def test_noise_of_means_does_not_shrink_the_scatter(squares):
    exact, _ = noisy_sums(class_sums.SumsNoise(0.0, 0.0, 0.0), squares, gap=0.0)

    def mean_variance(part):
        if squares == "diagonal":
            return float(part.variance_by_class().mean())
        if squares == "pooled":
            return float(part.within_covariance().diagonal().mean())
        return float(part.covariance_by_class().diagonal(dim1=1, dim2=2).mean())

    before = []
    after = []
    for seed in range(100):
        deviations = class_sums.SumsNoise(0.0, 20.0, 1e-3)
        sums, noise = noisy_sums(deviations, squares, seed=seed, gap=0.0)
        before.append(mean_variance(sums))
        after.append(mean_variance(class_sums.repaired(sums, noise, most_norm=100.0)))

    expected = mean_variance(exact)
    assert np.mean(after) == pytest.approx(expected, rel=0.01)
    if squares != "diagonal":  # whose variances are never negative
        assert np.mean(before) < 0.97 * expected


@pytest.mark.parametrize("squares", ["diagonal", "pooled", "by_class"])
def test_equal_variances_fill_the_bound_of_the_norm(squares):
    examples = table()
    radius = float(examples.x.norm(dim=1).max())
    exact = add_up(examples, squares)
    made = class_sums.with_equal_variances(add_up(examples, "none"), squares, radius)
    assert made.squares.shape == exact.squares.shape
    assert torch.equal(made.sums, exact.sums)

    # All norms as large as the bound: the mean of all squares is known, whatever the directions.
    by_class = [radius**2 - float(mean @ mean) for mean in exact.means()]
    if squares == "pooled":
        within = made.within_covariance()
        shares = (exact.counts / exact.counts.sum()).tolist()
        expected = sum(share * one for share, one in zip(shares, by_class, strict=True)) / 7
        torch.testing.assert_close(within, expected * torch.eye(7, dtype=torch.float64))
        return

    for label, expected in enumerate(by_class):
        if squares == "diagonal":
            variances = made.variance_by_class()[label]
        else:
            covariance = made.covariance_by_class()[label]
            variances = covariance.diagonal()
            assert float((covariance - torch.diag(variances)).abs().max()) < 1e-9
        torch.testing.assert_close(variances, torch.full_like(variances, expected / 7))


def test_means_as_long_as_the_bound_leave_some_variance():
    alone = ExampleSet(torch.tensor([[3.0, 4.0]]), torch.tensor([1]), None, torch.ones(1))
    made = class_sums.with_equal_variances(add_up(alone, "none"), "pooled", 5.0)
    assert float(torch.linalg.eigvalsh(made.within_covariance()).min()) > 0


@pytest.mark.parametrize("squares", ["diagonal", "pooled"])
def test_squares_that_are_hidden_never_tell_directions(squares):
    """What is left out beforehand would have become a multiple of the identity, at the longest
    features that there can be."""
    n, d, radius = 300, 8, 2.0
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = torch.randn(n, d, generator=draw, dtype=torch.float64)
    x = radius * x / x.norm(dim=1, keepdim=True)
    exact = add_up(ExampleSet(x, y, None, torch.ones(n)), squares)

    decisions = []
    for deviation in (1.0, 100.0, 200.0, 400.0, 1600.0):
        noise = class_sums.SumsNoise(1.0, 1.0, deviation)
        hides = class_sums.hides_squares(noise, squares, n, d, radius)
        decisions.append(hides)
        clean = class_sums.repaired(exact, noise, radius)
        if hides and squares == "pooled":
            variances = torch.linalg.eigvalsh(clean.within_covariance())
            torch.testing.assert_close(variances, variances.mean().expand(d))
        elif hides:
            # Noise of the means' excess is the same in all directions too.
            variances = clean.variance_by_class()
            torch.testing.assert_close(variances, variances.mean(1, keepdim=True).expand(-1, d))

    assert decisions == sorted(decisions)
    assert not decisions[0]
    assert decisions[-1]
