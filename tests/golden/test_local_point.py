"""The evaluation point ``local``: the model right after a client's training, before the server has
seen it.

What a client keeps and uploads is compared with NumPy in the golden test of its method; here, that
the model which is scored at ``local`` is made of these parts, and not of the received ones.
"""

import numpy as np
import pytest

from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core.task import Training
from golden import harness
from golden.network import confusion, logits
from marks import quick

TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
OPTIONS = {"ditto": {"penalty": 0.7}, "fedrep": {"head_epochs": 3}}

UPLOADED = {
    name: lambda visit: sent(visit, "model")
    for name in ("fedavg", "fedavg_ft", "feddyn", "fedprox")
}
LOCAL = UPLOADED | {
    "ditto": lambda visit: visit.output[0].model,
    "fedala": lambda visit: sent(visit, "model"),
    "fedfomo": lambda visit: sent(visit, "model"),
    "fedbabu": lambda visit: {**visit.output[0], **sent(visit, "body")},
    "fednova": lambda visit: {
        name: x + float(sent(visit, "effective_steps")) * sent(visit, "direction")[name]
        for name, x in visit.shared.model.items()
    },
    "fedpac": lambda visit: {**sent(visit, "body"), **sent(visit, "head")},
    "fedper": lambda visit: {**visit.output[0], **sent(visit, "body")},
    "fedrep": lambda visit: {**visit.output[0], **sent(visit, "body")},
    "ifca": lambda visit: {
        name: leaf[int(visit.output[2]["cluster"])] for name, leaf in sent(visit, "models").items()
    },
    "knn_per": lambda visit: sent(visit, "model"),
    "lg_fedavg": lambda visit: {**visit.output[0], **sent(visit, "shared")},
    "local": lambda visit: visit.output[0],
    "moon": lambda visit: sent(visit, "model"),
    "mr_mtl": lambda visit: sent(visit, "model"),
    "perfedavg": lambda visit: sent(visit, "model"),
    "scaffold": lambda visit: {
        name: x + sent(visit, "delta")[name] for name, x in visit.shared.model.items()
    },
}
"""Method -> the model that a training visit leaves."""
ELSEWHERE = {
    "apfl",
    "fed3r",
    "fedbn",
    "fedcgs",
    "fedcof",
    "fedcr",
    "fedem",
    "fedlda",
    "fedncm",
    "fedproto",
    "fedrod",
    "fedsr",
    "one_shot_fda",
    "pfedbayes",
    "pfedfda",
    "pfedgp",
    "pfedhn",
    "pfedme",
    "pfedvem",
}
"""Methods whose own test compares the scores, as their models do not predict by one network's
logits alone."""


def sent(visit, name):
    return visit.output[1][name].value


KINDS = ("ditto", "fedavg", "fednova", "fedrep", "ifca", "lg_fedavg", "local", "scaffold")


@pytest.mark.parametrize("name", quick(LOCAL, *KINDS))
def test_what_is_scored_is_the_model_after_local_training(recorder, name):
    federation = harness.make_federation()
    recorder.run(load_algorithm(name)(training=TRAINING, **OPTIONS.get(name, {})), federation)
    for round in (1, 2):
        for client in (0, 1):
            visit, (x, y) = (
                recorder.visit(round, "train", client),
                harness.examples(federation, client, "test"),
            )
            scores = visit.output[3]
            correct, loss = confusion(logits(harness.arrays(LOCAL[name](visit)), x), y)
            assert scores.class_correct.tolist() == correct.tolist()
            assert np.isclose(float(scores.loss_sum), loss, rtol=0, atol=1e-11)


def test_every_method_is_compared():
    assert set(LOCAL) | ELSEWHERE == set(ALGORITHMS) and not set(LOCAL) & ELSEWHERE
