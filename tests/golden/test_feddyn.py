"""FedDyn against Acar et al. 2021, Algorithm 1, with SGD in place of the exact local minimum."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import federations
from federations import Planned, make_federation, perceptron
from fedtailor.algorithms.feddyn import FedDyn
from fedtailor.core import tree
from fedtailor.core.algorithm import Download, ModelState
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import assert_same_bits, run
from golden import harness
from golden.network import ALL, confusion, cross_entropy, gradient, logits
from marks import quick

PLAIN = Training(lr=0.1, epochs=2, batch_size=5)
HEAVY = replace(PLAIN, momentum=0.5, weight_decay=0.05)
COHORTS = Planned(cohorts={2: [1], 3: [0]})


def regularized_sgd(start, x, y, batches, training, alpha, g):
    """SGD with momentum and coupled decay on CE - <g, w - start> + alpha / 2 |w - start|^2; w and
    the mean loss."""
    w, velocity, losses = dict(start), dict.fromkeys(ALL, 0.0), []
    for batch in batches:
        move = {name: w[name] - start[name] for name in ALL}
        extra = sum((alpha / 2 * move[name] ** 2 - g[name] * move[name]).sum() for name in ALL)
        losses.append(cross_entropy(logits(w, x[batch]), y[batch]) + extra)
        slope = gradient(w, x[batch], y[batch])
        for name in ALL:
            full = slope[name] - g[name] + alpha * move[name] + training.weight_decay * w[name]
            velocity[name] = training.momentum * velocity[name] + full
        w = {name: w[name] - training.lr * velocity[name] for name in ALL}
    return w, np.mean(losses)


def watch_servers(monkeypatch):
    """Return the list that every new server state goes into."""
    servers = []
    original = FedDyn.aggregate
    monkeypatch.setattr(
        FedDyn, "aggregate", lambda *a: servers.append(original(*a)[0]) or (servers[-1], ())
    )
    return servers


@pytest.mark.parametrize("training", [PLAIN, HEAVY], ids=["plain", "heavy"])
@pytest.mark.parametrize("alpha", quick([0.01, 0.5], 0.5))
def test_four_rounds(recorder, monkeypatch, training, alpha):
    """h moves by the sum over the cohort divided by the population; the mean over the cohort is a
    plain one."""
    servers = watch_servers(monkeypatch)
    federation = harness.make_federation()
    recorder.run(
        FedDyn(training=training, alpha=alpha), federation, rounds=4, participation=COHORTS
    )
    w = harness.initial(federation)
    h, own = harness.zeros(w), [harness.zeros(w), harness.zeros(w)]
    for report, server in zip(recorder.reports, servers, strict=True):
        trained = []
        for client in report.cohort:
            visit = recorder.visit(report.round, "train", client)
            assert visit.shared._fields == ("model",)
            harness.assert_close(visit.shared.model, w)
            (batches,) = visit.plans
            x, y = harness.examples(federation, client)
            new, loss = regularized_sgd(w, x, y, batches, training, alpha, own[client])
            trained.append(new)
            own[client] = {name: own[client][name] - alpha * (new[name] - w[name]) for name in ALL}
            state, upload, metrics, *_ = visit.output
            harness.assert_close(upload["model"].value, new)
            harness.assert_close(state.gradient, own[client])
            assert int(metrics["steps"]) == len(batches)
            assert float(metrics["loss"]) == pytest.approx(loss, abs=1e-12)
        h = {
            name: h[name] - alpha / 2 * sum(new[name] - w[name] for new in trained) for name in ALL
        }
        w = {name: np.mean([new[name] for new in trained], 0) - h[name] / alpha for name in ALL}
        harness.assert_close(server.gradient, h)
        harness.assert_close(server.model, w)
        x, y = harness.examples(federation, 0, "test")
        score = recorder.visit(report.round, "score", 0).output
        assert score.class_correct.tolist() == confusion(logits(w, x), y)[0].tolist()
        harness.assert_close(recorder.visit(report.round, "personalize", 0).output[0], w)
    assert [report.cohort for report in recorder.reports] == [[0, 1], [1], [0], [0, 1]]


def test_buffers_are_plain_averages_without_a_correction(monkeypatch):
    servers = watch_servers(monkeypatch)
    federation = make_federation(federations.module(), (9, 14), ())
    record = run(FedDyn(training=PLAIN), Reference(), federation, rounds=2)
    buffers = federation.common_task.names("buffer")
    assert buffers and not set(buffers) & set(servers[-1].gradient)
    for round, server in enumerate(servers, start=1):
        outputs = [record.of("train")[round, client] for client in (0, 1)]
        for name in buffers:
            one, two = (output[1]["model"].value[name] for output in outputs)
            assert torch.allclose(server.model[name], (one + two) / 2, rtol=0, atol=1e-12)
            assert not torch.allclose(one, two, atol=1e-3)
            assert name not in outputs[0][0]


def test_no_step_no_change():
    """A client without examples keeps its gradient, and sends what it received."""
    federation, one = make_federation(perceptron(), (5, 0), ()), FedDyn(training=PLAIN)
    task = federation.common_task
    model = one.init_server(task, new_key(0)).model
    state = tree.map(lambda leaf: leaf + 0.2, one.init_client(task, federation.info(1), new_key(0)))
    update = one.local_update(
        one.bind(task), Download(ModelState(model)), state, federation.data(1), new_key(0)
    )
    assert_same_bits(update.state, state)
    assert_same_bits(update.upload["model"].value, model)
