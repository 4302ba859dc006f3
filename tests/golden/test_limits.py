"""Options under which one method is another: personal models predict the same."""

from dataclasses import replace

import pytest
import torch

from fedtailor.algorithms import load_algorithm
from fedtailor.core.task import Training
from golden import harness

TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)

LIMITS = [
    ("apfl", {"alpha": 0.0}, "fedavg"),
    ("fedala", {"weight_lr": 0.0}, "fedavg"),
    ("fedavg_ft", {"finetune_epochs": 0}, "fedavg"),
    ("fedbn", {}, "fedavg"),
    ("fedpac", {"penalty": 0.0, "combine_heads": False, "head_lr": 0.1}, "fedrep"),
    ("fedproto", {"penalty": 0.0, "prediction": "head"}, "local"),
    ("fedprox", {"penalty": 0.0}, "fedavg"),
    ("ifca", {"clusters": 1}, "fedavg"),
    ("knn_per", {"mixing": 0.0}, "fedavg"),
    ("lg_fedavg", {"shared_layers": 2}, "fedavg"),
    ("moon", {"penalty": 0.0}, "fedavg"),
]
"""Method, options, and the method that it then is."""

OTHER = {"fedrep": {"head_epochs": 1}}
"""Options of the other method."""


@pytest.mark.parametrize(("name", "options", "other"), LIMITS, ids=lambda value: str(value))
def test_a_method_is_another_one(name, options, other, monkeypatch):
    federation = harness.make_federation()

    logits = []
    for method, values in ((name, options), (other, OTHER.get(other, {}))):
        algorithm = replace(load_algorithm(method)(**values), training=TRAINING)
        recorder = harness.Recorder(monkeypatch)
        recorder.run(algorithm, federation, rounds=2)
        for client in federation.roster.known:
            personal = recorder.visit(2, "personalize", client).output[0]
            logits.append(algorithm.predict(federation.common_task, personal, federation.x))

    clients = len(federation.roster.known)
    for one, two in zip(logits[:clients], logits[clients:]):
        difference = torch.log_softmax(one, 1) - torch.log_softmax(two, 1)
        assert difference.abs().max() < 1e-11
    assert logits[0].std() > 0.01


SAID = [
    *[(name, options) for name, options, _ in LIMITS],
    ("fedala", {"sample_share": 0.0}),
    ("fedproto", {"penalty": 0.0}),
    ("ditto", {"personal_epochs": 0}),
    ("ditto", {"penalty": 0.0}),
    ("fedbabu", {"finetune_epochs": 0}),
    ("fedper", {"onboard_epochs": 0}),
    ("fedrep", {"head_epochs": 0}),
    ("fedsr", {"l2_weight": 0.0, "cmi_weight": 0.0}),
    ("perfedavg", {"adapt_epochs": 0}),
    ("pfedbayes", {"mixing": 0.0}),
    ("pfedbayes", {"penalty": 0.0}),
    ("pfedme", {"mixing": 0.0}),
    ("pfedme", {"solve_batches": 0}),
    ("fedlda", {"shrinkage": 0.0}),
]


@pytest.mark.parametrize(("name", "options"), SAID, ids=lambda value: str(value))
def test_options_that_make_a_method_another_one_are_said(name, options):
    sentences = load_algorithm(name)(**options).warnings(harness.task())
    assert sentences and all(sentence.endswith(".") for sentence in sentences)
    if options:
        assert load_algorithm(name)().warnings(harness.task()) == []
