"""Scores and summaries against scikit-learn, NumPy and plain loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, log_loss

from fedtailor.core import metrics
from fedtailor.core import scores as sums
from fedtailor.experiment.estimates import summarize

CLASSES = 4


def predictions(seed=0, n=50, classes=CLASSES):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(n, classes)) * 2), torch.from_numpy(
        rng.integers(0, classes, n)
    )


def score(seed=0, n=50):
    logits, labels = predictions(seed, n)
    return sums.score(logits, labels, torch.ones(n), CLASSES)


def calibration_error(logits, labels):
    """Return the calibration error by a loop over bins, as Guo et al. define it."""
    probs = torch.softmax(logits, 1)
    confidence, predicted = probs.max(1)
    error = 0.0
    for b in range(15):
        inside = [i for i in range(len(labels)) if b / 15 < confidence[i] <= (b + 1) / 15]
        if inside:
            accuracy = float((predicted[inside] == labels[inside]).double().mean())
            error += len(inside) / len(labels) * abs(accuracy - float(confidence[inside].mean()))
    return error


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_one_client_match_other_libraries(seed):
    logits, labels = predictions(seed)
    found = metrics.per_client(sums.score(logits, labels, torch.ones(50), CLASSES))
    predicted = logits.argmax(1)
    assert found["accuracy"] == pytest.approx(
        float((predicted == labels).double().mean()), abs=1e-14
    )
    assert found["balanced_accuracy"] == pytest.approx(
        balanced_accuracy_score(labels, predicted), abs=1e-14
    )
    assert found["loss"] == pytest.approx(
        log_loss(labels, logits.softmax(1), labels=range(CLASSES)), abs=1e-12
    )
    assert found["ece"] == pytest.approx(calibration_error(logits, labels), abs=1e-14)
    scores = sums.score(logits, labels, torch.ones(50), CLASSES)
    expected = confusion_matrix(labels, predicted, labels=range(CLASSES))
    assert scores.confusion.tolist() == expected.tolist()
    assert {(label, other): count for label, other, count in sums.confusion(scores)} == {
        (label, other): expected[label, other]
        for label, other in zip(*expected.nonzero(), strict=True)
    }


def test_predictions_that_are_not_numbers_are_in_no_column():
    logits = torch.tensor([[0.0, torch.nan], [0.0, 1.0]])
    scores = sums.score(logits, torch.tensor([0, 1]), torch.ones(2), 2)
    assert scores.class_total.tolist() == [1, 1] and scores.confusion.tolist() == [[0, 0], [0, 1]]
    assert sums.confusion(scores) == [[1, 1, 1]]
    assert [number for number, *_ in sums.reliability(scores)] == [0, 10]


def test_balanced_accuracy_leaves_out_classes_that_the_test_set_lacks():
    logits, labels = predictions()
    labels = labels % 2
    found = metrics.per_client(sums.score(logits, labels, torch.ones(50), CLASSES))
    recalls = [float((logits.argmax(1)[labels == c] == c).double().mean()) for c in (0, 1)]
    assert found["balanced_accuracy"] == pytest.approx(np.mean(recalls), abs=1e-14)


def test_log_probabilities_score_like_logits():
    logits, labels = predictions()
    plain = sums.score(logits, labels, torch.ones(50), CLASSES)
    shifted = sums.score(logits.log_softmax(1), labels, torch.ones(50), CLASSES)
    torch.testing.assert_close(shifted, plain, rtol=0, atol=1e-12)


def test_padding_is_inert_and_vmap_equals_a_loop():
    sizes = (50, 20, 0)
    columns = [predictions(seed) for seed in range(3)]
    logits, labels = (torch.stack(column) for column in zip(*columns, strict=True))
    weight = torch.stack([torch.arange(50) < size for size in sizes]).double()
    logits[weight == 0] = torch.nan
    labels[weight == 0] = -7
    together = torch.func.vmap(lambda *row: sums.score(*row, CLASSES))(logits, labels, weight)
    for client, size in enumerate(sizes):
        row = sums.Scores(*(column[client] for column in together))
        torch.testing.assert_close(
            row, score(client, 50) if size == 50 else first_rows(client, size), rtol=0, atol=1e-12
        )
        assert all(torch.isfinite(tensor).all() for tensor in row)


def first_rows(seed, size):
    logits, labels = predictions(seed)
    return sums.score(logits[:size], labels[:size], torch.ones(size), CLASSES)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 12), min_size=3, max_size=3), st.integers(0, 2**16))
def test_scores_add_up_in_any_grouping(sizes, seed):
    logits, labels = predictions(seed, sum(sizes))
    parts = [
        sums.score(z, y, torch.ones(len(y)), CLASSES)
        for z, y in zip(logits.split(sizes), labels.split(sizes), strict=True)
    ]
    whole = sums.score(logits, labels, torch.ones(sum(sizes)), CLASSES)
    left = sums.add(sums.add(parts[0], parts[1]), parts[2])
    right = sums.add(parts[0], sums.add(parts[1], parts[2]))
    torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    everything = sums.across(sums.total([whole]))
    torch.testing.assert_close(sums.across(left), everything, rtol=0, atol=1e-12)
    for exact in (
        "class_correct",
        "class_total",
        "bin_count",
        "bin_correct",
        "confusion",
        "pairs",
        "pairs_won",
        "histogram",
    ):
        assert torch.equal(getattr(left, exact), getattr(right, exact))
    assert torch.equal(sums.add(parts[0], parts[1]).loss_sum, sums.add(parts[1], parts[0]).loss_sum)


def test_certain_and_doubtful_predictions_fall_into_the_outer_bins():
    logits = torch.tensor([[1000.0, 0.0], [0.0, 0.0]])
    found = sums.score(logits, torch.tensor([0, 1]), torch.ones(2), 2)
    assert (
        found.bin_count[14] == 1 and found.bin_count[7] == 1
    )  # confidence 1, and 1/2 in (7/15, 8/15]
    assert found.loss_sum == pytest.approx(math.log(2), abs=1e-14)


def test_predictions_that_are_no_numbers_count_as_wrong():
    logits = torch.zeros(3, CLASSES)
    logits[:, 0] = torch.tensor([torch.nan, 3.0, torch.inf])
    found = sums.score(logits, torch.tensor([0, 0, 0]), torch.ones(3), CLASSES)
    client = metrics.per_client(found)
    assert (
        client["accuracy"] == pytest.approx(1 / 3)
        and client["loss"] == math.inf
        and math.isfinite(client["ece"])
    )
    summary = summarize([found, score()], [1, 2])
    assert summary["loss"]["std"] == summary["loss"]["mean"] == summary["loss"]["max"] == math.inf
    assert not any(math.isnan(value) for row in summary.values() for value in row.values())


def test_summary_matches_numpy():
    sizes = np.random.default_rng(0).integers(1, 40, 25)
    scores = [score(seed, int(n)) for seed, n in enumerate(sizes)]
    num_train = [int(n) for n in np.random.default_rng(1).permutation(25)]
    rows = [metrics.per_client(single) for single in scores]
    summary = summarize(scores, num_train)
    pooled_logits, pooled_labels = (
        torch.cat(column)
        for column in zip(*(predictions(seed, int(n)) for seed, n in enumerate(sizes)), strict=True)
    )
    pooled = metrics.per_client(
        sums.score(pooled_logits, pooled_labels, torch.ones(len(pooled_labels)), CLASSES)
    )
    for name in ("accuracy", "balanced_accuracy", "loss", "ece"):
        values = np.array([row[name] for row in rows])
        worst = np.sort(values)[::-1] if name in ("loss", "ece") else np.sort(values)
        expected = {
            "mean": values.mean(),
            "pooled": pooled[name],
            "std": values.std(ddof=1),
            "worst10": worst[:2].mean(),
            "smallest10": values[np.argsort(num_train)[:2]].mean(),
            "max" if name in ("loss", "ece") else "min": worst[0],
        }
        assert summary[name] == pytest.approx(expected, abs=1e-12)
    assert summary["clients"] == {"evaluated": 25.0, "skipped": 0.0}
    recalls = [
        float((pooled_logits.argmax(1)[pooled_labels == c] == c).double().mean())
        for c in range(CLASSES)
    ]
    assert summary["recall"] == pytest.approx({str(c): value for c, value in enumerate(recalls)})


def test_ties_in_training_data_go_by_id():
    scores = [score(seed) for seed in range(12)]
    first = metrics.per_client(scores[3])["accuracy"]
    assert summarize(scores, [9, 9, 9, 5, 5, 5] + [9] * 6)["accuracy"]["smallest10"] == first


def test_clients_without_test_examples_are_left_out():
    scores = [score(0, 0), score(1), score(2, 0)]
    summary = summarize(scores, [1, 100, 2])
    alone = summarize([scores[1]], [100])
    assert summary.pop("clients") == {"evaluated": 1.0, "skipped": 2.0}
    assert alone.pop("clients") == {"evaluated": 1.0, "skipped": 0.0}
    assert summary == alone and summary["accuracy"]["std"] == 0.0
    assert metrics.per_client(scores[0]) == {}


def test_no_client_at_all_gives_an_empty_summary():
    assert summarize([], []) == {"clients": {"evaluated": 0.0, "skipped": 0.0}}
    assert summarize([score(0, 0)], [5]) == {"clients": {"evaluated": 0.0, "skipped": 1.0}}
