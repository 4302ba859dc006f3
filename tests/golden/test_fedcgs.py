"""FedCGS and GH-OFL: Gaussian heads from sums, against scikit-learn, SciPy and NumPy."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.covariance import oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedtailor.algorithms.fedcgs import FedCGS
from fedtailor.core.federation import ExampleSet
from fedtailor.simulation.engines.batched import Batched
from fedtailor.toolkit import class_sums
from golden.closed_form import (
    CLASSES,
    COUNTS,
    D,
    head_of,
    in_other_parts,
    labeled_federation,
    pool,
)
from golden.harness import assert_close
from marks import quick

HEADS = ("shared", "lda", "naive_bayes", "qda")


def shrunk(matrix, amount):
    return (1 - amount) * matrix + amount * np.trace(matrix) / len(matrix) * np.eye(len(matrix))


@pytest.mark.parametrize("head", ["naive_bayes", "qda"])
def test_a_feature_that_is_constant_within_a_class_leaves_finite_logits(head):
    z = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [2.0, 0.0]])
    examples = ExampleSet(z, torch.tensor([0, 0, 1, 1, 1]), None, torch.ones(5))
    method = FedCGS(head=head, shrinkage=0.0)
    logits = method.fit(class_sums.add_up(examples, 2, method.squares)).logits(z.double())
    assert torch.isfinite(logits).all()
    assert logits.argmax(1).tolist() == [0, 0, 1, 1, 1]


def test_a_class_of_one_example_has_the_covariance_of_all():
    x = np.random.default_rng(3).normal(size=(9, 2))
    y = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2])
    own = [np.cov(x[y == label].T, bias=True) for label in (0, 1)]
    pooled = (4 * own[0] + 4 * own[1]) / 9

    examples = ExampleSet(torch.from_numpy(x), torch.from_numpy(y), None, torch.ones(9))
    method = FedCGS(head="qda", shrinkage=0.0)
    head = method.fit(class_sums.add_up(examples, 3, method.squares))
    for label, covariance in enumerate([*own, pooled]):
        root = head.whitening[label]
        assert_close(root.mT @ root, np.linalg.inv(covariance), tolerance=1e-8)


def posterior(logits):
    return torch.as_tensor(logits).softmax(1).numpy()


@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_lda_is_the_classifier_of_scikit_learn(shrinkage):
    federation = labeled_federation()
    x, y = pool(federation)
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(x, y)
    head = head_of(FedCGS(head="lda", shrinkage=shrinkage), federation)
    logits = head.logits(torch.from_numpy(x)).numpy()
    assert np.abs(logits - reference.decision_function(x)).max() < 1e-8


def test_shared_is_the_covariance_of_all_features():
    federation = labeled_federation()
    x, y = pool(federation)
    inverse = np.linalg.inv(np.cov(x.T))
    means = np.stack([x[y == c].mean(0) for c in range(CLASSES)])
    weight = means @ inverse
    bias = np.log(np.bincount(y) / len(y)) - 0.5 * (weight * means).sum(1)
    head = head_of(FedCGS(shrinkage=0.0), federation)
    assert_close(head.weight, weight, tolerance=1e-10)
    assert_close(head.bias, bias, tolerance=1e-10)


@pytest.mark.parametrize("head", ["qda", "naive_bayes"])
def test_heads_by_class_are_densities_of_scipy(head):
    federation = labeled_federation()
    x, y = pool(federation)
    joint = np.empty((len(x), CLASSES))
    for label in range(CLASSES):
        own = x[y == label]
        covariance = np.cov(own.T, bias=True)
        if head == "naive_bayes":
            covariance = np.diag(np.diag(covariance))
        density = multivariate_normal(own.mean(0), shrunk(covariance, 0.2))
        joint[:, label] = density.logpdf(x) + np.log(len(own) / len(x))
    ours = head_of(FedCGS(head=head, shrinkage=0.2), federation).logits(torch.from_numpy(x))
    np.testing.assert_allclose(posterior(ours), posterior(joint), atol=1e-9)


def test_oas_takes_the_amount_of_scikit_learn():
    federation = labeled_federation()
    x, y = pool(federation)
    centered = x - np.stack([x[y == c].mean(0) for c in range(CLASSES)])[y]
    amount = oas(centered, assume_centered=True)[1]
    automatic = head_of(FedCGS(head="lda"), federation)
    given = head_of(FedCGS(head="lda", shrinkage=float(amount)), federation)
    assert_close(automatic.weight, given.weight.numpy(), tolerance=1e-10)


@pytest.mark.parametrize("head", quick(HEADS, "lda"))
def test_who_has_which_examples_does_not_matter_nor_the_engine(head):
    federation = labeled_federation()
    expected = head_of(FedCGS(head=head), federation)
    for parts in (1, 3, 10):
        other = head_of(FedCGS(head=head), in_other_parts(federation, parts, seed=parts))
        for ours, theirs in zip(other, expected):
            assert_close(ours, theirs.numpy(), tolerance=1e-9)

    stacked = head_of(FedCGS(head=head), federation, Batched())
    assert all(torch.equal(*pair) for pair in zip(stacked, expected))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("counts", [([5, 1, 0], [4, 0, 0]), ([1, 1, 1], [0, 0, 0]), COUNTS])
def test_classes_of_one_example_or_none_leave_a_finite_head(head, counts):
    federation = labeled_federation(counts)
    x, _ = pool(federation)
    logits = head_of(FedCGS(head=head), federation).logits(torch.from_numpy(x))
    has_examples = torch.tensor(counts).sum(0) > 0
    assert torch.isfinite(logits[:, has_examples]).all()
    assert (logits[:, ~has_examples] == -torch.inf).all()
    assert logits.shape == (len(x), CLASSES) and x.shape[1] == D


def test_means_only_takes_equal_variances_that_fill_the_bound():
    federation = labeled_federation()
    x, y = pool(federation)
    radius = 1.5 * float(np.linalg.norm(x, axis=1).max())
    means = np.stack([x[y == label].mean(0) for label in range(CLASSES)])
    counts = np.bincount(y)

    lengths = (means**2).sum(1)
    variance = (radius**2 - counts @ lengths / len(y)) / D
    head = head_of(FedCGS(head="lda", feature_clip=radius, means_only=True), federation)
    assert_close(head.weight, means / variance)
    assert_close(head.bias, -0.5 * lengths / variance + np.log(counts / len(y)))
