"""Partitions along domains, writers and sites."""

import numpy as np
import pytest

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions.base import Partition
from fedtailor.data.partitions.dirichlet import Dirichlet
from fedtailor.data.partitions.domains import DomainLabels, Domains, Natural

DOMAINS = np.random.default_rng(0).permutation(
    np.repeat([0, 2, 3, 4, 7], [2000, 1500, 400, 1000, 1100])
)
DIGIT5 = Annotations(np.random.default_rng(1).integers(0, 10, len(DOMAINS)), None, DOMAINS)
assert DIGIT5.domains is not None


def domains_of(part: np.ndarray) -> list[int]:
    return sorted(set(DOMAINS[part].tolist()))


def test_natural_clients_are_the_domains_in_order() -> None:
    assert Natural().default_clients(DIGIT5) == 5
    parts = Natural().divide(DIGIT5, clients=5, seed=0)
    assert [domains_of(part) for part in parts] == [[0], [2], [3], [4], [7]]
    assert [len(part) for part in parts] == [2000, 1500, 400, 1000, 1100]


def test_fewer_natural_clients_are_the_first_domains() -> None:
    parts = Natural().divide(DIGIT5, clients=2, seed=3)
    assert [domains_of(part) for part in parts] == [[0], [2]] and sum(map(len, parts)) == 3500


def test_domains_are_divided_among_their_own_clients() -> None:
    assert Domains().default_clients(DIGIT5) == 20
    parts = Domains().divide(DIGIT5, clients=20, seed=42)
    assert [domains_of(part) for part in parts] == [
        [each] for each in (0, 2, 3, 4, 7) for _ in range(4)
    ]
    assert min(map(len, parts)) >= 10 and sum(map(len, parts)) == 6000
    first = np.flatnonzero(DOMAINS == 0)  # the first domain is divided as a data set of its own
    alone = Dirichlet(alpha=0.5).divide(Annotations(DIGIT5.labels[first]), clients=4, seed=42)
    assert all(
        np.array_equal(first[one], other) for one, other in zip(alone, parts[:4], strict=True)
    )


def test_a_client_has_one_domain_and_k_labels() -> None:
    partition = DomainLabels(k=5)
    assert partition.default_clients(DIGIT5) is None
    for clients in (10, 100):
        parts = partition.divide(DIGIT5, clients=clients, seed=0)
        assert all(len(domains_of(part)) == 1 for part in parts)
        assert all(len(np.unique(DIGIT5.labels[part])) == 5 for part in parts)


def test_all_of_a_label_goes_to_those_who_drew_it() -> None:
    parts = DomainLabels(k=5).divide(DIGIT5, clients=30, seed=0)
    cells = DOMAINS * 10 + DIGIT5.labels
    drawn = np.unique(cells[np.concatenate(parts)])
    assert len(np.concatenate(parts)) == np.isin(cells, drawn).sum()
    sizes = [
        [int((cells[part] == cell).sum()) for part in parts if (cells[part] == cell).any()]
        for cell in drawn
    ]
    assert any(len(set(each)) > 1 for each in sizes)


def test_domains_and_labels_are_drawn_uniformly() -> None:
    parts = DomainLabels(k=3).divide(DIGIT5, clients=300, seed=0)
    by_domain = np.bincount([domains_of(part)[0] for part in parts], minlength=8)[[0, 2, 3, 4, 7]]
    assert by_domain.min() > 35 and by_domain.max() < 90
    by_label = np.bincount(np.concatenate([np.unique(DIGIT5.labels[part]) for part in parts]))
    assert by_label.min() > 60 and by_label.max() < 120


WITHOUT = Annotations(DIGIT5.labels)
SMALL = Annotations(np.array([0, 1, 2, 0, 0, 0, 0, 0]), None, np.array([0, 0, 0, 1, 1, 1, 1, 1]))


@pytest.mark.parametrize(
    ("partition", "annotations", "clients", "sentence"),
    [
        (
            Natural(),
            WITHOUT,
            2,
            "partition natural: needs domains (writers or sites), got a data set without them",
        ),
        (Domains(), WITHOUT, 20, "needs domains (writers or sites), got a data set without them"),
        (
            DomainLabels(),
            WITHOUT,
            20,
            "needs domains (writers or sites), got a data set without them",
        ),
        (
            Natural(),
            DIGIT5,
            6,
            "needs at most 5 clients, one for each domain with examples, got 6 clients.",
        ),
        (
            Domains(),
            DIGIT5,
            10,
            "needs 4 x 5 = 20 clients, per_domain for each domain with examples, got 10.",
        ),
        (
            Domains(per_domain=4, min_size=0),
            SMALL,
            8,
            "needs at least 4 examples of domain 0, got 3.",
        ),
        (
            Domains(per_domain=2),
            SMALL,
            4,
            "needs at least 10 x 2 = 20 examples of domain 0 for 2 clients, got 3.",
        ),
        (
            DomainLabels(k=2),
            SMALL,
            4,
            "needs at least 2 labels in every domain, got 1 in domain 1.",
        ),
        (
            DomainLabels(k=1),
            SMALL,
            8,
            "of class 1 in domain 0, one for each client that holds it, got 1.",
        ),
    ],
)
def test_what_cannot_be_met_is_refused(
    partition: Partition, annotations: Annotations, clients: int, sentence: str
) -> None:
    with pytest.raises(DataError) as caught:
        partition.divide(annotations, clients=clients, seed=0)
    assert sentence in caught.value.message


def test_a_partition_without_domains_has_no_default_number_either() -> None:
    with pytest.raises(DataError, match="needs domains"):
        Natural().default_clients(WITHOUT)
