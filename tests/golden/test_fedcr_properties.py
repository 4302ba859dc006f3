"""What must hold for FedCR whatever the numbers, and on clients that hardly have data or damaged
data."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from federations import TASKS, make_federation
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fedcr import FedCR
from fedtailor.algorithms.local import Local
from fedtailor.core.errors import ConfigError
from fedtailor.core.task import Training
from fedtailor.models.networks import mlp
from fedtailor.simulation.engines.reference import Reference
from fedtailor.statistics.bottleneck import GaussianModel
from fedtailor.testing.runs import run
from golden import harness

V, CLASSES = 2, harness.CLASSES
TRAINING = Training(lr=0.1, momentum=0.5, epochs=2, batch_size=5, clip_norm=10.0)
ONE = FedCR(training=TRAINING, latent_dim=V, samples=4, head_epochs=3)
USUAL = harness.LABELS[0]


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


def mixed(one, other):
    """Return a federation whose clients have one model and another in turn."""
    federation = make_federation(one)
    return replace(
        federation,
        client_tasks=[(one, other)[client % 2] for client in range(len(federation.splits))],
    )


def test_methods_that_send_the_model_refuse_several(float64):
    small = TASKS["mlp"]()
    federation = mixed(small, small._replace(model=mlp((4,), small.num_classes, hidden=9)))
    for algorithm in (ONE, FedAvg(training=TRAINING)):
        with pytest.raises(ConfigError, match="another model for client 1"):
            run(algorithm, Reference(), federation)
    run(Local(training=TRAINING), Reference(), federation)
