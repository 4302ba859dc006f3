"""A context that is not given is ``{}``, so that a loss can always join it with the parameters."""

import pytest
import torch

from both_ways import both_ways
from federations import make_federation, perceptron
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from fedtailor.training.blocks import forward, train
from fedtailor.training.losses import classification_loss

pytestmark = pytest.mark.usefixtures("float64")

CLIENTS = [2, 0, 6]
TRAINING = Training(lr=0.1, epochs=2, batch_size=4)


@pytest.fixture
def federation(float64):
    return make_federation(perceptron())


def joined_loss(task, params, context, batch, key):
    return classification_loss(task, {**params, **context}, {}, batch, key)


def joined_logits(task, params, context, batch, key):
    model = {**params, **context}
    z, _ = task.model.features(model, batch.x, weight=batch.weight, key=key, training=False)
    return task.model.head(model, z)


@pytest.mark.parametrize("has_context", [False, True])
def test_parameters_and_context_can_be_joined(federation, has_context):
    task = federation.common_task
    model = task.model.init(new_key(0))
    trained = task.pick(model, "head") if has_context else model
    options = {"context": task.pick(model, "body")} if has_context else {}

    def program(data, key, own):
        found = train(task, joined_loss, trained, data=data, key=key, training=TRAINING, **options)
        return found.params, found.loss

    def expected(data, key, own):
        found = train(
            task, classification_loss, trained, data=data, key=key, training=TRAINING, **options
        )
        return found.params, found.loss

    pairs = zip(
        both_ways(program, federation, CLIENTS),
        both_ways(expected, federation, CLIENTS),
        strict=True,
    )
    for one, other in pairs:
        assert torch.equal(one[1], other[1])
        assert one[0].keys() == other[0].keys()
        assert all(torch.equal(one[0][name], other[0][name]) for name in one[0])


def test_a_forward_pass_can_join_them_too(federation):
    task = federation.common_task
    model = task.model.init(new_key(0))
    for client in CLIENTS:
        data = federation.data(client).train
        whole = forward(task, joined_logits, model, data, key=new_key(1))
        head = forward(
            task,
            joined_logits,
            task.pick(model, "head"),
            data,
            key=new_key(1),
            context=task.pick(model, "body"),
        )
        assert torch.equal(whole, head)


def test_without_a_context_the_loss_receives_an_empty_dict(federation):
    seen = []

    def looking_loss(task, params, context, batch, key):
        seen.append(context)
        return classification_loss(task, params, context, batch, key)

    task = federation.common_task
    data = federation.data(0).train
    train(
        task,
        looking_loss,
        task.model.init(new_key(0)),
        data=data,
        key=new_key(1),
        training=TRAINING,
    )
    assert seen and all(type(context) is dict and context == {} for context in seen)
