"""Who has which examples for what."""

import dataclasses
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data.build import split_record
from fedtailor.data.dataset import Dataset
from fedtailor.data.division import ClientSplitter, Division, check_disjoint, divide
from fedtailor.data.options import DataOptions
from fedtailor.data.split import ClientPositions


def split(positions: np.ndarray, seed: int = 42, **options: Any) -> ClientPositions:
    return ClientSplitter(DataOptions(**options), seed).split(positions)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 200),
    st.floats(0.01, 1),
    st.floats(0, 0.99),
    st.floats(0, 0.99),
    st.integers(0, 2**33),
)
def test_parts_have_the_sizes_asked_for(
    n: int, fraction: float, share: float, val: float, seed: int
) -> None:
    positions = np.arange(n) * 7
    rows = split(positions, seed, fraction=fraction, test_share=share, val_fraction=val)
    num_train = math.floor((1 - share) * n)
    kept = max(math.floor(fraction * num_train), 1) if num_train else 0
    assert len(rows.test) == n - num_train
    assert len(rows.val) == math.floor(val * kept)
    assert len(rows.train) == kept - len(rows.val)
    used = np.concatenate(rows)
    assert len(np.unique(used)) == len(used) and np.isin(used, positions).all()


def test_a_fraction_keeps_the_test_part_and_is_nested() -> None:
    splits = [split(np.arange(500), fraction=fraction) for fraction in (1.0, 0.75, 0.25)]
    assert [len(rows.train) for rows in splits] == [400, 300, 100]
    for larger, smaller in pairwise(splits):
        assert np.array_equal(larger.test, smaller.test)
        assert set(smaller.train) < set(larger.train)


@pytest.mark.parametrize("n", [5, 63, 101])
def test_the_split_is_that_of_the_release(n: int) -> None:
    positions = np.random.default_rng(1).permutation(1000)[:n]
    train, test = train_test_split(positions, train_size=0.8, shuffle=True, random_state=42)
    rows = split(positions)
    assert np.array_equal(rows.train, train) and np.array_equal(rows.test, test)
    assert len(split(np.arange(700), test_share=0.3).train) == 489  # int(700 * 0.7)


def test_the_subsampling_of_the_release_is_one_stream_over_the_clients() -> None:
    """The release draws two samples per client from one stream: what it keeps, and validation
    examples of the rest."""
    options = DataOptions(fraction=0.5, test_share=0.0, subsampling="release")
    splitter = ClientSplitter(options, 42)
    clients = [np.arange(5), np.arange(10, 17), np.arange(20, 24)]
    rows_of = [splitter.split(positions) for positions in clients]

    released = np.random.RandomState(0)
    for positions, rows in zip(clients, rows_of, strict=True):
        train = positions[np.random.RandomState(42).permutation(len(positions))]
        drawn = released.choice(np.arange(len(train)), size=int(0.5 * len(train)), replace=False)
        rest = np.setdiff1d(np.arange(len(train)), drawn)
        released.choice(rest, size=int((1 - 0.5) * len(rest)), replace=False)
        assert rows.train.tolist() == train[drawn].tolist()
        assert len(rows.val) == len(rows.test) == 0
    # by hand: seed 42 shuffles five examples to 1 4 2 0 3, and seed 0 draws places 2 and 0 of them
    assert rows_of[0].train.tolist() == [2, 1]


@pytest.mark.parametrize("partition", ["iid", "dirichlet(alpha=0.3)"])
def test_clients_share_no_example(partition: str) -> None:
    division = divide(DataOptions(partition=partition, clients=20, val_fraction=0.1), run_seed=0)
    used = np.concatenate([positions for rows in division.positions for positions in rows])
    assert len(np.unique(used)) == len(used) == 1797 and division.notes == []


def test_an_example_used_twice_is_refused() -> None:
    nothing = np.empty(0, np.int64)
    rows = [
        ClientPositions(np.array([0, 1]), nothing, np.array([2])),
        ClientPositions(np.array([3]), nothing, np.array([2])),
    ]
    check_disjoint(rows, 4, shared_test=True)
    with pytest.raises(DataError, match="example 2 "):
        check_disjoint(rows, 4)
    rows[1] = rows[1]._replace(test=np.array([1]))  # a training example of another client
    with pytest.raises(DataError, match="example 1 "):
        check_disjoint(rows, 4, shared_test=True)


def test_the_seed_may_follow_the_run() -> None:
    def first(seed: Any, run_seed: int) -> list[int]:
        division = divide(DataOptions(seed=seed), run_seed=run_seed)
        assert division.seed == (run_seed if seed == "run" else seed)
        return list(division.positions[0].train)

    assert first(42, 1) == first(42, 2) == first("run", 42) != first("run", 1)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"dataset": "digitss"}, "data.dataset"),
        ({"partition": "iidd"}, "data.partition"),
        ({"clients": -1}, "data.clients"),
        ({"clients": 20, "new_clients": 20}, "data.new_clients"),
        ({"new_clients": ("a", "a")}, "data.new_clients"),
        ({"new_clients": ("a",), "clients": 1}, "data.new_clients"),
        ({"new_clients": ("a",), "split": "s.json"}, "data.new_clients"),
        ({"fraction": 0.0}, "data.fraction"),
        ({"test_share": 1.0}, "data.test_share"),
        ({"val_fraction": "0.1"}, "data.val_fraction"),
        ({"seed": -1}, "data.seed"),
        ({"seed": "runs"}, "data.seed"),
        ({"split": "s.json", "fraction": 0.5}, "data.fraction"),
        ({"split": "s.json", "clients": 7}, "data.clients"),
        ({"split": "s.json", "subsampling": "release"}, "data.subsampling"),
        ({"subsampling": "release"}, "data.fraction"),
        ({"subsampling": "release", "fraction": 0.5, "train_size": 9}, "data.train_size"),
        ({"subsampling": "release", "fraction": 0.5, "val_fraction": 0.1}, "data.val_fraction"),
        ({"subsampling": "released"}, "data.subsampling"),
        ({"mean": (0.5,)}, "data.std"),
        ({"mean": (0.5,), "std": (0.5,), "normalize": "training"}, "data.normalize"),
        ({"image_size": 32}, "data.image_size"),
        ({"label_column": "diagnosis"}, "data.label_column"),
        ({"dir": 1}, "data.dir"),
        ({"shift": "cifar"}, "data.shift"),
    ],
)
def test_options_are_checked(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DataOptions(**changes)
    assert caught.value.key == key


def test_the_folder_option_is_where_files_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cifar-100-python"):
        divide(DataOptions(dataset="cifar100", dir=str(tmp_path)), run_seed=0)


def make_dataset(rows: int = 600, domains: int = 0) -> Dataset:
    """Return six classes of three subclasses; the last sixth is an official test part."""
    generator = np.random.default_rng(1)
    fine = generator.permutation(np.arange(rows) % 18)
    return Dataset(
        name="published",
        x=generator.integers(0, 256, (rows, 2, 2, 1), dtype=np.uint8),
        y=fine // 3,
        num_classes=6,
        subclasses=fine,
        subclass_names=tuple(map(str, range(18))),
        domains=generator.integers(0, domains, rows) if domains else None,
        domain_names=("Bonn", "Lyon", "Oslo", "Porto")[:domains],
        num_official_train=rows * 5 // 6,
    )


def divide_six(test: Any, dataset: Dataset, **options: Any) -> Division:
    options = {"clients": 6, "val_fraction": 0.1, "test": test, **options}
    return divide(DataOptions(**options), run_seed=0, dataset=dataset)


@pytest.mark.parametrize(
    ("test", "column", "partition"),
    [
        ("by_label", "y", "classes(k=2)"),
        ("by_subclass", "subclasses", "subclass_slices"),
        ("complete", "", "iid"),
    ],
)
def test_official_test_examples_go_by_what_a_client_has(
    test: str, column: str, partition: str
) -> None:
    dataset = make_dataset()
    division = divide_six(test, dataset, partition=partition)
    assert sum(len(part) for rows in division.positions for part in rows[:2]) == 500
    for rows in division.positions:
        used = np.concatenate(rows[:2])
        expected = np.arange(500, 600)
        if column:
            values = getattr(dataset, column)
            expected = expected[np.isin(values[expected], values[used])]
        assert used.max() < 500 and rows.test.tolist() == expected.tolist()


def test_labels_are_looked_for_within_the_domains_of_a_client() -> None:
    dataset = make_dataset(domains=2)
    partition = "domains(per_domain=3, alpha=1, min_size=0)"
    assert dataset.domains is not None
    for rows in divide_six("by_label", dataset, partition=partition).positions:
        used = np.concatenate(rows[:2])
        assert set(dataset.domains[rows.test]) <= set(dataset.domains[used])


def test_sites_that_come_divided_keep_their_test_examples() -> None:
    dataset = make_dataset(domains=4)
    division = divide(DataOptions(), run_seed=0, dataset=dataset)
    options = division.options
    assert (options.partition, options.test, options.clients) == ("natural", "given", 4)
    assert division.client_names == ("Bonn", "Lyon", "Oslo", "Porto")
    assert dataset.domains is not None
    for site, rows in enumerate(division.positions):
        assert set(dataset.domains[np.concatenate(rows)]) == {site}
        assert rows.train.max() < 500 <= rows.test.min()
    own = divide(DataOptions(test="own"), run_seed=0, dataset=dataset)
    assert min(rows.test.min() for rows in own.positions) < 500


def test_a_subset_is_the_same_number_of_every_class() -> None:
    dataset = make_dataset()
    division = divide_six("by_label", dataset, partition="iid", subset=120)
    used = np.concatenate([part for rows in division.positions for part in rows[:2]])
    assert np.bincount(dataset.y[used]).tolist() == [20] * 6 and used.max() < 500
    for wrong in (121, 600, 3):
        with pytest.raises(ConfigError, match=r"data\.subset .* a multiple of 6"):
            divide_six("by_label", dataset, partition="iid", subset=wrong)


def test_no_client_keeps_more_training_examples_than_asked_for() -> None:
    options = DataOptions(partition="dirichlet(alpha=0.5)")
    full = divide(options, run_seed=0)
    division = divide(dataclasses.replace(options, train_size=50), run_seed=0)
    for rows, all_rows in zip(division.positions, full.positions, strict=True):
        assert np.array_equal(rows.test, all_rows.test)
        assert np.array_equal(rows.train, all_rows.train[:50])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"test": "by_label"}, "data.test"),
        ({"test": "given"}, "data.test"),
        ({"partition": "natural"}, "data.partition"),
        ({"new_clients": 20}, "data.new_clients"),
        ({"new_clients": ("Lyon",)}, "data.new_clients"),
    ],
)
def test_options_that_do_not_fit_the_data_are_refused(options: dict[str, Any], key: str) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        divide(DataOptions(**options), run_seed=0)
    assert caught.value.key == key


def test_subclasses_are_needed_for_tests_by_subclass() -> None:
    dataset = dataclasses.replace(make_dataset(), subclasses=None)
    with pytest.raises(ConfigError, match="subclasses"):
        divide_six("by_subclass", dataset, partition="iid")


def test_notes_and_the_number_of_clients_follow_the_data() -> None:
    plain = dataclasses.replace(make_dataset(90), num_official_train=90)
    division = divide(DataOptions(partition="iid", test_share=0.0), run_seed=0, dataset=plain)
    assert division.options.clients == 4 and "no test examples: 0, 1" in division.notes[0]
    division = divide(DataOptions(partition="iid", clients=89), run_seed=0, dataset=plain)
    assert division.notes[0].startswith("88 of 89 clients have no training examples: 1, 2,")
    division = divide(DataOptions(clients=2), run_seed=0, dataset=make_dataset(domains=4))
    assert "2 of 4 sites are not used: data.clients is 2." in division.notes


def test_new_clients_by_name_come_last() -> None:
    dataset = make_dataset(domains=3)
    division = divide(DataOptions(new_clients=("Lyon",), path="x"), run_seed=0, dataset=dataset)
    assert division.client_names == ("Bonn", "Oslo", "Lyon") and division.num_new == 1
    assert dataset.domains is not None
    sites = [set(dataset.domains[rows.train]) for rows in division.positions]
    assert sites == [{0}, {2}, {1}]
    again = divide(division.options, run_seed=0, dataset=dataset)
    assert split_record(again) == split_record(division)

    division = divide(DataOptions(new_clients=2, path="x"), run_seed=0, dataset=dataset)
    assert any("Lyon, Oslo" in note for note in division.notes)
    with pytest.raises(ConfigError, match="'Lyon'"):
        divide(DataOptions(new_clients=("Lion",), path="x"), run_seed=0, dataset=dataset)


def test_sites_that_join_are_not_the_new_ones():
    options = DataOptions(dataset="synthetic", clients=5, new_clients=1)
    division = divide(options, run_seed=0, late=("domain 4",))
    assert division.client_names[-2:] == ("domain 4", "domain 3")
    assert (division.num_late, division.num_new) == (1, 1)

    named = DataOptions(dataset="synthetic", clients=5, new_clients=("domain 4",))
    with pytest.raises(ConfigError, match="do not join during the run"):
        divide(named, run_seed=0, late=("domain 4",))


@pytest.mark.parametrize(
    ("late", "words"), [(("domain 4",) * 2, "one join"), (("domian",), "mean")]
)
def test_wrong_sites_that_join_are_errors_of_the_history(late, words):
    options = DataOptions(dataset="synthetic", clients=5)
    with pytest.raises(ConfigError, match=words) as caught:
        divide(options, run_seed=0, late=late)
    assert caught.value.key == "federation.history"
