"""FedCOF: covariances from the class means of clients."""

import numpy as np
import pytest

from fedtailor.algorithms.fedcof import FedCOF
from golden import harness
from golden.closed_form import CLASSES, COUNTS, D, head_of, labeled_federation, pool
from golden.harness import assert_close


def expected_weight(federation, ridge):
    x, y = pool(federation)
    mean = x.mean(0)
    second = len(y) * np.outer(mean, mean)
    for label in range(CLASSES):
        of_class = x[y == label]
        clients = []
        for client in federation.roster.known:
            own, labels = harness.examples(federation, client)
            if (labels == label).any():
                clients.append((own[labels == label].mean(0), (labels == label).sum()))
        gaps = [(own - of_class.mean(0), count) for own, count in clients]
        scatter = sum(count * np.outer(gap, gap) for gap, count in gaps)
        covariance = scatter / max(len(clients) - 1, 1) + ridge * np.eye(D)
        second += (len(of_class) - 1) * covariance
    columns = np.linalg.solve(second, np.stack([x[y == c].sum(0) for c in range(CLASSES)]).T)
    return (columns / np.linalg.norm(columns, axis=0)).T


@pytest.mark.parametrize(
    "counts", [COUNTS, ([4, 0, 0], [0, 5, 0], [2, 0, 1])], ids=["mixed", "one client a class"]
)
@pytest.mark.parametrize("ridge", [1.0, 0.1])
def test_head_is_that_of_the_equations(counts, ridge):
    federation = labeled_federation(counts)
    head = head_of(FedCOF(ridge=ridge), federation)
    assert_close(head.weight, expected_weight(federation, ridge), tolerance=1e-10)


def test_the_estimate_is_unbiased_where_examples_are_dealt_at_random():
    """Many clients of few examples: covariances as good as those of the pool, from means alone."""
    draw = np.random.default_rng(0)
    counts = draw.integers(2, 5, size=(100, CLASSES)).tolist()
    federation = labeled_federation(counts, tests=1)
    x, y = pool(federation)
    scatter = sum((y == c).sum() * np.cov(x[y == c].T, bias=True) for c in range(CLASSES))
    second = len(y) * np.outer(x.mean(0), x.mean(0)) + scatter
    columns = np.linalg.solve(second, np.stack([x[y == c].sum(0) for c in range(CLASSES)]).T)
    weight = (columns / np.linalg.norm(columns, axis=0)).T
    head = head_of(FedCOF(ridge=1e-9), federation)
    cosines = (head.weight.numpy() * weight).sum(1)
    assert (cosines > 0.98).all()
