"""The evaluations of a round: the global model on every client's test examples, and every client's own model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from functools import partial, reduce
from typing import Any, Literal

import torch

from fedtailor.core.engine import ExampleIndices, Failure
from fedtailor.core.metrics import Scores, add
from fedtailor.simulation.clients import Clients
from fedtailor.simulation.programs import personalize_program, score_program
from fedtailor.simulation.quarantine import all_finite, describe, refuse_total_failure
from fedtailor.simulation.report import Evaluation, RoundReport, record, whole_sum

_COMPLETE_CHUNK = 1000
"""Examples of the complete test part that one worker scores at once."""


def evaluate_global(report: RoundReport, clients: Clients, model: Any) -> None:
    """Score a global model on every known client's test examples, and on the complete test part if there is one."""
    program = partial(score_program, algorithm=clients.algorithm)
    known = clients.federation.known
    scores = dict(_sound(report, clients.run(program, model, known, report.round), len(known), "evaluate"))
    report.evaluations.append(Evaluation("global", "none", "known", list(scores), list(scores.values())))
    report.evaluations += _on_complete(report, clients, model)


def _on_complete(report: RoundReport, clients: Clients, model: Any) -> list[Evaluation]:
    """Score the global model once on the test examples that belong to nobody in particular, if there are any."""
    federation = clients.federation
    if not len(federation.complete):
        return []
    parts = [federation.examples(part) for part in torch.split(federation.complete, _COMPLETE_CHUNK)]
    row = clients.row(0)  # any client would do: a global model is the same for all
    rows = [row._replace(test=ExampleIndices(part.rows, part.weight)) for part in parts]
    program = partial(score_program, algorithm=clients.algorithm)
    outputs = clients.run_rows(program, model, [0] * len(rows), rows, report.round)
    failed = [output for output in outputs if isinstance(output, Failure)]
    if failed:
        _failed(report, -1, f"evaluate on the complete test part: {describe(failed[0])}")
        return []
    return [Evaluation("global", "none", "known", [], [reduce(add, outputs)], "complete")]


def evaluate_personalized(
    report: RoundReport, clients: Clients, shared: Any, *, new: bool, models: MutableMapping[int, Any] | None
) -> None:
    """Personalize and score the known clients, or the new ones.

    Args:
        report: of the round; evaluations and events are added, and gradient steps if the models are kept.
        clients: of the run.
        shared: what these clients receive.
        new: whether those clients that never took part, in place of the known ones.
        models: where personal models are kept; None: nowhere.
    """
    federation, algorithm = clients.federation, clients.algorithm
    ids, who = (federation.new, "new") if new else (federation.known, "known")
    program = partial(personalize_program, algorithm=algorithm, new=new, validate=federation.validates)
    outputs = clients.run(program, shared, ids, report.round)
    diagnostics: dict[str, dict[int, float]] = {}
    scored: dict[int, dict[Literal["clients", "validation"], Scores]] = {}
    for client, (personal, numbers, scores) in _sound(report, outputs, len(ids), "personalize"):
        record(diagnostics, client, numbers)
        scored[client] = scores
        if not all_finite(personal):
            reason = "personalize: the model holds values that are not finite; it is scored, and not kept"
            _failed(report, client, reason)
        elif models is not None:
            models[client] = personal
    if models is not None:
        report.steps += whole_sum(diagnostics.get("steps", {}))
    test_sets: list[Literal["clients", "validation"]] = ["clients", "validation"]
    for test_set in test_sets[: 1 + federation.validates]:
        found = [scores[test_set] for scores in scored.values()]
        adaptation_summary = algorithm.adaptation_summary(new=new)
        report.evaluations.append(
            Evaluation("personalized", adaptation_summary, who, list(scored), found, test_set, diagnostics)  # type: ignore[arg-type]
        )


def _sound(
    report: RoundReport, outputs: Iterable[tuple[int, Any]], count: int, stage: str
) -> Iterator[tuple[int, Any]]:
    """Yield the outputs of clients that did not fail; the others leave an event, and if all did, that is an error."""
    failed = []
    for client, output in outputs:
        if isinstance(output, Failure):
            _failed(report, client, f"{stage}: {describe(output)}")
            failed.append((client, output))
        else:
            yield client, output
    refuse_total_failure(failed, count, stage, report.round)


def _failed(report: RoundReport, client: int, reason: str) -> None:
    report.events.append({"kind": "failed", "round": report.round, "client": client, "reason": reason})
