"""Results of a loss or step: one of the wrong type is refused in a sentence, the same one by one
and stacked."""

import re

import pytest
import torch

from both_ways import key_of, one_by_one, stacked
from federations import make_federation, perceptron
from fedtailor.core.rng import new_key
from fedtailor.core.task import LossOutput, Training
from fedtailor.training.blocks import Trained, train
from fedtailor.training.losses import classification_loss
from fedtailor.training.phase import StepOutput

pytestmark = pytest.mark.usefixtures("float64")

TRAINING = Training(lr=0.1, epochs=2, batch_size=4)
CLIENTS = [2, 6, 4]


@pytest.fixture
def federation(float64):
    return make_federation(perceptron())


def returns_none(task, params, context, batch, key):
    return None


def returns_tensor(task, params, context, batch, key):
    return classification_loss(task, params, {}, batch, key).loss


def returns_float(task, params, context, batch, key):
    return LossOutput(1.0)


def returns_rows(task, params, context, batch, key):
    return LossOutput(batch.weight * params["hidden.bias"].sum())


def returns_list(task, params, context, batch, key):
    return LossOutput(params["hidden.bias"].sum(), outputs=[1.0])


WRONG_LOSSES = {
    "none": (returns_none, "loss returns_none must return LossOutput, got NoneType"),
    "tensor": (returns_tensor, "loss returns_tensor must return LossOutput, got Tensor"),
    "float": (
        returns_float,
        "loss returns_float must return a scalar tensor as its loss, got float",
    ),
    "rows": (returns_rows, "loss returns_rows must return a scalar tensor as its loss, got (4,)"),
    "outputs": (returns_list, "loss returns_list: outputs must be a tensor or (), got list"),
}


@pytest.mark.parametrize("how", [one_by_one, stacked])
@pytest.mark.parametrize(("loss", "sentence"), WRONG_LOSSES.values(), ids=list(WRONG_LOSSES))
def test_wrong_losses_are_explained(federation, loss, sentence, how):
    task = federation.common_task

    def program(data, key, own):
        return train(
            task, loss, task.model.init(new_key(0)), data=data, key=key, training=TRAINING
        ).params

    with pytest.raises(TypeError, match=re.escape(sentence)):
        how(program, federation, CLIENTS, [torch.tensor(0.0)] * 3)


def step_none(task, params, context, batch, key):
    return None


def step_dict(task, params, context, batch, key):
    return params


def step_missing(task, params, context, batch, key):
    return StepOutput({"head.weight": params["head.weight"]})


def step_reordered(task, params, context, batch, key):
    return StepOutput(dict(reversed({name: value + 1 for name, value in params.items()}.items())))


def step_reshaped(task, params, context, batch, key):
    return StepOutput({name: value.sum() for name, value in params.items()})


@pytest.mark.parametrize("how", [one_by_one, stacked])
@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (step_none, "step step_none must return StepOutput, got NoneType"),
        (step_dict, "step step_dict must return StepOutput, got dict"),
        (step_missing, "step step_missing"),
        (step_reshaped, "step step_reshaped"),
    ],
    ids=["none", "dict", "missing", "reshaped"],
)
def test_wrong_steps_are_explained(federation, step, sentence, how):
    task = federation.common_task

    def program(data, key, own):
        start = task.model.init(new_key(0))
        return train(task, None, start, data=data, key=key, training=TRAINING, step=step).params

    with pytest.raises(TypeError, match=re.escape(sentence)):
        how(program, federation, CLIENTS, [torch.tensor(0.0)] * 3)


@pytest.mark.parametrize("how", [one_by_one, stacked])
def test_a_step_may_return_its_parameters_in_any_order(federation, how):
    task, start = federation.common_task, {"a": torch.zeros(()), "b": torch.tensor(10.0)}

    def program(data, key, own):
        return train(
            task, None, start, data=data, key=key, training=Training(steps=1), step=step_reordered
        ).params

    for found in how(program, federation, CLIENTS, [torch.tensor(0.0)] * 3):
        assert list(found) == ["a", "b"] and found["a"] == 1 and found["b"] == 11


def test_train_needs_either_a_loss_or_a_step(federation):
    task, data = federation.common_task, federation.data(2).train
    for loss, step in ((None, None), (classification_loss, step_dict)):
        with pytest.raises(TypeError, match="needs a loss or a step, and not both"):
            train(task, loss, {}, data=data, key=key_of(2), training=TRAINING, step=step)


@pytest.mark.parametrize("how", [one_by_one, stacked])
def test_collecting_needs_aux(federation, how):
    task = federation.common_task

    def program(data, key, own):
        start = task.model.init(new_key(0))
        return train(
            task, classification_loss, start, data=data, key=key, training=TRAINING, collect="all"
        ).params  # fmt: skip

    with pytest.raises(TypeError, match="with collect, a loss or step must return outputs"):
        how(program, federation, CLIENTS, [torch.tensor(0.0)] * 3)


def test_nothing_was_collected(federation):
    task, data = federation.common_task, federation.data(2).train
    start = task.model.init(new_key(0))
    trained = train(task, classification_loss, start, data=data, key=key_of(2), training=TRAINING)
    with pytest.raises(
        TypeError, match="nothing was collected: call train with collect='all' or 'last'"
    ):
        trained.collected_examples()


def constant_loss(task, params, context, batch, key):
    return LossOutput(batch.weight.sum() * 0)


@pytest.mark.parametrize("how", [one_by_one, stacked])
def test_a_loss_without_parameters_has_gradient_zero(federation, how):
    task = federation.common_task
    start = task.model.init(new_key(0))

    def program(data, key, own):
        return train(task, constant_loss, start, data=data, key=key, training=TRAINING).params[
            "head.weight"
        ]

    for found in how(program, federation, CLIENTS, [torch.tensor(0.0)] * 3):
        assert torch.equal(found, start["head.weight"])


@pytest.mark.parametrize("how", [one_by_one, stacked])
def test_whole_numbers_among_the_parameters_of_a_step_stay_whole(federation, how):
    task, start = federation.common_task, {"weight": torch.zeros(2), "steps": torch.tensor(0)}

    def program(data, key, own):
        return train(
            task, None, start, data=data, key=key, training=TRAINING, step=counting_step
        ).params

    for found, steps in zip(
        how(program, federation, CLIENTS, [torch.tensor(0.0)] * 3), (4, 12, 8), strict=True
    ):
        assert found["steps"].dtype == torch.int64 and found["steps"] == steps


def counting_step(task, params, context, batch, key):
    return StepOutput({"weight": params["weight"] + 1, "steps": params["steps"] + 1})


def nested_loss(task, params, context, batch, key):
    return LossOutput(
        params["model"]["weight"].sum() * batch.weight.sum(), {"running_mean": torch.zeros(2)}
    )


def test_buffers_of_a_nested_model_need_their_path(float64):
    federation = make_federation(perceptron())
    start = {"model": {"weight": torch.zeros(2), "running_mean": torch.zeros(2)}}
    data = federation.data(2).train
    with pytest.raises(
        TypeError, match="buffer 'running_mean', which is neither in params nor in context"
    ):
        train(
            federation.common_task,
            nested_loss,
            start,
            data=data,
            key=key_of(2),
            training=Training(steps=1),
        )


@pytest.mark.parametrize(
    ("value", "expected"), [(1.0, True), (torch.inf, False), (torch.nan, False)]
)
def test_parameters_that_are_not_finite_are_not_sound(value, expected):
    one = Trained(
        {"a": torch.ones(3), "b": (torch.tensor([0.0, value]),)}, torch.tensor(1), torch.tensor(0.0)
    )
    assert bool(one.sound()) is expected
    assert bool(one._replace(params=()).sound())
