"""The beta search of a client against direct solves and SciPy's minimizer."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from fedtailor.algorithms import _beta_search
from fedtailor.statistics import gaussian

CLASSES, D = 4, 6
MODES = ("single", "multi")
REFERENCE = {"ridge": 1.0, "offset": 1e-4}
ONCE = torch.ones((), dtype=torch.float64)
HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)


class Client(NamedTuple):
    """The tensors that a search takes."""

    z: torch.Tensor
    labels: torch.Tensor
    weight: torch.Tensor
    words: torch.Tensor
    global_means: torch.Tensor
    global_covariance: torch.Tensor
    prior: torch.Tensor
    previous: torch.Tensor = HALF


def client(seed=0, n=60, d=D, classes=CLASSES, shift=0.5):
    """Return a client whose class means are ``shift`` away from the global ones."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    means = rng.uniform(size=(classes, d))
    root = rng.normal(size=(d, d)) / np.sqrt(d)
    z = (means + shift * rng.normal(size=(classes, d)))[labels] + rng.normal(size=(n, d)) @ (
        root + 0.3 * np.eye(d)
    )
    words = rng.integers(-(2**62), 2**62, n)
    counts = np.bincount(labels, minlength=classes)
    arrays = (z, labels, np.ones(n), words, means, root @ root.T + np.eye(d))
    return Client(
        *(torch.from_numpy(array) for array in arrays),
        gaussian.smooth_prior(torch.from_numpy(counts)),
    )


def find(one, mode="single", **changes):
    examples = _beta_search.FoldedExamples(one.z, one.labels, one.weight, one.words)
    shared = _beta_search.GlobalGaussian(one.global_means, one.global_covariance)
    estimate = _beta_search.CovarianceEstimate(**{**REFERENCE, **changes})
    folds = _beta_search.make_folds(examples, shared, estimate, repeats=ONCE, solver_shrinkage=1e-4)
    return _beta_search.find_beta(folds, one.prior, one.previous, mode=mode)


def judged(one, **changes):
    """Return the function that the search minimizes, as the search sees it."""
    seen = {}

    def record(evaluate, mode, *, like):
        seen["evaluate"] = evaluate
        return like.new_zeros(2), like.new_zeros(())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_beta_search, "search_beta", record)
        find(one, **changes)
    return seen["evaluate"]


def test_objective_is_constant_where_local_and_global_agree():
    one = client()
    blends = _beta_search.path(
        one.global_means, one.global_means, one.global_covariance, one.global_covariance
    )
    fold = _beta_search.Fold(blends, one.z, one.labels, one.weight)
    betas = torch.rand(20, 2, dtype=torch.float64)
    values = _beta_search.objective([fold, fold], one.prior.log(), betas)
    assert values.max() - values.min() < 1e-12 * (1 + values[0])
    beta, _ = _beta_search.search_beta(
        lambda pairs: _beta_search.objective([fold, fold], one.prior.log(), pairs),
        "multi",
        like=HALF,
    )
    assert beta.tolist() == [0, 0]


@pytest.mark.parametrize("mode", MODES)
def test_wrong_global_means_give_one_and_random_labels_give_zero(mode):
    one = client(n=400, shift=0.0)
    spread = one._replace(
        z=one.z + 3 * one.global_means[one.labels], global_means=4 * one.global_means
    )
    permuted = spread._replace(global_means=spread.global_means.roll(1, 0))
    assert find(permuted, mode)[0] > 0.95
    shuffled = one.labels[torch.randperm(400, generator=torch.Generator().manual_seed(0))]
    same_mean = one.z.mean(0).expand(CLASSES, D)  # the truth about random labels
    random = one._replace(labels=shuffled, global_means=same_mean)
    assert find(random, mode)[0] < 0.05


def degenerate_clients():
    few = client(n=5, d=30)
    constant = client()
    constant.z[:, 2] = 3.0
    everything_constant = client()
    everything_constant.z[:] = 1.0
    one_class = client()
    one_class.labels[:] = 2
    return {
        "fewer rows than features": few,
        "a constant feature": constant,
        "constant features": everything_constant,
        "one class": one_class,
        "two rows": client()._replace(**_first(client(), 2, label=1)),
    }


def _first(one, n, label=None):
    labels = one.labels[:n] if label is None else torch.full((n,), label)
    return {"z": one.z[:n], "labels": labels, "weight": one.weight[:n], "words": one.words[:n]}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", list(degenerate_clients()))
@pytest.mark.parametrize(
    "changes", [{}, {"ridge": 1e-4, "offset": 0.0}, {"ridge": 0.0}, {"shrinkage": "oas"}]
)
def test_degenerate_clients_get_a_beta_in_range(name, mode, changes):
    beta = find(degenerate_clients()[name], mode, **changes)
    assert torch.isfinite(beta).all() and (beta >= 0).all() and (beta <= 1).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_broken_features_keep_the_previous_beta(value):
    one = client()._replace(previous=torch.tensor([0.125, 0.75]))
    one.z[7, 3] = value
    assert find(one, "multi").tolist() == [0.125, 0.75]
    broken = client()._replace(
        previous=torch.tensor([0.125, 0.75]), global_covariance=-client().global_covariance
    )
    assert find(broken, "multi").tolist() == [0.125, 0.75]


def stacked_clients():
    """Return clients of 60, 31, 2, 0 and (broken) 60 rows, padded to 60, with their sizes."""
    sizes = (60, 31, 2, 0, 60)
    clients = []
    for seed, size in enumerate(sizes):
        one = client(seed)
        one.z[size:] = 1e6
        clients.append(one._replace(weight=(torch.arange(60) < size).double()))
    clients[4].z[0, 0] = torch.nan
    return Client(*(torch.stack(column) for column in zip(*clients, strict=True))), sizes


@pytest.mark.parametrize("mode", MODES)
def test_vmap_with_padding_equals_a_loop_without(mode):
    together, sizes = stacked_clients()
    searched = torch.func.vmap(lambda *one: find(Client(*one), mode, ridge=0.0))
    betas = searched(*together)
    points = torch.rand(7, 2, dtype=torch.float64)
    values = torch.func.vmap(lambda *one: judged(Client(*one))(points))(*together)
    for row, size in enumerate(sizes):
        one = Client(*(column[row] for column in together))
        alone = one._replace(**_first(one, size))
        assert torch.equal(betas[row], find(alone, mode, ridge=0.0))
        torch.testing.assert_close(
            values[row], judged(alone)(points), rtol=0, atol=1e-12, equal_nan=True
        )
    assert torch.equal(betas[4], HALF) and betas[3].tolist() == [0, 0]
