"""The card of a personal model: what it is, whose it is, and its scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedtailor.core import tree
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.codec import encode
from fedtailor.core.devices import to_host
from fedtailor.core.engine import holds_examples
from fedtailor.core.metrics import per_client
from fedtailor.core.scores import Scores
from fedtailor.core.task import Task
from fedtailor.data.input_specification import InputSpecification
from fedtailor.experiment.algorithm_card import sent_by_method
from fedtailor.experiment.assembly import PreparedRun
from fedtailor.experiment.config import Config
from fedtailor.experiment.summary import intervals_of_site, personalized_scores
from fedtailor.simulation.calibration import calibrate_client
from fedtailor.simulation.report import RoundReport


def model_card(
    personal: tree.Tree,
    *,
    config: Config,
    algorithm: AnyAlgorithm,
    task: Task,
    inputs: InputSpecification,
    dataset: str,
    number: int,
    new: bool,
    round: int,
    participated: bool,
    class_counts: Sequence[int],
    num_test: int,
    scores: Scores | None,
    independent: float,
    calibration: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the card of a personal model, ready for JSON.

    Args:
        personal: the model.
        config: of the run.
        algorithm: that made the model.
        task: of the client, bound to the algorithm.
        inputs: of the model.
        dataset: name of the client's data.
        number: of the client.
        new: whether the client never takes part in training.
        round: after which the model was made.
        participated: whether the client's work was used at least once.
        class_counts: training examples of the client by class.
        num_test: test examples of the client.
        scores: on the client's test examples; None if it has none.
        independent: how many independent examples a test example is worth, for intervals.
        calibration: what :func:`fedtailor.simulation.calibration.calibrate` found.
    """
    # Clients take the models in turn.
    model_names = (config.model.name, *config.model.others)
    origin = {
        "number": number,
        "new": new,
        "algorithm": config.algorithm.name,
        "model": model_names[number % len(model_names)],
        "dataset": dataset,
        "seed": config.seeds[0],
        "round": round,
        "adaptation": algorithm.adaptation_summary(new=new),
        "encoder": _encoder_of(inputs),
        "participated": participated,
    }

    # What it was made from, and how well it does.
    facts = {
        "holds_examples": holds_examples(personal),
        "class_counts": list(class_counts),
        "num_test": num_test,
        "independence": independent,
        "scores": {} if scores is None else per_client(scores),
        "intervals": {} if scores is None else intervals_of_site(scores, independent),
        "calibration": dict(calibration),
        "sent": [value._asdict() for value in sent_by_method(algorithm, task)],
    }

    # What a program must know that reads the file.
    content = {
        "input_shape": list(inputs.shape),
        "num_classes": inputs.num_classes,
        "class_names": list(inputs.class_names),
        "inputs": "../inputs.json",
        "inputs_sha256": inputs.digest,
        "tensors": {path: list(leaf.shape) for path, leaf in tree.paths(personal).items()},
    }
    return origin | facts | content


def _encoder_of(inputs: InputSpecification) -> dict[str, str] | None:
    """Return which encoder makes the inputs of a model; None if there is none."""
    encoder = inputs.encoder
    if encoder is None:
        return None

    return {"target": encoder.target, "digest": encoder.digest, "license": encoder.license}


def personal_models(
    parts: PreparedRun, last: RoundReport
) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Yield every client's name, its personal model as a file, and its card."""
    config = parts.config
    federation = parts.federation

    # Clients without test examples have no scores.
    scored = personalized_scores(last)
    num_test = federation.roster.num_test
    for client in last.personal:
        personal = to_host(last.personal[client], "a personal model for its file")
        name = federation.client_names[client] if federation.client_names else str(client)
        calibration = calibrate_client(
            parts.algorithm,
            federation,
            client,
            personal,
            schedule=config.schedule,
            classes=parts.inputs.names,
        )
        card = model_card(
            personal,
            config=config,
            algorithm=parts.algorithm,
            task=parts.algorithm.bind(federation.roster.task(client)),
            inputs=parts.inputs,
            dataset=parts.divided.dataset.name,
            number=client,
            new=client in federation.roster.new,
            round=last.round,
            participated=client in last.state.participated,
            class_counts=federation.info(client).class_counts.long().tolist(),
            num_test=num_test[client],
            scores=scored.get(client),
            independent=federation.roster.independence(client),
            calibration=calibration._asdict(),
        )
        card["condition"] = federation.conditions[client] if federation.conditions else "clean"
        yield name, encode(personal), card
