"""Models from the files of a run: the algorithm, the task and the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.algorithm import Algorithm
from fedtailor.core.codec import decode
from fedtailor.core.errors import DataError
from fedtailor.core.reading import damaged
from fedtailor.core.task import Task
from fedtailor.data.input_specification import InputSpecification, read_input_specification
from fedtailor.experiment.assembly import make_algorithm
from fedtailor.experiment.config import Config, make_config
from fedtailor.experiment.reader import RunRecords
from fedtailor.models import build_model
from fedtailor.serving.model import PersonalModel
from fedtailor.serving.module import PersonalModule
from fedtailor.simulation.checkpoint import readable_modules


class Method(NamedTuple):
    """What a run trained, without its tensors."""

    config: Config
    algorithm: Algorithm[Any, Any, Any]
    inputs: InputSpecification

    def task(self, client: int) -> Task:
        """Return the task of a client, bound to the algorithm."""
        names = (self.config.model.name, *self.config.model.others)
        name = names[client % len(names)]
        options = self.config.model.options if name == names[0] else {}
        model = build_model(name, self.inputs.shape, self.inputs.num_classes, options)
        return self.algorithm.bind(Task(model, self.inputs.num_classes, self.inputs.shape))


def load_method(records: RunRecords) -> Method:
    """Return what a run trained.

    Raises:
        ConfigError: its configuration cannot be used here: for example, a module of the user is
            missing.
        DataError: a file is damaged.
    """
    config = make_config(records.config)
    return Method(config, make_algorithm(config), read_input_specification(records.path))


def load_model(records: RunRecords, client: str | int) -> PersonalModel:
    """Return the personal model of a client of a run of one seed.

    Raises:
        ConfigError: the configuration of the run cannot be used here.
        DataError: there is no such model, or a file is damaged.
    """
    raw, card = records.model_file(client)
    method = load_method(records)
    path = records.path / "models"
    try:
        personal = decode(raw, modules=readable_modules(method.algorithm))
    except DataError as reason:
        raise damaged(path / str(card.get("file")), reason.message) from reason

    inputs_path = records.path / "inputs.json"
    if card.get("inputs_sha256") not in (None, method.inputs.digest):
        raise damaged(
            inputs_path,
            f"it is not the one with which the model of client '{card.get('client')}' was made",
        )

    names = (method.config.model.name, *method.config.model.others)
    if card.get("algorithm") != method.config.algorithm.name or card.get("model") not in names:
        raise damaged(
            path / str(card.get("file")), "it is a model of another method, or of another network"
        )

    check_calibration(card, path)
    number = card.get("number")
    if type(number) is not int:
        raise DataError(
            f"'{path}' is of an older fedtailor, whose models cannot be loaded: run the experiment "
            "again.",
            path=str(path),
        )

    return make_model(method, number, personal, card)


def check_calibration(card: Mapping[str, Any], path: Path) -> None:
    """Check what a card says of the calibration.

    Raises:
        DataError: it is not what was written.
    """
    found = card.get("calibration", {})
    try:
        temperature = found.get("temperature", 1.0)
        threshold = found.get("threshold")
        examples = found.get("examples", 0)
        numbers = [temperature] if threshold is None else [temperature, threshold]
        are_numbers = all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in numbers
        )
        if not are_numbers or type(examples) is not int or not 1e-3 <= temperature <= 1e3:
            raise ValueError(f"{temperature!r:.40}, {threshold!r:.40}, {examples!r:.40}")
    except (AttributeError, ValueError) as reason:
        raise damaged(
            path / f"{card.get('client')!s:.80}.json", f"its calibration is impossible: {reason}"
        ) from reason


def make_model(
    method: Method, client: int, personal: Any, card: Mapping[str, Any]
) -> PersonalModel:
    """Return a personal model from its tree of tensors."""
    module = PersonalModule(method.algorithm, method.task(client), personal, method.inputs)
    return PersonalModel(module, method.inputs, card)
