"""Heads on frozen bodies, and phases as long as a number of rounds."""

import dataclasses

import pytest
import torch
from torch import nn

import federations
from both_ways import both_ways, examples, key_of
from fedtailor.core.rng import new_key
from fedtailor.core.task import BODY, Task, Training
from fedtailor.models.module import from_module
from fedtailor.statistics.bottleneck import GaussianModel, train_sampled_head
from fedtailor.training.losses import classification_loss
from fedtailor.training.tuning import train_head, train_rounds

PLAIN = Training(lr=0.2, momentum=0.5, epochs=3, batch_size=4)
MIRRORED = dataclasses.replace(PLAIN, flip=True)


def federation(symmetric):
    """Return images of 4 x 4 pixels, mirror images of themselves or not, under batch normalization
    and dropout."""
    layers = [
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Dropout(0.4),
        nn.Linear(6, 3),
    ]
    model = from_module(nn.Sequential(*layers), input_shape=(1, 4, 4), num_classes=3)
    made = federations.make_federation(Task(model, 3, (1, 4, 4)))
    return dataclasses.replace(made, x=(made.x + made.x.flip(3)) / 2) if symmetric else made


def cross_entropy_head(task, data, key, training):
    model = task.model.init(new_key(1))
    body, head = task.pick(model, *BODY), task.pick(model, "head")
    return train_head(
        task, body, head, data, key=key, training=training, epochs=training.epochs
    ).params


def sampled_head(task, data, key, training):
    own = task._replace(model=GaussianModel(task.model, 3, task.num_classes))
    model, epochs = own.model.init(new_key(1)), training.epochs
    return train_sampled_head(
        own._replace(training=training), model, data, key=key, epochs=epochs, samples=2
    ).params


@pytest.mark.parametrize("trained", [cross_entropy_head, sampled_head])
def test_augmentation_alone_makes_a_difference_to_a_head(trained, float64):
    """The frozen body runs in evaluation mode, whether its features are kept or differ by epoch."""
    for symmetric in (True, False):
        data = federation(symmetric)
        plain, mirrored = (
            trained(data.common_task, examples(data, 6), key_of(6), t) for t in (PLAIN, MIRRORED)
        )
        same = all(
            torch.allclose(leaf, mirrored[name], rtol=0, atol=1e-12) for name, leaf in plain.items()
        )
        assert same == symmetric


@pytest.mark.parametrize("trained", [cross_entropy_head, sampled_head])
def test_heads_on_augmented_images_are_the_same_stacked(trained, float64):
    data = federation(symmetric=False)

    def program(part, key, own):
        return trained(data.common_task, part, key, MIRRORED)

    both_ways(program, data, [4, 0, 6, 1])


@pytest.mark.parametrize("trained", [cross_entropy_head, sampled_head])
def test_tables_are_not_augmented(trained, float64):
    data = federations.make_federation(federations.module())
    plain, mirrored = (
        trained(data.common_task, examples(data, 6), key_of(6), t) for t in (PLAIN, MIRRORED)
    )
    assert all(torch.equal(leaf, mirrored[name]) for name, leaf in plain.items())


@pytest.mark.parametrize(("average", "rounds"), [(0.4, 0), (0.6, 1), (1.4, 1), (1.6, 2), (3.0, 3)])
@pytest.mark.parametrize(
    "training", [PLAIN, dataclasses.replace(PLAIN, steps=7)], ids=["epochs", "steps"]
)
def test_rounds_that_are_no_whole_number_are_rounded(average, rounds, training):
    data = federations.make_federation(federations.perceptron())
    task, part = data.common_task, examples(data, 6)
    options = {
        "data": part,
        "key": key_of(6),
        "training": training,
        "rounds": torch.tensor(average),
    }
    steps = train_rounds(task, classification_loss, task.model.init(new_key(0)), **options).steps
    assert int(steps) == rounds * (training.steps or 3 * 6)  # 23 examples in batches of 4
