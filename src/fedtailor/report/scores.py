"""The scores of the clients of a run at one evaluation point, from its records. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedtailor.core.errors import DataError
from fedtailor.core.reading import damaged
from fedtailor.experiment.reader import RunRecords

POINTS = ("personalized", "global", "local")
"""The evaluation points at which clients have scores."""
_LARGEST = 1e100
"""No loss of numbers in single precision is larger."""
Group = Literal["known", "new"]
_PLACES: Mapping[Group, str] = {"known": "metrics", "new": "new_clients"}
"""Where a result holds the evaluations of known and of new clients."""


@dataclass(frozen=True)
class ClientScores:
    """One metric of the clients of one run, at one evaluation point of its final models."""

    round: int
    """After which the models were made."""
    adaptation: str
    """What was done to make them."""
    values: Mapping[int, float]
    """By the id of the client, in the order of ids."""
    num_train: Mapping[int, int]
    """Training examples, by the id of the client."""
    num_clients: int
    """Clients of the run that should have a score; some may have none."""


def read_scores(
    run: RunRecords, *, point: str, metric: str, group: Group = "known"
) -> ClientScores | None:
    """Return the scores of the clients of a finished run; None if it has no evaluation at the
    point.

    A client has no value if it has no test examples, if its evaluation failed, or if its loss is
    infinite.

    Args:
        run: of one seed.
        point: one of ``POINTS``.
        metric: a name of :data:`fedtailor.core.metrics.CLIENT_METRICS`.
        group: known clients, or those that never took part in training.

    Raises:
        DataError: the records are damaged.
    """
    final = _final_evaluation(run, point, group)
    if final is None:
        return None

    number = final.get("round")
    if type(number) is not int:
        raise damaged(run.path / "result.json", f"the evaluation '{point}' has no round")

    wanted = {"point": point, "test_set": "clients", "group": group}
    lines_of_round = run.clients_of_round(number)
    found = [
        line
        for line in lines_of_round
        if all(line.get(name) == value for name, value in wanted.items())
    ]
    lines = {_whole(line, "client", run): line for line in found}

    if len(lines) < len(found):
        raise damaged(
            run.path / "clients.jsonl", f"a client has two lines of '{point}' after round {number}"
        )

    values = {client: _value(line, metric, run) for client, line in sorted(lines.items())}
    return ClientScores(
        round=number,
        adaptation=str(final.get("adaptation", "not recorded")),
        values={client: value for client, value in values.items() if value is not None},
        num_train={client: _whole(line, "num_train", run) for client, line in lines.items()},
        num_clients=max(len(lines), _size_of_group(run, group)),
    )


def _final_evaluation(run: RunRecords, point: str, group: Group) -> Mapping[str, Any] | None:
    """Return the record of an evaluation in the result; None if there is none."""
    evaluations = (run.result or {}).get(_PLACES[group], {})
    final = evaluations.get(point) if isinstance(evaluations, Mapping) else None
    if final is not None and not isinstance(final, Mapping):
        raise damaged(run.path / "result.json", f"the evaluation '{point}' is no table")
    return final


def _size_of_group(run: RunRecords, group: Group) -> int:
    """Return the number of clients of a group in the split; 0 if it is not known."""
    clients = run.split.get("clients")
    num_new = run.split.get("new_clients", 0)
    if (
        not isinstance(clients, list)
        or type(num_new) is not int
        or not 0 <= num_new <= len(clients)
    ):
        return 0

    return num_new if group == "new" else len(clients) - num_new


def _whole(line: Mapping[str, Any], name: str, run: RunRecords) -> int:
    """Return a whole number of a line."""
    value = line.get(name)
    if type(value) is not int:
        raise _not_a_number(run, line, name)
    return value


def _value(line: Mapping[str, Any], metric: str, run: RunRecords) -> float | None:
    """Return the value of a metric; None if the client has none."""
    value = line.get(metric)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _not_a_number(run, line, metric)

    try:
        number = float(value)
    except OverflowError:
        number = math.inf

    if not abs(number) <= _LARGEST:
        raise _not_a_number(run, line, metric)

    return number


def _not_a_number(run: RunRecords, line: Mapping[str, Any], name: str) -> DataError:
    where = (
        f"in the line of client {line.get('client')!r:.40} after round {line.get('round')!r:.40}"
    )
    return damaged(run.path / "clients.jsonl", f"'{name}' is {line.get(name)!r:.40} {where}")
