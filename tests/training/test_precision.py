"""Training in bfloat16: an option that changes steps and nothing else."""

import re

import pytest
import torch

from contract.cases import in_turn
from federations import convolutional, make_federation, module, perceptron
from fedtailor import make_config
from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core import devices, task, tree
from fedtailor.core.errors import ConfigError
from fedtailor.core.rng import new_key
from fedtailor.core.task import LossOutput, Training
from fedtailor.experiment.assembly import assemble
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import run
from fedtailor.training.blocks import train
from fedtailor.training.losses import cross_entropy


def models(name, precision, engine, task=perceptron):
    training = Training(lr=0.1, epochs=2, batch_size=5, precision=precision)
    record = run(load_algorithm(name)(training=training), engine, make_federation(task()), rounds=1)
    assert [event["kind"] for report in record.reports for event in report.events] == ["skipped"]
    return record.reports[-1].personal


FAST = {"fedavg", "pfedvem"}
"""The methods that every run of the tests trains; the others are slow tests."""


def cases():
    """Return every method with an engine, in turn."""
    parameters = []
    for turn, name in enumerate(ALGORITHMS):
        marks = [] if name in FAST else [pytest.mark.slow]
        for engine in in_turn([Reference(), Batched(3)], turn):
            parameters.append(pytest.param(name, engine, marks=marks, id=f"{name}-{engine.name}"))
    return parameters


@pytest.mark.parametrize(("name", "engine"), cases())
def test_every_algorithm_trains_in_it_and_keeps_its_numbers_as_they_were(name, engine):
    full, rough = (models(name, precision, engine) for precision in ("full", "bfloat16"))
    differs = False
    for client, model in full.items():
        one, other = tree.paths(model), tree.paths(rough[client])
        assert [leaf.dtype for leaf in one.values()] == [leaf.dtype for leaf in other.values()]
        for path, leaf in one.items():
            assert torch.isfinite(other[path]).all()
            differs |= not torch.equal(leaf, other[path])
            if (
                path.endswith(("weight", "bias")) and name != "fedcr"
            ):  # whose products of experts amplify
                assert torch.allclose(leaf, other[path], rtol=0.1, atol=0.1), path
    assert differs != ("precision" in load_algorithm(name).unused_training)


@pytest.mark.parametrize("task", [convolutional, module])
@pytest.mark.parametrize("name", ["fedavg", pytest.param("fedcr", marks=pytest.mark.slow)])
def test_convolutions_and_modules_train_in_it(name, task):
    for model in models(name, "bfloat16", Reference(), task).values():
        assert all(
            leaf.dtype != torch.bfloat16 and torch.isfinite(leaf).all()
            for leaf in tree.leaves(model)
        )


def test_only_training_steps_run_in_it(monkeypatch):
    """Steps see bfloat16 features, evaluation and passes over the data do not; collected values are
    not bfloat16."""
    seen = []

    def watch(task, params, x):
        seen.append(torch.is_autocast_enabled("cpu"))
        return original(task, params, x)

    original = task.predict_features
    monkeypatch.setattr(task, "predict_features", watch)
    models("fedavg", "bfloat16", Reference())
    assert seen and not any(seen)
    federation, training = (
        make_federation(perceptron()),
        Training(epochs=1, batch_size=5, precision="bfloat16"),
    )
    start = federation.common_task.model.init(new_key(0))
    trained = train(
        federation.common_task,
        features_loss,
        start,
        data=federation.data(4).train,
        key=new_key(0),
        training=training,
        collect="last",
    )
    assert trained.outputs.dtype == torch.float32


def features_loss(task, params, context, batch, key):
    """Return the loss of plain training, and features to collect: of a product, so in bfloat16."""
    z, buffers = task.model.features(params, batch.x, weight=batch.weight, key=key, training=True)
    assert task.model.head(params, z).dtype == torch.bfloat16
    return LossOutput(cross_entropy(task.model.head(params, z), batch.y, batch.weight), buffers, z)


def test_other_precisions_are_refused():
    with pytest.raises(ConfigError, match=r"training\.precision must be one of 'full', 'bfloat16'"):
        Training(precision="float16")


@pytest.mark.parametrize("missing", [{}, {"avx512_f": True, "avx512_bf16": False}])
def test_a_processor_without_bfloat16_is_refused_before_the_data_are_read(monkeypatch, missing):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: missing)
    values = {"training": {"precision": "bfloat16"}, "data": {"dataset": "cifar10", "dir": "no"}}
    sentence = (
        "training.precision must be 'full' on this machine, got 'bfloat16'. "
        "The device 'cpu' has no instructions for it."
    )
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        assemble(make_config(values), 0)


@pytest.mark.parametrize("name", ["avx512_bf16", "amx_bf16", "bf16"])
def test_a_processor_with_bfloat16_is_accepted(monkeypatch, name):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {name: True})
    devices.refuse_missing_bfloat16("bfloat16", devices.HOST)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    devices.refuse_missing_bfloat16("full", devices.HOST)
