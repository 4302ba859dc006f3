"""Folds at each client: every example is tested once, groups stay whole, classes have shares."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import ConfigError
from fedtailor.data.build import build, split_record
from fedtailor.data.dataset import Dataset
from fedtailor.data.division import divide
from fedtailor.data.folds import assign_folds
from fedtailor.data.options import DataOptions


def make_sites(labels, groups=None, sites=None, **changes):
    """Return a table of sites with some labels; one site without ``sites``."""
    labels = np.array(labels, dtype=np.int64)
    sites = np.zeros(len(labels), dtype=np.int64) if sites is None else np.array(sites)
    x = np.random.default_rng(0).normal(size=(len(labels), 3)).astype(np.float32)
    names = tuple(f"site {number}" for number in range(int(sites.max()) + 1))
    fields = {"groups": None if groups is None else np.array(groups), "class_names": ("no", "yes")}
    return Dataset(
        name="sites",
        x=x,
        y=labels,
        num_classes=2,
        domains=sites,
        domain_names=names,
        **{**fields, **changes},
    )


def divisions(dataset, **options):
    """Return the division of every fold."""
    folds = options["folds"]
    return [
        divide(DataOptions(**options, fold=fold + 1), run_seed=0, dataset=dataset)
        for fold in range(folds)
    ]


def test_every_example_is_tested_once_and_trained_with_in_the_other_folds():
    generator = np.random.default_rng(1)
    sites = generator.integers(3, size=300)
    dataset = make_sites(generator.random(300) < 0.3, sites=sites)
    of_folds = divisions(dataset, folds=4)

    for client in range(3):
        rows = np.flatnonzero(sites == client)
        tested = np.concatenate([division.positions[client].test for division in of_folds])
        assert np.array_equal(np.sort(tested), rows)

        share = dataset.y[rows].mean()
        for division in of_folds:
            part = division.positions[client]
            assert np.array_equal(np.sort(np.concatenate(part)), rows)
            assert abs(dataset.y[part.test].sum() - share * len(part.test)) < 1

    # The record of all folds names the test examples fold by fold.
    whole = divide(DataOptions(folds=4), run_seed=0, dataset=dataset)
    for client, part in enumerate(whole.positions):
        parts = [division.positions[client].test for division in of_folds]
        assert len(part.train) == 0
        assert np.array_equal(np.sort(part.test), np.sort(np.concatenate(parts)))
        for fold, start in zip(parts, np.cumsum([0, *map(len, parts)]), strict=False):
            assert set(part.test[start : start + len(fold)]) == set(fold)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 60), st.integers(1, 15), st.integers(2, 6), st.integers(0, 99))
def test_folds_of_any_data_cover_it_and_never_divide_a_group(rows, num_groups, folds, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(3, size=rows)
    groups = generator.integers(num_groups, size=rows)
    for grouped in (None, groups):
        fold_of = assign_folds(labels, grouped, folds=folds, seed=seed)
        assert np.all((fold_of >= 0) & (fold_of < folds))

    whole = [len(set(fold_of[groups == group])) for group in np.unique(groups)]
    assert all(number == 1 for number in whole)


def test_a_group_at_two_sites_is_in_one_fold():
    generator = np.random.default_rng(2)
    groups = np.unique(generator.integers(40, size=240), return_inverse=True)[1]
    sites = generator.integers(2, size=240)
    dataset = make_sites(generator.integers(2, size=240), groups, sites)
    for division in divisions(dataset, folds=5, val_fraction=0.2):
        test = np.concatenate([client.test for client in division.positions])
        rest = [np.concatenate([client.train, client.val]) for client in division.positions]
        assert not np.intersect1d(groups[test], groups[np.concatenate(rest)]).size


def test_the_seed_of_the_data_draws_the_folds():
    dataset = make_sites(np.arange(60) % 2)

    def digest(**options):
        division = divide(DataOptions(folds=3, **options), run_seed=5, dataset=dataset)
        return split_record(division)["split_sha256"]

    assert digest() == digest()
    assert digest(seed="run") == digest(seed=5) != digest()


def test_small_sites_and_rare_classes_are_said_and_the_rest_goes_on():
    labels = [0, 1] * 20 + [0, 1, 0] + [0] * 18 + [1] * 2
    sites = [0] * 40 + [1] * 3 + [2] * 20
    divided = build(
        DataOptions(folds=5, fold=5), run_seed=0, dataset=make_sites(labels, sites=sites)
    )
    (notes,) = [note for note in divided.notes if "without test examples:" in note]
    assert "2 of 5 at site 1, which has 3 examples" in notes and "site 0" not in notes
    (notes,) = [note for note in divided.notes if "lack a class" in note]
    assert "3 of 5 at site 2 (2 examples of class 'yes')" in notes
    assert [len(client.test) for client in divided.positions] == [8, 0, 4]

    # One patient with many rows is in one fold only.
    dataset = make_sites([0, 1] * 10, groups=np.zeros(20, int))
    divided = build(DataOptions(folds=2, fold=1), run_seed=0, dataset=dataset)
    assert any("1 of 2 at site 0" in note for note in divided.notes)


def test_impossible_folds_are_refused():
    for options in (
        {"folds": 1},
        {"folds": 21},
        {"folds": 3, "fold": 4},
        {"fold": 1},
        {"folds": 3, "test": "given"},
        {"folds": 3, "test_share": 0.3},
        {"folds": 3, "split": "split.json"},
    ):
        with pytest.raises(ConfigError):
            DataOptions(**options)

    # Sites with test examples of their own: nobody trains with them unasked.
    dataset = make_sites([0, 1] * 20, num_official_train=30)
    options = {"path": "sites", "folds": 2}
    with pytest.raises(ConfigError, match=r"data.test = 'own'"):
        divide(DataOptions(**options), run_seed=0, dataset=dataset)

    division = divide(DataOptions(**options, test="own"), run_seed=0, dataset=dataset)
    assert len(division.positions[0].test) == 40
