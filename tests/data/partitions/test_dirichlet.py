"""Equal parts, and shares of each class drawn from a Dirichlet distribution."""

import hashlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions import dirichlet as module
from fedtailor.data.partitions.base import Partition
from fedtailor.data.partitions.classes import Classes
from fedtailor.data.partitions.dirichlet import Dirichlet
from fedtailor.data.partitions.iid import Iid

CIFAR10 = np.repeat(np.arange(10), 6000)
CIFAR100 = np.repeat(np.arange(100), 600)

divisions = st.fixed_dictionaries(
    {
        "annotations": st.lists(st.integers(0, 4), min_size=12, max_size=200)
        .map(np.array)
        .map(Annotations),
        "clients": st.integers(1, 6),
        "seed": st.integers(0, 2**40),
    }
)


@settings(deadline=None, max_examples=40)
@given(divisions)
def test_iid_parts_are_equal_in_size(division: dict[str, Any]) -> None:
    sizes = [len(part) for part in Iid().divide(**division)]
    assert max(sizes) - min(sizes) <= 1 and sum(sizes) == len(division["annotations"].labels)


@settings(deadline=None, max_examples=40)
@given(divisions, st.floats(1, 10), st.floats(0, 1))
def test_dirichlet_parts_have_the_minimum_size(
    division: dict[str, Any], alpha: float, share: float
) -> None:
    min_size = 0.5 * share * len(division["annotations"].labels) / division["clients"]
    parts = Dirichlet(alpha=alpha, min_size=min_size).divide(**division)
    assert min(len(part) for part in parts) >= min_size
    assert sorted(np.concatenate(parts).tolist()) == list(
        range(len(division["annotations"].labels))
    )


@pytest.mark.parametrize(
    ("partition", "digest"),
    [
        (Iid(), "3964d290e9777d85"),
        (Dirichlet(alpha=0.5, min_size=62.5), "e720439df6247aed"),
        (Dirichlet(alpha=0.1, min_size=0), "2e2fa1c95b728836"),
        (Classes(k=3), "f82ace60a47063a3"),
        (Classes(k=7), "72e6481470730bbd"),
    ],
)
def test_partitions_stay_as_they_were(partition: Partition, digest: str) -> None:
    labels = np.random.default_rng(3).permutation(CIFAR10)
    parts = partition.divide(Annotations(labels), clients=100, seed=42)
    content = b"|".join(part.astype("<i8").tobytes() for part in parts)
    assert hashlib.sha256(content).hexdigest()[:16] == digest


def released(
    labels: np.ndarray, clients: int, alpha: float, min_size: float, seed: int
) -> list[list[int]]:
    """Transcribe the procedure of pFedFDA's release with plain lists."""
    random = np.random.RandomState(seed)
    while True:
        held: list[list[int]] = [[] for _ in range(clients)]
        for label in range(labels.max() + 1):
            order = np.array([row for row in range(len(labels)) if labels[row] == label])
            random.shuffle(order)
            shares = random.dirichlet([alpha] * clients)
            open_shares = [
                0.0 if len(h) >= len(labels) / clients else s
                for h, s in zip(held, shares, strict=True)
            ]
            ends = np.cumsum(np.array(open_shares) / np.array(open_shares).sum()) * len(order)
            bounds = [0, *(int(end) for end in ends[:-1]), len(order)]
            for client, (start, end) in enumerate(pairwise(bounds)):
                held[client] += order[start:end].tolist()
        if min(map(len, held)) >= min_size:
            return held


@pytest.mark.parametrize(("alpha", "min_size"), [(0.5, 8.5), (0.2, 4.0), (5.0, 0.0)])
def test_dirichlet_repeats_the_released_procedure(alpha: float, min_size: float) -> None:
    labels = np.random.default_rng(3).integers(0, 6, 400)
    parts = Dirichlet(alpha=alpha, min_size=min_size).divide(
        Annotations(labels), clients=12, seed=42
    )
    assert [part.tolist() for part in parts] == released(labels, 12, alpha, min_size, 42)


def statistics(
    labels: np.ndarray, alpha: float, seed: int, min_size: float = 62.5
) -> tuple[int, int, float]:
    """Return smallest and largest size, and the mean number of classes, over 100 clients."""
    parts = Dirichlet(alpha=alpha, min_size=min_size).divide(
        Annotations(labels), clients=100, seed=seed
    )
    sizes = [len(part) for part in parts]
    return min(sizes), max(sizes), float(np.mean([len(np.unique(labels[part])) for part in parts]))


def test_statistics_of_cifar10_with_alpha_half() -> None:
    # A simulation gave sizes 167..1379 and 8.0 classes; over 40 seeds: 70..240, 1021..1842 and
    # 7.9..8.6.
    for seed in range(5):
        smallest, largest, classes = statistics(CIFAR10, 0.5, seed)
        assert 62.5 <= smallest < 300 and 900 < largest < 2000
        assert 7.7 < classes < 8.7


def test_statistics_of_cifar10_with_alpha_tenth() -> None:
    # A simulation gave sizes 70..2183 and 4.4 classes; seed 3 needs 452 draws, others up to 25,000.
    smallest, largest, classes = statistics(CIFAR10, 0.1, 3)
    assert 62.5 <= smallest < 100 and 1500 < largest < 3500
    assert 4.0 < classes < 4.8


@pytest.mark.parametrize(("alpha", "classes", "tolerance"), [(0.1, 33, 2.5), (0.5, 74, 1.5)])
def test_statistics_of_cifar100(alpha: float, classes: float, tolerance: float) -> None:
    assert abs(statistics(CIFAR100, alpha, 42)[2] - classes) < tolerance


def test_a_hopeless_minimum_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DRAWS", 20)
    with pytest.raises(DataError) as caught:
        Dirichlet(alpha=0.01, min_size=60).divide(
            Annotations(np.repeat([0, 1], 300)), clients=10, seed=0
        )
    for part in ("alpha=0.01", "min_size=60", "10 clients", "20 draws"):
        assert part in caught.value.message
    assert caught.value.key == "data.partition"


def test_a_minimum_that_most_clients_miss_is_given_up_early() -> None:
    with pytest.raises(
        DataError, match=r"got fewer for at least \d+ of them in each of 20 draws; raise alpha"
    ):
        Dirichlet(alpha=0.5, min_size=4).divide(
            Annotations(np.arange(6000) % 10), clients=1000, seed=0
        )


def test_an_alpha_too_small_for_floating_point_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_DRAWS", 3)
    with pytest.raises(DataError, match="3 draws"):
        Dirichlet(alpha=1e-300, min_size=0).divide(Annotations(CIFAR10), clients=4, seed=0)


@pytest.mark.parametrize(
    ("partition", "clients", "sentence"),
    [
        (
            Iid(),
            21,
            "partition iid: needs at most 20 clients, one for each example, got 21 clients.",
        ),
        (Dirichlet(alpha=1, min_size=0), 21, "needs at most 20 clients"),
        (
            Dirichlet(alpha=1, min_size=10.5),
            2,
            "needs at least 10.5 x 2 = 21 examples for 2 clients, got 20.",
        ),
    ],
)
def test_what_cannot_be_met_is_refused_at_once(
    partition: Partition, clients: int, sentence: str
) -> None:
    with pytest.raises(DataError) as caught:
        partition.divide(Annotations(np.repeat([0, 3], 10)), clients=clients, seed=0)
    assert sentence in caught.value.message
