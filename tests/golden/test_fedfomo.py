"""FedFomo against Zhang et al. 2021: weights from losses and distances, mixtures, affinities, and
which models are downloaded."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from federations import Planned
from fedtailor.algorithms.fedfomo import FedFomo, choose, first_order_weights
from fedtailor.core.federation import Cohort
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from golden import harness
from golden.network import ALL, cross_entropy, logits, sgd
from golden.test_knn_per import with_validation
from marks import quick

TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
LABELS = (*harness.LABELS, [0, 1, 2, 0, 2, 0, 2, 1], [2, 1, 0, 1, 1, 0, 2, 2, 0])
VALIDATION = (4, 0, 2, 3)


def judged(federation, client):
    """Return the examples on which a client compares models."""
    x, y = harness.examples(federation, client, "val")
    return (x, y) if len(y) else harness.examples(federation, client)


def weight_of(w, start, x, y):
    """(L(b) - L(theta)) / |theta - b|, and 0 for b itself."""
    gap = sum(((w[name] - start[name]) ** 2).sum() for name in ALL) ** 0.5
    if gap == 0:
        return 0.0
    return (cross_entropy(logits(start, x), y) - cross_entropy(logits(w, x), y)) / gap


def mixture(start, own, others, x, y):
    """Return the new b, and the weights of the others, divided by the sum of all."""
    models = [own, *others]
    weights = [weight_of(w, start, x, y) for w in models]
    positive = [max(weight, 0.0) for weight in weights]
    mixed = {name: start[name].copy() for name in ALL}
    if sum(positive) > 0:
        for share, w in zip(positive, models, strict=True):
            for name in ALL:
                mixed[name] += share / sum(positive) * (w[name] - start[name])

    total = max(abs(sum(weights)), 1e-9)
    return mixed, [weight / total for weight in weights[1:]], weights


class Server:
    """What the server knows, in loops."""

    def __init__(self, count):
        self.models = {}
        self.last = set()
        self.affinity = np.zeros((count, count))

    def assert_choice(self, client, ids, count):
        """Assert that ids are those of the largest affinities among the models that there are."""
        left = self.last - {client}
        chosen = [int(number) for number in ids if number >= 0]
        assert len(chosen) == min(count, len(left))
        for number in chosen:
            assert number in left
            assert self.affinity[client, number] == max(self.affinity[client, n] for n in left)
            left = left - {number}
        return chosen


@pytest.mark.parametrize("downloads", quick([1, 2, 5], 2))
@pytest.mark.parametrize("cohorts", [{}, {2: [0, 2], 3: [1, 3], 4: [0, 1, 2]}], ids=["all", "some"])
def test_five_rounds(recorder, downloads, cohorts):
    federation = with_validation(harness.make_federation(LABELS), VALIDATION)
    algorithm = FedFomo(training=TRAINING, downloads=downloads, exploration=0.0)
    recorder.run(algorithm, federation, rounds=5, participation=Planned(cohorts=cohorts))

    initial = harness.initial(federation)
    server = Server(4)
    own = [initial] * 4
    starts = [initial] * 4
    signs = set()
    for round in range(1, 6):
        cohort = cohorts.get(round, [0, 1, 2, 3])
        added = np.zeros((4, 4))
        for client in cohort:
            visit = recorder.visit(round, "train", client)
            state, upload, metrics, *_ = visit.output
            ids, given = upload["weights"].value
            chosen = server.assert_choice(client, ids, downloads)

            others = [server.models[number] for number in chosen]
            expected = mixture(starts[client], own[client], others, *judged(federation, client))
            starts[client], weights, raw = expected
            signs |= {np.sign(weight) for weight in raw}
            x, y = harness.examples(federation, client)
            (batches,) = visit.plans
            own[client] = sgd(starts[client], x, y, batches, TRAINING)[0]

            harness.assert_close(state.start, starts[client])
            harness.assert_close(state.model, own[client])
            harness.assert_close(upload["model"].value, own[client])
            expected = weights + [0.0] * (downloads - len(weights))
            harness.assert_close(given, np.array(expected), 1e-9)
            assert metrics["steps"] == len(batches)
            for number, weight in zip(chosen, given.tolist(), strict=False):
                added[client, number] += weight

        server.models |= {client: own[client] for client in cohort}
        server.last = set(cohort)
        server.affinity = server.affinity + added
        state = recorder.reports[round - 1].state.server
        harness.assert_close(state.affinity, server.affinity)
        assert state.available.tolist() == [float(n in server.last) for n in range(4)]

        for client in range(4):
            personal = recorder.visit(round, "personalize", client).output[0]
            harness.assert_close(personal, own[client])

    assert signs == {-1.0, 0.0, 1.0}, "the run shows every case"


def test_a_new_client_mixes_and_trains(recorder):
    federation = with_validation(replace(harness.make_federation(LABELS), num_new=1), (2, 2, 2, 3))
    algorithm = FedFomo(training=TRAINING, downloads=3, exploration=0.0)
    recorder.run(algorithm, federation)
    initial = harness.initial(federation)
    others = [harness.arrays(recorder.visit(2, "train", n).output[0].model) for n in range(3)]

    visit = recorder.visit(2, "personalize", 3)
    start, *_ = mixture(initial, initial, others, *judged(federation, 3))
    x, y = harness.examples(federation, 3)
    expected = sgd(start, x, y, visit.plans[0], TRAINING)[0]
    harness.assert_close(visit.output[0], expected)


def test_a_model_that_has_diverged_has_no_weight():
    losses = torch.tensor([1.0, torch.nan, torch.inf, 0.5, 0.2, 3.0])
    distances = torch.tensor([1.0, 1.0, 2.0, 0.0, 4.0])
    offered = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0])
    assert first_order_weights(losses, distances, offered).tolist() == [0.0, 0.0, 0.25, 0.0, -0.5]


@pytest.mark.slow
def test_choices_are_the_best_or_random():
    """With epsilon 1 all clients are chosen equally often; ties are broken at random."""
    affinity = torch.tensor([0.0, 3.0, -1.0, 0.0, 5.0])
    free = torch.tensor([True, True, True, True, False])

    def counts(exploration, count):
        seen = np.zeros((count, 6))
        for number in range(400):
            chosen = choose(affinity, free, exploration, new_key(number), count)
            for place, client in enumerate(chosen):
                seen[place, int(client)] += 1
            found = [int(client) for client in chosen if client >= 0]
            assert len(set(found)) == len(found)
        return seen / 400

    greedy = counts(0.0, 5)
    assert greedy[0].tolist() == [0, 1, 0, 0, 0, 0]
    assert 0.4 < greedy[1, 0] < 0.6 and greedy[1, 0] + greedy[1, 3] == 1
    assert greedy[3].tolist() == [0, 0, 1, 0, 0, 0]
    assert greedy[4].tolist() == [0, 0, 0, 0, 0, 1], "nobody is left: -1"

    random = counts(1.0, 1)[0]
    assert random[4:].tolist() == [0, 0] and np.abs(random[:4] - 0.25).max() < 0.08
    mixed = counts(0.4, 1)[0]
    assert abs(mixed[1] - 0.7) < 0.08


def test_exploration_falls_by_round():
    """epsilon is 0.3, 0.25, ... and 0 from the seventh round on."""
    algorithm = FedFomo(downloads=1)
    task = harness.task()
    server = algorithm.init_federation(task, 6, new_key(0))
    server = server._replace(available=torch.ones(6), affinity=torch.eye(6).roll(1, 1))

    def share_of_best(round):
        right = 0
        for seed in range(30):
            cohort = Cohort(torch.arange(6), 6, round, 10)
            peers = algorithm.per_client(server, cohort, new_key(seed, round=round))
            right += int((peers.clients[:, 0] == (torch.arange(6) + 1) % 6).sum())
        return right / 180

    assert abs(share_of_best(1) - (0.7 + 0.3 / 5)) < 0.06
    assert abs(share_of_best(4) - (0.85 + 0.15 / 5)) < 0.06
    assert share_of_best(7) == 1.0
