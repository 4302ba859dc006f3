"""Equal sizes, with classes from Dirichlet priors (FedLDA, FedCR)."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2_contingency, kstest

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions.quota import (
    DirichletQuota,
    draw_classes,
    draw_log_weights,
    draw_owners,
)

CIFAR10 = np.repeat(np.arange(10), 6000)


def counts_of(labels: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    """Return examples by client and class."""
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def transcribed(
    sizes: list[int], clients: int, quota: int, alpha: float, random: np.random.Generator
) -> np.ndarray:
    """Transcribe the procedure: an example at a time, classes drawn again while none of them is
    left."""
    priors, left = random.dirichlet([alpha] * len(sizes), size=clients), list(sizes)
    held = np.zeros((clients, len(sizes)), int)
    while held.sum() < clients * quota:
        client = random.integers(clients)
        if held[client].sum() == quota:
            continue
        label = random.choice(len(sizes), p=priors[client])
        while not left[label]:
            label = random.choice(len(sizes), p=priors[client])
        left[label] -= 1
        held[client, label] += 1
    return held


@pytest.mark.parametrize(("sizes", "clients", "quota"), [([3, 5], 2, 4), ([2, 3, 7], 3, 3)])
def test_counts_follow_the_law_of_the_transcribed_procedure(
    sizes: list[int], clients: int, quota: int
) -> None:
    random, labels, runs = np.random.default_rng(5), np.repeat(np.arange(len(sizes)), sizes), 800
    plain = [tuple(transcribed(sizes, clients, quota, 1.0, random)[0]) for _ in range(runs)]
    partition = DirichletQuota(alpha=1.0, quota=quota)
    divided = (
        partition.divide(Annotations(labels), clients=clients, seed=seed) for seed in range(runs)
    )
    ours = [tuple(counts_of(labels, parts)[0]) for parts in divided]
    outcomes = [
        each for each in sorted({*plain, *ours}) if plain.count(each) + ours.count(each) >= 10
    ]
    table: Any = [[draws.count(each) for each in outcomes] for draws in (plain, ours)]
    assert len(outcomes) >= 4 and chi2_contingency(table).pvalue > 0.01


@pytest.mark.parametrize(
    ("quota", "clients"), [(500, 100), (63, 100), (2000, 30), (0, 100), (0, 7)]
)
def test_every_client_has_exactly_its_quota(quota: int, clients: int) -> None:
    parts = DirichletQuota(alpha=0.1, quota=quota).divide(
        Annotations(CIFAR10), clients=clients, seed=1
    )
    assert {len(part) for part in parts} == {quota or 60_000 // clients}


def test_statistics_of_fedcr() -> None:
    # its text, for alpha 0.5: about four classes with 80 % of the data, one or two classes missed
    counts = counts_of(
        CIFAR10, DirichletQuota(alpha=0.5).divide(Annotations(CIFAR10), clients=100, seed=0)
    )
    assert (counts.sum(axis=1) == 600).all() and (counts.sum(axis=0) == 6000).all()
    ordered = np.sort(counts, axis=1)[:, ::-1].cumsum(axis=1) / 600
    assert 3 <= np.median((ordered < 0.8).sum(axis=1) + 1) <= 4
    assert 0.5 < (counts == 0).sum(axis=1).mean() < 2


def test_the_clients_filled_last_take_what_is_left() -> None:
    labels = np.repeat([0, 1], [90, 10])
    counts = counts_of(
        labels, DirichletQuota(alpha=1e-6).divide(Annotations(labels), clients=10, seed=0)
    )
    assert counts.sum(axis=0).tolist() == [90, 10] and (counts.sum(axis=1) == 10).all()


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-3, 1e3, 1e300])
def test_extreme_concentrations_work(alpha: float) -> None:
    labels = np.arange(600) % 10
    counts = counts_of(
        labels,
        DirichletQuota(alpha=alpha, quota=20).divide(Annotations(labels), clients=20, seed=0),
    )
    assert (counts.sum(axis=1) == 20).all()
    if alpha == 1e-3:
        assert np.mean((counts > 0).sum(axis=1)) < 2
    if alpha >= 1e3:
        assert np.mean((counts > 0).sum(axis=1)) > 7


def test_owners_are_random_among_those_not_full() -> None:
    generator = np.random.default_rng(0)
    owners = np.array([draw_owners(3, 2, generator) for _ in range(3000)])
    assert (np.sort(owners, axis=1) == [0, 0, 1, 1, 2, 2]).all()
    assert np.allclose(np.bincount(owners[:, 0]) / 3000, 1 / 3, atol=0.03)
    assert abs((owners[:, 0] == owners[:, 1]).mean() - 1 / 3) < 0.03
    twice = owners[owners[:, 0] == owners[:, 1]]  # one is full: the other two are equally likely
    assert abs((twice[:, 2] == (twice[:, 0] + 1) % 3).mean() - 0.5) < 0.06


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_priors_follow_a_dirichlet_distribution(alpha: float) -> None:
    weights = np.exp(draw_log_weights(alpha, (2000, 4), np.random.default_rng(0)))
    shares = (weights / weights.sum(axis=1, keepdims=True))[:, 0]
    assert kstest(shares, "beta", (alpha, 3 * alpha)).pvalue > 0.01


def test_a_class_that_is_used_up_is_not_drawn_again() -> None:
    owners = np.array([0, 0, 0, 1, 1])
    always_first = np.array([[0.0, -50.0, -100.0], [0.0, -50.0, -100.0]])
    assert draw_classes(owners, always_first, [1, 1, 5], np.random.default_rng(0)).tolist() == [
        0,
        1,
        2,
        2,
        2,
    ]


def test_a_quota_larger_than_the_data_is_refused() -> None:
    with pytest.raises(DataError, match="needs at least 700 x 100 = 70000 examples, got 60000"):
        DirichletQuota(alpha=0.5, quota=700).divide(Annotations(CIFAR10), clients=100, seed=0)
