"""Canaries go through the bound, the sum and the noise, and none disturbs another."""

import numpy as np
import pytest
import torch

from fedtailor.core import rng
from fedtailor.core.errors import ConfigError
from fedtailor.core.message import Field, Mean
from fedtailor.core.reduction import FieldSum
from fedtailor.privacy.added_noise import AddedNoise
from fedtailor.privacy.canaries import AuditedMechanism, Canaries
from fedtailor.privacy.mechanism import ClientMechanism

MESSAGES = {
    "model": Field(kind="model", shapes={"weight": (5, 4), "bias": (5,)}),
    "covariance": Field(kind="covariance", shapes=(2, 6, 6), weight="equal"),
    "control": Field(kind="statistics", shapes=(7,), reduction="sum"),
    "round": Field(kind="statistics", shapes=(3,), reduction="none"),
}
SENT = {
    "model": {"weight": torch.ones(5, 4), "bias": torch.zeros(5)},
    "covariance": torch.eye(6).repeat(2, 1, 1),
    "control": None,
    "round": None,
}
CLIP = 2.0
SCALES = {"covariance": 5.0}


def canaries_of(count=20, rates=(1.0,), seed=0):
    key = rng.new_key(seed, purpose="canaries")
    return Canaries(MESSAGES, count, num_train=30, rates=rates, key=key)


def mechanism_with(canaries, noise=0.0):
    return AuditedMechanism(
        MESSAGES, CLIP, noise or 1e-12, 10.0, SCALES, {}, canaries, AddedNoise(MESSAGES)
    )


def honest_totals():
    """Return the sums of one client that changes nothing."""
    values = {"model": SENT["model"], "covariance": SENT["covariance"]}
    upload = {name: Mean(value, torch.tensor(1.0)) for name, value in values.items()}
    upload["control"] = Mean(torch.zeros(7), torch.tensor(1.0))
    contribution = ClientMechanism(MESSAGES, CLIP, 0.0, 10.0, SCALES, {}).bounded(upload, SENT)
    totals = {}
    for name, entry in contribution.items():
        total = FieldSum([0])
        total.add(0, entry)
        totals[name] = total.total()
    return totals


def flat(leaves):
    parts = [leaf.flatten() for by_path in leaves.values() for leaf in by_path.values()]
    return torch.cat(parts).double()


def contribution_of(canaries, canary):
    mechanism = mechanism_with(canaries)
    totals = honest_totals()
    bounded = mechanism.bounded(canaries.upload(canary, totals, SENT, mechanism), SENT)
    leaves = {}
    for name, entry in bounded.items():
        total = FieldSum([0])
        total.add(0, entry)
        leaves[name] = total.total().leaves
    return leaves


def test_every_canary_contributes_the_bound_in_a_direction_of_its_own():
    canaries = canaries_of()
    contributions = torch.stack([flat(contribution_of(canaries, canary)) for canary in range(20)])
    products = contributions @ contributions.T
    torch.testing.assert_close(products, CLIP**2 * torch.eye(20).double(), rtol=1e-4, atol=1e-5)
    covariance = contribution_of(canaries, 3)["covariance"][""]
    torch.testing.assert_close(covariance, covariance.mT)


def test_without_noise_a_score_is_what_was_contributed():
    canaries = canaries_of()
    release = mechanism_with(canaries).release
    for round in range(3):
        release(honest_totals(), SENT, rng.new_key(7, round=1, purpose=f"{round}"))

    assert 0 < canaries.inside.sum() < 20
    np.testing.assert_allclose(canaries.scores, 3 * CLIP * canaries.inside, atol=1e-4)
    np.testing.assert_allclose(canaries.noise, 0, atol=1e-9)


def test_the_server_receives_what_canaries_contribute():
    canaries = canaries_of()
    plain = ClientMechanism(MESSAGES, CLIP, 0.0, 10.0, SCALES, {})
    key = rng.new_key(7, round=1, purpose="noise")
    with_them = mechanism_with(canaries).release(honest_totals(), SENT, key)
    without = plain.release(honest_totals(), SENT, key)
    change = with_them["control"].value - without["control"].value
    inside = np.flatnonzero(canaries.inside)
    expected = sum(contribution_of(canaries, canary)["control"][""] for canary in inside)
    torch.testing.assert_close(change, expected.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_noise_of_scores_has_the_deviation_that_is_claimed():
    scores = []
    for seed in range(60):
        canaries = canaries_of(seed=seed)
        key = rng.new_key(seed, round=1, purpose="noise")
        mechanism_with(canaries, noise=1.5).release(honest_totals(), SENT, key)
        scores.append(canaries.noise)
    noise = np.concatenate(scores)
    assert noise.std() == pytest.approx(1.5 * CLIP, rel=0.06)
    assert abs(noise.mean()) < 4 * 1.5 * CLIP / np.sqrt(len(noise))


def test_canaries_are_drawn_as_often_as_clients():
    canaries = canaries_of(count=70, rates=(0.3, 1.0))
    drawn = [canaries.present(rng.new_key(seed, round=1, purpose="x")) for seed in range(200)]
    assert np.mean(drawn, axis=0)[canaries.inside].mean() == pytest.approx(0.3, abs=0.02)
    assert not np.any(drawn, axis=0)[~canaries.inside].any()
    np.testing.assert_array_equal(
        canaries.present(rng.new_key(0, round=2, purpose="x")), canaries.inside
    )


def test_more_canaries_than_numbers_are_refused():
    assert len(canaries_of(count=74).inside) == 74
    with pytest.raises(ConfigError, match="at most 74, the numbers that a client sends, got 75"):
        canaries_of(count=75)


def noise_of(rounds, **changes):
    """Return the noise of some rounds, by field and path, some of it changed."""
    plain = ClientMechanism(MESSAGES, CLIP, 1.5, 10.0, SCALES, {})
    totals = honest_totals()
    for round in rounds:
        noisy = plain.noisy(totals, rng.new_key(3, round=round, purpose="noise"))
        for name, change in changes.items():
            noisy[name] = {path: change(leaf, round) for path, leaf in noisy[name].items()}
        yield noisy


def parts_of(noises):
    added = AddedNoise(MESSAGES)
    for noise in noises:
        added.see(noise, 1.5 * CLIP)
    return {part.part: part for part in added.parts()}


def test_right_noise_of_every_part_is_what_is_claimed():
    parts = parts_of(noise_of(range(1, 400)))
    assert set(parts) == {"model/weight", "model/bias", "covariance", "control"}
    for part in parts.values():
        assert part.share == pytest.approx(1.0, abs=0.05)
        assert part.share_of_rounds == pytest.approx(1.0, abs=0.6)
        assert not part.is_too_small and not part.repeats


def test_noise_that_is_missing_repeats_or_cancels_is_found():
    less = parts_of(noise_of(range(1, 20), control=lambda leaf, round: 0.5 * leaf))
    assert [name for name, part in less.items() if part.is_too_small] == ["control"]

    first = {}
    same = parts_of(
        noise_of(range(1, 20), control=lambda leaf, round: first.setdefault("noise", leaf))
    )
    assert same["control"].repeats and not same["model/bias"].repeats

    opposite = []
    for noisy in noise_of(range(1, 9)):
        negative = {path: -leaf for path, leaf in noisy["covariance"].items()}
        opposite += [noisy, {**noisy, "covariance": negative}]
    assert parts_of(opposite)["covariance"].repeats
