"""What must hold for FedCR whatever the numbers, and on clients that hardly have data or damaged
data."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from federations import TASKS, make_federation
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fedcr import FedCR, ServerState, alignment_loss
from fedtailor.algorithms.local import Local
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import Cohort
from fedtailor.core.message import Mean, Sum, reduce_field
from fedtailor.core.rng import new_key
from fedtailor.core.task import Batch, Training
from fedtailor.models.networks import mlp
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.statistics.bottleneck import GaussianModel, Gaussians
from fedtailor.testing.runs import assert_close_runs, assert_same_bits, run
from golden import harness

V, CLASSES = 2, harness.CLASSES
TRAINING = Training(lr=0.1, momentum=0.5, epochs=2, batch_size=5, clip_norm=10.0)
ONE = FedCR(training=TRAINING, latent_dim=V, samples=4, head_epochs=3)
USUAL = harness.LABELS[0]


def stochastic(task=None):
    task = task or harness.task()
    return task._replace(model=GaussianModel(task.model, V, task.num_classes))


def test_without_noise_and_alignment_gradients_are_those_of_a_bottleneck():
    """FedPer with a linear layer of V units in front of the head; what is left of the noise has
    deviation 1e-6."""
    task = stochastic()
    params = task.model.init(new_key(0))
    params["gaussian.weight"][V:], params["gaussian.bias"][V:] = 0.0, -1000.0
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(7, harness.INPUTS, generator=draw), torch.arange(7) % CLASSES
    batch = Batch(x, y, torch.ones(7))
    classes = Gaussians(torch.ones(CLASSES, V), torch.full((CLASSES, V), 0.1))
    params = {name: value.requires_grad_() for name, value in params.items()}
    output = alignment_loss(
        task, params, classes, batch, new_key(0), samples=3, kind="expected_log", beta=0.0
    )
    found = torch.autograd.grad(output.loss, list(params.values()))
    hidden = (x @ params["hidden.weight"].T + params["hidden.bias"]).relu()
    z = hidden @ params["gaussian.weight"][:V].T + params["gaussian.bias"][:V]
    loss = torch.nn.functional.cross_entropy(z @ params["head.weight"].T + params["head.bias"], y)
    expected = torch.autograd.grad(loss, list(params.values()))
    for name, one, two in zip(params, found, expected):
        assert (one - two).abs().max() < 1e-5, name
    assert (output.loss - loss).abs() < 1e-5


def received(parts):
    """Return what the server makes of (precision, mean, classes) of some clients, without
    bodies."""
    uploads = []
    for precision, mean, held in parts:
        rows = torch.zeros(CLASSES)
        rows[list(held)] = 1.0
        precisions = torch.full((CLASSES, V), float(precision)) * rows[:, None]
        uploads.append(
            {"precisions": Sum(precisions, rows), "weighted_means": Sum(precisions * mean, rows)}
        )
    return {
        name: reduce_field(dict(enumerate([upload[name] for upload in uploads])))
        for name in uploads[0]
    }


def test_a_class_that_nobody_has_stays_and_others_become_sharper_with_every_expert():
    one = replace(ONE, aggregate_body=False)
    old = ServerState((), torch.full((CLASSES, V), 7.0), torch.full((CLASSES, V), 0.3))
    last = torch.ones(V)
    for count in (1, 2, 5):
        new, _ = one.aggregate(
            old, received([(4.0, 3.0, (0, 1))] * count), Cohort(torch.arange(count), 9, 1, 1)
        )
        assert_same_bits((new.means[2], new.stds[2]), (old.means[2], old.stds[2]))
        harness.assert_close(new.stds[:2] ** -2, np.full((2, V), 1 + 4.0 * count))
        harness.assert_close(new.means[:2], np.full((2, V), 12.0 * count / (1 + 4.0 * count)))
        assert (new.stds[0] < last).all()
        last = new.stds[0]


def test_an_old_product_is_forgotten_and_vague_experts_leave_the_prior():
    one = replace(ONE, aggregate_body=False)
    parts = received([(1e-9, 100.0, (0, 1, 2))])
    old = ServerState((), torch.full((CLASSES, V), 7.0), torch.full((CLASSES, V), 0.3))
    new, _ = one.aggregate(old, parts, Cohort(torch.arange(1), 9, 1, 1))
    assert (new.stds <= 1).all() and (new.stds > 1 - 1e-8).all() and (new.means.abs() < 1e-6).all()


def test_a_class_unseen_by_everyone_keeps_the_standard_normal(recorder):
    federation = harness.make_federation(([0, 1, 0, 0, 1, 1, 0], [1, 1, 0, 1, 0, 1]))
    recorder.run(ONE, federation)
    shared = recorder.visit(2, "personalize", 0).shared
    assert shared.means[2].tolist() == [0, 0] and shared.stds[2].tolist() == [1, 1]
    assert (shared.stds[:2] < 0.7).all()


def test_bodies_are_averaged_without_weights(recorder):
    federation = harness.make_federation()
    recorder.run(ONE, federation, rounds=1)
    sent = [recorder.visit(1, "train", client).output[1]["body"] for client in (0, 1)]
    for name, value in recorder.visit(1, "personalize", 0).shared.body.items():
        mean = (sent[0].value[name] + sent[1].value[name]) / 2
        harness.assert_close(value, mean.numpy())
    assert all(isinstance(entry, Mean) and float(entry.weight) == 1 for entry in sent)


@pytest.mark.parametrize("augmented", [False, True])
def test_tuning_changes_no_bit_of_the_body(augmented):
    """Momentum and decay would move it even without a gradient."""
    training = replace(TRAINING, weight_decay=0.1, crop_padding=2 * augmented, flip=augmented)
    one, federation = replace(ONE, training=training), make_federation(TASKS["cnn"](), (6, 9), ())
    record = run(one, Reference(), federation, rounds=1)
    for client, personal in record.reports[-1].personal.items():
        sent = [record.of("train")[1, other][1]["body"].value for other in (0, 1)]
        state = record.of("train")[1, client][0]
        for name, value in personal.model.items():
            if name in sent[0]:
                both = (sent[0][name].double() + sent[1][name].double()) / 2
                assert torch.equal(value, both.to(value.dtype)), name
            else:
                assert not torch.equal(value, state.head[name]), name


def test_cached_features_change_nothing():
    """Inputs that are no images cannot be mirrored, so the flag only makes the tuning compute
    features anew."""
    federation = make_federation(TASKS["mlp"](), (6, 9), ())
    runs = [
        run(replace(ONE, training=replace(TRAINING, flip=flip)), Reference(), federation, rounds=1)
        for flip in (False, True)
    ]
    assert_close_runs(*runs)


def test_tuning_sees_augmented_images():
    federation = make_federation(TASKS["cnn"](), (6, 9), ())
    runs = [
        run(
            replace(ONE, training=replace(TRAINING, epochs=0, crop_padding=padding)),
            Reference(),
            federation,
            rounds=1,
        )
        for padding in (0, 3)
    ]
    plain, moved = (record.reports[-1].personal[1].model["head.weight"] for record in runs)
    assert not torch.allclose(plain, moved, rtol=0, atol=1e-6)


@pytest.mark.parametrize("prediction", ["mean_logits", "mean_probabilities"])
def test_a_prediction_depends_on_its_example_alone(recorder, prediction):
    federation = harness.make_federation()
    one = replace(ONE, prediction=prediction)
    recorder.run(one, federation, rounds=1)
    personal = recorder.visit(1, "personalize", 0).output[0]
    x = federation.x[:9]
    together = one.predict(federation.common_task, personal, x)
    alone = torch.cat([one.predict(federation.common_task, personal, row[None]) for row in x])
    harness.assert_close(alone, together.numpy())
    if prediction == "mean_probabilities":
        harness.assert_close(together.exp().sum(1), np.ones(9))
    other = recorder.visit(1, "personalize", 1).output[0]
    assert not torch.equal(personal.noise, other.noise)


@pytest.mark.parametrize(
    "labels", [[2], [1, 1, 1], [0, 2]], ids=["one example", "one class", "two examples"]
)
def test_small_clients(recorder, labels):
    federation = harness.make_federation((USUAL, labels))
    recorder.run(ONE, federation)
    assert recorder.reports[0].events == recorder.reports[1].events == []
    upload = recorder.visit(1, "train", 1).output[1]
    assert set(np.flatnonzero(upload["precisions"].rows)) == set(labels)
    if labels == [
        2
    ]:  # a product of one: the Gaussian of the last step, whose deviations start near softplus(0)
        std = upload["precisions"].value[2].rsqrt()
        assert (std > 0.3).all() and (std < 1.5).all()


def test_deviations_that_vanish_leave_everything_finite(recorder, monkeypatch):
    """Softplus underflows to 0 in float64 too; clipping carries the gradients of the divergence."""
    original = GaussianModel.init

    def init(self, key):
        params = original(self, key)
        params["gaussian.bias"] = torch.cat([torch.zeros(V), torch.full((V,), -1000.0)])
        return params

    monkeypatch.setattr(GaussianModel, "init", init)
    federation = harness.make_federation()
    recorder.run(ONE, federation)
    assert recorder.reports[0].events == recorder.reports[1].events == []
    count = len([label for label in USUAL if label == 0])
    precisions = recorder.visit(1, "train", 0).output[1]["precisions"].value
    harness.assert_close(precisions[0], np.full(V, count * 1e12))
    assert (recorder.visit(2, "train", 0).shared.stds[0] > 0).all()


def test_a_client_with_damaged_data_changes_nothing_for_the_others(monkeypatch):
    def damage(x, splits):
        x[splits[2].train[1], 0] = np.nan

    federation = harness.make_federation((*harness.LABELS, USUAL), change=damage)
    damaged = harness.Recorder(monkeypatch).run(ONE, federation)
    alone = harness.Recorder(monkeypatch).run(
        ONE, replace(federation, splits=federation.splits[:2])
    )
    for report in damaged.reports:
        assert [event["client"] for event in report.events if event["kind"] == "quarantine"] == [2]
    for client in (0, 1):
        first, second = (
            recording.visit(2, "personalize", client) for recording in (damaged, alone)
        )
        assert_same_bits(first.shared, second.shared)
        assert_same_bits(first.output, second.output)


@pytest.mark.parametrize("aggregate_body", [True, False])
def test_a_new_client_starts_with_a_fresh_head(recorder, aggregate_body):
    federation = harness.make_federation((*harness.LABELS, [0, 2, 2, 1, 0, 2]), num_new=1)
    one = replace(ONE, aggregate_body=aggregate_body, head_epochs=0)
    recorder.run(one, federation)
    assert (1, "train", 2) not in recorder.visits
    personal = recorder.visit(2, "personalize", 2).output[0]
    initial = stochastic().model.init(new_key(5).common("model"))
    fresh = {name for name, value in initial.items() if torch.equal(personal.model[name], value)}
    assert fresh == ({"head.weight", "head.bias"} if aggregate_body else set())


def test_private_bodies_stay_private(recorder):
    federation = harness.make_federation()
    recorder.run(replace(ONE, aggregate_body=False), federation)
    for client in (0, 1):
        start, end = (recorder.visit(round, "train", client).output[0] for round in (1, 2))
        personal = recorder.visit(2, "personalize", client).output[0]
        assert_same_bits({name: personal.model[name] for name in end.body}, end.body)
        assert not torch.equal(start.body["hidden.weight"], end.body["hidden.weight"])
    bodies = [recorder.visit(2, "train", client).output[0].body for client in (0, 1)]
    assert not torch.equal(bodies[0]["hidden.weight"], bodies[1]["hidden.weight"])


OPTIONS = {
    "reference": {},
    "paper": dict(FedCR.presets["paper"]),
    "private bodies": {"aggregate_body": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", ["mlp", "module"])
def test_engines_agree(kind, options):
    """Uneven clients, one of them without examples, and new ones."""
    one, federation = replace(ONE, **options), make_federation(TASKS[kind]())
    expected = run(one, Reference(), federation)
    for block in (32, 2):
        assert_close_runs(expected, run(one, Batched(block), federation))
    assert all(event["kind"] == "skipped" for report in expected.reports for event in report.events)


def test_engines_agree_with_augmentation():
    training = replace(TRAINING, crop_padding=2, flip=True)
    one, federation = (
        replace(ONE, training=training),
        make_federation(TASKS["cnn"](), (1, 4, 9), (3,)),
    )
    assert_close_runs(run(one, Reference(), federation), run(one, Batched(32), federation))


def mixed(one, other):
    """Return a federation whose clients have one model and another in turn."""
    federation = make_federation(one)
    return replace(
        federation,
        client_tasks=[(one, other)[client % 2] for client in range(len(federation.splits))],
    )


@pytest.mark.parametrize("engine", [Batched(), Batched(2)])
def test_private_bodies_may_differ_in_architecture(float64, engine):
    """Clients then share the Gaussians of the classes alone, which have V dimensions whatever the
    body."""
    small = TASKS["mlp"]()
    wide = small._replace(model=mlp((4,), small.num_classes, hidden=9))
    algorithm = replace(ONE, aggregate_body=False)
    runs = [run(algorithm, how, mixed(small, wide)) for how in (Reference(), engine)]
    assert_close_runs(*runs, tolerance=1e-11)
    personal = runs[0].reports[-1].personal
    shapes = {
        client: tuple(model.model["hidden.weight"].shape) for client, model in personal.items()
    }
    assert shapes[0] == (5, 4) and shapes[1] == (9, 4)


def test_methods_that_send_the_model_refuse_several(float64):
    small = TASKS["mlp"]()
    federation = mixed(small, small._replace(model=mlp((4,), small.num_classes, hidden=9)))
    for algorithm in (ONE, FedAvg(training=TRAINING)):
        with pytest.raises(ConfigError, match="the model of client 1 differs from the common one"):
            run(algorithm, Reference(), federation)
    run(Local(training=TRAINING), Reference(), federation)
