"""Partitions: who has which example."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data import partition as module
from fedtailor.data.partition import Classes, Dirichlet, Iid, Partition, parse_partition

CIFAR10 = np.repeat(np.arange(10), 6000)
CIFAR100 = np.repeat(np.arange(100), 600)

worlds = st.fixed_dictionaries(
    {
        "labels": st.lists(st.integers(0, 4), min_size=12, max_size=200).map(np.array),
        "clients": st.integers(1, 6),
        "seed": st.integers(0, 2**40),
    }
)


def check(partition: Partition, world: dict[str, Any]) -> list[np.ndarray]:
    """Divide a world; check that the parts are disjoint, complete and reproducible."""
    parts = partition.divide(**world)
    assert len(parts) == world["clients"]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(world["labels"])))
    again = partition.divide(**world)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))
    return parts


@settings(deadline=None, max_examples=40)
@given(worlds)
def test_iid_parts_are_equal_in_size(world: dict[str, Any]) -> None:
    sizes = [len(part) for part in check(Iid(), world)]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None, max_examples=40)
@given(worlds, st.floats(1, 10), st.floats(0, 1))
def test_dirichlet_parts_have_the_minimum_size(world: dict[str, Any], alpha: float, share: float) -> None:
    min_size = 0.5 * share * len(world["labels"]) / world["clients"]
    parts = check(Dirichlet(alpha=alpha, min_size=min_size), world)
    assert min(len(part) for part in parts) >= min_size


@settings(deadline=None, max_examples=60)
@given(worlds, st.integers(1, 5))
def test_every_client_holds_k_classes_evenly(world: dict[str, Any], k: int) -> None:
    counts = np.bincount(world["labels"], minlength=5)
    present = np.count_nonzero(counts)
    holders = -(-k * world["clients"] // present)
    assume(k <= present <= k * world["clients"] and counts[counts > 0].min() >= holders)
    held = [set(world["labels"][part].tolist()) for part in check(Classes(k=k), world)]
    assert all(len(each) == k for each in held)
    by_class = [sum(label in each for each in held) for label in np.flatnonzero(counts)]
    assert max(by_class) - min(by_class) <= 1


def test_classes_are_mixed_and_shared_evenly() -> None:
    parts = Classes(k=2).divide(CIFAR10, clients=50, seed=0)
    assert {len(part) for part in parts} == {1200}
    assert len({tuple(np.unique(CIFAR10[part])) for part in parts}) > 20


def released(labels: np.ndarray, clients: int, alpha: float, min_size: float, seed: int) -> list[list[int]]:
    """Transcribe the procedure of pFedFDA's release with plain lists."""
    random = np.random.RandomState(seed)
    while True:
        held: list[list[int]] = [[] for _ in range(clients)]
        for label in range(labels.max() + 1):
            order = np.array([row for row in range(len(labels)) if labels[row] == label])
            random.shuffle(order)
            shares = random.dirichlet([alpha] * clients)
            open_shares = [0.0 if len(h) >= len(labels) / clients else s for h, s in zip(held, shares, strict=True)]
            ends = np.cumsum(np.array(open_shares) / np.array(open_shares).sum()) * len(order)
            bounds = [0, *(int(end) for end in ends[:-1]), len(order)]
            for client, (start, end) in enumerate(pairwise(bounds)):
                held[client] += order[start:end].tolist()
        if min(map(len, held)) >= min_size:
            return held


@pytest.mark.parametrize(("alpha", "min_size"), [(0.5, 8.5), (0.2, 4.0), (5.0, 0.0)])
def test_dirichlet_repeats_the_released_procedure(alpha: float, min_size: float) -> None:
    labels = np.random.default_rng(3).integers(0, 6, 400)
    parts = Dirichlet(alpha=alpha, min_size=min_size).divide(labels, clients=12, seed=42)
    assert [part.tolist() for part in parts] == released(labels, 12, alpha, min_size, 42)


def statistics(labels: np.ndarray, alpha: float, seed: int, min_size: float = 62.5) -> tuple[int, int, float]:
    """Return smallest and largest size, and the mean number of classes, over 100 clients."""
    parts = Dirichlet(alpha=alpha, min_size=min_size).divide(labels, clients=100, seed=seed)
    sizes = [len(part) for part in parts]
    return min(sizes), max(sizes), float(np.mean([len(np.unique(labels[part])) for part in parts]))


def test_statistics_of_cifar10_with_alpha_half() -> None:
    # A simulation gave sizes 167..1379 and 8.0 classes; over 40 seeds: 70..240, 1021..1842 and 7.9..8.6.
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
        Dirichlet(alpha=0.01, min_size=60).divide(np.repeat([0, 1], 300), clients=10, seed=0)
    for part in ("alpha=0.01", "min_size=60", "10 clients", "20 draws"):
        assert part in caught.value.message
    assert caught.value.key == "data.partition"


def test_an_alpha_too_small_for_floating_point_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DRAWS", 3)
    with pytest.raises(DataError, match="3 draws"):
        Dirichlet(alpha=1e-300, min_size=0).divide(CIFAR10, clients=4, seed=0)


@pytest.mark.parametrize(
    ("partition", "clients", "sentence"),
    [
        (Iid(), 21, "partition iid: needs at most 20 clients, one for each example, got 21 clients."),
        (Dirichlet(alpha=1, min_size=0), 21, "needs at most 20 clients"),
        (Dirichlet(alpha=1, min_size=10.5), 2, "needs at least 10.5 x 2 = 21 examples for 2 clients, got 20."),
        (Classes(k=3), 2, "needs k <= 2, the number of classes with examples, got k=3."),
        (Classes(k=1), 1, "needs k x clients >= 2, so that every class is held by some client, got 1 x 1."),
        (Classes(k=2), 11, "needs at least 11 examples of class 0, one for each client that holds it, got 10."),
    ],
)
def test_what_cannot_be_met_is_refused_at_once(partition: Partition, clients: int, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        partition.divide(np.repeat([0, 3], 10), clients=clients, seed=0)
    assert sentence in caught.value.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("iid", Iid()),
        ("iid()", Iid()),
        (" dirichlet( alpha = 0.5 ) ", Dirichlet(alpha=0.5)),
        ("dirichlet(alpha=1, min_size=62.5)", Dirichlet(alpha=1.0, min_size=62.5)),
        ("classes(k=2)", Classes(k=2)),
    ],
)
def test_text_is_read(text: str, value: Partition) -> None:
    assert parse_partition(text) == value


@settings(deadline=None, max_examples=50)
@given(st.one_of(st.builds(Dirichlet, alpha=st.floats(1e-9, 1e9), min_size=st.floats(0, 1e6)), st.builds(Iid)))
def test_text_is_given_back(partition: Partition) -> None:
    assert parse_partition(str(partition)) == partition


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dirichlett(alpha=1)", "unknown partition 'dirichlett'; did you mean 'dirichlet'?"),
        ("dirichlet(aplha=1)", "unknown option 'dirichlet.aplha'; did you mean 'alpha'?"),
        ("dirichlet(alpha=1, sizes=2)", "unknown option 'dirichlet.sizes'"),
        ("dirichlet", "dirichlet.alpha must be given, got 'dirichlet'."),
        ("classes()", "classes.k must be given"),
        ("dirichlet(alpha=0)", "dirichlet.alpha must be > 0, got 0."),
        ("dirichlet(alpha=-0.5)", "dirichlet.alpha must be > 0, got -0.5."),
        ("dirichlet(alpha=1e999)", "dirichlet.alpha must be a finite number"),
        ("dirichlet(alpha='1')", "dirichlet.alpha must be a number, got '1'."),
        ("dirichlet(alpha=1, min_size=-1)", "dirichlet.min_size must be >= 0, got -1."),
        ("classes(k=1.5)", "classes.k must be a whole number, got 1.5."),
        ("classes(k=True)", "classes.k must be a whole number, got True."),
    ],
)
def test_wrong_options_are_named(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_partition(text)
    assert sentence in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dirichlet(0.5)",
        "dirichlet(alpha=0.5",
        "dirichlet(alpha=0.5, alpha=0.6)",
        "dirichlet(**{'alpha': 1})",
        "dirichlet(alpha=1+1)",
        "dirichlet(alpha=print(1))",
        "dirichlet(alpha=-'1')",
        "a.b(c=1)",
        "iid; iid",
        "0.5",
        "iid\0",
        "-" * 150 + "1",
        "(" * 10_000,
    ],
)
def test_text_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a name with named options, such as"):
        parse_partition(text)
