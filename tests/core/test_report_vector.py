"""Sums of scores and numbers over clients tell what single scores tell, as far as sums do."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from fedtailor.core.metrics import CLIENT_METRICS
from fedtailor.core.report_vector import ReportVector
from fedtailor.core.scores import FigureSum, packed, score
from fedtailor.experiment.estimates import summarize, summarize_sums

CLASSES = 3


def vector_of(clients, *, rank=True, numbers=()):
    return ReportVector(
        num_classes=CLASSES,
        test_sets=("clients",),
        numbers=numbers,
        rank=rank,
        population=clients,
        most_examples=2**22,
    )


def scores_of(sizes, *, rank=True, seed=0):
    """Return the scores of random predictions of clients with so many examples."""
    generator = torch.Generator().manual_seed(seed)
    scores = []
    for size in sizes:
        logits = 3 * torch.randn(size, CLASSES, generator=generator)
        labels = torch.randint(CLASSES, (size,), generator=generator)
        scores.append(packed(score(logits, labels, torch.ones(size), CLASSES, rank=rank)))
    return scores


def summed(vector, scores, numbers=None):
    """Return the sum of the vectors of clients, and what it says."""
    numbers = numbers or [{}] * len(scores)
    rows = [
        vector.encode({} if one is None else {"clients": one}, values)
        for one, values in zip(scores, numbers, strict=True)
    ]
    total = torch.stack(rows).sum(0)
    assert vector.problem_with_sum(total, len(scores)) == ""
    return total, vector.decode(total, frozenset(range(len(scores))))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.booleans(), st.integers(0, 99))
def test_figures_are_those_of_single_scores(sizes, rank, seed):
    scores = scores_of(sizes, rank=rank, seed=seed)
    _, report = summed(vector_of(len(sizes), rank=rank), scores)
    figures = summarize_sums(report.scores["clients"])
    expected = summarize(scores, sizes)

    assert figures["clients"] == expected["clients"]
    assert figures.keys() == expected.keys()
    for name in CLIENT_METRICS.keys() & expected.keys():
        for figure in expected[name].keys() - {"worst10", "smallest10", "min", "max"}:
            most = 1e-6 if figure == "std" else 1e-9
            assert figures[name][figure] == pytest.approx(expected[name][figure], abs=most)


def test_a_client_without_scores_does_not_count():
    first, second = scores_of([10, 20])
    _, report = summed(vector_of(3), [first, None, second])
    sums = report.scores["clients"]
    assert sums.scored == 2
    assert sums.figures["accuracy"].clients == 2
    assert summarize_sums(sums)["clients"] == {"evaluated": 2.0, "skipped": 0.0}


def test_an_infinite_loss_counts_as_a_large_one():
    logits = torch.full((4, CLASSES), torch.nan)
    wrong = score(logits, torch.zeros(4, dtype=torch.int64), torch.ones(4), CLASSES)
    _, report = summed(vector_of(2), [packed(wrong), *scores_of([4])])
    loss = report.scores["clients"].figures["loss"]
    assert loss.clients == 2
    assert 1024 < loss.total < 1030


def test_numbers_have_means_over_the_clients_that_report_them():
    vector = vector_of(3, numbers=("loss", "steps"))
    numbers = [
        {"loss": torch.tensor(-1.5), "steps": torch.tensor(7.0)},
        {"loss": torch.tensor(torch.inf), "steps": torch.tensor(8.0)},
        {"other": torch.tensor(1.0)},
    ]
    _, report = summed(vector, [None, None, None], numbers)
    assert report.scores == {}
    assert report.numbers["loss"] == (1, -1.5)
    assert report.numbers["steps"] == (2, 15.0)


def test_a_sum_that_contradicts_itself_or_its_bounds_is_found():
    vector = vector_of(3)
    total, _ = summed(vector, scores_of([10, 20, 30]))
    assert "beyond" in vector.problem_with_sum(total - 2**62, 3)
    shifted = total.clone()
    shifted[1] += 1  # an example of a class more, which is in no bin
    assert "contradict" in vector.problem_with_sum(shifted, 3)


def test_vectors_that_differ_in_what_is_where_have_other_digests():
    digests = [
        vector_of(3).digest,
        vector_of(3, rank=False).digest,
        vector_of(9).digest,
        vector_of(3, numbers=("loss",)).digest,
        vector_of(3, numbers=("steps",)).digest,
    ]
    assert len(set(digests)) == len(digests)


def test_the_deviation_of_one_client_is_none():
    assert FigureSum(1, 0.5, 0.25).deviation == 0.0
