"""Every client holds k classes: dealt at random, or around the circle of classes (FedCR)."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions._cycle import deal_cycle
from fedtailor.data.partitions.base import Partition
from fedtailor.data.partitions.classes import Classes, CyclicClasses

CIFAR10 = np.repeat(np.arange(10), 6000)

divisions = st.fixed_dictionaries(
    {
        "annotations": st.lists(st.integers(0, 4), min_size=12, max_size=200)
        .map(np.array)
        .map(Annotations),
        "clients": st.integers(1, 6),
        "seed": st.integers(0, 2**40),
    }
)


@settings(deadline=None, max_examples=60)
@given(divisions, st.integers(1, 5))
def test_every_client_holds_k_classes_evenly(division: dict[str, Any], k: int) -> None:
    labels = division["annotations"].labels
    counts = np.bincount(labels, minlength=5)
    present = np.count_nonzero(counts)
    holders = -(-k * division["clients"] // present)
    assume(k <= present <= k * division["clients"] and counts[counts > 0].min() >= holders)
    held = [set(labels[part].tolist()) for part in Classes(k=k).divide(**division)]
    assert all(len(each) == k for each in held)
    by_class = [sum(label in each for each in held) for label in np.flatnonzero(counts)]
    assert max(by_class) - min(by_class) <= 1


def test_classes_are_mixed_and_shared_evenly() -> None:
    parts = Classes(k=2).divide(Annotations(CIFAR10), clients=50, seed=0)
    assert {len(part) for part in parts} == {1200}
    assert len({tuple(np.unique(CIFAR10[part])) for part in parts}) > 20


@pytest.mark.parametrize(
    ("classes", "size", "k", "each"),
    [(10, 5600, 5, 560), (10, 7000, 5, 700), (10, 6000, 5, 600), (100, 600, 15, 600)],
)
def test_the_settings_of_fedcr_are_equal_in_size_and_class(
    classes: int, size: int, k: int, each: int
) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(classes), size))
    for client, part in enumerate(
        CyclicClasses(k=k).divide(Annotations(labels), clients=100, seed=0)
    ):
        counts = np.bincount(labels[part], minlength=classes)
        assert {label for label in range(classes) if counts[label]} == {
            (client + j) % classes for j in range(k)
        }
        assert set(counts[counts > 0]) == {each // k}


def test_unequal_classes_still_give_equal_sizes() -> None:
    weights = np.array([1, 0.6, 0.8, 1.2, 1.5, 0.7, 1, 0.5, 0.9, 1.8]) / 10
    labels = np.random.default_rng(0).choice(10, 6000, p=weights)
    parts = CyclicClasses(k=3).divide(Annotations(labels), clients=90, seed=0)
    assert {len(part) for part in parts} == {66}  # 60 examples are left over
    for client, part in enumerate(parts):
        assert set(labels[part].tolist()) <= {(client + j) % 10 for j in range(3)}


def transcribed(
    sizes: list[int], k: int, clients: int, each: int, random: np.random.Generator
) -> np.ndarray:
    """Transcribe FedCR's procedure, looking over all clients for every example."""
    held, left = np.zeros((clients, len(sizes)), int), np.array(sizes)
    owned = [[(client + j) % len(sizes) for j in range(k)] for client in range(clients)]
    while held.sum() < each * clients:
        totals = held.sum(axis=1)
        client = random.choice(np.flatnonzero(totals == totals.min()))
        open_classes = [label for label in owned[client] if left[label]]
        if open_classes:
            label = min(open_classes, key=lambda label: held[client, label])
            left[label] -= 1
        else:
            shared = {
                other: [label for label in owned[client] if held[other, label]]
                for other in range(clients)
            }
            other = random.choice(
                [other for other, labels in shared.items() if labels and other != client]
            )
            label = random.choice(shared[other])
            held[other, label] -= 1
        held[client, label] += 1
    return held


@pytest.mark.parametrize(
    ("sizes", "k", "clients", "each"),
    [([9, 6, 4, 5], 2, 4, 6), ([9, 6, 4, 5], 3, 8, 3), ([5, 3, 2], 2, 5, 2)],
)
def test_counts_follow_the_law_of_the_transcribed_procedure(
    sizes: list[int], k: int, clients: int, each: int
) -> None:
    generator, runs = np.random.default_rng(0), 500  # classes run out, and clients exchange
    columns = (np.arange(clients)[:, None] + np.arange(k)) % len(sizes)
    ours = np.zeros((runs, clients, len(sizes)))
    for run in range(runs):
        held = deal_cycle(sizes, k, clients, each, generator)
        assert held is not None and (held.sum(axis=1) == each).all()
        np.put_along_axis(ours[run], columns, held, axis=1)
    plain = np.array([transcribed(sizes, k, clients, each, generator) for _ in range(runs)])
    for moment in (1, 2):
        difference = (ours**moment).mean(axis=0) - (plain**moment).mean(axis=0)
        error = np.sqrt(((ours**moment).var(axis=0) + (plain**moment).var(axis=0)) / runs)
        assert (np.abs(difference) <= 4 * error).all()
    assert (plain.var(axis=0) > 0.1).any()  # the procedure is random here


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 5), st.integers(1, 5))
def test_a_division_is_found_whenever_there_is_one(sizes: list[int], k: int, clients: int) -> None:
    assume(k <= len(sizes) <= k + clients - 1 and sum(sizes) >= clients)
    each = sum(sizes) // clients
    reach = [{(client + j) % len(sizes) for j in range(k)} for client in range(clients)]
    groups = [group for size in range(1, clients + 1) for group in combinations(reach, size)]
    possible = all(
        each * len(group) <= sum(sizes[label] for label in set().union(*group)) for group in groups
    )  # Hall
    held = deal_cycle(sizes, k, clients, each, np.random.default_rng(0))
    assert (held is not None) == possible
    if held is not None:
        assert (held.sum(axis=1) == each).all() and held.min() >= 0
        owners, slots = np.indices(held.shape)
        used = np.bincount(
            ((owners + slots) % len(sizes)).ravel(), held.ravel(), minlength=len(sizes)
        )
        assert (used <= sizes).all()


@pytest.mark.parametrize(
    ("partition", "clients", "sentence"),
    [
        (Classes(k=3), 2, "needs k <= 2, the number of classes with examples, got k=3."),
        (
            Classes(k=1),
            1,
            "needs k x clients >= 2, so that every class is held by some client, got 1 x 1.",
        ),
        (
            Classes(k=2),
            11,
            "needs at least 11 examples of class 0, one for each client that holds it, got 10.",
        ),
        (CyclicClasses(), 4, "needs k <= 2, the number of classes with examples, got k=5."),
        (
            CyclicClasses(k=1),
            1,
            "needs k + clients - 1 >= 2, so that every class is held by some client, got 1 + 1 - 1.",
        ),
        (
            CyclicClasses(k=1),
            3,
            "classes whose sizes allow 6 examples for every client, got 10, 10.",
        ),
    ],
)
def test_what_cannot_be_met_is_refused_at_once(
    partition: Partition, clients: int, sentence: str
) -> None:
    with pytest.raises(DataError) as caught:
        partition.divide(Annotations(np.repeat([0, 3], 10)), clients=clients, seed=0)
    assert sentence in caught.value.message
