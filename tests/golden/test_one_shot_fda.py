"""One-shot FDA: two exchanges of sums, against a transcription that sees all examples at once."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from fedtailor.algorithms import one_shot_fda
from fedtailor.algorithms.one_shot_fda import Grid, OneShotFDA
from fedtailor.core.message import upload_bytes
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.statistics import gaussian
from golden import harness
from golden.closed_form import CLASSES, COUNTS, D, in_other_parts, labeled_federation, pool, run
from golden.harness import assert_close
from golden.network import log_softmax
from marks import slow

MANY = ([9, 7, 3], [2, 11, 6], [8, 0, 5], [0, 0, 7], [6, 5, 4])


@pytest.fixture(autouse=True)
def _small_grid(monkeypatch):
    """The transcription visits settings one by one."""
    grid = Grid((0.1, 0.6), (0.0, 1.0), (0.0, 0.3), (0.2, 0.6, 1.5), (1.0, 30.0))
    monkeypatch.setattr(one_shot_fda, "_GRID", grid)


def shifted(counts=MANY, size=1.0):
    """Return clients whose features are moved, each in a direction of its own."""
    federation = labeled_federation(counts)
    draw = np.random.default_rng(4)
    for split in federation.splits:
        rows = torch.cat([split.train, split.test])
        federation.x[rows] += size * torch.from_numpy(draw.normal(size=D))
    return federation


class Pool:
    """Gaussians of examples, and the clients that have them."""

    def __init__(self, clients):
        x = np.concatenate([own for own, _ in clients])
        y = np.concatenate([labels for _, labels in clients])
        self.counts = np.bincount(y, minlength=CLASSES)
        known = np.maximum(self.counts, 1)
        self.means = np.stack([x[y == c].sum(0) for c in range(CLASSES)]) / known[:, None]
        gaps = x - self.means[y]
        self.covariance = gaps.T @ gaps / len(y)
        self.frequencies = self.counts / len(y)
        self.ratio = self.variance_ratio(clients)

    def variance_ratio(self, clients):
        """One-way analysis of variance of the gaps, feature by feature."""
        present = [(x, y) for x, y in clients if len(y)]
        sizes = np.array([len(y) for _, y in present])
        gaps = np.stack([(x - self.means[y]).mean(0) for x, y in present])
        between = (sizes[:, None] * gaps**2).sum(0) / (len(sizes) - 1)
        typical = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / (len(sizes) - 1)
        within = np.diag(self.covariance)
        return max(0.0, ((between - within) / typical / within).mean())

    def logits(self, x, own, labels, shrinkage, offset, blend, temperature, prior_examples):
        """Log joint densities up to a constant, with the prior and offset of a client."""
        ratio = offset * self.ratio * len(labels)
        gap = (own - self.means[labels]).mean(0) if len(labels) else np.zeros(D)
        moved = self.means + ratio / (ratio + 1) * gap
        for label in range(CLASSES):
            if (labels == label).any():
                moved[label] += blend * (own[labels == label].mean(0) - moved[label])

        target = np.trace(self.covariance) / D * np.eye(D)
        inverse = np.linalg.inv((1 - shrinkage) * self.covariance + shrinkage * target)
        distances = np.stack([(((x - mean) @ inverse) * (x - mean)).sum(1) for mean in moved], 1)
        counts = np.bincount(labels, minlength=CLASSES) + prior_examples * self.frequencies
        with np.errstate(divide="ignore"):
            log_prior = np.log(counts / counts.sum())
        return np.where(self.counts > 0, -0.5 * temperature * distances, -np.inf) + log_prior


def losses_of(method, halves):
    """Return the losses of every setting, on each half by the Gaussians of the other."""
    shape = tuple(map(len, method.grid))
    table = np.zeros(shape)
    for own, other in (halves, halves[::-1]):
        fold = Pool(own)
        for (mine, labels), (x, y) in zip(own, other):
            counted = fold.counts[y] > 0
            for index in product(*map(range, shape)):
                setting = [grid[number] for grid, number in zip(method.grid, index)]
                scores = log_softmax(fold.logits(x[counted], mine, labels, *setting))
                table[index] -= scores[np.arange(counted.sum()), y[counted]].sum()
    return table


def halves_of(recorder, federation):
    """Return the examples of both halves of every client."""
    clients = [harness.examples(federation, client) for client in federation.roster.known]
    first, second = [], []
    for client, (x, y) in enumerate(clients):
        kept = np.zeros(len(y), dtype=bool)
        kept[recorder.visit(1, "train", client).kept] = True
        assert kept.sum() == len(y) // 2
        first.append((x[kept], y[kept]))
        second.append((x[~kept], y[~kept]))
    return first, second


@pytest.mark.parametrize(
    ("counts", "options"),
    [
        slow(MANY, {}),
        slow(COUNTS, {"offset": 0.0}),
        (MANY, {"blend": True}),
        slow(MANY, {"temperature": 0.4, "shrinkage": 0.3, "prior_examples": 5.0, "offset": 1.0}),
    ],
    ids=["all chosen", "no offset", "blend", "all given"],
)
def test_the_setting_of_least_loss_and_the_heads_that_follow(recorder, counts, options):
    federation = shifted(counts)
    method = OneShotFDA(**options)
    recorder.run(method, federation)
    halves = halves_of(recorder, federation)

    table = losses_of(method, halves)
    sent = sum(
        recorder.visit(2, "train", client).output.upload["losses"].value
        for client in federation.roster.known
    )
    assert_close(sent, table, tolerance=1e-9)

    best = np.unravel_index(table.argmin(), table.shape)
    setting = [grid[index] for grid, index in zip(method.grid, best)]
    everybody = Pool([harness.examples(federation, client) for client in federation.roster.known])
    everybody.ratio = np.mean([Pool(half).ratio for half in halves])
    for client in federation.roster.known:
        x, y = harness.examples(federation, client)
        inputs, _ = harness.examples(federation, client, "test")
        expected = log_softmax(everybody.logits(inputs, x, y, *setting))
        head = recorder.visit(2, "personalize", client).output.personal.head
        found = head.logits(torch.from_numpy(inputs)).log_softmax(1)
        np.testing.assert_allclose(found, expected, atol=1e-8)


def test_losses_are_sent_in_the_second_exchange_only(recorder):
    federation = labeled_federation(MANY)
    method = OneShotFDA()
    recorder.run(method, federation)
    messages = method.messages(method.bind(federation.common_task))
    first = recorder.visit(1, "train", 0).output.upload
    second = recorder.visit(2, "train", 0).output.upload
    assert float(first["losses"].mask) == 0 and isinstance(second["losses"].mask, tuple)

    numbers = sum(
        field.scalars() for name, field in messages.items() if name in first and name != "losses"
    )
    assert upload_bytes(first, messages) == 4 * numbers + 1  # and one byte for the mask


def test_offsets_are_found_where_clients_differ_and_only_there():
    assert float(run(OneShotFDA(), shifted(size=3.0)).state.server.model.gaussians.ratio) > 0.3
    pooled = run(OneShotFDA(), labeled_federation(([200, 200, 200],) * 8))
    assert float(pooled.state.server.gaussians.ratio.max()) < 0.01


def test_gaussians_are_those_of_the_pool_whoever_has_its_examples():
    federation = labeled_federation(MANY)
    x, y = pool(federation)
    means = np.stack([x[y == c].mean(0) for c in range(CLASSES)])
    for parts in (1, 3, 10):
        gaussians = run(OneShotFDA(), in_other_parts(federation, parts, seed=parts))
        everybody = gaussians.state.server.gaussians
        assert_close(everybody.means[2], means, tolerance=1e-12)
        assert everybody.counts[2].tolist() == np.bincount(y).tolist()


def test_stacked_clients_have_the_same_sums_and_choose_the_same():
    alone = run(OneShotFDA(), shifted(), Reference()).state.server
    stacked = run(OneShotFDA(), shifted(), Batched()).state.server
    assert torch.equal(alone.gaussians.weight, stacked.gaussians.weight)
    assert torch.equal(alone.model.temperature, stacked.model.temperature)


@pytest.mark.parametrize(
    "counts", [([5, 1, 0], [4, 0, 0]), ([1, 1, 1], [0, 0, 0]), ([1, 0, 0], [0, 1, 0])]
)
def test_classes_of_one_example_or_none_and_clients_of_one_class(recorder, counts):
    federation = labeled_federation(counts)
    recorder.run(OneShotFDA(), federation)
    has_examples = torch.tensor(counts).sum(0) > 0
    for client in federation.roster.known:
        head = recorder.visit(2, "personalize", client).output.personal.head
        assert torch.isfinite(head.weight).all()
        assert (torch.isfinite(head.bias) == has_examples).all()


@pytest.mark.parametrize("blend", [False, True])
def test_in_single_precision_the_model_of_the_server_predicts_too(blend):
    federation = shifted()
    torch.set_default_dtype(torch.float32)
    federation = replace(federation, x=federation.x.float())
    report = run(OneShotFDA(blend=blend), federation)
    assert not report.events
    assert {each.point for each in report.evaluations} == {"global", "personalized"}


def test_halves_are_the_same_in_both_exchanges(recorder):
    federation = labeled_federation()
    recorder.run(OneShotFDA(), federation)
    for client in federation.roster.known:
        first, second = (recorder.visit(number, "train", client).kept for number in (1, 2))
        assert first.tolist() == second.tolist()


def test_oas_can_stand_for_the_grid():
    federation = labeled_federation(MANY)
    server = run(OneShotFDA(shrinkage="oas"), federation).state.server
    x, y = pool(federation)
    everybody = Pool([(x[:9], y[:9]), (x[9:], y[9:])])
    covariance = torch.from_numpy(everybody.covariance)
    amount = gaussian.oas_amount(covariance, torch.tensor(len(y)))
    inverse = np.linalg.inv(gaussian.shrink(covariance, amount).numpy())
    expected = (everybody.means - x.mean(0)) @ inverse
    assert_close(server.gaussians.weight[2, 0], expected, tolerance=1e-9)
