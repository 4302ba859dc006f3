"""What must hold for pFedVEM whatever the numbers: the M-step, the bound, limits, repairs, new
clients."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtailor.algorithms.pfedvem import ClientState, PFedVEM, ServerState
from fedtailor.core import tree
from fedtailor.core.algorithm import Download
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import Cohort, Federation, Split
from fedtailor.core.message import Mean, reduce_field
from fedtailor.core.rng import new_key
from fedtailor.core.task import Task, Training
from fedtailor.models.networks import mlp
from fedtailor.statistics.gaussian_heads import HeadPosterior, raw_of
from golden import harness, vem
from golden.network import BODY, HEAD, log_softmax

STILL = Training(epochs=0)
TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)


def client_with(z, y, classes):
    """Return the task and data of a client whose inputs are features of the identity (they must not
    be negative)."""
    d = z.shape[1]
    task = Task(mlp((d,), classes, hidden=d), classes, (d,))
    rows = torch.arange(len(y))
    federation = Federation(
        torch.from_numpy(z), torch.from_numpy(y), [Split(rows, rows[:0], rows[:0])], task
    )
    return task, federation.data(0)


def identity(d):
    return {"hidden.weight": torch.eye(d), "hidden.bias": torch.zeros(d)}


def head(weight, bias):
    return {"head.weight": torch.as_tensor(weight), "head.bias": torch.as_tensor(bias)}


def blobs(seed=0, *, n=12, d=4, classes=3):
    draw = np.random.default_rng(seed)
    y = draw.integers(0, classes, n)
    return 5 + draw.normal(size=(classes, d))[y] + draw.normal(size=(n, d)), y


def around(w, distance, raw):
    """Return a head ``distance`` away from w in every number, with equal raw deviations, and the
    state it makes."""
    mean = tree.map(lambda leaf: leaf + distance, w)
    posterior = HeadPosterior(mean, tree.map(lambda leaf: torch.full_like(leaf, raw), w))
    return ClientState(posterior, identity(w["head.weight"].shape[1]), torch.ones(()))


def update_of(algorithm, z, y, w, state):
    """Return a client's update in a round that starts with the identity and the head w."""
    task, data = client_with(z, y, len(w["head.bias"]))
    shared = ServerState(identity(z.shape[1]), w)
    return algorithm.local_update(algorithm.bind(task), Download(shared), state, data, new_key(0))


def test_confidence_by_hand():
    """D = 4, sigma = 0.5 each, m - w = (1, 1, 0, 0): rho^2 = (1 + 2) / 4."""
    w = head([[0.3], [0.1]], [0.2, 0.7])
    raw = tree.map(lambda leaf: torch.full_like(leaf, raw_of(0.5)), w)
    mean = head(w["head.weight"] + 1, w["head.bias"])
    state = ClientState(HeadPosterior(mean, raw), identity(1), torch.ones(()))
    z, y = np.ones((3, 1)), np.array([0, 1, 1])
    for confidence, rho2 in (("both", 3 / 4), ("uncertainty", 1 / 4), ("deviation", 2 / 4)):
        metrics = update_of(PFedVEM(confidence=confidence, training=STILL), z, y, w, state).metrics
        numbers = [
            float(metrics[name]) for name in ("confidence", "rho", "uncertainty", "model_deviation")
        ]
        assert numbers == pytest.approx([1 / rho2, rho2**0.5, 1 / 4, 2 / 4], rel=1e-12)


def test_after_the_m_step_the_divergence_is_that_of_the_scales_alone():
    draw = np.random.default_rng(0)
    w, m, r = ((draw.normal(size=(3, 4)), draw.normal(size=3)) for _ in range(3))
    posterior = vem.Posterior(m, r)
    rho2, _, _ = vem.variance(posterior, w)
    sigma = vem.deviations(r)
    assert vem.divergence(m, sigma, w, rho2) == pytest.approx(
        np.log(rho2**0.5 / vem.flat(sigma)).sum(), rel=1e-12
    )


def test_the_bound_does_not_decrease_under_m_steps():
    """Alternating updates of w (with confidence weights) and rho, for fixed posteriors of five
    clients."""
    draw = np.random.default_rng(1)
    posteriors = [
        vem.Posterior(*((draw.normal(size=(3, 4)), draw.normal(size=3)) for _ in range(2)))
        for _ in range(5)
    ]
    w = (draw.normal(size=(3, 4)), draw.normal(size=3))
    rho2 = [1.0] * 5
    bounds = []
    for _ in range(6):
        aggregated = _aggregate(
            [posterior.mean for posterior in posteriors], [1 / value for value in rho2]
        )
        w = tuple(aggregated.head[name].numpy() for name in HEAD)
        bounds.append(_bound(posteriors, w, rho2))
        rho2 = [vem.variance(posterior, w)[0] for posterior in posteriors]
        bounds.append(_bound(posteriors, w, rho2))
    assert np.all(np.diff(bounds) >= -1e-12) and bounds[-1] - bounds[0] > 0.1


def _bound(posteriors, w, rho2):
    return -sum(
        vem.divergence(p.mean, vem.deviations(p.raw), w, r) for p, r in zip(posteriors, rho2)
    )


def _aggregate(heads, taus):
    """Return the server state after uploads of these heads with these confidences."""
    old = ServerState(identity(4), head(np.zeros((3, 4)), np.zeros(3)))
    body = [Mean(old.body, torch.tensor(7.0)) for _ in heads]
    means = [Mean(head(*one), torch.tensor(float(tau))) for one, tau in zip(heads, taus)]
    received = {
        "body": reduce_field(dict(enumerate(body))),
        "head": reduce_field(dict(enumerate(means))),
    }
    return PFedVEM().aggregate(old, received, Cohort(torch.arange(len(heads)), len(heads), 1, 1))[0]


def test_the_global_head_minimizes_the_weighted_distances():
    draw = np.random.default_rng(2)
    heads = [(draw.normal(size=(3, 4)), draw.normal(size=3)) for _ in range(3)]
    taus = [0.5, 2.0, 7.0]
    w = _aggregate(heads, taus).head
    slope = sum(tau * (w["head.weight"].numpy() - weight) for tau, (weight, _) in zip(taus, heads))
    harness.assert_close(slope, np.zeros((3, 4)), 1e-14)
    equal = _aggregate(heads, [3.0, 3.0, 3.0]).head
    harness.assert_close(equal["head.bias"], np.mean([bias for _, bias in heads], 0))
    without = _aggregate(heads, [0.0, 2.0, 7.0]).head
    harness.assert_close(without, harness.arrays(_aggregate(heads[1:], taus[1:]).head))


@pytest.mark.parametrize(
    ("distance", "tolerance"), [(1.0, 1e-7), (1e5, 1e-5)], ids=["proximal", "free"]
)
def test_a_certain_head_takes_proximal_steps(distance, tolerance):
    """sigma -> 0 with one draw: steps down sum CE + tau / 2 |m - w|^2; with tau -> 0 too, as FedRep
    trains a head."""
    z, y = blobs()
    w = head(np.random.default_rng(3).normal(size=(3, 4)), np.zeros(3))
    state = around(w, distance, raw=-30.0)
    algorithm = PFedVEM(draws=1, head_steps=4, head_lr=0.01, training=STILL)
    given = update_of(algorithm, z, y, w, state).state.posterior.mean
    tau = 1 / distance**2 if distance == 1.0 else 0.0
    m = {name: leaf.numpy().copy() for name, leaf in state.posterior.mean.items()}
    speed = {name: np.zeros_like(part) for name, part in m.items()}
    for _ in range(4):
        error = np.exp(log_softmax(z @ m["head.weight"].T + m["head.bias"])) - np.eye(3)[y]
        slope = {"head.weight": error.T @ z, "head.bias": error.sum(0)}
        for name in HEAD:
            speed[name] = 0.9 * speed[name] + slope[name] + tau * (m[name] - w[name].numpy())
            m[name] = m[name] - 0.01 * speed[name]
    for name in HEAD:
        assert np.abs(given[name].numpy() - m[name]).max() < tolerance


def test_phases_leave_each_other_alone():
    """The head does not depend on how the body trains; momentum and decay of one phase do not move
    the other."""
    z, y = blobs()
    w = head(np.random.default_rng(3).normal(size=(3, 4)), np.zeros(3))
    state = around(w, 0.1, raw=0.0)
    training = Training(lr=0.1, momentum=0.9, weight_decay=0.1, epochs=3, batch_size=5)
    still, moving, headless = (
        update_of(PFedVEM(training=section, head_steps=steps), z, y, w, state)
        for section, steps in ((STILL, 10), (training, 10), (training, 0))
    )
    pairs = zip(
        tree.leaves(still.state.posterior), tree.leaves(moving.state.posterior), strict=True
    )
    assert all(torch.equal(one, two) for one, two in pairs)
    body = identity(4)
    assert all(torch.equal(still.upload["body"].value[name], body[name]) for name in BODY)
    assert not torch.equal(moving.upload["body"].value["hidden.weight"], body["hidden.weight"])
    pairs = zip(tree.leaves(headless.state.posterior), tree.leaves(state.posterior), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert int(still.metrics["steps"]) == 10 and int(moving.metrics["steps"]) == 10 + 3 * 3


def test_variances_that_vanish_are_kept_above_a_floor():
    z, y = blobs()
    w = head(np.random.default_rng(3).normal(size=(3, 4)), np.zeros(3))
    update = update_of(
        PFedVEM(training=STILL, head_steps=1, head_lr=1e-30), z, y, w, around(w, 0.0, raw=-900.0)
    )
    assert float(update.metrics["rho"]) == pytest.approx(1e-6) and torch.isfinite(
        update.metrics["head_loss"]
    )
    assert float(update.metrics["head_restored"]) == 0
    assert all(
        torch.equal(leaf, torch.zeros_like(leaf)) for leaf in update.personal.deviation.values()
    )


def test_a_head_that_diverges_is_restored_and_trains_the_body_all_the_same():
    z, y = blobs()
    w = head(np.random.default_rng(3).normal(size=(3, 4)), np.zeros(3))
    state = around(w, 0.1, raw=0.0)
    algorithm = PFedVEM(training=replace(TRAINING, lr=0.01), head_lr=1e300)
    update = update_of(algorithm, z, y, w, state)
    pairs = zip(tree.leaves(update.state.posterior), tree.leaves(state.posterior), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert (float(update.metrics["head_restored"]), float(update.metrics["body_restored"])) == (
        1,
        0,
    )
    expected = update_of(replace(algorithm, head_steps=0), z, y, w, state)
    assert all(
        torch.equal(update.upload["body"].value[name], expected.upload["body"].value[name])
        for name in BODY
    )


def test_a_body_that_diverges_is_that_of_the_server():
    z, y = blobs()
    w = head(np.random.default_rng(3).normal(size=(3, 4)), np.zeros(3))
    update = update_of(
        PFedVEM(training=replace(TRAINING, lr=1e300)), z, y, w, around(w, 0.1, raw=0.0)
    )
    assert (float(update.metrics["head_restored"]), float(update.metrics["body_restored"])) == (
        0,
        1,
    )
    assert all(
        torch.equal(update.upload["body"].value[name], leaf) for name, leaf in identity(4).items()
    )


def test_sampled_predictions_average_probabilities(recorder):
    federation = harness.make_federation()
    algorithm = PFedVEM(training=TRAINING, prediction_draws=7)
    recorder.run(algorithm, federation)
    for client in federation.known:
        personal, _, scores = recorder.visit(2, "personalize", client).output
        x, y = harness.examples(federation, client, "test")
        z = np.maximum(
            x @ personal.body["hidden.weight"].numpy().T + personal.body["hidden.bias"].numpy(), 0
        )
        assert personal.noise.shape == (7, 15)
        total = 0
        for noise in personal.noise:
            weight = personal.head["head.weight"] + personal.deviation["head.weight"] * noise[
                :12
            ].reshape(3, 4)
            bias = personal.head["head.bias"] + personal.deviation["head.bias"] * noise[12:]
            total = total + np.exp(log_softmax(z @ weight.numpy().T + bias.numpy()))
        given = algorithm.predict(federation.common_task, personal, torch.from_numpy(x))
        harness.assert_close(given, np.log(total / 7))
        assert float(scores["clients"].loss_sum) == pytest.approx(
            -np.log(total[np.arange(6), y] / 7).sum()
        )
    first, second = (recorder.visit(2, "personalize", client).output[0].noise for client in (0, 1))
    assert not torch.equal(first, second)


def test_the_global_model_is_certain_however_predictions_are_made():
    z, _ = blobs()
    task, data = client_with(z, np.zeros(len(z), dtype=int), 3)
    server = ServerState(
        identity(4), head(np.random.default_rng(3).normal(size=(3, 4)), np.ones(3))
    )
    logits, log_probs = (
        algorithm.predict(task, algorithm.global_model(task, server), data.train.x)
        for algorithm in (PFedVEM(), PFedVEM(prediction_draws=3))
    )
    harness.assert_close(log_probs, log_softmax(logits.numpy()))


@pytest.mark.parametrize("trains_body", [False, True])
def test_a_new_client_takes_rounds_of_its_own(recorder, trains_body):
    """As a known client whose server stays still; with the body only if asked to."""
    federation = harness.make_federation((*harness.LABELS, [0, 2, 2, 1, 0, 2, 0]), num_new=1)
    algorithm = PFedVEM(training=TRAINING, onboard_rounds=2, onboard_body=trains_body)
    recorder.run(algorithm, federation)
    visit = recorder.visit(2, "personalize", 2)
    assert len(visit.plans) == (4 if trains_body else 2) and (1, "train", 2) not in recorder.visits
    shared = visit.shared
    same = all(torch.equal(visit.output[0].body[name], shared.body[name]) for name in BODY)
    assert same != trains_body
    task, data = federation.common_task, federation.data(2)
    key = new_key(1, client=2)
    taken = sum(map(len, visit.plans))
    given, steps = algorithm.onboard(algorithm.bind(task), Download(shared), data.info, data, key)
    assert int(steps) == int(visit.output[1]["steps"]) == taken
    section = TRAINING if trains_body else STILL
    known = replace(algorithm, training=section)
    state, moved = known.init_client(task, data.info, key), shared
    for number in range(2):
        state = known.local_update(
            known.bind(task), Download(moved), state, data, key.fold(number)
        ).state
        moved = moved._replace(body=state.body)
    for path, leaf in tree.paths(given).items():
        harness.assert_close(leaf, tree.paths(state)[path].numpy())


def test_without_rounds_a_new_client_gets_the_global_model(recorder):
    federation = harness.make_federation((*harness.LABELS, [0, 2]), num_new=1)
    recorder.run(PFedVEM(training=TRAINING, onboard_rounds=0), federation)
    visit = recorder.visit(2, "personalize", 2)
    assert visit.plans == []
    for one, two in (
        (visit.output[0].body, visit.shared.body),
        (visit.output[0].head, visit.shared.head),
    ):
        assert all(torch.equal(one[name], leaf) for name, leaf in two.items())


def test_a_body_that_nobody_would_use_is_refused():
    with pytest.raises(ConfigError, match=r"onboard_body trains a body that .*evaluated_body"):
        PFedVEM(onboard_body=True, evaluated_body="global")
