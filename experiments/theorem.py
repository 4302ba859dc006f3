"""The expectation in the proof of pFedFDA's Theorem 1: the error of a blended mean.

McLaughlin and Su 2024, "Personalized federated learning via feature distribution adaptation",
NeurIPS, section 4 and appendix E. Features of client k are N(theta_k, Sigma_k); of n_k examples it
has the mean mu_k, and mu_g is the mean of all N examples. The client takes
``beta mu_i + (1 - beta) mu_g``. The expectation of its squared distance from theta_i is

    bias:       (1 - beta)^2 |theta_g - theta_i|^2
    variance:   (beta^2 / n_i + 2 beta (1 - beta) / N) tr Sigma_i + (1 - beta)^2 / N tr Sigma_g

with theta_g and Sigma_g the means of theta_k and Sigma_k weighted by n_k / N. The appendix prints
n_k^2 / N^2 as weights of Sigma_g. That is not the matrix that its own derivation uses next: the
variance of mu_g is that of N independent examples, Sigma_g / N, with the weights n_k / N only.
Theorem 1 itself bounds the error with high probability, and is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import altair as alt
import numpy as np
import torch

from fedtailor.report.charts import inline, tooltip
from fedtailor.report.parts import Figure, Panel, ReportTable
from fedtailor.statistics import gaussian

SIZES = (5, 20, 100)
"""Examples of the clients that are looked at."""
BETAS = tuple(number / 20 for number in range(21))
_OTHERS = (10, 20, 40, 80) * 4
"""Examples of the other clients."""
_FEATURES = 8
_DRAWS = 2000


class Clients(NamedTuple):
    """The distribution of every client's features, and its number of examples."""

    means: np.ndarray  # (clients, d), theta
    covariances: np.ndarray  # (clients, d, d), Sigma
    sizes: np.ndarray  # (clients,), n


class Point(NamedTuple):
    """The first client's expected squared error for a beta."""

    beta: float
    bias: float
    variance: float
    simulated: float
    """Mean over the draws of the simulation."""
    standard_error: float
    """Of ``simulated``."""

    @property
    def expected(self) -> float:
        """The expected error."""
        return self.bias + self.variance


def make_clients(size: int, seed: int = 0) -> Clients:
    """Return clients whose distributions differ, of which the first has so many examples."""
    draw = np.random.default_rng(seed)
    sizes = np.array([size, *_OTHERS])
    means = 0.4 * draw.normal(size=(len(sizes), _FEATURES))
    roots = draw.normal(size=(len(sizes), _FEATURES, _FEATURES)) / np.sqrt(_FEATURES)
    return Clients(means, roots @ roots.transpose(0, 2, 1), sizes)


def expected_error(clients: Clients, beta: float) -> tuple[float, float]:
    """Return bias and variance of the first client's mean, as expected."""
    total = clients.sizes.sum()
    share = clients.sizes / total
    theta_g = share @ clients.means
    trace_g = share @ np.trace(clients.covariances, axis1=1, axis2=2)
    trace = np.trace(clients.covariances[0])

    bias = (1 - beta) ** 2 * float(np.sum((theta_g - clients.means[0]) ** 2))
    of_client = beta**2 / clients.sizes[0] + 2 * beta * (1 - beta) / total
    return bias, float(of_client * trace + (1 - beta) ** 2 / total * trace_g)


def best_beta(clients: Clients) -> float:
    """Return the beta of the smallest expected error, which is quadratic in beta."""
    at_zero = sum(expected_error(clients, 0.0))
    at_half = sum(expected_error(clients, 0.5))
    at_one = sum(expected_error(clients, 1.0))
    curvature = 2 * (at_zero + at_one - 2 * at_half)
    return float(np.clip((at_zero - at_one + curvature) / (2 * curvature), 0.0, 1.0))


def simulate(
    clients: Clients, betas: Sequence[float] = BETAS, draws: int = _DRAWS, seed: int = 0
) -> list[Point]:
    """Draw every client's examples again and again, and measure the error of the first client.

    The mean is interpolated by the function that pFedFDA uses.
    """
    draw = np.random.default_rng(seed)
    means = np.stack(
        [
            draw.multivariate_normal(mean, covariance, size=(draws, size)).mean(axis=1)
            for mean, covariance, size in zip(*clients, strict=True)
        ],
        axis=1,
    )  # (draws, clients, d), mu
    own = torch.from_numpy(means[:, 0])
    together = torch.from_numpy(np.einsum("k,skd->sd", clients.sizes, means) / clients.sizes.sum())
    target = torch.from_numpy(clients.means[0])

    points = []
    for beta in betas:
        estimate = gaussian.blend(own, together, torch.tensor(beta))
        errors = (estimate - target).square().sum(1)
        bias, variance = expected_error(clients, beta)
        error = float(errors.std() / draws**0.5)
        points.append(Point(beta, bias, variance, float(errors.mean()), error))

    return points


def figure(points_by_size: Mapping[int, Sequence[Point]]) -> Figure:
    """Return the figure: the error over beta, for clients of several sizes."""
    panels = []
    rows: list[list[float | int]] = []
    for size, points in points_by_size.items():
        rows += [
            [size, point.beta, point.bias, point.variance, point.simulated] for point in points
        ]
        panels.append(
            Panel(
                chart=_chart(points),
                title=f"{size} examples",
                subtitle=f"the smallest error is at beta = {best_beta(make_clients(size)):.2f}",
            )
        )

    total = min(points_by_size) + sum(_OTHERS)
    return Figure(
        name="theorem-1",
        title="A mean between a client's own and the global one",
        caption="The expected squared error of the mean of a client's features, over the weight "
        f"beta of its own mean. Lines: the expectation. Dots: means of {_DRAWS:,} simulations with "
        f"{_FEATURES} features and {len(_OTHERS)} other clients ({total:,} examples in the first "
        "panel). The more examples a client has, the larger the best beta.",
        panels=panels,
        table=ReportTable(
            columns=["examples", "beta", "squared bias", "variance", "simulated error"], rows=rows
        ),
    )


def _chart(points: Sequence[Point]) -> alt.LayerChart:
    """Draw squared bias, variance and their sum as lines, and the simulation as dots."""
    names = ["error", "squared bias", "variance"]
    rows = []
    for point in points:
        values = (point.expected, point.bias, point.variance)
        rows += [
            {"beta": point.beta, "part": name, "value": value}
            for name, value in zip(names, values, strict=True)
        ]

    colors = ["var(--s0)", "var(--s1)", "var(--s2)"]
    scale = alt.Scale(domain=names, range=colors)
    legend = alt.Legend(title=None, symbolType="stroke", symbolStrokeWidth=3)
    x = alt.X("beta:Q", title="beta")
    y = alt.Y("value:Q", title="squared error")
    tips = [
        tooltip("part", "part"),
        tooltip("beta", "beta", ".2f"),
        tooltip("value", "value", ".3g"),
    ]
    lines = alt.Chart(inline(rows), height=190).mark_line(strokeWidth=2)
    lines = lines.encode(x=x, y=y, color=alt.Color("part:N", scale=scale, legend=legend))

    measured = [
        {"beta": point.beta, "part": "simulated", "value": point.simulated} for point in points
    ]
    dots = alt.Chart(inline(measured)).mark_circle(size=35, opacity=1, color="var(--s0)")
    return alt.LayerChart(layer=[lines, dots.encode(x=x, y=y, tooltip=tips)])
