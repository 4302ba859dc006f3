"""Absences of clients in rounds that are run again.

Whether a client answers in time is chance. So when a run is repeated, the clients that gave no
answer the first time are not asked again: the records of the first time count.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fedtailor.core.engine import Failure, NoAnswer
from fedtailor.simulation.report import RoundReport, Stage

R = TypeVar("R")


class Absences:
    """Which clients gave no answer in rounds that are run again. They are not asked again."""

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        """Repeat what happened to clients.

        Args:
            events: of the rounds that are run again; those of kind ``absent`` count.
        """
        self._reasons: defaultdict[tuple[int, int, Stage], dict[int, str]] = defaultdict(dict)
        for event in events:
            if event["kind"] == "absent":
                reason = str(event["reason"]).removeprefix(f"{event['stage']}: ")
                request = (event["round"], event.get("attempt", 0), event["stage"])
                self._reasons[request][event["client"]] = reason

    def ask(
        self,
        report: RoundReport,
        stage: Stage,
        clients: Sequence[int],
        ask: Callable[[Sequence[int]], Iterable[tuple[int, R | Failure]]],
    ) -> Iterator[tuple[int, R | Failure]]:
        """Yield what the present clients answer as it comes, and the absences of the others.

        Args:
            report: of the round.
            stage: what is asked.
            clients: their ids in increasing order.
            ask: is given those who are present, and returns their answers.
        """
        reasons = self._reasons.get((report.round, report.attempt, stage), {})
        present = [client for client in clients if client not in reasons]
        absent = deque(client for client in clients if client in reasons)

        # Events keep the order of the clients.
        for client, answer in ask(present):
            while absent and absent[0] < client:
                missing = absent.popleft()
                yield missing, Failure(NoAnswer(reasons[missing]))

            yield client, answer

        for missing in absent:
            yield missing, Failure(NoAnswer(reasons[missing]))
