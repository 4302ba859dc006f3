"""Who has which examples for what."""

import dataclasses
import math
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data import load_dataset
from fedtailor.data.build import split_record
from fedtailor.data.dataset import Dataset
from fedtailor.data.division import Division, check_disjoint, divide, split_client
from fedtailor.data.options import DataOptions
from fedtailor.data.split import ClientRows


def colorful(rows: int = 30) -> Dataset:
    x = np.random.default_rng(0).integers(0, 256, (rows, 4, 5, 3), dtype=np.uint8)
    return Dataset(
        name="colorful", x=x, y=np.arange(rows) % 3, num_classes=3, class_names=("a", "b", "c")
    )


@settings(deadline=None, max_examples=60)
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
    options = DataOptions(fraction=fraction, test_share=share, val_fraction=val)
    positions = np.arange(n) * 7
    rows = split_client(positions, options, seed)
    num_train = math.floor((1 - share) * n)
    kept = max(math.floor(fraction * num_train), 1) if num_train else 0
    assert len(rows.test) == n - num_train
    assert len(rows.val) == math.floor(val * kept)
    assert len(rows.train) == kept - len(rows.val)
    used = np.concatenate(rows)
    assert len(np.unique(used)) == len(used) and np.isin(used, positions).all()


def test_a_fraction_keeps_the_test_part_and_is_nested() -> None:
    positions = np.arange(500)
    splits = [
        split_client(positions, DataOptions(fraction=fraction), 42)
        for fraction in (1.0, 0.75, 0.5, 0.25)
    ]
    assert [len(each.train) for each in splits] == [400, 300, 200, 100]
    for larger, smaller in pairwise(splits):
        assert np.array_equal(larger.test, smaller.test)
        assert set(smaller.train) < set(larger.train)


@pytest.mark.parametrize("n", [5, 63, 101])
def test_the_split_is_that_of_the_release(n: int) -> None:
    positions = np.random.default_rng(1).permutation(1000)[:n]
    train, test = train_test_split(positions, train_size=0.8, shuffle=True, random_state=42)
    rows = split_client(positions, DataOptions(), 42)
    assert np.array_equal(rows.train, train) and np.array_equal(rows.test, test)


def test_the_subsampling_of_the_release_is_one_stream_over_the_clients() -> None:
    """The release draws two samples per client from one stream: what it keeps, and validation
    examples of the rest."""
    options = DataOptions(fraction=0.5, test_share=0.0, subsampling="release")
    generator = np.random.RandomState(0)
    clients = [np.arange(5), np.arange(10, 17), np.arange(20, 24)]
    kept = [split_client(positions, options, 42, 0, generator) for positions in clients]

    released = np.random.RandomState(0)
    for positions, rows in zip(clients, kept, strict=True):
        train = positions[np.random.RandomState(42).permutation(len(positions))]
        drawn = released.choice(np.arange(len(train)), size=int(0.5 * len(train)), replace=False)
        rest = np.setdiff1d(np.arange(len(train)), drawn)
        released.choice(rest, size=int((1 - 0.5) * len(rest)), replace=False)
        assert rows.train.tolist() == train[drawn].tolist()
        assert len(rows.val) == len(rows.test) == 0
    # by hand: seed 42 shuffles five examples to 1 4 2 0 3, and seed 0 draws places 2 and 0 of them
    assert kept[0].train.tolist() == [2, 1]


def test_the_subsampling_of_the_release_has_its_own_seed_and_leaves_the_test_part_alone() -> None:
    nested = DataOptions(partition="iid", clients=4, fraction=0.25)
    release = dataclasses.replace(nested, subsampling="release")
    first, second = (divide(options, run_seed=0) for options in (nested, release))
    whole = divide(dataclasses.replace(nested, fraction=1.0), run_seed=0)
    for rows, other, every in zip(first.rows, second.rows, whole.rows, strict=True):
        assert np.array_equal(rows.test, other.test)
        assert len(rows.train) == len(other.train) and set(other.train) < set(every.train)
        assert set(rows.train) != set(other.train)
    assert second.options.subsampling == "release"
    generator = np.random.RandomState(0)
    for seed in (42, 7):
        reseeded = divide(dataclasses.replace(release, seed=seed), run_seed=0)
        parts = divide(dataclasses.replace(nested, fraction=1.0, seed=seed), run_seed=0)
        place = generator.permutation(len(parts.rows[0].train))[0]
        assert reseeded.rows[0].train[0] == parts.rows[0].train[place]
        generator = np.random.RandomState(0)


def test_a_share_of_three_tenths_rounds_as_released_codes_do() -> None:
    assert (
        len(split_client(np.arange(700), DataOptions(test_share=0.3), 0).train) == 489
    )  # int(700 * 0.7)


@pytest.mark.parametrize("partition", ["iid", "dirichlet(alpha=0.3)", "classes(k=3)"])
def test_clients_share_no_example(partition: str) -> None:
    divided = divide(DataOptions(partition=partition, clients=20, val_fraction=0.1), run_seed=0)
    used = np.concatenate([positions for rows in divided.rows for positions in rows])
    assert len(np.unique(used)) == len(used) == 1797
    assert divided.notes == []


def test_an_example_used_twice_is_refused() -> None:
    nothing = np.empty(0, np.int64)
    rows = [
        ClientRows(np.array([0, 1]), nothing, np.array([2])),
        ClientRows(np.array([3]), nothing, np.array([1])),
    ]
    with pytest.raises(DataError, match="example 1 and 0 others are used more than once"):
        check_disjoint(rows, 4)


def test_the_seed_may_follow_the_run() -> None:
    fixed, run = DataOptions(), DataOptions(seed="run")
    digits = load_dataset("digits")

    def first(options: DataOptions, run_seed: int) -> list[int]:
        divided = divide(options, run_seed=run_seed, dataset=digits)
        assert divided.seed == (run_seed if options.seed == "run" else options.seed)
        return cast(list[int], divided.rows[0].train.tolist())

    assert first(fixed, 1) == first(fixed, 2)
    assert first(run, 1) != first(run, 2)
    assert first(run, 42) == first(fixed, 7)


def test_clients_without_test_examples_are_noted() -> None:
    divided = divide(
        DataOptions(partition="iid", clients=30, test_share=0.0), run_seed=0, dataset=colorful()
    )
    assert divided.notes == [
        "30 of 30 clients have no test examples: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and more."
    ]
    divided = divide(DataOptions(partition="iid", clients=29), run_seed=0, dataset=colorful())
    assert len(divided.rows[0].train) == 1  # two examples
    assert divided.notes[0].startswith("28 of 29 clients have no training examples: 1, 2,")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"dataset": "digitss"}, "unknown dataset 'digitss'; did you mean 'digits'?"),
        ({"partition": "iidd"}, "unknown partition 'iidd'"),
        ({"clients": -1}, "data.clients must be >= 0, got -1."),
        (
            {"clients": 20, "new_clients": 20},
            "data.new_clients must be less than the number of clients (20), got 20.",
        ),
        ({"new_clients": ("a", "a")}, "data.new_clients must be different names."),
        ({"new_clients": ("a",), "clients": 1}, "less than the number of clients (1), got 1"),
        (
            {"new_clients": ("a",), "split": "s.json"},
            "data.new_clients must be a number with data.split",
        ),
        ({"fraction": 0.0}, "data.fraction must be > 0 and <= 1, got 0.0."),
        ({"test_share": 1.0}, "data.test_share must be >= 0 and < 1, got 1.0."),
        ({"val_fraction": "0.1"}, "data.val_fraction must be a number, got '0.1'."),
        ({"seed": -1}, "data.seed must be >= 0, got -1."),
        (
            {"split": "s.json", "fraction": 0.5},
            "data.fraction = 0.5 has no effect, because data.split is given",
        ),
        ({"split": "s.json", "clients": 7}, "data.clients = 7 has no effect"),
        (
            {"split": "s.json", "subsampling": "release"},
            "data.subsampling = 'release' has no effect",
        ),
        (
            {"subsampling": "release"},
            "data.subsampling = 'release' needs data.fraction < 1, got 1.0",
        ),
        (
            {"subsampling": "release", "fraction": 0.5, "train_size": 9},
            "needs data.train_size = 0, got 9",
        ),
        (
            {"subsampling": "release", "fraction": 0.5, "val_fraction": 0.1},
            "needs data.val_fraction = 0, got 0.1",
        ),
        ({"subsampling": "released"}, "data.subsampling must be one of"),
        ({"mean": (0.5,)}, "data.mean needs data.std as well"),
        (
            {"mean": (0.5,), "std": (0.5,), "normalize": "training"},
            "data.normalize = 'training' has no effect",
        ),
        ({"image_size": 32}, "data.image_size = 32 has no effect, because data.path is not given"),
        ({"seed": "runs"}, "data.seed must be a whole number or 'run', got 'runs'."),
        ({"dir": 1}, "data.dir must be text, got 1."),
    ],
)
def test_options_are_checked(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DataOptions(**changes)
    assert sentence in caught.value.message


def test_the_folder_option_is_where_files_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cifar-100-python"):
        divide(DataOptions(dataset="cifar100", dir=str(tmp_path)), run_seed=0)


def published(rows: int = 600, classes: int = 6, subclasses: int = 3, domains: int = 0) -> Dataset:
    """Return a data set whose last sixth is an official test part; subclasses lie within the
    classes."""
    generator = np.random.default_rng(1)
    fine = generator.permutation(np.arange(rows) % (classes * subclasses))
    return Dataset(
        name="published",
        x=generator.integers(0, 256, (rows, 2, 2, 1), dtype=np.uint8),
        y=fine // subclasses,
        num_classes=classes,
        subclasses=fine,
        subclass_names=tuple(map(str, range(classes * subclasses))),
        domains=generator.integers(0, domains, rows) if domains else None,
        domain_names=tuple(f"site {each}" for each in range(domains)),
        num_official_train=rows * 5 // 6,
    )


def held(dataset: Dataset, positions: np.ndarray, column: str = "y") -> set[int]:
    return set(getattr(dataset, column)[positions].tolist())


def by_policy(test: Any, dataset: Dataset, **options: Any) -> Division:
    return divide(
        DataOptions(test=test, clients=6, val_fraction=0.1, **options), run_seed=0, dataset=dataset
    )


def test_official_test_examples_go_by_the_labels_of_a_client() -> None:
    dataset = published()
    division = by_policy("by_label", dataset, partition="classes(k=2)")
    official = np.arange(500, 600)
    for rows in division.rows:
        train = np.concatenate(rows[:2])
        assert train.max() < 500
        assert rows.test.tolist() == [
            row for row in official if dataset.y[row] in held(dataset, train)
        ]


def test_official_test_examples_go_by_the_subclasses_of_a_client() -> None:
    dataset = published()
    division = by_policy("by_subclass", dataset, partition="subclass_slices", fraction=0.9)
    for rows in division.rows:
        assert held(dataset, rows.test, "subclasses") <= held(
            dataset, np.concatenate(rows[:2]), "subclasses"
        )
        assert 0 < len(held(dataset, rows.test, "subclasses")) <= 6


def test_all_official_test_examples_may_be_everybodys() -> None:
    division = by_policy("complete", published(), partition="iid")
    assert all(rows.test.tolist() == list(range(500, 600)) for rows in division.rows)
    assert sum(len(part) for rows in division.rows for part in rows[:2]) == 500


def test_labels_are_looked_for_within_the_domains_of_a_client() -> None:
    dataset = published(domains=2)
    division = by_policy(
        "by_label", dataset, partition="domains(per_domain=3, alpha=1, min_size=0)"
    )
    for rows in division.rows:
        assert held(dataset, rows.test, "domains") <= held(
            dataset, np.concatenate(rows[:2]), "domains"
        )


def test_sites_that_come_divided_keep_their_test_examples() -> None:
    dataset = published(domains=4)
    division = divide(DataOptions(), run_seed=0, dataset=dataset)
    assert (division.options.partition, division.options.test, division.options.clients) == (
        "natural",
        "given",
        4,
    )
    assert division.client_names == ("site 0", "site 1", "site 2", "site 3")
    for site, rows in enumerate(division.rows):
        assert held(dataset, np.concatenate(rows), "domains") == {site}
        assert rows.train.max() < 500 <= rows.test.min()
    own = divide(DataOptions(test="own"), run_seed=0, dataset=dataset)
    assert min(rows.test.min() for rows in own.rows) < 500


def test_a_subset_is_the_same_number_of_every_class() -> None:
    dataset = published()
    division = by_policy("by_label", dataset, partition="iid", subset=120)
    used = np.concatenate([part for rows in division.rows for part in rows[:2]])
    assert np.bincount(dataset.y[used]).tolist() == [20] * 6 and used.max() < 500
    other = by_policy("by_label", dataset, partition="iid", subset=120, seed=43)
    assert set(used) != set(np.concatenate([part for rows in other.rows for part in rows[:2]]))
    for wrong in (121, 600, 3):
        with pytest.raises(
            ConfigError,
            match=r"data\.subset must be a multiple of 6, the number of classes, and at",
        ):
            by_policy("by_label", dataset, partition="iid", subset=wrong)


def test_no_client_keeps_more_training_examples_than_asked_for() -> None:
    division = divide(DataOptions(train_size=50, partition="dirichlet(alpha=0.5)"), run_seed=0)
    assert max(len(rows.train) for rows in division.rows) == 50
    full = divide(DataOptions(partition="dirichlet(alpha=0.5)"), run_seed=0)
    for rows, all_rows in zip(division.rows, full.rows, strict=True):
        assert np.array_equal(rows.test, all_rows.test) and np.array_equal(
            rows.train, all_rows.train[:50]
        )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"test": "by_label"},
            "data.test = 'by_label' needs an official test part, which data set 'digits'",
        ),
        ({"test": "given"}, "needs an official test part"),
        ({"partition": "natural"}, "natural"),
        (
            {"new_clients": 20},
            "data.new_clients must be less than the number of clients (20), got 20.",
        ),
    ],
)
def test_options_that_do_not_fit_the_data_are_refused(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        divide(DataOptions(**options), run_seed=0)
    assert sentence in caught.value.message


def test_subclasses_are_needed_for_tests_by_subclass() -> None:
    dataset = dataclasses.replace(published(), subclasses=None)
    with pytest.raises(ConfigError, match="needs subclasses"):
        by_policy("by_subclass", dataset, partition="iid")


def test_fewer_clients_than_sites_are_noted() -> None:
    division = divide(DataOptions(clients=2), run_seed=0, dataset=published(domains=4))
    assert "2 of 4 sites are not used: data.clients is 2." in division.notes


def test_small_data_without_sites_have_fewer_clients_unless_asked() -> None:
    division = divide(DataOptions(partition="iid"), run_seed=0, dataset=colorful(90))
    assert division.options.clients == 4
    assert (
        divide(
            DataOptions(partition="iid", clients=20), run_seed=0, dataset=colorful(90)
        ).options.clients
        == 20
    )


def named_sites():
    """Return a data set of three sites with 30, 40 and 50 examples."""
    domains = np.repeat([0, 1, 2], [30, 40, 50])
    y = np.arange(120) % 2
    x = np.zeros((120, 3), dtype=np.float32)
    return Dataset(
        name="sites",
        x=x,
        y=y,
        num_classes=2,
        domains=domains,
        domain_names=("Bonn", "Lyon", "Oslo"),
    )


def test_new_clients_by_name_come_last():
    divided = divide(
        DataOptions(new_clients=("Lyon",), path="x"), run_seed=0, dataset=named_sites()
    )
    assert divided.client_names == ("Bonn", "Oslo", "Lyon") and divided.num_new == 1
    assert [len(rows.train) + len(rows.test) for rows in divided.rows] == [30, 50, 40]
    again = divide(divided.options, run_seed=0, dataset=named_sites())
    assert split_record(again) == split_record(divided)


def test_a_number_of_new_clients_says_which():
    divided = divide(DataOptions(new_clients=2, path="x"), run_seed=0, dataset=named_sites())
    assert "New clients, which never take part in training: Lyon, Oslo." in divided.notes


def test_unknown_names_of_new_clients_are_refused():
    with pytest.raises(ConfigError, match="unknown client 'Lion'; did you mean 'Lyon'"):
        divide(DataOptions(new_clients=("Lion",), path="x"), run_seed=0, dataset=named_sites())
    with pytest.raises(ConfigError, match="the clients have no names with this partition"):
        divide(
            DataOptions(new_clients=("Lyon",), path="x", partition="iid"),
            run_seed=0,
            dataset=named_sites(),
        )
