"""Losses and steps that hold a tensor are refused in a sentence: they would fail silently, or with
an opaque error."""

import functools
import re
import types

import pytest
import torch

from both_ways import key_of, one_by_one, stacked
from federations import make_federation, perceptron
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from fedtailor.training import blocks
from fedtailor.training.blocks import forward, train
from fedtailor.training.losses import classification_loss, cross_entropy
from fedtailor.training.phase import refuse_captured_tensors

pytestmark = pytest.mark.usefixtures("float64")

TRAINING = Training(lr=0.1, epochs=2, batch_size=4)
CLIENTS = [2, 6, 4]
TENSOR = torch.ones(3)


@pytest.fixture
def federation(float64):
    return make_federation(perceptron())


def scaled_loss(task, params, context, batch, key, scale=None):
    output = classification_loss(task, params, {}, batch, key)
    return output._replace(loss=output.loss * (1 if scale is None else scale))


def in_closure():
    tensor = torch.ones(())
    return lambda task, params, context, batch, key: scaled_loss(
        task, params, context, batch, key, tensor
    )


def in_default():
    def loss(task, params, context, batch, key, scale=torch.ones(())):  # noqa: B008
        return scaled_loss(task, params, context, batch, key, scale)

    return loss


def in_keyword_default():
    def loss(task, params, context, batch, key, *, scale=torch.ones(())):  # noqa: B008
        return scaled_loss(task, params, context, batch, key, scale)

    return loss


class Holder:
    def __init__(self, scale):
        self.scale = scale

    def loss(self, task, params, context, batch, key):
        return scaled_loss(task, params, context, batch, key, self.scale)

    def __call__(self, *arguments):
        return self.loss(*arguments)


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, *arguments):
        return scaled_loss(*arguments, self.scale)


def nested():
    inner = {"scales": [(1, functools.partial(scaled_loss, scale=TENSOR))]}
    return lambda *arguments: inner["scales"][0][1](*arguments)


CAPTURES = {
    "closure": (in_closure, "closure variable 'tensor'"),
    "default argument": (in_default, "default argument"),
    "keyword default": (in_keyword_default, "default argument"),
    "partial": (lambda: functools.partial(scaled_loss, TENSOR), "partial argument"),
    "keyword partial": (
        lambda: functools.partial(scaled_loss, scale=TENSOR),
        "partial argument 'scale'",
    ),
    "bound method": (lambda: Holder(TENSOR).loss, "bound object > attribute 'scale'"),
    "callable object": (lambda: Holder(TENSOR), "attribute 'scale'"),
    "object with slots": (lambda: Slotted(TENSOR), "attribute 'scale'"),
    "nested": (
        nested,
        "closure variable 'inner' > entry 'scales' > item > item > partial argument 'scale'",
    ),
    "module": (lambda: torch.nn.Linear(2, 2), "attribute '_parameters' > entry 'weight'"),
}


@pytest.mark.parametrize(("make", "place"), CAPTURES.values(), ids=list(CAPTURES))
def test_captured_tensors_are_refused_and_named(make, place):
    with pytest.raises(TypeError, match=re.escape(f"holds a tensor ({place}")) as caught:
        refuse_captured_tensors(make())
    assert "through params, context, batch or key" in str(caught.value)


def test_every_block_looks(federation):
    task, data, params = federation.common_task, federation.data(2).train, {"w": torch.zeros(())}
    for block in (
        lambda: train(task, in_closure(), params, data=data, key=key_of(2), training=TRAINING),
        lambda: train(
            task, None, params, data=data, key=key_of(2), training=TRAINING, step=in_closure()
        ),
        lambda: forward(task, in_closure(), params, data, key=key_of(2)),
    ):
        with pytest.raises(TypeError, match="holds a tensor"):
            block()


def test_numbers_functions_and_cycles_may_be_held():
    cycle = {"numbers": [1, 2.0, "text", None, {3}]}
    cycle["self"] = cycle
    holder = types.SimpleNamespace(
        weight=0.5, function=cross_entropy, module=torch, of=Holder, cycle=cycle
    )

    def later():
        return not_yet

    refuse_captured_tensors(lambda: (holder, later))
    refuse_captured_tensors(functools.partial(scaled_loss, scale=2.0))
    refuse_captured_tensors(torch.nn.functional.cross_entropy)
    not_yet = 1


def test_what_would_go_wrong(federation, monkeypatch):
    """A loss that closes over a client's own tensor: with the guard off, stacked clients get other
    results or none."""
    task = federation.common_task
    start = task.model.init(new_key(0))
    scales = [torch.tensor(scale) for scale in (0.0, 1.0, 2.0)]

    def captured(data, key, scale):
        loss = functools.partial(scaled_loss, scale=scale)
        return train(task, loss, start, data=data, key=key, training=TRAINING).params["head.weight"]

    def passed(data, key, scale):
        return train(
            task, context_loss, start, context=scale, data=data, key=key, training=TRAINING
        ).params["head.weight"]  # fmt: skip

    with pytest.raises(TypeError, match="partial argument 'scale'"):
        stacked(captured, federation, CLIENTS, scales)
    monkeypatch.setattr(blocks, "refuse_captured_tensors", lambda function: None)
    right = torch.stack(one_by_one(passed, federation, CLIENTS, scales))
    assert torch.allclose(
        torch.stack(stacked(passed, federation, CLIENTS, scales)), right, rtol=0, atol=1e-12
    )
    assert torch.equal(torch.stack(one_by_one(captured, federation, CLIENTS, scales)), right)
    assert not right_or_nothing(captured, federation, scales, right)


def context_loss(task, params, context, batch, key):
    return scaled_loss(task, params, {}, batch, key, context)


def right_or_nothing(program, federation, scales, right):
    """Return whether stacked clients get what they should."""
    try:
        found = torch.stack(stacked(program, federation, CLIENTS, scales))
    except Exception:
        return False
    return torch.allclose(found, right, rtol=0, atol=1e-3)
