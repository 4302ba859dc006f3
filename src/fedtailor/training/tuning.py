"""Training beside or after the rounds: a head alone, fine-tuning, a new client's catching up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.adaptation import FineTuned, Layers, untuned
from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import Key
from fedtailor.core.task import BODY, Batch, LossOutput, Params, Task, Training
from fedtailor.training.batches import is_moved
from fedtailor.training.blocks import NO_CONTEXT, Trained, cached_features, train
from fedtailor.training.losses import classification_loss, cross_entropy_of, head_loss


def train_head(
    task: Task,
    body: Params,
    head: Params,
    data: ExampleSet,
    *,
    key: Key,
    epochs: int | Tensor,
    training: Training | None = None,
    features: ExampleSet | None = None,
) -> Trained:
    """Train a head on a frozen body, by cross-entropy; buffers of the body stay as they are.

    Args:
        task: the client's task.
        body: the frozen body.
        head: where training starts.
        data: the examples.
        key: decides the order of the examples.
        epochs: passes over the examples.
        training: in place of the options of ``task``.
        features: the examples' features in evaluation mode, if the caller has them already. They
            are computed once otherwise, unless the options augment images: then features differ by
            epoch.
    """
    run = partial(train, task, key=key, training=training, epochs=epochs)
    if is_moved(training or task.training, data.x):
        return run(frozen_body_loss, head, context=body, data=data)

    if features is None:
        features = cached_features(task, body, data, key=key)

    return run(head_loss, head, data=features)


def frozen_body_loss(task: Task, head: Params, body: Params, batch: Batch, key: Key) -> LossOutput:
    """Cross-entropy of a head under a frozen body, which runs in evaluation mode."""
    z, _ = task.features(body, batch, key, training=False)
    return LossOutput(cross_entropy_of(batch, task.model.head(head, z)))


def fine_tune(
    task: Task,
    model: Params,
    data: ExampleSet,
    *,
    key: Key,
    epochs: int,
    layers: Layers = "all",
    training: Training | None = None,
) -> FineTuned:
    """Train a copy of a model, or of its head alone; without epochs it is the model itself."""
    if epochs == 0:
        return untuned(model)

    key = key.fold("finetune")
    if layers == "head":
        body = task.pick(model, *BODY)
        head = task.pick(model, "head")
        trained = train_head(task, body, head, data, key=key, training=training, epochs=epochs)
    else:
        trained = train(
            task, classification_loss, model, data=data, key=key, training=training, epochs=epochs
        )

    return FineTuned({**model, **trained.params}, trained.steps)


def train_rounds(
    task: Task,
    loss: Callable[..., LossOutput],
    params: tree.Tree,
    *,
    data: ExampleSet,
    key: Key,
    rounds: Tensor,
    context: tree.Tree = NO_CONTEXT,
    training: Training | None = None,
) -> Trained:
    """Train for as long as a number of rounds (), in one phase: how a new client catches up."""
    training = training or task.training
    rounds = rounds.round().long()
    return train(
        task,
        loss,
        params,
        context=context,
        data=data,
        key=key,
        training=training,
        epochs=rounds * training.epochs,
        steps=rounds * training.steps,
    )
