"""AUROC: exact within a client, within its bound over clients; sensitivity and specificity by
class."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, roc_auc_score

from fedtailor.core import metrics
from fedtailor.core import scores as sums
from fedtailor.experiment.estimates import summarize


def predictions(seed, n, classes, signal=1.0, spread=1.0):
    """Return logits that say something about the labels."""
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(0, classes, n))
    logits = torch.from_numpy(rng.normal(size=(n, classes)))
    logits[torch.arange(n), labels] += signal
    return spread * logits, labels


def score(logits, labels, classes):
    return sums.score(logits, labels, torch.ones(len(labels)), classes)


def scikit(logits, labels):
    """Return the AUROC of every class by scikit-learn, from probabilities."""
    probs = torch.softmax(logits.double(), 1)
    return [roc_auc_score(labels == label, probs[:, label]) for label in range(logits.shape[1])]


def by_pairs(scores, labels, label):
    """Return the AUROC of a class by looking at all pairs."""
    positives = [s for s, y in zip(scores, labels, strict=True) if y == label]
    negatives = [s for s, y in zip(scores, labels, strict=True) if y != label]
    won = sum((p > n) + (p == n) / 2 for p in positives for n in negatives)
    return won / (len(positives) * len(negatives)) if positives and negatives else None


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("n", [60, 700])
def test_within_a_client_it_is_that_of_scikit_learn(classes, n):
    logits, labels = predictions(n, n, classes)
    found = score(logits, labels, classes)
    assert metrics.auroc(found) == pytest.approx(scikit(logits, labels), abs=1e-13)
    assert metrics.per_client(found)["auroc"] == pytest.approx(
        np.mean(scikit(logits, labels)), abs=1e-13
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2)), max_size=12))
def test_ties_count_one_half(rows):
    """Few different scores, so most pairs are ties; whole classes are missing."""
    logits = torch.tensor([[0.0, value, 0.0] for value, _ in rows]).reshape(-1, 3)
    labels = torch.tensor([label for _, label in rows], dtype=torch.int64)
    found = metrics.auroc(score(logits, labels, 3))
    assert found[1] == by_pairs([value for value, _ in rows], labels.tolist(), 1)
    assert found[0] == by_pairs([-value for value, _ in rows], labels.tolist(), 0)


def test_rounding_errors_break_no_ties():
    logits = torch.tensor(
        [[0.0, 0.0], [1.0, 1.0], [0.1 + 0.2, 0.3], [0.3, 0.1 + 0.2]], dtype=torch.float64
    )
    assert metrics.auroc(score(logits, torch.tensor([0, 1, 0, 1]), 2)) == [0.5, 0.5]


def test_certain_predictions_are_still_in_order():
    """Their probabilities are all 1 in floating-point numbers; their log-odds are not."""
    logits = torch.tensor([[0.0, 50.0], [0.0, 60.0], [0.0, 1000.0], [0.0, 70.0]])
    labels = torch.tensor([0, 1, 0, 1])
    assert metrics.auroc(score(logits, labels, 2)) == [0.5, 0.5]
    assert metrics.auroc(score(logits[[0, 1]], labels[[0, 1]], 2)) == [1.0, 1.0]


def test_a_class_without_a_pair_has_none():
    logits, _ = predictions(0, 5, 3)
    alone = score(logits, torch.ones(5, dtype=torch.int64), 3)
    assert metrics.auroc(alone) == [None, None, None] and "auroc" not in metrics.per_client(alone)
    two = score(logits, torch.tensor([0, 0, 1, 1, 1]), 3)
    found = metrics.auroc(two)
    assert found[2] is None and metrics.per_client(two)["auroc"] == pytest.approx(
        (found[0] + found[1]) / 2
    )
    summary = summarize([alone, two], [3, 4])
    assert (
        summary["auroc"]["clients"] == 1
        and summary["auroc"]["mean"] == metrics.per_client(two)["auroc"]
    )
    apart = summarize([alone, score(logits, torch.zeros(5, dtype=torch.int64), 3)], [3, 4])["auroc"]
    assert apart.keys() == {"pooled", "clients", "pooled_error"} and apart["clients"] == 0
    assert "auroc" not in summarize([alone], [3])


def test_predictions_that_are_no_numbers_lose_all_pairs():
    logits = torch.tensor([[0.0, 1.0], [0.0, 2.0], [torch.nan, 0.0], [0.0, torch.nan]])
    found = metrics.auroc(score(logits, torch.tensor([0, 1, 0, 1]), 2))
    assert found == [0.25, 0.25]  # one pair of four is won
    assert sums.by_class(score(logits, torch.tensor([0, 1, 0, 1]), 2))[1] == (2, 1, 2, 0)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**16),
    st.integers(2, 4),
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.sampled_from([1e-3, 0.1, 1.0, 30.0]),
)
def test_over_clients_it_is_within_the_stated_bound(seed, classes, sizes, spread):
    parts = [predictions(seed + place, n, classes, spread=spread) for place, n in enumerate(sizes)]
    together = sums.across(sums.total([sums.packed(score(*part, classes)) for part in parts]))
    logits, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    exact = metrics.auroc(score(logits, labels, classes))
    for found, wanted, error in zip(
        metrics.auroc(together), exact, sums.auroc_error(together), strict=True
    ):
        assert (found is None) == (wanted is None) == (error is None)
        assert found is None or abs(found - wanted) <= error + 1e-12


def test_the_bound_is_small_for_well_spread_scores_and_large_for_one_bin():
    logits, labels = predictions(0, 3000, 10, signal=2.0, spread=2.0)
    found = sums.across(score(logits, labels, 10))
    assert max(sums.auroc_error(found)) < 0.004
    assert metrics.auroc(found) == pytest.approx(scikit(logits, labels), abs=5e-4)
    flat = sums.across(score(1e-6 * logits, labels, 10))
    assert metrics.auroc(flat) == [0.5] * 10 and sums.auroc_error(flat) == [0.5] * 10


def test_bins_are_where_the_documentation_says():
    values = torch.linspace(-40, 40, 161, dtype=torch.float64)
    logits = torch.stack([torch.zeros_like(values), values], 1)
    edges = 2 * np.sinh((np.arange(512) - 256) / 72)
    for value, logit in zip(values.tolist(), logits, strict=True):
        histogram = score(logit[None], torch.tensor([1]), 2).histogram
        place = int(histogram[0, 1].nonzero())
        assert place == 0 or edges[place] <= value + 1e-6
        assert place == 511 or value < edges[place + 1] + 1e-6


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 12), min_size=2, max_size=4), st.integers(0, 2**16))
def test_histograms_add_up_packed_or_not(sizes, seed):
    parts = [score(*predictions(seed + place, n, 3), 3) for place, n in enumerate(sizes)]
    plain = sums.total(parts)
    mixed = sums.total(
        [sums.packed(part) if place % 2 else part for place, part in enumerate(parts)]
    )
    assert torch.equal(plain.histogram, sum(part.histogram for part in parts))
    assert torch.equal(plain.histogram, mixed.histogram)
    assert torch.equal(plain.histogram.sum(2)[0], plain.class_total.long())
    others = plain.class_total.sum() - plain.class_total
    assert torch.equal(plain.histogram.sum(2)[1], others.long())


@pytest.mark.parametrize("classes", [2, 5])
def test_sensitivity_and_specificity_are_those_of_the_confusion_matrix(classes):
    logits, labels = predictions(3, 80, classes)
    matrix = confusion_matrix(labels, logits.argmax(1), labels=range(classes))
    for label, found in enumerate(sums.by_class(score(logits, labels, classes))):
        others = np.delete(np.arange(classes), label)
        assert (found.positives, found.found) == (matrix[label].sum(), matrix[label, label])
        assert (found.negatives, found.rejected) == (
            matrix[others].sum(),
            matrix[np.ix_(others, others)].sum(),
        )
