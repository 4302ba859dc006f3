"""Labels and subclasses cut at random places (pFedVEM)."""

from math import comb

import numpy as np
import pytest
from scipy.stats import chisquare

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions._blocks import cut_points
from fedtailor.data.partitions.base import Partition
from fedtailor.data.partitions.slices import LabelSlices, SubclassSlices

CIFAR10 = Annotations(np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000)))


def with_subclasses(labels: int, subclasses: int, size: int) -> Annotations:
    """Return ``labels`` labels of ``subclasses`` subclasses with ``size`` examples each; they are
    interleaved."""
    fine = np.random.default_rng(0).permutation(np.repeat(np.arange(labels * subclasses), size))
    return Annotations(fine % labels, fine)


CIFAR100 = with_subclasses(20, 5, 500)
SUN397 = with_subclasses(3, 50, 80)


def held(values: np.ndarray | None, parts: list[np.ndarray]) -> np.ndarray:
    """Return examples by client and value."""
    assert values is not None
    return np.array([np.bincount(values[part], minlength=values.max() + 1) for part in parts])


@pytest.mark.parametrize("clients", [50, 100, 200])
def test_every_label_is_held_by_equally_many(clients: int) -> None:
    counts = held(CIFAR10.labels, LabelSlices().divide(CIFAR10, clients=clients, seed=0))
    assert ((counts > 0).sum(axis=1) == 5).all() and (
        (counts > 0).sum(axis=0) == clients // 2
    ).all()
    assert (counts.sum(axis=0) == 5000).all()
    pairs = (counts > 0).reshape(-1, 2, 10).sum(axis=1)
    assert (pairs == 1).all()  # the two clients of a group hold different labels
    assert len({tuple(row) for row in (counts > 0).tolist()}) > clients // 2  # groups differ


def test_shared_cuts_give_the_clients_of_a_group_equal_sizes() -> None:
    shared = held(CIFAR10.labels, LabelSlices().divide(CIFAR10, clients=50, seed=0))
    assert all(len(set(row[row > 0])) == 1 for row in shared)
    sizes = shared.sum(axis=1).reshape(-1, 2)
    assert (sizes[:, 0] == sizes[:, 1]).all() and len(set(sizes[:, 0])) > 15
    own = held(CIFAR10.labels, LabelSlices(shared_cuts=False).divide(CIFAR10, clients=50, seed=0))
    assert all(len(set(row[row > 0])) > 1 for row in own)


def transcribed(labels: np.ndarray, clients: int, k: int, seed: int) -> list[list[int]]:
    """Transcribe pFedVEM's released label skew with plain lists, from the same random numbers."""
    random = np.random.default_rng([seed])
    num_labels, size = int(labels.max()) + 1, int((labels == 0).sum())
    group = num_labels // k
    orders = random.permuted(np.tile(np.arange(num_labels), (clients // group, 1)), axis=1).tolist()
    wanted = [order[each * k : (each + 1) * k] for order in orders for each in range(group)]
    points = sorted((random.choice(size - 1, clients // group - 1, replace=False) + 1).tolist())
    blocks = {}
    for label in range(num_labels):
        order = random.permutation(np.flatnonzero(labels == label)).tolist()
        blocks[label] = [
            order[start:end] for start, end in zip([0, *points], [*points, size], strict=True)
        ]
    parts: list[list[int]] = []
    for own in wanted:
        taken = {label: blocks[label].pop() for label in own}
        parts.append([row for label in sorted(own) for row in taken[label]])
    return parts


@pytest.mark.parametrize(("k", "clients"), [(5, 12), (2, 15), (1, 20), (10, 3)])
def test_label_slices_are_those_of_the_transcribed_procedure(k: int, clients: int) -> None:
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 40))
    parts = LabelSlices(k=k).divide(Annotations(labels), clients=clients, seed=7)
    assert [part.tolist() for part in parts] == transcribed(labels, clients, k, 7)


def test_cut_points_are_uniform() -> None:
    random, size, blocks = np.random.default_rng(0), 12, 4
    points = np.array([cut_points(size, blocks, random) for _ in range(4000)])
    assert points.min() == 1 and points.max() == 11 and (np.diff(points, axis=1) > 0).all()
    # each way to cut is equally likely: the first block has n examples in C(11 - n, 2) of C(11, 3)
    # ways
    expected = np.array([comb(size - 1 - n, blocks - 2) for n in range(1, 10)]) / comb(
        size - 1, blocks - 1
    )
    assert chisquare(np.bincount(points[:, 0], minlength=10)[1:10], expected * 4000).pvalue > 0.01
    assert cut_points(1, 1, random).tolist() == cut_points(9, 1, random).tolist() == []


def test_sizes_of_cifar10_are_as_in_the_paper() -> None:
    # Figure 4: near a negative binomial with one success, mean 50,000 / 50; below the mean with
    # chance 1 - 1/e
    divided = [LabelSlices().divide(CIFAR10, clients=50, seed=seed) for seed in range(20)]
    sizes = np.array([[len(part) for part in parts] for parts in divided])
    assert (sizes.sum(axis=1) == 50_000).all()
    assert abs((sizes < 1000).mean() - 0.632) < 0.05
    assert abs(sizes.std() - 1000) < 150
    assert sizes.min() < 50 and sizes.max() > 4000


def test_larger_classes_are_cut_in_proportion() -> None:
    labels = np.repeat(np.arange(4), [30, 30, 60, 90])
    counts = held(labels, LabelSlices(k=2).divide(Annotations(labels), clients=60, seed=0))
    assert (
        (counts > 0).sum(axis=0) == 30
    ).all()  # 30 clients hold each, also of the smallest: one example each
    assert [set(column[column > 0]) for column in counts.T] == [{1}, {1}, {2}, {3}]


@pytest.mark.parametrize("clients", [50, 100, 200])
def test_every_client_has_one_subclass_of_each_label(clients: int) -> None:
    parts = SubclassSlices().divide(CIFAR100, clients=clients, seed=0)
    counts = held(CIFAR100.subclasses, parts)
    assert ((counts > 0).sum(axis=0) == clients // 5).all() and (counts.sum(axis=0) == 500).all()
    assert (held(CIFAR100.labels, parts) > 0).all() and ((counts > 0).sum(axis=1) == 20).all()
    sizes = counts.sum(axis=1).reshape(-1, 5)
    assert (sizes == sizes[:, :1]).all()
    assert ((counts > 0).reshape(-1, 5, 100).sum(axis=1) == 1).all()


def test_subclasses_of_one_client_are_drawn_independently() -> None:
    counts = held(CIFAR100.subclasses, SubclassSlices().divide(CIFAR100, clients=500, seed=0)) > 0
    first, second = counts[:, 0::20], counts[:, 1::20]  # five subclasses of labels 0 and 1
    together = first.T.astype(int) @ second.astype(int)
    assert chisquare(together.ravel()).pvalue > 0.001


def test_the_rule_of_sun397_is_that_of_groups_of_fifty() -> None:
    one = held(SUN397.subclasses, SubclassSlices().divide(SUN397, clients=50, seed=0))
    assert set(one.sum(axis=1)) == {240} and ((one > 0).sum(axis=0) == 1).all()
    two = held(
        SUN397.subclasses, SubclassSlices(shared_cuts=False).divide(SUN397, clients=100, seed=0)
    )
    assert ((two > 0).sum(axis=1) == 3).all() and ((two > 0).sum(axis=0) == 2).all()
    assert len(np.unique(two[two > 0])) > 50  # uniform from 1 to 79


def test_homogeneous_clients_hold_all_subclasses() -> None:
    counts = held(
        CIFAR100.subclasses, SubclassSlices(homogeneous=True).divide(CIFAR100, clients=50, seed=0)
    )
    assert (counts > 0).all() and (counts.sum(axis=0) == 500).all()
    assert len(set(counts.sum(axis=1))) > 20


def test_equal_blocks_are_equal() -> None:
    counts = held(
        CIFAR100.subclasses, SubclassSlices(equal=True).divide(CIFAR100, clients=50, seed=0)
    )
    assert set(counts[counts > 0]) == {50} and set(counts.sum(axis=1)) == {1000}


LABELS = np.arange(36) % 6


@pytest.mark.parametrize(
    ("partition", "clients", "sentence"),
    [
        (
            LabelSlices(k=4),
            6,
            "needs a k that divides 6, the number of classes with examples, got k=4.",
        ),
        (
            LabelSlices(k=7),
            6,
            "needs a k that divides 6, the number of classes with examples, got k=7.",
        ),
        (
            LabelSlices(),
            7,
            "needs a number of clients that 2 divides, since a client holds 3 of 6 classes, got 7 clients.",
        ),
        (
            LabelSlices(),
            14,
            "needs at least 7 examples of class 0, one for each client that holds it, got 6.",
        ),
        (SubclassSlices(), 6, "needs subclasses, got a data set without them."),
    ],
)
def test_what_cannot_be_met_is_refused(partition: Partition, clients: int, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        partition.divide(Annotations(LABELS), clients=clients, seed=0)
    assert sentence in caught.value.message and caught.value.key == "data.partition"


def test_clients_must_fill_the_groups_of_subclasses() -> None:
    with pytest.raises(
        DataError, match="a number of clients that 5 divides, the number of subclasses of a label"
    ):
        SubclassSlices().divide(CIFAR100, clients=52, seed=0)
    with pytest.raises(
        DataError, match="at least 501 examples of subclass 0, one for each client that holds it"
    ):
        SubclassSlices().divide(CIFAR100, clients=2505, seed=0)
    with pytest.raises(DataError, match="at least 501 examples of subclass 0"):
        SubclassSlices(homogeneous=True).divide(CIFAR100, clients=501, seed=0)


def test_labels_must_have_equally_many_subclasses() -> None:
    fine = np.arange(50) % 5
    uneven = Annotations(fine // 3, fine)
    with pytest.raises(
        DataError,
        match="the same number of subclasses in every label, 3 as in label 0, got 2 in label 1",
    ):
        SubclassSlices().divide(uneven, clients=6, seed=0)
    assert len(SubclassSlices(homogeneous=True).divide(uneven, clients=6, seed=0)) == 6
