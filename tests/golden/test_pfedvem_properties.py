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
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from fedtailor.statistics.gaussian_heads import HeadPosterior
from golden import harness
from golden.network import BODY, log_softmax

STILL = Training(epochs=0)
TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)


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
    task, data = harness.client_with(z, y, len(w["head.bias"]))
    shared = ServerState(identity(z.shape[1]), w)
    return algorithm.local_update(algorithm.bind(task), Download(shared), state, data, new_key(0))


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
    for client in federation.roster.known:
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


def test_a_body_that_nobody_would_use_is_refused():
    with pytest.raises(ConfigError, match=r"onboard_body trains a body that .*evaluated_body"):
        PFedVEM(onboard_body=True, evaluated_body="global")
