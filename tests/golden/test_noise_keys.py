"""Passes that follow one another draw their dropout, and the order of their batches, from keys of
their own."""

import pytest

from fedtailor.algorithms.apfl import APFL
from fedtailor.algorithms.ditto import Ditto
from fedtailor.algorithms.pfedme import PFedMe
from fedtailor.core.task import Training
from fedtailor.training import losses
from golden import harness

TRAINING = Training(lr=0.1, epochs=1, batch_size=5)


@pytest.mark.parametrize(
    ("algorithm", "per_batch"),
    [(APFL(training=TRAINING), 2), (PFedMe(training=TRAINING, inner_steps=4), 4)],
    ids=["apfl", "pfedme"],
)
def test_passes_over_a_batch_have_keys_of_their_own(recorder, monkeypatch, algorithm, per_batch):
    keys, original = [], losses.classification_loss

    def watched(task, params, context, batch, key):
        keys.append((int(key.step), key.purpose))
        return original(task, params, context, batch, key)

    monkeypatch.setattr(losses, "classification_loss", watched)
    recorder.run(algorithm, harness.make_federation(harness.LABELS[:1]), rounds=1, evaluate_every=0)
    batches = len(recorder.visit(1, "train", 0).plans[0])
    passes = keys[: batches * per_batch]
    assert len(set(passes)) == batches * per_batch
    assert [step for step, _ in passes] == [
        step for step in range(batches) for _ in range(per_batch)
    ]


def test_the_phases_of_ditto_have_keys_of_their_own(recorder):
    """Orders and dropout have one key: with as many epochs, only the key can make the orders
    differ."""
    recorder.run(Ditto(training=TRAINING, personal_epochs=1), harness.make_federation(), rounds=1)
    shared, own = recorder.visit(1, "train", 0).plans
    assert [batch.tolist() for batch in shared] != [batch.tolist() for batch in own]
