"""Contributions of clients are bounded together, and the noise on their sum is what is claimed."""

import pytest
import torch

from fedtailor.core import rng
from fedtailor.core.errors import ConfigError
from fedtailor.core.message import Field, Mean, Sum
from fedtailor.core.reduction import FieldSum
from fedtailor.privacy.mechanism import ClientBounds, ClientMechanism, digest_of

MESSAGES = {
    "model": Field(kind="model", shapes=(3,)),
    "covariance": Field(kind="covariance", shapes=(2, 2), weight="equal"),
    "control": Field(kind="statistics", shapes=(2,), reduction="sum"),
}
SENT = {"model": torch.tensor([1.0, 2.0, 3.0]), "covariance": torch.eye(2), "control": None}
KEY = rng.new_key(7, round=3, purpose="privacy")


def mechanism(clip=1.0, noise=0.0, expected=1.0, **scales):
    return ClientMechanism(MESSAGES, clip, noise, expected, scales, {})


def upload(size=1.0, examples=10.0):
    return {
        "model": Mean(SENT["model"] + size * torch.tensor([3.0, 0.0, 0.0]), torch.tensor(examples)),
        "covariance": Mean(torch.eye(2) + size * torch.eye(2), torch.tensor(1.0)),
        "control": Sum(size * torch.tensor([4.0, 0.0])),
    }


def released(mechanism, *uploads, key=KEY, sent=SENT):
    totals = sums(mechanism, *uploads, sent=sent)
    return mechanism.release(totals, sent, key)


def sums(mechanism, *uploads, sent=SENT):
    totals = {name: FieldSum(range(len(uploads))) for name in mechanism.contributions}
    for client, one in enumerate(uploads):
        bounded = ClientBounds(mechanism, sent).bounded(one, client)
        for name, total in totals.items():
            total.add(client, bounded[name])
    return {name: total.total() for name, total in totals.items()}


def norm(contribution):
    return float(torch.cat([entry.value.flatten() for entry in contribution.values()]).norm())


def test_all_fields_are_bounded_together():
    # 3, 4, and twice 1 on the diagonal: the norm is the root of 27.
    free = ClientBounds(mechanism(clip=100.0), SENT).bounded(upload(), 0)
    short = ClientBounds(mechanism(clip=2.0), SENT).bounded(upload(), 0)

    assert norm(free) == pytest.approx(27**0.5, rel=1e-5)
    assert norm(short) == pytest.approx(2.0, rel=1e-5)
    assert norm(short) <= 2.0
    ratio = short["model"].value[0] / short["control"].value[0]
    assert ratio == pytest.approx(3 / 4, rel=1e-5)


def test_no_change_stays_none():
    nothing = ClientBounds(mechanism(), SENT).bounded(upload(size=0.0), 0)
    assert norm(nothing) == 0


def test_a_client_with_almost_all_examples_changes_the_sum_by_no_more():
    small = [upload(size=0.1, examples=10.0) for _ in range(3)]
    large = upload(size=50.0, examples=1e6)
    bound = mechanism(clip=2.0)

    with_it = sums(bound, *small, large)
    without = sums(bound, *small, upload(size=0.0))

    difference = torch.cat(
        [(with_it[name].leaves[""] - without[name].leaves[""]).flatten() for name in MESSAGES]
    )
    assert 1.99 < float(difference.norm()) <= 2.0


def test_the_mean_is_over_the_expected_clients():
    received = released(mechanism(clip=100.0, expected=4.0), upload(), upload())
    assert received["model"].value.tolist() == pytest.approx([1 + 6 / 4, 2.0, 3.0], rel=1e-5)
    assert received["control"].value.tolist() == pytest.approx([8.0, 0.0], rel=1e-5)


def test_scales_share_out_the_noise():
    wide = {"model": Field(kind="model", shapes=(20_000,))}
    for scale in (1.0, 5.0):
        noisy = ClientMechanism(wide, 2.0, 1.5, 10.0, {"model": scale}, {})
        totals = {"model": FieldSum([0])}
        totals["model"].add(0, Sum(torch.zeros(20_000)))
        received = noisy.release({"model": totals["model"].total()}, {"model": None}, KEY)

        expected = scale * 1.5 * 2.0 / 10.0
        assert float(received["model"].value.std()) == pytest.approx(expected, rel=0.03)


def test_a_noisy_covariance_is_symmetric_and_positive_definite():
    for seed in range(20):
        key = rng.new_key(seed, purpose="privacy")
        received = released(mechanism(noise=3.0, expected=2.0), upload(), upload(), key=key)
        covariance = received["covariance"].value.double()
        assert torch.allclose(covariance, covariance.mT)
        assert float(torch.linalg.eigvalsh(covariance).min()) > 0


def test_the_same_round_has_the_same_noise_and_another_attempt_another():
    noisy = mechanism(noise=1.0)
    first = released(noisy, upload())["model"].value
    again = released(noisy, upload())["model"].value
    other = released(noisy, upload(), key=KEY.fold("attempt"))["model"].value
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any()


def test_digests_tell_sums_apart():
    plain = mechanism(clip=100.0)
    assert digest_of(sums(plain, upload())) == digest_of(sums(plain, upload()))
    assert digest_of(sums(plain, upload())) != digest_of(sums(plain, upload(size=1.0000001)))


WEIGHTED = {
    "means": Field(kind="class_means", shapes=(3, 2), weight="class_counts"),
    "head": Field(kind="model", shapes=(2,), weight="own"),
}
OLD = {"means": torch.ones(3, 2), "head": None}


def weighing(clip=1e3, noise=0.0):
    return ClientMechanism(WEIGHTED, clip, noise, 1.0, {}, {"means": 10.0, "head": 4.0})


def weighted(value, counts, confidence):
    return {
        "means": Mean(torch.full((3, 2), value), torch.tensor(counts)),
        "head": Mean(torch.full((2,), value), torch.tensor(confidence)),
    }


def test_weights_of_clients_count_up_to_their_cap():
    first = weighted(3.0, [10.0, 5.0, 0.0], 2.0)
    second = weighted(6.0, [1e9, 10.0, 0.0], 1e9)
    received = released(weighing(), first, second, sent=OLD)

    # Of weights 1 and 1, 0.5 and 1, 0 and 0; a class that no client has stays as it was.
    means = received["means"].or_else(OLD["means"])
    torch.testing.assert_close(means[:, 0], torch.tensor([4.5, 5.0, 1.0]), rtol=1e-4, atol=0)
    assert received["means"].total_weight.tolist() == pytest.approx([20, 15, 0], rel=1e-4)
    assert received["head"].value.tolist() == pytest.approx([5.0, 5.0], rel=1e-4)


def test_weights_are_bounded_with_what_they_weigh():
    bound = weighing(clip=0.5)
    quiet = weighted(1.0, [10.0, 10.0, 10.0], 4.0)
    loud = weighted(50.0, [1e9, 1e9, 1e9], 1e9)
    with_it = sums(bound, quiet, loud, sent=OLD)
    without = sums(bound, quiet, sent=OLD)

    parts = [with_it[name].leaves[""] - without[name].leaves[""] for name in with_it]
    assert set(with_it) == {"means", "means weight", "head", "head weight"}
    assert 0.49 < float(torch.cat([part.flatten() for part in parts]).norm()) <= 0.5


def test_weights_that_noise_hides_divide_nothing():
    clients = [weighted(3.0, [10.0, 10.0, 10.0], 4.0)] * 5
    for seed in range(20):
        key = rng.new_key(seed, purpose="privacy")
        received = released(weighing(noise=0.01), *clients, key=key, sent=OLD)
        assert torch.equal(received["means"].or_else(OLD["means"]), OLD["means"])
        assert received["head"].total_weight == 0


def test_a_weight_with_more_axes_than_declared_is_refused():
    upload = weighted(3.0, [10.0, 5.0, 0.0], [1.0, 2.0])
    with pytest.raises(ConfigError, match="'head' has 1 axes, and the method declares"):
        weighing().bounded(upload, OLD)
