"""Robust reductions against NumPy, SciPy and plain loops, and what they depend on."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch

from fedtailor.core import robust, tree
from fedtailor.core.errors import ConfigError
from fedtailor.core.message import Each, Field, Mean, Sum, sent_values
from fedtailor.core.reduction import reduce_field
from fedtailor.core.robust import (
    RULES as TABLE,
)
from fedtailor.core.robust import (
    left_out_by_krum,
    positive_definite,
)
from fedtailor.core.schedule import Participation, Schedule

FIELD = Field(kind="model", shapes={"w": (4, 3), "b": (3,), "n": ()})
RULES = ("norm_clip", "median", "trimmed_mean")
SHARE = 0.3


def reduced_by(rule, given, field, sent):
    """Return a field reduced by a rule of the table."""
    return TABLE[rule].reduce(given, field, sent, SHARE)


def values(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(4, 3, generator=generator),
        "b": torch.randn(3, generator=generator),
        "n": torch.ones(()),
    }


def entries(count=7):
    return {
        client: Mean(values(client), torch.tensor(float(client + 1))) for client in range(count)
    }


def stacked(given):
    return {
        path: np.stack([tree.paths(each.value)[path].double().numpy() for each in given.values()])
        for path in "wbn"
    }


@pytest.mark.parametrize("count", [3, 4, 7, 10])
def test_median_and_trimmed_mean_are_those_of_numpy_and_scipy(count):
    given = entries(count)
    expected = stacked(given)
    median = reduced_by("median", given, FIELD, None)
    trimmed = reduced_by("trimmed_mean", given, FIELD, None)
    for path, column in expected.items():
        assert np.allclose(tree.paths(median.value)[path], np.median(column, 0), rtol=1e-6)
        assert np.allclose(
            tree.paths(trimmed.value)[path], scipy.stats.trim_mean(column, SHARE, 0), rtol=1e-6
        )
    assert median.total_weight == trimmed.total_weight == sum(range(1, count + 1))


@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
def test_only_rows_that_were_sent_count(rule):
    field = Field(kind="class_means", shapes=(4, 3), weight="class_counts")
    weights = torch.tensor([[1.0, 0, 2, 0], [3, 0, 1, 4], [2, 0, 0, 1], [9, 0, 1, 0], [1, 0, 1, 1]])
    given = {
        client: Mean(values(client)["w"] + 1e9 * (weights[client] == 0)[:, None], weights[client])
        for client in range(5)
    }
    reduced = reduced_by(rule, given, field, None)
    for row in range(4):
        sent = [given[client].value[row].numpy() for client in range(5) if weights[client, row] > 0]
        if not sent:
            assert reduced.value[row].tolist() == [0, 0, 0]
            continue
        wanted = (
            np.median(sent, 0)
            if rule == "median"
            else scipy.stats.trim_mean(np.array(sent), SHARE, 0)
        )
        assert np.allclose(reduced.value[row], wanted, rtol=1e-6)
    assert torch.equal(reduced.total_weight, weights.double().sum(0))
    assert torch.equal(reduced.or_else(torch.full((4, 3), -1.0))[1], torch.full((3,), -1.0))


def test_clipping_shortens_long_changes_to_the_median_and_leaves_the_others():
    sent = values(99)
    given = entries(5)
    norms = [
        math.sqrt(
            sum(float((each.value[path] - sent[path]).double().square().sum()) for path in sent)
        )
        for each in given.values()
    ]
    bound = float(np.median(norms))
    wanted = {path: np.zeros(leaf.shape) for path, leaf in sent.items()}
    for (client, each), norm in zip(given.items(), norms, strict=True):
        factor = min(1.0, bound / norm)
        for path, leaf in sent.items():
            change = (each.value[path] - leaf).double().numpy()
            wanted[path] += (client + 1) / 15 * (leaf.double().numpy() + factor * change)
    reduced = reduced_by("norm_clip", given, FIELD, sent)
    for path, leaf in wanted.items():
        assert np.allclose(reduced.value[path], leaf, rtol=1e-6)


def test_equal_changes_are_not_clipped():
    given = {client: Mean(values(1), torch.tensor(2.0)) for client in range(4)}
    one = reduced_by("norm_clip", given, FIELD, values(5))
    assert all(map(torch.equal, tree.leaves(one.value), tree.leaves(reduce_field(given).value)))


def test_a_change_is_from_what_was_sent():
    """A client that changes nothing is not clipped, however large the model is."""
    sent = {path: leaf * 1e6 for path, leaf in values(0).items()}
    near = {path: leaf + 1e-3 for path, leaf in sent.items()}
    given = {
        0: Mean(sent, torch.tensor(1.0)),
        1: Mean(near, torch.tensor(1.0)),
        2: Mean(values(3), torch.tensor(1.0)),
    }
    reduced = reduced_by("norm_clip", given, FIELD, sent)
    for path, leaf in sent.items():
        assert torch.allclose(reduced.value[path], leaf, rtol=1e-5)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("factor", [1e3, -10.0, -1.0, 1e20])
def test_one_of_five_cannot_move_the_result_far(rule, factor):
    given = {
        client: Mean(
            tree.map(lambda leaf, c=client: leaf * 0.1 + 1 + 0.01 * c, values(client)),
            torch.tensor(1.0),
        )
        for client in range(5)
    }
    honest = reduce_field({client: given[client] for client in range(4)})
    given[4] = Mean(tree.map(lambda leaf: leaf * factor, given[4].value), torch.tensor(1.0))
    reduced = reduced_by(rule, given, FIELD, values(9))
    for one, other in zip(tree.leaves(reduced.value), tree.leaves(honest.value), strict=True):
        assert (one - other).abs().max() < 2.5


@pytest.mark.parametrize("rule", RULES)
def test_neither_order_nor_pieces_change_a_bit(rule, monkeypatch):
    given = entries(7)
    whole = reduced_by(rule, given, FIELD, values(8))
    monkeypatch.setattr(robust, "_CHUNK_NUMBERS", 1)
    for order in itertools.islice(itertools.permutations(range(7)), 1, 4000, 1000):
        shuffled = {client: given[client] for client in order}
        other = reduced_by(rule, shuffled, FIELD, values(8))
        assert all(map(torch.equal, tree.leaves(whole.value), tree.leaves(other.value)))


def test_types_stay():
    given = {
        client: Mean(
            {"w": torch.randn(2, dtype=torch.float64)}, torch.ones((), dtype=torch.float64)
        )
        for client in range(3)
    }
    field = Field(kind="model", shapes={"w": (2,)})
    for rule in RULES:
        assert reduced_by(rule, given, field, None).value["w"].dtype == torch.float64
        assert reduced_by(rule, entries(3), FIELD, None).value["w"].dtype == torch.float32


def covariances(count, size=4):
    made = []
    for client in range(count):
        root = torch.randn(size, 2, generator=torch.Generator().manual_seed(client))
        made.append(root @ root.T + 1e-4 * torch.eye(size))
    return made


@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
def test_covariances_stay_positive_definite(rule):
    field = Field(kind="covariance", shapes=(4, 4))
    given = {
        client: Mean(matrix, torch.tensor(1.0)) for client, matrix in enumerate(covariances(5))
    }
    plain = torch.stack([entry.value for entry in given.values()]).double().median(0).values
    assert torch.linalg.eigvalsh(plain).min() < 0, "the test needs a median that is no covariance"
    reduced = reduced_by(rule, given, field, None).value
    assert torch.equal(reduced, reduced.mT) and torch.linalg.eigvalsh(reduced.double()).min() > 0


def test_positive_definite_matrices_stay_as_they_are():
    matrices = torch.stack(covariances(3)).double()
    assert torch.equal(positive_definite(matrices), (matrices + matrices.mT) / 2)
    found = positive_definite(torch.diag(torch.tensor([2.0, -1.0], dtype=torch.float64)))
    assert torch.allclose(found, torch.diag(torch.tensor([2.0, 5e-7], dtype=torch.float64)))


def uploads(count, spoil=()):
    """Return uploads that lie close to each other, but for some."""
    made = {}
    for client in range(count):
        center = torch.full((3,), 50.0 if client in spoil else 0.0)
        one = tree.map(lambda leaf, center=center: leaf + center.mean(), values(client))
        made[client] = {
            "model": Mean(one, torch.tensor(1.0)),
            "sums": Sum(
                torch.randn(2, generator=torch.Generator().manual_seed(client)) + center[:2]
            ),
            "head": Each({"h": torch.ones(2)}),
        }
    return made


@pytest.mark.parametrize("spoil", [(2,), (0, 5), (3, 7, 8)])
def test_krum_leaves_out_the_farthest(spoil):
    found = left_out_by_krum(uploads(10, spoil), {}, share=len(spoil) / 10)
    assert sorted(found) == sorted(spoil) and min(found.values()) > 2


@pytest.mark.parametrize("share", [0.1, 0.25, 0.34, 0.4, 0.49])
@pytest.mark.parametrize("bad", [0, 2])
def test_the_fewest_uploads_are_enough_to_find_the_bad_one(share, bad):
    fewest = Schedule(robust="krum", robust_share=share).fewest_uploads
    assert list(left_out_by_krum(uploads(fewest, (bad,)), {}, share=share)) == [bad]


def test_krum_scores_are_those_of_the_definition():
    """Blanchard et al. 2017, section 4: the sum of squared distances to the n - f - 2 nearest
    others."""
    given = uploads(8)
    sent = {"model": values(77)}
    vectors = []
    for upload in given.values():
        change = [upload["model"].value[path] - sent["model"][path] for path in sent["model"]]
        leaves = [*change, upload["sums"].value, upload["head"].value["h"]]
        vectors.append(np.concatenate([leaf.double().numpy().ravel() for leaf in leaves]))
    scores = []
    for one in range(8):
        distances = sorted(
            float(((vectors[one] - vectors[other]) ** 2).sum())
            for other in range(8)
            if other != one
        )
        scores.append(math.sqrt(sum(distances[: 8 - 2 - 2])))
    found = left_out_by_krum(given, sent, share=0.25)
    assert sorted(found) == sorted(np.argsort(scores)[-2:].tolist())
    for client, distance in found.items():
        assert distance == pytest.approx(scores[client] / np.median(scores), rel=1e-6)


def test_of_equal_uploads_the_lower_ids_stay():
    same = uploads(1)[0]
    assert list(left_out_by_krum(dict.fromkeys(range(8), same), {}, share=0.25)) == [6, 7]
    assert left_out_by_krum(uploads(3), {}, share=0.25) == {}


def test_krum_does_not_look_at_rows_that_were_not_sent():
    weights = torch.tensor([1.0, 0.0, 1.0, 1.0])
    given = {client: {"means": Mean(values(client)["w"], weights)} for client in range(8)}
    before = left_out_by_krum(given, {}, share=0.25)
    for client, upload in given.items():
        upload["means"].value[1] += 1e9 * client
    assert left_out_by_krum(given, {}, share=0.25) == before


def test_what_was_sent_is_found_by_name_and_shape():
    messages = {
        "model": FIELD,
        "delta": Field(kind="model", shapes={"w": (4, 3), "b": (3,), "n": ()}),
        "count": Field(kind="counts", shapes=(), reduction="sum"),
    }
    shared = {"model": values(0), "delta": values(0)["w"], "count": 3}
    found = sent_values(shared, messages)
    assert found["model"] is shared["model"] and found["delta"] is None and found["count"] is None
    assert (
        TABLE["median"].unprotected_fields(messages) == ["count"]
        and TABLE["krum"].unprotected_fields(messages) == []
    )


@pytest.mark.parametrize(
    ("rule", "share", "fewest"),
    [
        ("none", 0.25, 1),
        ("norm_clip", 0.1, 3),
        ("median", 0.1, 3),
        ("trimmed_mean", 0.25, 4),
        ("trimmed_mean", 0.4, 3),
        ("krum", 0.1, 10),
        ("krum", 0.34, 4),
        ("krum", 0.49, 4),
    ],
)
def test_a_rule_needs_enough_clients(rule, share, fewest):
    schedule = Schedule(robust=rule, robust_share=share)
    assert schedule.fewest_uploads == fewest
    schedule.check(fewest)
    if fewest > 1:
        for few in (
            schedule,
            Schedule(robust=rule, robust_share=share, participation=Participation(plan="fixed")),
        ):
            with pytest.raises(ConfigError, match=rf"fewer than {fewest} clients .* got '{rule}'"):
                few.check(fewest - 1)


def test_a_share_that_is_a_whole_number_of_clients_is_not_rounded_down(float64):
    bad = tuple(range(29))
    assert sorted(left_out_by_krum(uploads(100, bad), {}, share=0.29)) == list(bad)
    ordered = torch.cat([torch.zeros(71), torch.full((29,), 1e6)])[:, None]
    assert float(robust._trimmed_mean(ordered, torch.tensor([100]), share=0.29)) == 0.0
