"""The programs that engines run for clients: train, personalize, score; a request names one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.algorithm import AnyAlgorithm, Download, Onboarded
from fedtailor.core.devices import HOST
from fedtailor.core.engine import ExamplePositions, Program, present_first
from fedtailor.core.federation import ClientData, ClientInfo, ExampleSet, Split
from fedtailor.core.rng import Key, new_key
from fedtailor.core.scores import Scores, score
from fedtailor.core.task import Batch, Task
from fedtailor.core.upload_checks import Problem
from fedtailor.training.blocks import forward
from fedtailor.training.losses import class_weights
from fedtailor.training.private_steps import counting_steps


@dataclass(frozen=True)
class TrainRequest:
    """Run a client's round."""

    name: ClassVar[str] = "train"
    evaluate: bool = False
    """Whether the model right after training is scored on the client's test examples."""
    attempt: int = 0
    """How often the round was attempted before; every attempt draws other random numbers."""
    hold: bool = False
    """Whether the server accepts no client's round before all have replied."""
    rank: bool = False
    """Whether the scores hold what AUROC needs."""

    @property
    def parts(self) -> frozenset[str]:
        """The parts of a client's split that the program needs."""
        return frozenset({"train", "val", "test"} if self.evaluate else {"train", "val"})


@dataclass(frozen=True)
class PersonalizeRequest:
    """Make a client's personal model and score it."""

    name: ClassVar[str] = "personalize"
    new: bool
    """Whether the clients never took part in training: ``onboard`` makes their state."""
    validate: bool
    """Whether the model is scored on the validation examples too."""
    keep: bool = False
    """Whether the client keeps the model."""
    rank: bool = False
    """Whether the scores hold what AUROC needs."""
    parts: ClassVar[frozenset[str]] = frozenset({"train", "val", "test"})


@dataclass(frozen=True)
class ScoreRequest:
    """Score a given model on a client's test examples."""

    name: ClassVar[str] = "score"
    rank: bool = False
    """Whether the scores hold what AUROC needs."""
    final: bool = False
    """Whether the model is the one that the run gives."""
    parts: ClassVar[frozenset[str]] = frozenset({"test"})


Request = TrainRequest | PersonalizeRequest | ScoreRequest


class Tables(NamedTuple):
    """Examples and their labels."""

    x: Tensor  # (rows, *input_shape)
    y: Tensor  # (rows,)


class SharedInputs(NamedTuple):
    """The inputs of a program that are the same for all clients."""

    x: Tensor
    y: Tensor
    scale: Tensor
    seed: Tensor
    round: Tensor
    shared: Any
    visible: Tables | tuple[()] = ()
    """The examples that an algorithm sees: a private copy, to which ``train`` and ``val`` refer;
    (): x and y."""


class ClientInputs(NamedTuple):
    """The inputs of a program that belong to one client."""

    client: Tensor
    """The number in the keys of its random numbers."""
    info: ClientInfo
    train: ExamplePositions
    val: ExamplePositions
    test: ExamplePositions
    state: Any
    per_client: Any


class TrainOutput(NamedTuple):
    """The output of a client's round."""

    state: Any
    upload: Any
    """By field, as the algorithm returned it. If it was reduced where it was made: the sums of this
    client and of neighbors, and the fields that are not summed."""
    metrics: dict[str, Tensor]
    scores: Scores | tuple[()]
    """At the evaluation point ``local``; () if there are none."""
    problem: Problem | tuple[()] = ()
    """Why the client's round must not be used, if the upload was reduced where it was made."""
    num_bytes: int | tuple[()] = ()
    """Of an upload that was checked and reduced where it was made; (): the server does both."""


class PersonalizeOutput(NamedTuple):
    """A personal model, numbers about it, and its scores by test set."""

    personal: Any
    diagnostics: dict[str, Tensor]
    scores: dict[str, Scores]


def client_inputs(
    client: int, split: Split, info: ClientInfo, state: Any, per_client: Any
) -> ClientInputs:
    """Return the inputs of a client; ``client`` is its number in keys."""
    return ClientInputs(
        client=torch.tensor(client, device=HOST),
        info=info,
        train=ExamplePositions.of(split.train),
        val=ExamplePositions.of(split.val),
        test=ExamplePositions.of(split.test),
        state=state,
        per_client=per_client,
    )


def _data(algorithm: AnyAlgorithm, common: SharedInputs, inputs: ClientInputs) -> ClientData:
    """Return training and validation examples, from the tables that an algorithm sees."""
    x, y = common.visible or Tables(common.x, common.y)
    train = ExampleSet(x, y, *inputs.train, common.scale)

    # Weights of the classes belong to the client, so its examples carry them.
    rule = algorithm.training.class_weights
    if rule != "none":
        train = train._replace(class_weight=class_weights(inputs.info.class_counts, rule))

    return ClientData(train, ExampleSet(x, y, *inputs.val, common.scale), inputs.info)


def client_key(common: SharedInputs, inputs: ClientInputs, purpose: str) -> Key:
    """Return the key of (seed, round, client, purpose)."""
    first_step = torch.zeros((), dtype=torch.int64, device=HOST)
    return Key(common.seed, common.round, inputs.client, first_step, 0).fold(purpose)


def train_program(
    task: Task,
    common: SharedInputs,
    inputs: ClientInputs,
    *,
    algorithm: AnyAlgorithm,
    request: TrainRequest,
) -> TrainOutput:
    """Run a client's round."""
    task = algorithm.bind(task)
    # Another attempt draws other batches.
    key = client_key(common, inputs, "train")
    if request.attempt > 0:
        key = key.fold(f"attempt/{request.attempt}")

    download = Download(common.shared, inputs.per_client)
    data = _data(algorithm, common, inputs)
    with counting_steps():
        update = algorithm.local_update(task, download, inputs.state, data, key)

    # Some methods have no model of the client's own after training.
    has_model = not (isinstance(update.personal, tuple) and update.personal == ())
    scores: Scores | tuple[()] = ()
    if request.evaluate and has_model:
        scores = _score(algorithm, task, update.personal, common, inputs, rank=request.rank)

    return TrainOutput(update.state, update.upload, dict(update.metrics), scores)


def personalize_program(
    task: Task,
    common: SharedInputs,
    inputs: ClientInputs,
    *,
    algorithm: AnyAlgorithm,
    request: PersonalizeRequest,
) -> PersonalizeOutput:
    """Make a client's personal model, and score it.

    The steps of ``onboard`` count among the model's steps. Scores on validation examples serve
    choices that must not see test examples.
    """
    task = algorithm.bind(task)
    download = Download(common.shared, inputs.per_client)
    data = _data(algorithm, common, inputs)
    state = inputs.state
    steps: Tensor | int = 0

    # A new client has no state yet: the method makes one from its data.
    if request.new:
        key = client_key(common, inputs, "onboard")
        onboarded = algorithm.onboard(task, download, inputs.info, data, key)
        if not isinstance(onboarded, Onboarded):
            raise TypeError(
                f"onboard must return Onboarded(state, steps), got {type(onboarded).__name__}"
            )

        state, steps = onboarded

    key = client_key(common, inputs, "personalize")
    personal = algorithm.personalize(task, download, state, data, key)
    # Rows of padding go to the end, so that an engine can cut them off.
    personal = present_first(personal, inputs.train.weight)

    rank = request.rank
    scores = {"clients": _score(algorithm, task, personal, common, inputs, rank=rank)}
    if request.validate:
        scores["validation"] = _score(
            algorithm, task, personal, common, inputs, examples=data.val, rank=rank
        )

    numbers = dict(algorithm.diagnostics(task, personal))
    if request.new:
        numbers["steps"] = numbers.get("steps", torch.zeros((), dtype=torch.int64)) + steps

    return PersonalizeOutput(personal, numbers, scores)


def score_program(
    task: Task,
    common: SharedInputs,
    inputs: ClientInputs,
    *,
    algorithm: AnyAlgorithm,
    request: ScoreRequest,
) -> Scores:
    """Score the model in ``common.shared`` on a client's test examples."""
    task = algorithm.bind(task)
    return _score(algorithm, task, common.shared, common, inputs, rank=request.rank)


def _score(
    algorithm: AnyAlgorithm,
    task: Task,
    model: Any,
    common: SharedInputs,
    inputs: ClientInputs,
    *,
    examples: ExampleSet | None = None,
    rank: bool,
) -> Scores:
    """Score a model on a client's test examples, or on other ones of its examples."""
    # Test examples come from the tables of the federation, which no algorithm sees.
    if examples is None:
        examples = ExampleSet(common.x, common.y, *inputs.test, common.scale)

    key = client_key(common, inputs, "predict")
    logits = forward(task, partial(predict_batch, algorithm), model, examples, key=key)
    return score(logits, examples.labels(), examples.weight, task.num_classes, rank=rank)


def predict_batch(
    algorithm: AnyAlgorithm,
    task: Task,
    model: Any,
    context: Mapping[str, Tensor],
    batch: Batch,
    key: Key,
) -> Tensor:
    """Return the logits (n, classes) of a model on a batch, for ``forward``."""
    return algorithm.predict(task, model, batch.x)


def probabilities(algorithm: AnyAlgorithm, task: Task, model: Any, examples: ExampleSet) -> Tensor:
    """Return the probabilities (n, classes) that a model gives examples, as float32.

    Args:
        algorithm: of the model.
        task: of the client, bound to the algorithm.
        model: a personal or a global one.
        examples: whose order the rows keep.
    """
    return _logits(algorithm, task, model, examples).softmax(dim=1).float()


def log_odds(algorithm: AnyAlgorithm, task: Task, model: Any, examples: ExampleSet) -> Tensor:
    """Return the log-odds (n,) that a model gives the true class of examples, as float64.

    Args:
        algorithm: of the model.
        task: of the client, bound to the algorithm.
        model: a personal or a global one.
        examples: whose order the numbers keep.
    """
    log_probabilities = _logits(algorithm, task, model, examples).log_softmax(dim=1)
    labels = examples.labels()[:, None]
    true_class = log_probabilities.gather(1, labels)[:, 0]
    others = log_probabilities.scatter(1, labels, -math.inf).logsumexp(dim=1)
    return true_class - others


def _logits(algorithm: AnyAlgorithm, task: Task, model: Any, examples: ExampleSet) -> Tensor:
    key = new_key(0, purpose="predict")
    logits = forward(task, partial(predict_batch, algorithm), model, examples, key=key)
    return logits.double()


_PROGRAMS: Mapping[str, Callable[..., Any]] = {
    TrainRequest.name: train_program,
    PersonalizeRequest.name: personalize_program,
    ScoreRequest.name: score_program,
}


def client_program(algorithm: AnyAlgorithm, request: Request) -> Program:
    """Return the program that answers a request, for an engine."""
    return partial(_PROGRAMS[request.name], algorithm=algorithm, request=request)
