"""The programs that engines map over clients: train, personalize, score."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.algorithm import Algorithm, Download, Onboarded
from fedtailor.core.engine import ExampleIndices
from fedtailor.core.federation import ClientData, ClientInfo, ExampleSet, Federation
from fedtailor.core.metrics import Scores, score
from fedtailor.core.per_example import present_first
from fedtailor.core.rng import Key
from fedtailor.core.task import Batch, Task
from fedtailor.training.blocks import forward


class SharedInputs(NamedTuple):
    """What is the same for all clients of a call."""

    x: Tensor
    y: Tensor
    scale: Tensor
    seed: Tensor
    round: Tensor
    shared: Any


class ClientInputs(NamedTuple):
    """What belongs to one client."""

    client: Tensor
    info: ClientInfo
    train: ExampleIndices
    val: ExampleIndices
    test: ExampleIndices
    state: Any
    own: Any


def client_inputs(federation: Federation, client: int, state: Any, own: Any) -> ClientInputs:
    """Return a client's row."""
    data = federation.data(client)
    train, val, test = (
        ExampleIndices(part.rows, part.weight) for part in (data.train, data.val, federation.test(client))
    )
    return ClientInputs(torch.tensor(client), data.info, train, val, test, state, own)


def _examples(common: SharedInputs, part: ExampleIndices) -> ExampleSet:
    return ExampleSet(common.x, common.y, part.rows, part.weight, common.scale)


def _data(common: SharedInputs, row: ClientInputs) -> ClientData:
    return ClientData(_examples(common, row.train), _examples(common, row.val), row.info)


def client_key(common: SharedInputs, row: ClientInputs, purpose: str) -> Key:
    """Return the key of (seed, round, client, purpose)."""
    return Key(common.seed, common.round, row.client, torch.zeros((), dtype=torch.int64), 0).fold(purpose)


def train_program(
    task: Task, common: SharedInputs, row: ClientInputs, *, algorithm: Algorithm[Any, Any, Any], evaluate: bool
) -> tuple[Any, Any, dict[str, Tensor], Scores | tuple[()]]:
    """Run a client's round; return new state, upload, metrics, and scores at the point ``local``."""
    task = algorithm.bind(task)
    key = client_key(common, row, "train")
    download = Download(common.shared, row.own)
    update = algorithm.local_update(task, download, row.state, _data(common, row), key)
    has_model = not (isinstance(update.personal, tuple) and update.personal == ())
    scores: Scores | tuple[()] = ()
    if evaluate and has_model:
        scores = score_model(task, common, row, update.personal, row.test, algorithm=algorithm)
    return update.state, update.upload, dict(update.metrics), scores


def personalize_program(
    task: Task,
    common: SharedInputs,
    row: ClientInputs,
    *,
    algorithm: Algorithm[Any, Any, Any],
    new: bool,
    validate: bool,
) -> tuple[Any, dict[str, Tensor], dict[str, Scores]]:
    """Make a client's personal model; return it with diagnostics, and scores by test set.

    ``new`` clients never took part: their state is made by ``onboard``, and its steps count. With ``validate``, there
    are scores on the validation examples too, for choices that must not see test examples.
    """
    task = algorithm.bind(task)
    download, data = Download(common.shared, row.own), _data(common, row)
    state, steps = row.state, None
    if new:
        onboarded = algorithm.onboard(task, download, row.info, data, client_key(common, row, "onboard"))
        if not isinstance(onboarded, Onboarded):
            raise TypeError(f"onboard must return Onboarded(state, steps), got {type(onboarded).__name__}")
        state, steps = onboarded
    personal = algorithm.personalize(task, download, state, data, client_key(common, row, "personalize"))
    personal = present_first(personal, row.train.weight)
    parts = {"clients": row.test, **({"validation": row.val} if validate else {})}
    scores = {name: score_model(task, common, row, personal, part, algorithm=algorithm) for name, part in parts.items()}
    numbers = dict(algorithm.diagnostics(task, personal))
    if steps is not None:
        numbers["steps"] = numbers.get("steps", torch.zeros((), dtype=torch.int64)) + steps
    return personal, numbers, scores


def score_program(
    task: Task, common: SharedInputs, row: ClientInputs, *, algorithm: Algorithm[Any, Any, Any]
) -> Scores:
    """Score the model in ``common.shared`` on a client's test examples."""
    return score_model(task, common, row, common.shared, row.test, algorithm=algorithm)


def score_model(
    task: Task,
    common: SharedInputs,
    row: ClientInputs,
    personal: Any,
    part: ExampleIndices,
    *,
    algorithm: Algorithm[Any, Any, Any],
) -> Scores:
    """Score a model on some of a client's examples."""
    examples = _examples(common, part)
    key = client_key(common, row, "predict")
    logits = forward(task, partial(_predict, algorithm), personal, examples, key=key)
    return score(logits, examples.labels(), examples.weight, task.num_classes)


def _predict(
    algorithm: Algorithm[Any, Any, Any],
    task: Task,
    personal: Any,
    context: Mapping[str, Tensor],
    batch: Batch,
    key: Key,
) -> Tensor:
    return algorithm.predict(task, personal, batch.x)
