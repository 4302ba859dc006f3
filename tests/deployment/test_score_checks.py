"""Scores of a site: honest ones of any kind pass, and none that count what is not there."""

import pytest
import torch

from fedtailor.core.errors import DataError
from fedtailor.core.scores import packed, score
from fedtailor.deployment.score_checks import check_scores

CLASSES = 3


def scores_of(count, *, rank=True, seed=0, spoil=False):
    """Return scores of random predictions; spoiled ones have ties, infinities and no numbers."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, CLASSES, generator=generator)
    labels = torch.randint(0, CLASSES - seed % 2, (count,), generator=generator)
    if spoil:
        logits = logits.round()
        logits[::5] = torch.nan
        logits[1::7, 0] = -torch.inf
        logits[2::7, 1] = 1e30
    return packed(score(logits, labels, torch.ones(count), CLASSES, rank=rank))


@pytest.mark.parametrize("count", [0, 1, 2, 40, 500])
def test_honest_scores_pass(count):
    for seed in range(10):
        for spoil in (False, True):
            for rank in (False, True):
                scores = scores_of(count, rank=rank, seed=seed, spoil=spoil)
                assert check_scores(scores, CLASSES, count, rank=rank) is scores


LIES = {
    "class_correct": lambda value: value + 1e9,
    "class_total": lambda value: value * 2,
    "loss_sum": lambda value: value * torch.nan,
    "bin_count": lambda value: value + 0.5,
    "bin_confidence": lambda value: value + 1,
    "bin_correct": lambda value: value * 0,
    "confusion": lambda value: value.flip(1),
    "pairs": lambda value: value * 0,
    "pairs_won": lambda value: value + 10,
    "histogram": lambda value: value[:, 1:],
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_one_number_is_noticed(name):
    scores = scores_of(40)
    lie = scores._replace(**{name: LIES[name](getattr(scores, name))})
    with pytest.raises(DataError, match="impossible"):
        check_scores(lie, CLASSES, 40, rank=True)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("number of examples", lambda own: {"class_total": 2 * own.class_total}),
        (
            "number of examples by confidence",
            lambda own: {"bin_count": 2 * own.bin_count, "bin_confidence": 2 * own.bin_confidence},
        ),
        ("bin_correct", lambda own: {"bin_correct": own.bin_correct.roll(1)}),
        (
            "confusion",
            lambda own: {
                "confusion": own.confusion + 0.5 * torch.eye(CLASSES),
                "class_correct": own.class_correct + 0.5,
            },
        ),
    ],
)
def test_a_lie_that_agrees_with_other_numbers_is_noticed(name, change):
    honest = scores_of(40, rank=False)
    with pytest.raises(DataError, match=f"impossible {name}\\.$"):
        check_scores(honest._replace(**change(honest)), CLASSES, 40, rank=False)


def test_scores_of_another_form_are_refused():
    honest = scores_of(40, rank=False)
    for scores in (
        honest._asdict(),
        honest._replace(loss_sum=honest.loss_sum.float()),
        honest._replace(loss_sum=float(honest.loss_sum)),
    ):
        with pytest.raises(DataError, match=r"another form|no loss_sum"):
            check_scores(scores, CLASSES, 40, rank=False)


@pytest.mark.parametrize(
    "cells",
    [
        torch.tensor([[2**40], [1]]),
        torch.tensor([[-1], [1]]),
        torch.tensor([[5, 5], [1, 1]]),
        torch.tensor([[0], [2**62]]),
    ],
)
def test_a_histogram_sizes_nothing(cells):
    with pytest.raises(DataError, match="impossible histogram"):
        check_scores(scores_of(40)._replace(histogram=cells), CLASSES, 40, rank=True)


def test_scores_of_other_examples_and_pairs_that_nobody_asked_for_are_refused():
    with pytest.raises(DataError, match="number of examples"):
        check_scores(scores_of(40), CLASSES, 41, rank=True)
    with pytest.raises(DataError, match="nobody asked for"):
        check_scores(scores_of(40), CLASSES, 40, rank=False)
