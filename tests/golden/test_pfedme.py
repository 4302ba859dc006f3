"""pFedMe against Dinh et al. 2020, Algorithm 1: inner steps on theta for every batch, then an outer
step of w."""

from dataclasses import replace

import pytest
import torch

from federations import make_federation, module
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.pfedme import PFedMe, ServerState
from fedtailor.core.adaptation import describe
from fedtailor.core.algorithm import Download
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import Cohort
from fedtailor.core.message import Reduced
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from golden import harness
from golden.network import average, confusion, gradient, logits

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


@pytest.mark.parametrize("mixing", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("training", [PLAIN, HEAVY, STEPS], ids=["plain", "heavy", "steps"])
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
            _, upload, metrics, scores = visit.output
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


def test_personal_models_are_neither_the_global_nor_the_local_nor_the_initial_one(recorder):
    """Where theta refers to the live model, w_i or the next broadcast overwrite it; elsewhere it is
    never written."""
    federation = harness.make_federation()
    recorder.run(PFedMe(training=PLAIN), federation, rounds=3)
    w = harness.arrays(recorder.visit(3, "score", 0).shared.model)
    thetas = []
    for client in (0, 1):
        sent = harness.arrays(recorder.visit(3, "train", client).output[1]["model"].value)
        thetas.append(harness.arrays(recorder.visit(3, "personalize", client).output[0].model))
        assert (
            min(apart(thetas[-1], other) for other in (w, sent, harness.initial(federation))) > 1e-3
        )
    assert apart(*thetas) > 1e-3


def test_the_server_moves_by_default(recorder):
    """A library's default of beta, 0, freezes it at the initial model; here 0 is legal, and warned
    of."""
    federation = harness.make_federation()
    recorder.run(PFedMe(training=PLAIN), federation, rounds=2)
    assert (
        apart(
            harness.arrays(recorder.visit(2, "score", 0).shared.model), harness.initial(federation)
        )
        > 1e-3
    )
    recorder.run(PFedMe(training=PLAIN, mixing=0.0), federation, rounds=2)
    assert (
        apart(
            harness.arrays(recorder.visit(2, "score", 0).shared.model), harness.initial(federation)
        )
        == 0
    )


def test_a_large_penalty_and_an_exact_solve_make_an_outer_step_one_of_fedavg(monkeypatch):
    """Then lambda (w - theta) is the gradient at w: one inner step of length 1 / lambda finds
    theta."""
    federation = harness.make_federation(labels=([0, 1, 2, 1, 0], [2, 1, 1, 0, 2]))
    training = Training(lr=0.2, epochs=2, batch_size=2)
    limit = PFedMe(training=training, penalty=1e6, inner_lr=1e-6, inner_steps=2, outer_lr=0.2)
    one, two = (
        harness.Recorder(monkeypatch).run(algorithm, federation, rounds=3)
        for algorithm in (limit, FedAvg(training=training))
    )
    found = harness.arrays(one.visit(3, "score", 0).shared.model)
    expected = harness.arrays(two.visit(3, "score", 0).shared)
    assert apart(found, expected) < 1e-4 < apart(expected, harness.initial(federation))


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


def test_a_new_client_solves_as_the_others_do(recorder):
    federation = harness.make_federation((*harness.LABELS, [0, 2, 2, 1, 0, 2]), num_new=1)
    recorder.run(PFedMe(training=HEAVY, **OPTIONS), federation)
    visit = recorder.visit(2, "personalize", 2)
    w = harness.arrays(recorder.visit(2, "score", 0).shared.model)
    _, theta = outer(w, *harness.examples(federation, 2), visit.plans[0], OPTIONS, 0.0)
    harness.assert_close(visit.output[0].model, theta)


def test_without_batches_of_the_solve_clients_predict_with_the_global_model(recorder):
    recorder.run(PFedMe(training=PLAIN, solve_batches=0), harness.make_federation())
    w = harness.arrays(recorder.visit(2, "score", 0).shared.model)
    harness.assert_close(recorder.visit(2, "personalize", 0).output[0].model, w, 0)


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


def test_warnings():
    task = harness.task()
    assert PFedMe().warnings(task) == [] and PFedMe().outer_lr * PFedMe().penalty < 1
    found = PFedMe(outer_lr=0.1, inner_lr=0.2, solve_batches=0, training=HEAVY).warnings(task)
    assert [text.split(":")[0].split(",")[0] for text in found] == [
        "outer_lr * penalty is 1.5",
        "inner_lr * penalty is 3",
        "without batches of the proximal solve",
        "this method does not use training.lr",
    ]
    assert "training.momentum, training.weight_decay, training.clip_norm." in found[-1]
    frozen = "with {} 0, the global model never changes."
    assert PFedMe(penalty=0, mixing=0).warnings(task) == [
        frozen.format("penalty"),
        frozen.format("mixing"),
    ]
    assert describe(PFedMe().adaptation) == "proximal solve, 20 batches of 5 steps of all layers"


@pytest.mark.parametrize(
    "options",
    [
        {"penalty": -1.0},
        {"inner_steps": 0},
        {"inner_lr": 0.0},
        {"outer_lr": -1.0},
        {"solve_batches": -1},
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(ConfigError, match=f"PFedMe.{next(iter(options))} must be"):
        PFedMe(**options)
