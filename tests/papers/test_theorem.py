"""Theorem 1 of pFedFDA against a simulation."""

import numpy as np
import pytest

from experiments.__main__ import main
from experiments.theorem import SIZES, best_beta, expected_error, make_clients, simulate


@pytest.mark.parametrize("size", SIZES)
def test_the_error_is_that_of_the_theorem(size):
    for point in simulate(make_clients(size), betas=(0.0, 0.3, 0.7, 1.0), draws=500):
        assert abs(point.simulated - point.expected) < 4 * point.standard_error


def test_the_weights_that_the_appendix_prints_do_not_fit():
    """With n_k^2 / N^2 as weights of Sigma_g, the variance of the global mean is too small."""
    clients = make_clients(20)
    (point,) = simulate(clients, betas=(0.0,))
    total = clients.sizes.sum()
    traces = np.trace(clients.covariances, axis1=1, axis2=2)
    printed = point.bias + (clients.sizes / total) ** 2 @ traces / total
    assert point.simulated - printed > 4 * point.standard_error


def test_the_best_beta_grows_with_the_examples():
    clients = [make_clients(size) for size in SIZES]
    best = [best_beta(each) for each in clients]
    assert best == sorted(best) and best[0] < best[-1]

    grid = np.linspace(0, 1, 1001)
    for each, beta in zip(clients, best, strict=True):
        errors = [sum(expected_error(each, value)) for value in grid]
        assert beta == pytest.approx(grid[int(np.argmin(errors))], abs=1e-3)


@pytest.mark.slow
def test_the_command_writes_the_figure(tmp_path, capsys):
    assert main(["theorem", str(tmp_path / "theorem.svg")]) == 0
    assert (tmp_path / "theorem.svg").read_text().startswith("<svg")
    assert "best beta" in capsys.readouterr().out
