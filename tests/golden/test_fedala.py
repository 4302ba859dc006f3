"""FedALA against Zhang et al. 2023, Algorithm 1: mixing weights by projected gradient steps, then
local training."""

import numpy as np
import pytest

from federations import Planned, make_federation, module
from fedtailor.algorithms.fedala import FedALA
from fedtailor.core.algorithm import Download
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from golden import harness
from golden.network import ALL, HEAD, average, confusion, gradient, logits, sgd
from marks import quick

SIZES = [len(labels) for labels in harness.LABELS]
PLAIN = Training(lr=0.2, epochs=2, batch_size=5)
HEAVY = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=4)


def mix(w, received, old):
    """theta = l + (g - l) * W where there are weights, theta = g elsewhere."""
    return {
        name: old[name] + (received[name] - old[name]) * w[name] if name in w else received[name]
        for name in ALL
    }


def learn(w, received, old, x, y, batches, lr):
    """W <- clip(W - eta * dL/dtheta * (g - l), 0, 1) for every batch."""
    for batch in batches:
        slope = gradient(mix(w, received, old), x[batch], y[batch])
        steps = {name: lr * slope[name] * (received[name] - old[name]) for name in w}
        w = {name: np.clip(w[name] - steps[name], 0, 1) for name in w}
    return w


def ones(received, names):
    return {name: np.ones_like(received[name]) for name in names}


def assert_sampled(batches, kept, size, epochs):
    """Assert that batches divide permutations of the sample."""
    per_epoch = -(-len(kept) // size)
    assert len(batches) == epochs * per_epoch
    for epoch in range(epochs):
        seen = np.concatenate(batches[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(seen) == sorted(kept)


@pytest.mark.parametrize("training", quick([PLAIN, HEAVY], HEAVY))
@pytest.mark.parametrize(
    ("layers", "names", "lr"), [(1, HEAD, 1.0), (2, ALL, 8.0), (5, ALL, 200.0)]
)
def test_four_rounds(recorder, training, layers, names, lr):
    """Momentum and decay of the training section do not touch the weights."""
    federation = harness.make_federation()
    recorder.run(
        FedALA(training=training, layers=layers, weight_lr=lr, first_epochs=3), federation, rounds=4
    )
    g = harness.initial(federation)
    old, weights = [g, g], [ones(g, names), ones(g, names)]
    for round, epochs in ((1, 0), (2, 3), (3, 1), (4, 1)):
        models = []
        for client in (0, 1):
            visit = recorder.visit(round, "train", client)
            harness.assert_close(visit.shared.model, g)
            x, y = harness.examples(federation, client)
            first, second = visit.plans
            assert len(visit.kept) == int(0.8 * len(y))
            assert_sampled(first, visit.kept, training.batch_size, epochs)
            weights[client] = learn(weights[client], g, old[client], x, y, first, lr)
            models.append(sgd(mix(weights[client], g, old[client]), x, y, second, training)[0])
            state, upload, metrics, *_ = visit.output
            harness.assert_close(upload["model"].value, models[-1])
            harness.assert_close(state.model, models[-1])
            harness.assert_close(state.weights, weights[client])
            assert int(state.rounds) == round and int(metrics["steps"]) == len(first) + len(second)
        old, g = models, average(models, SIZES)
        for client in (0, 1):
            visit = recorder.visit(round, "personalize", client)
            personal, _, by_set = visit.output
            expected = mix(weights[client], g, old[client])
            harness.assert_close(personal, expected)
            x, y = harness.examples(federation, client, "test")
            assert (
                abs(float(by_set["clients"].loss_sum) - confusion(logits(expected, x), y)[1])
                < 1e-11
            )
    assert min(weight.min() for w in weights for weight in w.values()) < 0.999
    if lr > 100:
        assert any((weight == 0).any() for w in weights for weight in w.values())


def test_who_never_trained_has_the_global_model(recorder):
    """And the first epochs come in the second round that a client trains, whichever that is of the
    run."""
    federation = harness.make_federation()
    cohorts = Planned(cohorts={1: [0], 2: [0], 3: [0, 1], 4: [1]})
    recorder.run(
        FedALA(training=PLAIN, first_epochs=4), federation, rounds=4, participation=cohorts
    )
    g = harness.arrays(recorder.visit(2, "score", 1).shared)
    harness.assert_close(recorder.visit(2, "personalize", 1).output[0], g)
    epochs = {
        (round, client): len(recorder.visit(round, "train", client).plans[0])
        / -(-int(0.8 * SIZES[client]) // 5)
        for round, client in [(1, 0), (2, 0), (3, 0), (3, 1), (4, 1)]
    }
    assert epochs == {(1, 0): 0, (2, 0): 4, (3, 0): 1, (3, 1): 0, (4, 1): 4}


def test_a_new_client_trains_then_learns_its_weights(recorder):
    """Pitfall: libraries fine-tune the received model and then predict with another one."""
    federation = harness.make_federation((*harness.LABELS, [0, 2, 2, 1, 0, 2]), num_new=1)
    recorder.run(FedALA(training=HEAVY, weight_lr=3.0), federation)
    assert (2, "train", 2) not in recorder.visits
    visit = recorder.visit(2, "personalize", 2)
    x, y = harness.examples(federation, 2)
    g = harness.arrays(visit.shared.model)
    none, training, weights = visit.plans
    assert none == []
    assert_sampled(weights, visit.kept, 4, 10)
    old = sgd(g, x, y, training, HEAVY)[0]
    w = learn(ones(g, HEAD), g, old, x, y, weights, 3.0)
    harness.assert_close(visit.output[0], mix(w, g, old))
    assert np.abs(w["head.weight"] - 1).max() > 1e-3


def test_a_round_without_steps_does_not_count():
    """A client that has not trained has no old model, though it took part."""
    federation = harness.make_federation(labels=([0, 1, 2], []))
    one = FedALA(training=PLAIN)
    task = one.bind(federation.common_task)
    download = Download(one.init_server(task, new_key(5)))
    for client, rounds in ((0, 1), (1, 0)):
        state = one.init_client(task, federation.info(client), new_key(5))
        assert (
            int(
                one.local_update(
                    task, download, state, federation.data(client), new_key(0)
                ).state.rounds
            )
            == rounds
        )


def test_layers_are_counted_from_the_end_without_buffers():
    """The module is linear 0, batch norm 1, linears 4 and 6: buffers are averaged, never mixed."""
    task = module()
    for layers, prefixes in [(1, "6"), (2, "46"), (3, "146"), (4, "0146"), (9, "0146")]:
        federation = make_federation(task)
        weights = FedALA(layers=layers).init_client(task, federation.info(0), new_key(0)).weights
        assert set(weights) == {
            f"{prefix}.{kind}" for prefix in prefixes for kind in ("weight", "bias")
        }
