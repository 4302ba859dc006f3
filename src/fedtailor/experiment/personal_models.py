"""The personal models of a run as files, and their cards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedtailor.core.codec import encode
from fedtailor.core.devices import to_host
from fedtailor.core.metrics import per_client
from fedtailor.experiment.assembly import PreparedRun
from fedtailor.experiment.model_card import model_card
from fedtailor.simulation.calibration import calibrate
from fedtailor.simulation.report import RoundReport


def personal_models(
    parts: PreparedRun, last: RoundReport
) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Yield every client's name, its personal model as a file, and its card."""
    config = parts.config
    federation = parts.federation
    scored = {
        client: per_client(scores)
        for evaluation in last.evaluations
        if evaluation.point == "personalized" and evaluation.test_set == "clients"
        for client, scores in zip(evaluation.ids, evaluation.scores, strict=True)
    }

    for client in last.personal:
        personal = to_host(last.personal[client], "a personal model for its file")
        name = federation.client_names[client] if federation.client_names else str(client)
        task = parts.algorithm.bind(federation.task(client))
        calibration = calibrate(parts.algorithm, task, personal, federation.data(client).val)
        card = model_card(
            personal,
            config=config,
            algorithm=parts.algorithm,
            task=task,
            inputs=parts.inputs,
            dataset=parts.divided.dataset.name,
            number=client,
            new=client in federation.roster.new,
            round=last.round,
            participated=client in last.state.participated,
            class_counts=federation.info(client).class_counts.long().tolist(),
            scores=scored.get(client, {}),
            calibration=calibration._asdict(),
        )
        card["condition"] = federation.conditions[client] if federation.conditions else "clean"
        yield name, encode(personal), card
