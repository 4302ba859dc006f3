"""Quadratic programs over the simplex, against exhaustive search, scipy and closed forms."""

from itertools import combinations

import numpy as np
import pytest
import torch

from fedtailor.algorithms._simplex import least_quadratic, nearest_psd, optimality_gap


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gram(count, m, rank, seed=0):
    rows = normal(count, m, rank, seed=seed)
    return rows @ rows.mT


def with_spectrum(eigenvalues, seed=1):
    basis = torch.linalg.qr(normal(*eigenvalues.shape, eigenvalues.shape[-1], seed=seed))[0]
    return (basis * eigenvalues[:, None]) @ basis.mT


def repeated(count, m):
    rows = normal(count, m, 2 * m, seed=3)
    rows = torch.cat([rows, rows, rows[:, :1]], 1)
    return rows @ rows.mT


KINDS = {
    "definite": gram(20, 5, 9),
    "few rows": gram(20, 2, 3),
    "singular": gram(20, 5, 3),
    "rank one": gram(20, 5, 1),
    "minimum zero": gram(20, 6, 2, seed=2),
    "ill-conditioned": with_spectrum(
        10.0 ** -(14 * torch.rand(20, 5, generator=torch.Generator().manual_seed(1)).double())
    ),
    "zero": torch.zeros(2, 4, 4, dtype=torch.float64),
    "identity": torch.eye(6, dtype=torch.float64)[None],
    "one row": gram(3, 1, 1),
    "repeated rows": repeated(10, 2),
    "projected": nearest_psd(normal(20, 5, 5) + normal(20, 5, 5).mT),
    "tiny and huge": gram(20, 5, 9) * 10.0 ** torch.linspace(-12, 12, 20).double()[:, None, None],
}


def values(matrices, weights):
    return torch.einsum("bi,bij,bj->b", weights, matrices, weights)


def exhaustive(matrix):
    """Return the least value over all supports, where the slope is constant and no weight is
    negative."""
    m, best, unit = len(matrix), np.inf, max(matrix.max(), 1e-300)
    matrix = matrix / unit
    for size in range(1, m + 1):
        for support in map(list, combinations(range(m), size)):
            part = matrix[np.ix_(support, support)]
            system = np.block([[part, np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
            weights = np.linalg.lstsq(system, np.eye(size + 1)[-1], rcond=1e-13)[0][:-1]
            if weights.min() >= 0 and abs(weights.sum() - 1) < 1e-9:
                weights = weights / weights.sum()
                best = min(best, weights @ part @ weights)
    return best * unit


@pytest.mark.parametrize("kind", KINDS)
def test_the_minimum_is_that_of_exhaustive_search(kind):
    matrices = KINDS[kind]
    weights = least_quadratic(matrices)
    assert weights.dtype == torch.float64 and weights.shape == matrices.shape[:2]
    assert (weights >= 0).all() and torch.allclose(
        weights.sum(1), torch.ones(len(weights)).double(), rtol=0, atol=1e-14
    )
    scale = matrices.abs().amax((1, 2))
    assert (optimality_gap(matrices, weights) <= 1e-12 * scale).all()
    for matrix, value, size in zip(matrices, values(matrices, weights), scale):
        assert abs(float(value) - exhaustive(matrix.numpy())) <= 1e-12 * float(size)


def test_a_matrix_that_is_not_convex_has_no_result_that_is_wrong():
    """The caller is told, by NaN, where the conditions of a minimum are not met."""
    matrices = normal(50, 5, 5) + normal(50, 5, 5).mT
    weights = least_quadratic(matrices)
    found = ~weights.isnan().any(1)
    assert (
        optimality_gap(matrices, weights)[found] <= 1e-8 * matrices.abs().amax((1, 2))[found]
    ).all()


def test_negative_eigenvalues_become_zero():
    matrices = normal(6, 5, 5) + normal(6, 5, 5).mT
    for given, found in zip(matrices.numpy(), nearest_psd(matrices).numpy()):
        eigenvalues, vectors = np.linalg.eigh(given)
        expected = (vectors * np.maximum(eigenvalues, 0)) @ vectors.T
        assert np.abs(found - expected).max() <= 1e-14 * np.abs(given).max() * 10


def test_semi_definite_matrices_stay_as_they_are():
    given = torch.cat(
        [gram(3, 6, 9), gram(3, 6, 2), torch.zeros(1, 6, 6), torch.full((1, 6, 6), torch.nan)]
    )
    assert torch.equal(nearest_psd(given[:6]), given[:6])
    mixed = torch.cat([given, -torch.eye(6).double()[None]])
    found = nearest_psd(mixed)
    assert torch.equal(found[:7], given[:7]) and found[7].isnan().all()
    assert torch.equal(found[8], torch.zeros(6, 6).double())
