"""FedCR against its specification (Zhang et al. 2023, and the released code), two clients, two
rounds.

The expected side, ``tests/golden/cr.py``, is given the order of examples and the normal numbers
that the library draws.
"""

import numpy as np
import pytest
import torch

from fedtailor.algorithms.fedcr import FedCR
from fedtailor.core.rng import Key, new_key, normal
from fedtailor.core.task import Training
from fedtailor.statistics.bottleneck import GaussianModel
from golden import cr, harness
from golden.network import confusion
from marks import quick

V = 2
TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5, clip_norm=0.2)
DROPPING = Training(lr=0.3, epochs=3, batch_size=4, drop_last=True)
VARIANTS = {
    "reference": (
        FedCR(latent_dim=V, samples=3, prediction_samples=4, head_epochs=2, beta=0.05),
        cr.Setting(0.05),
    ),
    "paper": (
        FedCR.from_preset(
            "paper", latent_dim=V, samples=3, prediction_samples=4, head_epochs=2, beta=0.05
        ),
        cr.Setting(0.05, mean_of_probabilities=True),
    ),
    "private bodies": (FedCR(latent_dim=V, aggregate_body=False, head_epochs=3), cr.Setting()),
}


def draws(round, client, purpose, step, shape, *, seed=5):
    """Return the normal numbers of a step of a client's program."""
    words = [torch.tensor(word) for word in (seed, round, client, step)]
    key = Key(*words, 0)
    for part in purpose:
        key = key.fold(part)
    return normal(key, shape).numpy()


def noises(round, client, purpose, batches, samples):
    """Return the noise of every batch of a phase."""
    purpose = (*purpose, "noise")
    return [
        draws(round, client, purpose, step, (len(batch), samples, V))
        for step, batch in enumerate(batches)
    ]


def given(algorithm, training):
    """Return an algorithm with a way to train."""
    options = {name: getattr(algorithm, name) for name in FedCR.option_names()}
    return FedCR(training=training, **options)


class Expected:
    """The state of server and clients, round after round, next to a recorded run."""

    def __init__(self, federation, algorithm, setting):
        task = federation.common_task
        initial = GaussianModel(task.model, V, task.num_classes).init(new_key(5).common("model"))
        self.federation, self.algorithm, self.setting = federation, algorithm, setting
        start = harness.arrays(initial)
        self.heads = {
            client: {name: start[name] for name in cr.HEAD} for client in federation.roster.known
        }
        body = {name: value for name, value in start.items() if name not in cr.HEAD}
        self.bodies = dict.fromkeys(federation.roster.known, body)
        self.classes = cr.Classes(np.zeros((task.num_classes, V)), np.ones((task.num_classes, V)))

    def assert_round(self, recorder, round):
        """Compare a round's training of all clients; move on to what the server makes of it."""
        bodies, products = [], []
        for client in self.federation.roster.known:
            body, own = self._assert_update(recorder.visit(round, "train", client), round, client)
            bodies.append(body)
            products.append(own)
        body, self.classes = cr.server_round(self.classes, bodies, products)
        shared = self.algorithm.aggregate_body
        self.bodies = {
            client: body if shared else bodies[client] for client in self.federation.roster.known
        }

    def _assert_update(self, visit, round, client):
        algorithm, training = self.algorithm, self.algorithm.training
        self._assert_download(visit.shared)
        x, y = harness.examples(self.federation, client)
        (batches,) = visit.plans
        harness.assert_epochs(
            batches, len(y), training.batch_size, training.epochs, drop_last=training.drop_last
        )
        start = {**self.bodies[client], **self.heads[client]}
        drawn = noises(round, client, ("train",), batches, algorithm.samples)
        last = len(batches) - len(batches) // training.epochs
        w, products, loss, gap, factor = cr.local_round(
            start, self.classes, x, y, batches, drawn, last, training, self.setting
        )
        assert factor < 1 or not training.clip_norm, "the federation no longer shows clipping"
        body = {name: value for name, value in w.items() if name not in cr.HEAD}
        self.heads[client] = {name: w[name] for name in cr.HEAD}
        state, upload, metrics, scores, *_ = visit.output
        harness.assert_close(state.head, self.heads[client])
        self._assert_upload(upload, body, products)
        harness.assert_close(metrics["loss"], np.array(loss))
        harness.assert_close(metrics["kl"], np.array(gap))
        harness.assert_close(metrics["class_std"], self.classes.stds.mean())
        noise = draws(round, client, ("train", "prediction"), 0, (algorithm.prediction_samples, V))
        self._assert_scores(scores, client, w, noise)
        return body, products

    def _assert_download(self, shared):
        if self.algorithm.aggregate_body:
            harness.assert_close(shared.body, self.bodies[0])
        else:
            assert shared.body == ()
        harness.assert_close(shared.means, self.classes.means)
        harness.assert_close(shared.stds, self.classes.stds)

    def _assert_upload(self, upload, body, products):
        fields = {"precisions", "weighted_means"} | (
            {"body"} if self.algorithm.aggregate_body else set()
        )
        assert set(upload) == fields
        if "body" in fields:
            harness.assert_close(upload["body"].value, body)
            assert float(upload["body"].weight) == 1
        for number, name in enumerate(("precisions", "weighted_means")):
            assert set(np.flatnonzero(upload[name].mask)) == set(products)
            for label, product in products.items():
                harness.assert_close(upload[name].value[label], product[number])

    def assert_personal(self, recorder, round):
        """Compare the personal model of every client, its logits and its scores."""
        for client in self.federation.roster.known:
            visit, algorithm = recorder.visit(round, "personalize", client), self.algorithm
            personal, diagnostics, scores = visit.output
            x, y = harness.examples(self.federation, client)
            (batches,) = visit.plans
            training = algorithm.training
            harness.assert_epochs(
                batches,
                len(y),
                training.batch_size,
                algorithm.head_epochs,
                drop_last=training.drop_last,
            )
            drawn = noises(round, client, ("personalize", "head"), batches, algorithm.samples)
            start = {**self.bodies[client], **self.heads[client]}
            w = cr.tune_head(start, x, y, batches, drawn, training, self.setting)
            harness.assert_close(personal.model, w)
            assert int(diagnostics["steps"]) == len(batches)
            noise = draws(
                round, client, ("personalize", "prediction"), 0, (algorithm.prediction_samples, V)
            )
            harness.assert_close(personal.noise, noise)
            x, _ = harness.examples(self.federation, client, "test")
            logits = algorithm.predict(self.federation.common_task, personal, torch.from_numpy(x))
            harness.assert_close(logits, cr.predict(w, x, noise, self.setting))
            self._assert_scores(scores["clients"], client, w, noise)

    def _assert_scores(self, scores, client, w, noise):
        x, y = harness.examples(self.federation, client, "test")
        correct, loss = confusion(cr.predict(w, x, noise, self.setting), y)
        assert scores.class_correct.tolist() == correct.tolist()
        assert abs(float(scores.loss_sum) - loss) < 1e-11


@pytest.mark.parametrize(
    "training", quick([TRAINING, DROPPING], TRAINING), ids=["all", "whole-batches"]
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_rounds(recorder, training, variant):
    algorithm, setting = VARIANTS[variant]
    algorithm, federation = given(algorithm, training), harness.make_federation()
    recorder.run(algorithm, federation)
    expected = Expected(federation, algorithm, setting)
    for round in (1, 2):
        expected.assert_round(recorder, round)
        expected.assert_personal(recorder, round)
