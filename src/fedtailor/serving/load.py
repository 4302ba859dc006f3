"""Models from the files of a run: the algorithm, the task and the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.codec import decode
from fedtailor.core.errors import DataError
from fedtailor.core.reading import damaged
from fedtailor.core.task import Task
from fedtailor.data.input_specification import InputSpecification, read_input_specification
from fedtailor.experiment.assembly import make_algorithm
from fedtailor.experiment.config import Config, make_config
from fedtailor.experiment.reader import RunRecords
from fedtailor.models import build_model
from fedtailor.serving.encoded import with_encoder
from fedtailor.serving.model import PersonalModel
from fedtailor.serving.module import PersonalModule
from fedtailor.serving.own_model import own_model
from fedtailor.simulation.checkpoint import readable_modules


class TrainedMethod(NamedTuple):
    """What a run trained, without its tensors."""

    config: Config
    algorithm: AnyAlgorithm
    inputs: InputSpecification

    def task(self, client: int) -> Task:
        """Return the task of a client, bound to the algorithm."""
        names = (self.config.model.name, *self.config.model.others)
        name = names[client % len(names)]
        options = self.config.model.options if name == names[0] else {}
        model = build_model(name, self.inputs.shape, self.inputs.num_classes, options)
        return self.algorithm.bind(Task(model, self.inputs.num_classes, self.inputs.shape))


def load_method(records: RunRecords) -> TrainedMethod:
    """Return what a run trained.

    Raises:
        ConfigError: its configuration cannot be used here; a module of the user may be missing.
        DataError: a file is damaged.
    """
    config = make_config(records.config)
    return TrainedMethod(config, make_algorithm(config), read_input_specification(records.path))


def load_model(records: RunRecords, client: str | int) -> PersonalModel:
    """Return the model that a client of a run of one seed uses.

    It takes raw inputs, also where an encoder makes those of the model. It is the client's personal
    model. With ``serve.fallback = "best"``, it is what the client would use
    alone where the personal model is not clearly better.

    Raises:
        ConfigError: the configuration of the run cannot be used here, or its encoder is not there.
        DataError: there is no such model, or a file is damaged.
    """
    personal = load_personal(records, client)
    return with_encoder(own_model(records, personal.card, personal.inputs) or personal)


def load_personal(records: RunRecords, client: str | int) -> PersonalModel:
    """Return the personal model of a client of a run of one seed, whatever its verdict.

    Raises:
        ConfigError: the configuration of the run cannot be used here.
        DataError: there is no such model, or a file is damaged.
    """
    raw, card = records.model_file(client)
    method = load_method(records)
    try:
        personal = decode(raw, modules=readable_modules(method.algorithm))
    except DataError as reason:
        model_path = records.path / "models" / str(card.get("file"))
        raise damaged(model_path, reason.message) from reason

    _check_card(records, card, method)
    return make_model(method, int(card["number"]), personal, card)


def _check_card(records: RunRecords, card: Mapping[str, Any], method: TrainedMethod) -> None:
    """Check that a card is of a model of this run.

    Raises:
        DataError: it is not.
    """
    config = method.config
    model_path = records.path / "models" / str(card.get("file"))
    if card.get("inputs_sha256") not in (None, method.inputs.digest):
        what = f"the one with which the model of client '{card.get('client')}' was made"
        raise damaged(records.path / "inputs.json", f"it is not {what}")

    # A file of another run may lie here under the right name.
    names = (config.model.name, *config.model.others)
    if card.get("algorithm") != config.algorithm.name or card.get("model") not in names:
        raise damaged(model_path, "it is a model of another method, or of another network")
    if type(card.get("number")) is not int:
        raise damaged(model_path, "its card does not say the number of the client")

    _check_calibration(card, records.path / "models")


def _check_calibration(card: Mapping[str, Any], folder: Path) -> None:
    """Check the numbers with which logits and strange inputs are judged."""
    calibration = card.get("calibration", {})
    try:
        is_possible = 1e-3 <= calibration.get("temperature", 1.0) <= 1e3
        float(calibration.get("threshold") or 0.0)
        int(calibration.get("examples", 0))
        point = calibration.get("operating_point")
        if point is not None:
            is_possible &= point["positive"] in (0, 1) and 0 <= point["sensitivity"] <= 1
            float(point["log_odds"] or 0.0)
    except (AttributeError, KeyError, TypeError, ValueError):
        is_possible = False

    if not is_possible:
        path = folder / f"{card.get('client')!s:.80}.json"
        raise damaged(path, f"its calibration is impossible: {calibration!r:.120}")


def make_model(
    method: TrainedMethod, client: int, personal: Any, card: Mapping[str, Any]
) -> PersonalModel:
    """Return a personal model from its tree of tensors."""
    module = PersonalModule(method.algorithm, method.task(client), personal, method.inputs)
    return PersonalModel(module, method.inputs.for_site(str(card.get("client", ""))), card)
