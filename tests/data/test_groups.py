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
from fedtailor.data.division import ClientSplitter, check_groups_together, divide
from fedtailor.data.options import DataOptions
from fedtailor.data.split import ClientPositions


def grouped(rows=400, num_groups=60, domains=0, **changes):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 3)).astype(np.float32)
    groups = generator.integers(num_groups, size=rows)
    fields = {"groups": np.unique(groups, return_inverse=True)[1]}
    if domains:
        fields["domains"] = generator.integers(domains, size=rows)
        fields["domain_names"] = tuple(f"site {number}" for number in range(domains))
    fields["y"] = generator.integers(4, size=rows)
    return Dataset(name="grouped", x=x, num_classes=4, white=1.0, **{**fields, **changes})


def places_of(dataset, rows):
    """Return the clients and sides of every group."""
    places = {}
    for number, client in enumerate(rows):
        for side in client._fields:
            for group in dataset.groups[getattr(client, side)].tolist():
                places.setdefault(group, set()).add((number, side))
    return list(places.values())


def split(groups, seed=0, **options):
    splitter = ClientSplitter(DataOptions(**options), seed, groups=groups)
    return splitter, splitter.split(np.arange(len(groups)))


@pytest.mark.parametrize("partition", ["iid", "dirichlet(alpha=0.5, min_size=1)", "classes(k=2)"])
@pytest.mark.parametrize("domains", [0, 3])
def test_a_partition_puts_a_group_at_one_client_and_on_one_side(partition, domains):
    dataset = grouped(domains=domains)
    options = DataOptions(partition=partition, clients=4, val_fraction=0.2)
    division = divide(options, run_seed=0, dataset=dataset)
    assert all(len(places) == 1 for places in places_of(dataset, division.positions))
    assert all(len(client.train) for client in division.positions)
    assert sum(len(client.test) for client in division.positions) > 50


@pytest.mark.parametrize("partition", ["natural", "domains(per_domain=2, min_size=1)"])
def test_groups_at_several_sites_are_on_the_same_side_at_all_of_them(partition):
    dataset = grouped(domains=4)
    clients = 4 if partition == "natural" else 8
    options = DataOptions(partition=partition, clients=clients, val_fraction=0.2)
    division = divide(options, run_seed=0, dataset=dataset)
    places = places_of(dataset, division.positions)
    assert max(map(len, places)) > 1
    assert all(len({side for _, side in group}) == 1 for group in places)
    for client in division.positions:
        assert len(np.unique(dataset.domains[np.concatenate(client)])) == 1
    used = np.concatenate([part for client in division.positions for part in client])
    assert np.array_equal(np.sort(used), np.arange(400))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 12), max_size=60),
    st.sampled_from([0.0, 0.2, 0.5, 0.9]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([1.0, 0.4]),
    st.integers(0, 99),
)
def test_shares_are_met_as_closely_as_whole_groups_allow(groups, share, val, fraction, seed):
    groups = np.array(groups, dtype=np.int64)
    splitter, rows = split(groups, seed, test_share=share, val_fraction=val, fraction=fraction)
    used = np.concatenate(rows)
    assert len(np.unique(used)) == len(used) and (fraction < 1 or len(used) == len(groups))
    assert abs(len(rows.test) - share * len(groups)) <= max(np.bincount(groups), default=0) + 1
    assert len(rows.train) or not len(groups)
    check_groups_together([rows], groups, key="data.group")
    if fraction == 1:  # another client has the same groups on the same sides
        again = splitter.split(np.arange(len(groups))[::-1])
        assert all(map(np.array_equal, map(np.sort, rows), map(np.sort, again)))


def test_a_client_with_one_group_has_it_for_training():
    _, rows = split(np.zeros(10, int), test_share=0.9, val_fraction=0.9)
    assert [len(part) for part in rows] == [10, 0, 0]


def test_groups_are_divided_by_their_most_frequent_label():
    y = np.array([0, 0, 1, 1, 1, 0, 2, 2, 3, 3] * 4)
    dataset = grouped(40, y=y, groups=np.repeat(np.arange(20), 2))
    options = DataOptions(partition="classes(k=1)", clients=4, test_share=0.0)
    division = divide(options, run_seed=0, dataset=dataset)
    # of (0, 0), (1, 1), (1, 0): the smallest of two, (2, 2), (3, 3)
    majority = np.array([0, 1, 0, 2, 3] * 4)
    for client in division.positions:
        assert len(np.unique(majority[dataset.groups[client.train]])) == 1


def test_more_clients_than_groups_are_refused_and_not_chosen():
    dataset = grouped()
    assert len(divide(DataOptions(partition="iid"), run_seed=0, dataset=dataset).positions) == 3
    with pytest.raises(DataError, match=r"60 clients.*data\.group"):
        divide(DataOptions(partition="iid", clients=61), run_seed=0, dataset=dataset)


def test_a_fraction_and_the_stream_of_the_release_leave_the_test_part_alone():
    dataset = grouped()
    options = DataOptions(partition="iid", clients=4)
    whole = divide(options, run_seed=0, dataset=dataset)
    for changes in ({"train_size": 20}, {"fraction": 0.3, "subsampling": "release"}):
        part = divide(dataclasses.replace(options, **changes), run_seed=0, dataset=dataset)
        for client, full in zip(part.positions, whole.positions, strict=True):
            assert np.array_equal(client.test, full.test)
            assert set(client.train) < set(full.train)


def test_a_division_that_comes_with_the_data_must_not_divide_groups():
    groups = np.repeat(np.arange(40), 10)
    options = DataOptions(partition="iid", clients=4, test="given", val_fraction=0.2)
    dataset = grouped(groups=np.roll(groups, 5), num_official_train=300)
    with pytest.raises(DataError, match=r"groups of data\.group"):
        divide(options, run_seed=0, dataset=dataset)

    dataset = grouped(groups=groups, num_official_train=300)
    for test in ("given", "complete", "by_label"):
        division = divide(dataclasses.replace(options, test=test), run_seed=0, dataset=dataset)
        assert min(client.test.min() for client in division.positions) >= 300
        assert max(np.concatenate(client[:2]).max() for client in division.positions) < 300


def test_a_split_file_must_not_divide_groups(tmp_path):
    dataset = grouped()
    options = DataOptions(partition="iid", clients=4)
    divided = build(options, run_seed=0, dataset=dataset)
    path = tmp_path / "split.json"
    path.write_text(json.dumps(split_record(divided.division)))
    again = divide(DataOptions(split=str(path)), run_seed=0, dataset=dataset)
    for client, expected in zip(again.positions, divided.positions, strict=True):
        assert all(map(np.array_equal, client, expected))

    without = dataclasses.replace(dataset, groups=None)
    record = split_record(build(options, run_seed=0, dataset=without).division)
    path.write_text(json.dumps({**record, "data_sha256": dataset.digest}))
    with pytest.raises(DataError) as caught:
        divide(DataOptions(split=str(path)), run_seed=0, dataset=dataset)
    assert caught.value.key == "data.split" and "data.group" in caught.value.message


def test_a_group_on_two_sides_is_found_on_any_two():
    groups = np.array([0, 0, 1, 2])
    nothing = ClientPositions(*[np.zeros(0, np.int64)] * 3)
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        rows = nothing._replace(**{one: np.array([0]), other: np.array([1])})
        with pytest.raises(DataError, match="1 groups"):
            check_groups_together([rows], groups, key="data.group")
