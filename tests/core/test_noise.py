"""Keyed random tensors: distribution, independence of shape, chunks, padding and stacking."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from both_ways import key_of
from fedtailor.core import rng
from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import new_key, normal, plain, random_words, row_words, uniform, words

DRAWS = {"words": lambda key, n: random_words(key, n), "uniform": lambda key, n: uniform(key, (n,))}
DRAWS["normal"] = lambda key, n: normal(key, (n,))


@pytest.mark.parametrize("draw", DRAWS.values(), ids=list(DRAWS))
def test_entries_depend_on_their_position_alone(draw):
    long = draw(new_key(1), 100)
    for count in (0, 1, 2, 3, 7, 50):
        assert torch.equal(draw(new_key(1), count), long[:count])


@pytest.mark.parametrize("function", [uniform, normal])
def test_shape_does_not_matter(function):
    flat = function(new_key(1), (24,))
    for shape in ((24,), (4, 6), (2, 3, 4), (1, 24, 1)):
        assert torch.equal(function(new_key(1), shape), flat.reshape(shape))
    assert function(new_key(1), ()).shape == () and function(new_key(1), (0, 3)).shape == (0, 3)


@pytest.mark.parametrize("function", [uniform, normal])
@pytest.mark.parametrize("chunk", [2, 4, 6, 10, 62])
def test_chunks_cannot_change_a_value(function, chunk, monkeypatch):
    expected = function(new_key(1), (63,))
    monkeypatch.setattr(rng, "_CHUNK", chunk)
    assert torch.equal(function(new_key(1), (63,)), expected)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=list(DRAWS))
def test_stacked_keys_draw_what_single_keys_draw(draw):
    found = torch.func.vmap(lambda client: draw(key_of(client), 9))(torch.arange(5))
    for client in range(5):
        assert torch.equal(found[client], draw(key_of(client), 9))
    rounds = torch.func.vmap(lambda r: draw(key_of(2)._replace(round=r), 9), in_dims=0)(
        torch.arange(3)
    )
    assert torch.equal(rounds[2], draw(key_of(2, round=2), 9))


def test_draws_under_nested_transformations():
    """vmap over clients around vmap over steps around a gradient, as a custom step may do."""

    def loss(w, key):
        return (w * normal(key, (3,))).sum()

    def one(client, step):
        return torch.func.grad(loss)(torch.ones(3), key_of(client).at(step))

    def all_steps(client):
        return torch.func.vmap(lambda step: one(client, step))(torch.arange(2))

    found = torch.func.vmap(all_steps)(torch.arange(3))
    for client in range(3):
        for step in range(2):
            assert torch.equal(
                found[client, step], normal(key_of(client).at(torch.tensor(step)), (3,))
            )


def test_words_are_the_raw_words():
    assert (
        random_words(new_key(1), 5).tolist() == words(plain(new_key(1)), 5).view(np.int64).tolist()
    )


def test_dtype_follows_the_default(float64):
    wide = normal(new_key(1), (1000,))
    assert wide.dtype == torch.float64 and random_words(new_key(1), 2).dtype == torch.int64
    torch.set_default_dtype(torch.float32)
    narrow = normal(new_key(1), (1000,))
    assert narrow.dtype == torch.float32
    assert torch.equal(narrow, wide.float())


def test_uniform_has_the_moments_and_the_distribution(float64):
    drawn = uniform(new_key(2), (200_000,)).numpy()
    assert drawn.min() >= 0 and drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 4 * math.sqrt(1 / 12 / len(drawn))
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3


def test_normal_has_the_moments_and_the_distribution(float64):
    """Box and Muller: tolerances are four standard errors of each moment of a standard normal."""
    drawn = normal(new_key(2), (200_000,)).numpy()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((drawn**power).mean() - moment) < 4 * math.sqrt(variance / len(drawn)), power
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(drawn[0::2], drawn[1::2])[0, 1]) < 4 / math.sqrt(len(drawn) / 2)
    assert abs(np.corrcoef(drawn[0::2] ** 2, drawn[1::2] ** 2)[0, 1]) < 4 / math.sqrt(
        len(drawn) / 2
    )


def test_normal_is_finite_for_every_word(monkeypatch):
    """The smallest and the largest word: the logarithm is that of a number in (0, 1]."""
    for word in (0, 2**64 - 1):
        monkeypatch.setattr(
            rng, "words", lambda key, n, start=0, word=word: np.full(n, word, dtype=np.uint64)
        )
        assert torch.isfinite(normal(new_key(0), (4,))).all()


def test_uniform_stays_below_one_for_every_word(monkeypatch):
    monkeypatch.setattr(
        rng, "words", lambda key, n, start=0: np.full(n, 2**64 - 1, dtype=np.uint64)
    )
    assert (uniform(new_key(0), (4,)) < 1).all()


def test_rows_keep_their_word_when_padding_comes_between():
    key, weight = new_key(1), torch.ones(6)
    plain_words = row_words(key, weight)
    assert torch.equal(plain_words, random_words(key, 6))
    for padded in (
        [1, 1, 1, 1, 1, 1, 0, 0],
        [0, 1, 0, 1, 1, 0, 0, 1, 1, 1],
        [0, 0, 1, 1, 1, 1, 1, 1],
    ):
        padded = torch.tensor(padded)
        assert torch.equal(row_words(key, padded)[padded > 0], plain_words)
    assert row_words(key, torch.zeros(3)).shape == (3,) and row_words(
        key, torch.zeros(0)
    ).shape == (0,)


def examples(weight):
    weight = torch.tensor(weight, dtype=torch.get_default_dtype())
    return ExampleSet(
        torch.arange(30.0)[:, None], torch.arange(30), torch.arange(len(weight)), weight
    )


def test_what_is_kept_does_not_depend_on_padding():
    key = new_key(4)
    straight = examples([1.0] * 7).keep(torch.tensor(3), key)
    padded = examples([0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 0]).keep(torch.tensor(3), key)
    assert straight.size() == padded.size() == 3
    kept = (padded.weight > 0)[torch.tensor([1, 2, 5, 6, 7, 8, 10])]
    assert torch.equal(kept, straight.weight > 0)


def test_keep_is_a_fair_draw():
    """Every example is kept equally often: 3 of 7 in 700 draws, tolerance five standard errors."""
    counts = sum(
        (examples([1.0] * 7).keep(torch.tensor(3), new_key(seed)).weight > 0).double()
        for seed in range(700)
    )
    assert (counts - 300).abs().max() < 5 * math.sqrt(700 * 3 / 7 * 4 / 7)


@pytest.mark.parametrize(
    ("fraction", "kept"), [(0.0, 0), (0.1, 0), (0.29, 2), (0.5, 3), (0.99, 6), (1.0, 7)]
)
def test_sample_rounds_down(fraction, kept):
    assert examples([1, 1, 0, 1, 1, 1, 0, 1, 1]).sample(fraction, new_key(0)).size() == kept


def test_keep_more_than_there_is():
    assert examples([1, 0, 1]).keep(torch.tensor(9), new_key(0)).weight.tolist() == [1, 0, 1]
    assert examples([0, 0]).keep(torch.tensor(1), new_key(0)).size() == 0


def test_keep_under_vmap():
    weight = torch.tensor([[1.0, 1, 1, 1, 0], [1, 0, 1, 1, 1]])
    counts = torch.tensor([2, 3])

    def one(weight, count, client):
        data = ExampleSet(torch.zeros(5, 1), torch.zeros(5), torch.arange(5), weight)
        return data.keep(count, key_of(client)).weight

    found = torch.func.vmap(one)(weight, counts, torch.arange(2))
    assert torch.equal(found, torch.stack([one(weight[i], counts[i], i) for i in range(2)]))
    assert found.sum(1).tolist() == [2, 3]
