"""The parts of the beta search: folds as scikit-learn makes them, and the search over a grid."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedKFold

from fedtailor.algorithms import _beta_search

CLASSES = 4
MODES = ("single", "multi")
GRID = 2.0**-12
HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)


def halves_of(labels, weight=None, seed=0, classes=CLASSES):
    labels = torch.as_tensor(labels)
    weight = torch.ones(len(labels)) if weight is None else weight
    words = torch.from_numpy(np.random.default_rng(seed).integers(-(2**62), 2**62, len(labels)))
    folds = _beta_search.stratified_folds(labels, weight, words, classes)
    return [rows[kept > 0].tolist() for rows, kept in zip(*folds, strict=True)]


@pytest.mark.parametrize("n", [8, 9, 41, 64])
def test_folds_have_the_class_counts_of_scikit_learn(n):
    labels = np.sort(
        np.concatenate([[0, 0, 1, 1, 2, 2], np.random.default_rng(n).integers(0, 3, n - 6)])
    )
    halves = halves_of(labels)
    splitter = StratifiedKFold(2, shuffle=True, random_state=0)
    expected = [
        np.bincount(labels[test], minlength=3).tolist()
        for _, test in splitter.split(labels, labels)
    ]
    assert [np.bincount(labels[half], minlength=3).tolist() for half in halves] == expected
    assert sorted(halves[0] + halves[1]) == list(range(n))


def test_folds_depend_on_words_and_not_on_padding():
    labels = torch.arange(30) % 3
    assert halves_of(labels, seed=0) != halves_of(labels, seed=1)
    words = torch.from_numpy(np.random.default_rng(0).integers(-(2**62), 2**62, 37))
    plain = _beta_search.stratified_folds(labels, torch.ones(30), words[:30], 3)
    padded_labels = torch.cat([labels, torch.full((7,), 1)])
    padded_weight = torch.cat([torch.ones(30), torch.zeros(7)])
    padded = _beta_search.stratified_folds(padded_labels, padded_weight, words, 3)
    assert torch.equal(padded.rows[:, :15], plain.rows)
    assert torch.equal(padded.weight[:, :15], plain.weight) and padded.weight[:, 15:].sum() == 0


@pytest.mark.parametrize("target", [0.0, 0.3, 0.77, 1.0])
def test_search_finds_the_nearest_multiple(target):
    def bowl(betas):
        return (betas[:, 0] - target) ** 2 + 0.5 * (betas[:, 1] - 1 + target) ** 2

    beta, value = _beta_search.search_beta(
        lambda betas: (betas[:, 0] - target) ** 2, "single", like=HALF
    )
    assert abs(beta[0] - target) <= GRID / 2 and value == (beta[0] - target) ** 2
    beta, _ = _beta_search.search_beta(bowl, "multi", like=HALF)
    assert abs(beta[0] - target) <= GRID / 2 and abs(beta[1] - 1 + target) <= GRID / 2


@pytest.mark.parametrize("mode", MODES)
def test_near_ties_go_to_the_smallest_beta(mode):
    noise = torch.Generator().manual_seed(0)

    def flat_from_a_quarter(betas):
        rounding = 1e-13 * torch.rand(len(betas), generator=noise, dtype=torch.float64)
        return 5.0 + (0.25 - betas).clamp_min(0).sum(1) + rounding

    beta, _ = _beta_search.search_beta(flat_from_a_quarter, mode, like=HALF)
    assert beta.tolist() == [0.25, 0.25]
    beta, _ = _beta_search.search_beta(
        lambda betas: torch.full_like(betas[:, 0], 2.0), mode, like=HALF
    )
    assert beta.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("mode", MODES)
def test_values_that_are_not_finite_are_never_chosen(mode):
    def half_broken(betas):
        return torch.where(betas[:, 1] > 0.4, (betas - 0.75).square().sum(1), torch.nan)

    beta, value = _beta_search.search_beta(half_broken, mode, like=HALF)
    assert beta.tolist() == [0.75, 0.75] and value == 0
    _, value = _beta_search.search_beta(lambda betas: betas[:, 0] * torch.nan, mode, like=HALF)
    assert value == torch.inf
