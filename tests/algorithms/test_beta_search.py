"""The beta search of a client against direct solves and SciPy's minimizer."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from fedtailor.algorithms import _beta_search
from fedtailor.statistics import gaussian

CLASSES, D = 4, 6
MODES = ("single", "multi")
GRID = 2.0**-12
REFERENCE = {"ridge": 1.0, "offset": 1e-4, "shrinkage": 1e-4, "project": False}
HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)


class Client(NamedTuple):
    """The tensors that a search takes, in its order."""

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
    return _beta_search.find_beta(*one, mode=mode, **{**REFERENCE, **changes})


def direct_objective(one, ridge=1.0, offset=1e-4, shrinkage=1e-4, **_):
    """Return J(beta_mean, beta_cov) written down plainly in NumPy, with a solve for every value."""
    folds = _beta_search.stratified_folds(one.labels, one.weight, one.words, len(one.prior))
    halves = [
        (one.z[rows].numpy()[kept.numpy() > 0], one.labels[rows].numpy()[kept.numpy() > 0])
        for rows, kept in zip(*folds, strict=True)
    ]
    common, covariance = one.global_means.numpy(), one.global_covariance.numpy()
    d = covariance.shape[0]

    def shrunk(matrix):
        return (1 - shrinkage) * matrix + shrinkage * np.trace(matrix) / d * np.eye(d)

    def loss(beta_mean, beta_cov):
        total = 0.0
        for (z, y), (val_z, val_y) in (halves, halves[::-1]):
            means = common.copy()
            for c in set(y):
                means[c] = z[y == c].mean(0)
            centered = z - means[y]
            local = centered.T @ centered / max(len(y) - 1, 1) + offset + ridge * np.eye(d)
            mu = beta_mean * means + (1 - beta_mean) * common
            weight = np.linalg.solve(shrunk(beta_cov * local + (1 - beta_cov) * covariance), mu.T)
            logits = val_z @ weight - 0.5 * (mu * weight.T).sum(1) + np.log(one.prior.numpy())
            top = logits.max(1)
            log_sum = top + np.log(np.exp(logits - top[:, None]).sum(1))
            total += (log_sum - logits[np.arange(len(val_y)), val_y]).mean()
        return total

    return loss


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


@pytest.mark.parametrize("beta", [0.0, 0.25, 0.9, 1.0])
def test_weights_along_the_path_equal_direct_solves(beta):
    one = client()
    local = client(1).global_covariance
    local_means = one.global_means + 1.0
    blends = _beta_search.path(local_means, one.global_means, local, one.global_covariance)
    share = torch.tensor([beta], dtype=torch.float64)
    weight, bias = _beta_search.weights(blends, share, 1 - share)
    means = beta * local_means + (1 - beta) * one.global_means
    expected, prior_bias = gaussian.lda_head(
        means, (1 - beta) * local + beta * one.global_covariance, torch.ones(CLASSES)
    )
    torch.testing.assert_close(weight[0], expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(bias[0], prior_bias, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("n", "d"), [(60, D), (20, 40)])
def test_objective_equals_its_plain_transcription(n, d):
    one = client(n=n, d=d)
    betas = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.3, 0.3], [0.1, 0.8]] * 5, dtype=torch.float64)
    loss = direct_objective(one)
    expected = [loss(*pair) for pair in betas.tolist()]
    np.testing.assert_allclose(judged(one)(betas).numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(6))
def test_single_beta_is_as_good_as_a_bounded_minimizer(seed):
    one = client(seed, n=(40, 200)[seed % 2], shift=(0.1, 0.3, 1.0)[seed % 3])
    loss = direct_objective(one)
    best = minimize_scalar(
        lambda x: loss(x, x), bounds=(0, 1), method="bounded", options={"xatol": 1e-7}
    )
    beta = find(one)
    lowest = min(best.fun, loss(0, 0), loss(1, 1))
    assert beta[0] == beta[1] and beta[0] / GRID == (beta[0] / GRID).round()
    assert (
        loss(*beta.tolist()) - lowest < 1e-6
    )  # curvature (below 20) times the square of half a grid step


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
@pytest.mark.parametrize("paper", [False, True])
def test_degenerate_clients_get_a_beta_in_range(name, mode, paper):
    changes = {"ridge": 1e-4, "offset": 0.0, "project": True} if paper else {}
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
    betas = torch.func.vmap(lambda *one: find(one, mode, ridge=0.1, project=True))(*together)
    points = torch.rand(7, 2, dtype=torch.float64)
    values = torch.func.vmap(lambda *one: judged(Client(*one))(points))(*together)
    for row, size in enumerate(sizes):
        one = Client(*(column[row] for column in together))
        alone = one._replace(**_first(one, size))
        assert torch.equal(betas[row], find(alone, mode, ridge=0.1, project=True))
        torch.testing.assert_close(
            values[row], judged(alone)(points), rtol=0, atol=1e-12, equal_nan=True
        )
    assert torch.equal(betas[4], HALF) and betas[3].tolist() == [0, 0]
