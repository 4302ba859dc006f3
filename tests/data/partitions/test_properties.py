"""What holds for every partition: disjoint, complete where promised, reproducible."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import DataError
from fedtailor.data import PARTITIONS
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions._dealing import hand_out, positions_by_value
from fedtailor.data.partitions.base import Partition
from fedtailor.data.partitions.text import parse_partition


def some_annotations(rows: int = 480, seed: int = 0, skew: float = 0.0) -> Annotations:
    """Return 4 labels with 3 subclasses each in 2 domains; with ``skew``, later classes are
    rarer."""
    generator = np.random.default_rng(seed)
    weights = np.exp(-skew * np.arange(12) / 12)
    subclasses = generator.permutation(
        np.repeat(np.arange(12), (rows * weights / weights.sum()).astype(int))
    )
    domains = generator.integers(0, 2, len(subclasses))
    return Annotations(subclasses // 3, subclasses, domains)


EXAMPLES = {
    "iid": 7,
    "dirichlet(alpha=0.5, min_size=5)": 8,
    "dirichlet(alpha=0.1, min_size=0)": 30,
    "dirichlet_quota(alpha=0.5)": 12,
    "dirichlet_quota(alpha=0.1)": 7,
    "dirichlet_quota(alpha=0.3, quota=20)": 10,
    "classes(k=2)": 9,
    "cyclic_classes(k=3)": 10,
    "label_slices": 12,
    "label_slices(k=1, shared_cuts=False)": 12,
    "subclass_slices": 12,
    "subclass_slices(homogeneous=True)": 5,
    "subclass_slices(equal=True)": 9,
    "subclass_slices(shared_cuts=False)": 9,
    "natural": 2,
    "domains(per_domain=3, alpha=1, min_size=4)": 6,
    "domain_labels(k=2)": 8,
}
EMPTY_ALLOWED = {"dirichlet(alpha=0.1, min_size=0)"}


def test_every_partition_is_among_the_examples() -> None:
    assert {parse_partition(text).name for text in EXAMPLES} == set(PARTITIONS)


@pytest.mark.parametrize("text", EXAMPLES)
@settings(deadline=None, max_examples=8)
@given(st.integers(0, 2**40), st.sampled_from([0.0, 1.0]))
def test_parts_are_disjoint_and_reproducible(text: str, seed: int, skew: float) -> None:
    partition, annotations, clients = (
        parse_partition(text),
        some_annotations(skew=skew),
        EXAMPLES[text],
    )
    columns = [column for column in annotations if column is not None]
    before = [column.copy() for column in columns]
    parts = partition.divide(annotations, clients=clients, seed=seed)
    assert len(parts) == clients and all(part.dtype == np.int64 for part in parts)
    used = np.concatenate(parts)
    assert (
        len(np.unique(used)) == len(used)
        and used.min() >= 0
        and used.max() < len(annotations.labels)
    )
    if partition.hands_out_all:
        assert len(used) == len(annotations.labels)
    if text not in EMPTY_ALLOWED:
        assert min(map(len, parts)) > 0
    again = partition.divide(annotations, clients=clients, seed=seed)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))
    assert all(np.array_equal(one, other) for one, other in zip(before, columns, strict=True))


@pytest.mark.parametrize("text", [text for text in EXAMPLES if text != "natural"])
def test_another_seed_gives_another_partition(text: str) -> None:
    divide = parse_partition(text).divide
    one, other = (divide(some_annotations(), clients=EXAMPLES[text], seed=seed) for seed in (0, 1))
    assert any(
        set(first.tolist()) != set(second.tolist())
        for first, second in zip(one, other, strict=True)
    )


def test_a_partition_of_ten_thousand_clients_hands_out_all() -> None:
    labels = np.arange(60_000) % 10
    for text in (
        "iid",
        "dirichlet(alpha=0.5, min_size=0)",
        "dirichlet_quota(alpha=0.5)",
        "classes(k=2)",
        "label_slices",
    ):
        parts = parse_partition(text).divide(Annotations(labels), clients=10_000, seed=0)
        assert len(parts) == 10_000 and len(np.unique(np.concatenate(parts))) == 60_000


@pytest.mark.parametrize(
    "text", ["iid", "dirichlet(alpha=1, min_size=0)", "dirichlet_quota(alpha=1)", "natural"]
)
def test_there_must_be_an_example_for_each_client(text: str) -> None:
    with pytest.raises(
        DataError, match="needs at most 20 clients, one for each example, got 21 clients"
    ):
        parse_partition(text).divide(
            Annotations(np.arange(20), None, np.arange(20)), clients=21, seed=0
        )


def default(text: str) -> Callable[[Annotations], int | None]:
    partition: Partition = parse_partition(text)
    return partition.default_clients


def test_only_partitions_by_domain_have_their_own_number_of_clients() -> None:
    own = {text: default(text)(some_annotations()) for text in EXAMPLES}
    assert {text: number for text, number in own.items() if number} == {
        "natural": 2,
        "domains(per_domain=3, alpha=1, min_size=4)": 6,
    }


def test_positions_are_grouped_by_value() -> None:
    present, groups = positions_by_value(np.array([5, 2, 5, 9, 2]))
    assert present.tolist() == [2, 5, 9] and [group.tolist() for group in groups] == [
        [1, 4],
        [0, 2],
        [3],
    ]


def test_examples_are_handed_out_in_the_order_of_the_pools() -> None:
    pools = [np.array([10, 11, 12]), np.array([20, 21])]
    parts = hand_out(pools, np.array([1, 0, 0, 1]), np.array([2, 0, 2, 0]), 3)
    assert [part.tolist() for part in parts] == [[10, 21], [], [20, 11]]
