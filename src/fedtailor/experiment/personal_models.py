"""The personal models of a run as files, and their cards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedtailor.core import tree
from fedtailor.core.codec import encode
from fedtailor.core.metrics import per_client
from fedtailor.core.per_example import holds_examples
from fedtailor.experiment.assembly import PreparedRun
from fedtailor.simulation.calibration import calibrate
from fedtailor.simulation.report import RoundReport


def personal_models(parts: PreparedRun, last: RoundReport) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Yield every client's name, its personal model as a file, and its card."""
    config = parts.config
    federation = parts.federation
    model_names = (config.model.name, *config.model.others)
    scored = {
        client: per_client(scores)
        for evaluation in last.evaluations
        if evaluation.point == "personalized" and evaluation.test_set == "clients"
        for client, scores in zip(evaluation.ids, evaluation.scores, strict=True)
    }
    inputs_digest = parts.inputs.digest
    for client, personal in last.personal.items():
        name = federation.client_names[client] if federation.client_names else str(client)
        task = parts.algorithm.bind(federation.task(client))
        calibration = calibrate(parts.algorithm, task, personal, federation.data(client).val)
        card = {
            "number": client,
            "new": client in federation.roster.new,
            "algorithm": config.algorithm.name,
            "model": model_names[client % len(model_names)],
            "dataset": parts.divided.dataset.name,
            "seed": config.seeds[0],
            "round": last.round,
            "adaptation": parts.algorithm.adaptation_summary(new=client in federation.roster.new),
            "participated": client in last.state.participated,
            "holds_examples": holds_examples(personal),
            "input_shape": list(federation.common_task.input_shape),
            "num_classes": federation.common_task.num_classes,
            "class_names": list(federation.class_names),
            "condition": federation.conditions[client] if federation.conditions else "clean",
            "class_counts": federation.info(client).class_counts.long().tolist(),
            "scores": scored.get(client, {}),
            "calibration": calibration._asdict(),
            "inputs": "../inputs.json",
            "inputs_sha256": inputs_digest,
            "tensors": {leaf_path: list(leaf.shape) for leaf_path, leaf in tree.paths(personal).items()},
        }
        yield name, encode(personal), card
