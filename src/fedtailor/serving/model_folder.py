"""The folder of a run with one client: of an onboarded site, or a version of a site's own model.

It can be loaded as any other run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.baselines import TrainedBaselines
from fedtailor.core.codec import encode
from fedtailor.core.errors import describe_error
from fedtailor.core.metrics import per_client
from fedtailor.core.scores import Scores
from fedtailor.data.input_specification import write_input_specification
from fedtailor.data.split import ClientPositions, bare_split, to_records
from fedtailor.experiment.baselines import write_own_models
from fedtailor.experiment.config import to_toml
from fedtailor.experiment.folder import RunFolder
from fedtailor.experiment.model_card import model_card
from fedtailor.experiment.provenance import describe
from fedtailor.serving.load import TrainedMethod, make_model
from fedtailor.serving.signals import signals, write_held_out
from fedtailor.serving.site_data import SiteData


class ClientModel(NamedTuple):
    """A personal model, and what is known of it."""

    personal: Any
    name: str
    """Of the client."""
    method: TrainedMethod
    site: SiteData
    positions: ClientPositions
    """The division of the site's examples."""
    number: int
    """Of the client."""
    new: bool
    """Whether the client never takes part in training."""
    round: int
    """After which the model was made."""
    participated: bool
    """Whether the client's work was used at least once."""
    scores: Scores
    """On the client's test examples."""
    calibration: Mapping[str, Any]


def write_model_folder(
    out: Path,
    model: ClientModel,
    *,
    provenance: Mapping[str, Any],
    result: Mapping[str, Any],
    card: Mapping[str, Any] | None = None,
    own: TrainedBaselines | None = None,
) -> None:
    """Write the folder of a run with one client.

    Args:
        out: the folder, which must not exist.
        model: of the client.
        provenance: where the model comes from, beside what every run says.
        result: what the result says beside the name of the method and the scores.
        card: what the card says beside what every card says.
        own: the best model that the site trained alone, if it may use it.

    Raises:
        RunError: a file cannot be written.
    """
    # The model reads tables as those of its site were read.
    method = model.method
    method = method._replace(inputs=method.inputs.for_site(model.name, model.site.decimal))
    model = model._replace(method=method)
    config = method.config

    clients = to_records([model.positions])
    split = bare_split(model.site.name, [model.name], clients, new_clients=int(model.new))
    facts: dict[str, Any] = {"algorithm": config.algorithm.name, **result}
    metrics = per_client(model.scores)
    if metrics:
        facts["metrics"] = {"personalized": metrics}

    # The result comes last: until then, the folder reads as interrupted.
    origin = {**describe(), **provenance}
    with RunFolder.create(out, config=to_toml(config), provenance=origin) as folder:
        folder.write_split(split)
        write_input_specification(out, method.inputs)
        full_card = {**_card(model), **(card or {})}
        full_card["held_out"] = _write_held_out(out, model, full_card)
        if own is not None:
            write_own_models(out, {0: own})
        folder.write_models([(model.name, encode(model.personal), full_card)])
        folder.finish(facts)


def _write_held_out(out: Path, model: ClientModel, card: Mapping[str, Any]) -> dict[str, Any]:
    """Write what the model says of held-out examples, with which recent inputs are compared.

    Returns:
        How many there are, and why nothing could be said of them.
    """
    rows = np.concatenate([model.positions.val, model.positions.test])
    examples = {"examples": len(rows), "problem": ""}
    if not len(rows):
        return examples

    personal = make_model(model.method, model.number, model.personal, card)
    try:
        held_out = signals(personal, [model.site.x[rows]])
    except Exception as reason:  # of a user's method; no model is worth less for it
        examples["problem"] = describe_error(reason)
        return examples

    write_held_out(out, held_out)
    return examples


def _card(model: ClientModel) -> dict[str, Any]:
    method = model.method
    labels = model.site.y[model.positions.train]
    tested = model.positions.test
    independent = 1.0
    if len(tested):
        independent = model.positions.num_test_groups(model.site.groups) / len(tested)

    return model_card(
        model.personal,
        config=method.config,
        algorithm=method.algorithm,
        task=method.task(model.number),
        inputs=method.inputs,
        dataset=model.site.name,
        number=model.number,
        new=model.new,
        round=model.round,
        participated=model.participated,
        class_counts=np.bincount(labels, minlength=method.inputs.num_classes).tolist(),
        num_test=len(tested),
        scores=model.scores,
        independent=independent,
        calibration=model.calibration,
    )
