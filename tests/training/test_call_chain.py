"""The way from ``train`` to the gradient is short."""

import sys
from pathlib import Path

import pytest
import torch

import fedtailor
from both_ways import key_of
from federations import make_federation, perceptron
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from fedtailor.training.blocks import train
from fedtailor.training.losses import classification_loss

SOURCE = str(Path(fedtailor.__file__).parent)


@pytest.fixture
def chains(monkeypatch):
    """The functions of the package that were being called, outermost first, at each call of
    ``torch.autograd.grad``."""
    found, original = [], torch.autograd.grad

    def grad(*arguments, **options):
        names, frame = [], sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(SOURCE):
                names.append(frame.f_code.co_name)
            frame = frame.f_back
        found.append(names[::-1])
        return original(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    return found


def test_from_train_to_the_gradient_there_are_at_most_five_calls(chains):
    federation = make_federation(perceptron())
    task, data = federation.common_task, federation.data(6).train
    plan = Training(lr=0.1, epochs=1, batch_size=4)
    train(
        task,
        classification_loss,
        task.model.init(new_key(0)),
        data=data,
        key=key_of(6),
        training=plan,
    )
    assert len(chains) == 6  # 23 examples
    for chain in chains:
        assert chain[0] == "train" and len(chain) <= 5, chain
