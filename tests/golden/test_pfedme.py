"""pFedMe against Dinh et al. 2020, Algorithm 1: inner steps on theta for every batch, then an outer
step of w."""

from dataclasses import replace

import pytest
import torch

from federations import make_federation, module
from fedtailor.algorithms.pfedme import PFedMe, ServerState
from fedtailor.core.algorithm import Download
from fedtailor.core.federation import Cohort
from fedtailor.core.message import Reduced
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from golden import harness
from golden.network import average, confusion, gradient, logits
from marks import quick

PLAIN = Training(epochs=2, batch_size=5)
HEAVY = Training(lr=0.3, momentum=0.9, weight_decay=0.05, clip_norm=0.01, epochs=2, batch_size=5)
STEPS = Training(steps=7, batch_size=4)
OPTIONS = {"penalty": 2.0, "inner_steps": 3, "inner_lr": 0.1, "outer_lr": 0.2, "solve_batches": 4}


def outer(w, x, y, batches, options, outer_lr):
    """Return w and theta after a round of a client; with an outer rate of 0 w stays."""
    w, theta = dict(w), dict(w)
    for batch in batches:
        for _ in range(options["inner_steps"]):
            slope = gradient(theta, x[batch], y[batch])
            theta = {
                name: theta[name]
                - options["inner_lr"] * (slope[name] + options["penalty"] * (theta[name] - w[name]))
                for name in w
            }
        w = {name: w[name] - outer_lr * options["penalty"] * (w[name] - theta[name]) for name in w}
    return w, theta


def apart(first, second):
    """Return the largest difference of two models."""
    return max(abs(first[name] - second[name]).max() for name in first)


@pytest.mark.parametrize(
    ("training", "mixing"),
    quick(
        [(PLAIN, 1.0), (PLAIN, 0.5), (PLAIN, 2.0), (HEAVY, 0.5), (STEPS, 0.5)],
        (PLAIN, 2.0),
        (HEAVY, 0.5),
    ),
    ids=["plain", "half", "twice", "heavy", "steps"],
)
def test_three_rounds(recorder, training, mixing):
    """Theta has no decay of its own (0.001 is copied around), nor those of [training]; clients
    weigh the same."""
    federation = harness.make_federation()
    recorder.run(PFedMe(training=training, mixing=mixing, **OPTIONS), federation, rounds=3)
    w = harness.initial(federation)
    for round in (1, 2, 3):
        sent = []
        for client in (0, 1):
            visit = recorder.visit(round, "train", client)
            harness.assert_close(visit.shared.model, w)
            x, y = harness.examples(federation, client)
            (batches,) = visit.plans
            assert len(batches) == (training.steps or training.epochs * -(-len(y) // 5))
            new, theta = outer(w, x, y, batches, OPTIONS, OPTIONS["outer_lr"])
            sent.append(new)
            _, upload, metrics, scores, *_ = visit.output
            harness.assert_close(upload["model"].value, new)
            assert upload["model"].weight == 1 and int(metrics["steps"]) == 3 * len(batches)
            x, y = harness.examples(federation, client, "test")
            assert abs(float(scores.loss_sum) - confusion(logits(theta, x), y)[1]) < 1e-11
        mean = average(sent, [1, 1])
        w = {name: (1 - mixing) * w[name] + mixing * mean[name] for name in w}
        for client in (0, 1):
            visit = recorder.visit(round, "personalize", client)
            assert len(visit.plans[0]) == 4
            _, theta = outer(w, *harness.examples(federation, client), visit.plans[0], OPTIONS, 0.0)
            personal, diagnostics, by_set = visit.output
            harness.assert_close(personal.model, theta)
            assert int(diagnostics["steps"]) == 12
            x, y = harness.examples(federation, client, "test")
            assert (
                by_set["clients"].class_correct.tolist()
                == confusion(logits(theta, x), y)[0].tolist()
            )
            harness.assert_close(recorder.visit(round, "score", client).shared.model, w)


def test_theta_solves_the_proximal_problem():
    """With enough steps on all examples, grad CE(theta) + lambda (theta - w) vanishes."""
    federation = harness.make_federation()
    w = federation.common_task.model.init(new_key(5).common("model"))
    whole = replace(PLAIN, batch_size=0)
    method = PFedMe(training=whole, penalty=5.0, inner_steps=10, inner_lr=0.1, solve_batches=30)
    download = Download(method.init_server(federation.common_task, new_key(5)))
    theta = method.personalize(
        method.bind(federation.common_task), download, (), federation.data(0), new_key(5)
    ).model
    theta, w = harness.arrays(theta), harness.arrays(w)
    slope = gradient(theta, *harness.examples(federation, 0))
    assert max(abs(slope[name] + 5.0 * (theta[name] - w[name])).max() for name in w) < 1e-10
    assert apart(theta, w) > 1e-3


def test_buffers_follow_theta_and_are_not_mixed(recorder):
    """A mixture with a share above 1 could make a variance negative."""
    federation = make_federation(module(), (9, 14), ())
    recorder.run(PFedMe(training=PLAIN, mixing=30.0, outer_lr=1e-4), federation)
    uploads = [recorder.visit(2, "train", client).output[1]["buffers"].value for client in (0, 1)]
    after = recorder.visit(2, "score", 0).shared.model
    for name, value in uploads[0].items():
        assert torch.allclose(after[name], (value + uploads[1][name]) / 2, rtol=0, atol=1e-12)
        assert not torch.equal(value, uploads[1][name]) or value.dim() == 0
    one = PFedMe(mixing=2.0)
    old = ServerState({"a": torch.tensor(1.0)}, {"b": torch.tensor(1.0)})
    received = {
        name: Reduced({key: torch.tensor(0.25) for key in part}, torch.ones(()))
        for name, part in old._asdict().items()
    }
    new, _ = one.aggregate(old, received, Cohort(torch.arange(2), 2, 1, 1))
    assert float(new.model["a"]) == -0.5 and float(new.buffers["b"]) == 0.25
