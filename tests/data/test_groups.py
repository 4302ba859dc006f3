"""Examples of a group stay together in every partition and every split."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import DataError
from fedtailor.data.build import build, split_record
from fedtailor.data.dataset import Dataset
from fedtailor.data.division import divide
from fedtailor.data.grouping import check_groups_together, split_by_groups
from fedtailor.data.options import DataOptions
from fedtailor.data.split import ClientRows


def grouped(rows=400, num_groups=60, domains=0, seed=0, **changes):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 3)).astype(np.float32)
    fields = {
        "groups": np.unique(generator.integers(num_groups, size=rows), return_inverse=True)[1]
    }
    if domains:
        fields["domains"] = generator.integers(domains, size=rows)
        fields["domain_names"] = tuple(f"site {number}" for number in range(domains))
    fields["y"] = generator.integers(4, size=rows)
    return Dataset(name="grouped", x=x, num_classes=4, white=1.0, **{**fields, **changes})


def sides_of(dataset, rows):
    """Return the sides and the clients of every group."""
    found = {}
    for client, each in enumerate(rows):
        for side in each._fields:
            for group in dataset.groups[getattr(each, side)].tolist():
                found.setdefault(group, set()).add((client, side))
    return found


PARTITIONS = ["iid", "dirichlet(alpha=0.5, min_size=1)", "classes(k=2)", "label_slices(k=2)"]


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("domains", [0, 3])
def test_a_partition_puts_a_group_at_one_client_and_on_one_side(partition, domains):
    dataset = grouped(domains=domains)
    division = divide(
        DataOptions(partition=partition, clients=4, val_fraction=0.2), run_seed=0, dataset=dataset
    )
    assert all(len(where) == 1 for where in sides_of(dataset, division.rows).values())
    assert all(len(each.train) for each in division.rows)
    assert sum(len(each.test) for each in division.rows) > 50


@pytest.mark.parametrize(
    "partition", ["natural", "domains(per_domain=2, min_size=1)", "domain_labels(k=2)"]
)
def test_groups_at_several_sites_are_on_the_same_side_at_all_of_them(partition):
    dataset = grouped(domains=4)
    clients = 8 if partition.startswith("domains") else 4
    options = DataOptions(partition=partition, clients=clients, val_fraction=0.2)
    division = divide(options, run_seed=0, dataset=dataset)
    found = sides_of(dataset, division.rows)
    assert max(len(where) for where in found.values()) > 1
    assert all(len({side for _, side in where}) == 1 for where in found.values())
    for each in division.rows:
        assert len(np.unique(dataset.domains[np.concatenate(each)])) == 1
    if partition == "natural":
        assert np.array_equal(
            np.sort(np.concatenate([part for each in division.rows for part in each])), range(400)
        )


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 12), max_size=60),
    st.sampled_from([0.0, 0.2, 0.5, 0.9]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([1.0, 0.4]),
    st.integers(0, 99),
)
def test_shares_are_met_as_closely_as_whole_groups_allow(groups, share, val, fraction, seed):
    groups = np.array(groups, dtype=np.int64)
    options = DataOptions(test_share=share, val_fraction=val, fraction=fraction)
    sides = {}
    rows = split_by_groups(np.arange(len(groups)), groups, options, seed, sides)
    used = np.concatenate(rows)
    assert len(np.unique(used)) == len(used) and (fraction < 1 or len(used) == len(groups))
    largest = max(np.bincount(groups), default=0)
    assert abs(len(rows.test) - share * len(groups)) <= largest + 1
    assert len(rows.train) or not len(groups)
    check_groups_together([rows], groups, key="data.group")
    again = split_by_groups(np.arange(len(groups)), groups, options, seed + 1, dict(sides))
    for side in rows._fields:  # all groups have been put on a side
        if fraction == 1:
            assert np.array_equal(np.sort(getattr(rows, side)), np.sort(getattr(again, side)))


def test_a_client_with_one_group_has_it_for_training():
    rows = split_by_groups(
        np.arange(10), np.zeros(10, int), DataOptions(test_share=0.9, val_fraction=0.9), 0, {}
    )
    assert [len(part) for part in rows] == [10, 0, 0]


def test_groups_are_divided_by_their_most_frequent_label():
    y = np.array([0, 0, 1, 1, 1, 0, 2, 2, 3, 3] * 4)
    dataset = grouped(40, y=y, groups=np.repeat(np.arange(20), 2))
    options = DataOptions(partition="classes(k=1)", clients=4, test_share=0.0)
    division = divide(options, run_seed=0, dataset=dataset)
    majority = np.array(
        [0, 1, 0, 2, 3] * 4
    )  # of (0, 0), (1, 1), (1, 0): the smallest of two, (2, 2), (3, 3)
    for each in division.rows:
        assert len(np.unique(majority[dataset.groups[each.train]])) == 1


def test_more_clients_than_groups_are_refused_and_not_chosen():
    dataset = grouped(num_groups=60)
    for partition in ("iid", "dirichlet(alpha=5)"):
        assert len(divide(DataOptions(partition=partition), run_seed=0, dataset=dataset).rows) == 3
    with pytest.raises(
        DataError,
        match=r"at most 60 clients, .*, got 61 clients.* A group .* counts as one example",
    ):
        divide(DataOptions(partition="iid", clients=61), run_seed=0, dataset=dataset)


def test_the_division_is_that_of_the_seed():
    dataset = grouped()
    options = DataOptions(partition="iid", clients=4, val_fraction=0.2)
    first, same, other = (
        divide(dataclasses.replace(options, seed=seed), run_seed=0, dataset=dataset)
        for seed in (1, 1, 2)
    )
    assert all(
        np.array_equal(a, b)
        for x, y in zip(first.rows, same.rows, strict=True)
        for a, b in zip(x, y, strict=True)
    )
    assert not np.array_equal(first.rows[0].test, other.rows[0].test)


def test_a_fraction_and_the_stream_of_the_release_leave_the_test_part_alone():
    dataset = grouped()
    whole = divide(DataOptions(partition="iid", clients=4), run_seed=0, dataset=dataset)
    for changes in (
        {"fraction": 0.3},
        {"train_size": 20},
        {"fraction": 0.3, "subsampling": "release"},
    ):
        part = divide(
            DataOptions(partition="iid", clients=4, **changes), run_seed=0, dataset=dataset
        )
        for each, all_of_it in zip(part.rows, whole.rows, strict=True):
            assert np.array_equal(each.test, all_of_it.test) and set(each.train) < set(
                all_of_it.train
            )


def test_a_division_that_comes_with_the_data_must_not_divide_groups():
    groups = np.repeat(np.arange(40), 10)
    dataset = grouped(groups=np.roll(groups, 5), num_official_train=300)
    with pytest.raises(
        DataError, match=r"2 groups of data\.group have examples in training and in test"
    ):
        divide(DataOptions(partition="iid", clients=4, test="given"), run_seed=0, dataset=dataset)
    dataset = grouped(groups=groups, num_official_train=300)
    for test in ("given", "complete", "by_label"):
        division = divide(
            DataOptions(partition="iid", clients=4, test=test, val_fraction=0.2),
            run_seed=0,
            dataset=dataset,
        )
        assert min(each.test.min() for each in division.rows) >= 300
        assert max(np.concatenate(each[:2]).max() for each in division.rows) < 300


def test_a_split_file_records_the_option_and_must_not_divide_groups(tmp_path):
    dataset = grouped()
    divided = build(DataOptions(partition="iid", clients=4), run_seed=0, dataset=dataset)
    record = split_record(
        divided.division._replace(
            options=dataclasses.replace(divided.division.options, path="x", group="patient")
        )
    )
    assert record["options"]["group"] == "patient"
    path = tmp_path / "split.json"
    path.write_text(json.dumps(split_record(divided.division)))
    again = divide(DataOptions(split=str(path)), run_seed=0, dataset=dataset)
    assert all(
        np.array_equal(a.train, b.train) for a, b in zip(again.rows, divided.rows, strict=True)
    )
    without = build(
        DataOptions(partition="iid", clients=4),
        run_seed=0,
        dataset=dataclasses.replace(dataset, groups=None),
    )
    path.write_text(json.dumps({**split_record(without.division), "data_sha256": dataset.digest}))
    with pytest.raises(
        DataError, match=r"groups of data.group have examples in training and in test"
    ) as caught:
        divide(DataOptions(split=str(path)), run_seed=0, dataset=dataset)
    assert caught.value.key == "data.split"
    path.write_text(json.dumps(split_record(without.division)))
    with pytest.raises(DataError, match="the split is of data set"):
        divide(DataOptions(split=str(path)), run_seed=0, dataset=dataset)


def test_a_group_on_two_sides_is_found_on_any_two():
    groups = np.array([0, 0, 1, 2])
    nothing = np.zeros(0, np.int64)
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        rows = ClientRows(nothing, nothing, nothing)._replace(
            **{one: np.array([0]), other: np.array([1])}
        )
        with pytest.raises(DataError, match="1 groups"):
            check_groups_together([rows], groups, key="data.group")
