"""What many methods do after or beside federated training: train a head alone, and tune a copy of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import Key
from fedtailor.core.task import BODY, Batch, LossOutput, Params, Task, Training
from fedtailor.training.augment import is_moved
from fedtailor.training.blocks import Trained, cached_features, classification_loss, cross_entropy, head_loss, train

Layers = Literal["all", "head"]


class FineTuned(NamedTuple):
    """A client's tuned model, and the gradient steps that it took."""

    model: Params
    steps: Tensor  # ()


def untuned(model: Params) -> FineTuned:
    """Return a model as it is, in the form of a tuned one."""
    return FineTuned(model, torch.zeros((), dtype=torch.int64))


def train_head(
    task: Task,
    body: Params,
    head: Params,
    data: ExampleSet,
    *,
    key: Key,
    training: Training,
    epochs: int | Tensor,
    features: ExampleSet | None = None,
) -> Trained:
    """Train a head on a frozen body, by cross-entropy; buffers of the body stay as they are.

    The features are those of evaluation mode. They are computed once, unless the caller has them already in a table
    ``features``, or ``training`` augments images: then they differ by epoch.
    """
    if is_moved(training, data.x):
        return train(task, frozen_body_loss, head, context=body, data=data, key=key, training=training, epochs=epochs)
    if features is None:
        features = cached_features(task, body, data, key=key)
    return train(task, head_loss, head, data=features, key=key, training=training, epochs=epochs)


def frozen_body_loss(task: Task, head: Params, body: Params, batch: Batch, key: Key) -> LossOutput:
    """Cross-entropy of a head under a frozen body, which runs in evaluation mode."""
    z, _ = task.model.features(body, batch.x, weight=batch.weight, key=key, training=False)
    return LossOutput(cross_entropy(task.model.head(head, z), batch.y, batch.weight))


def tune(
    task: Task, model: Params, data: ExampleSet, *, key: Key, training: Training, epochs: int, layers: Layers
) -> FineTuned:
    """Train a copy of a whole model, or of its head alone, by cross-entropy; without epochs it is the model itself."""
    if epochs == 0:
        return untuned(model)
    key = key.fold("finetune")
    if layers == "head":
        body, head = task.pick(model, *BODY), task.pick(model, "head")
        tuned = train_head(task, body, head, data, key=key, training=training, epochs=epochs)
    else:
        tuned = train(task, classification_loss, model, data=data, key=key, training=training, epochs=epochs)
    return FineTuned({**model, **tuned.params}, tuned.steps)


def train_rounds(
    task: Task,
    loss: Callable[..., LossOutput],
    params: tree.Tree,
    *,
    data: ExampleSet,
    key: Key,
    training: Training,
    rounds: Tensor,
    context: tree.Tree = (),
) -> Trained:
    """Train for as long as a number of rounds (), in one phase: what a new client does to draw level with others."""
    rounds, by_steps = rounds.round().long(), training.steps > 0
    epochs, steps = (None, rounds * training.steps) if by_steps else (rounds * training.epochs, None)
    return train(task, loss, params, context=context, data=data, key=key, training=training, epochs=epochs, steps=steps)


def in_words(count: int, layers: str, unit: str = "epoch") -> str:
    """Return how long what is trained, for the headings of tables: ``1 epoch of the head``; without any, ``none``.

    Args:
        count: of epochs, or of another unit.
        layers: as in :func:`tune`, or other words.
        unit: in the singular.
    """
    what = {"all": "all layers", "head": "the head"}.get(layers, layers)
    return f"{count} {unit}{'' if count == 1 else 's'} of {what}" if count else "none"
