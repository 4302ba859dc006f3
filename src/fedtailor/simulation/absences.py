"""Absences of an earlier run, repeated.

Whether a client answers in time cannot be computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fedtailor.core.engine import Failure, NoAnswer
from fedtailor.core.scores import Scores
from fedtailor.simulation.clients import Clients, PersonalizeReply, TrainReply
from fedtailor.simulation.programs import PersonalizeRequest, ScoreRequest, TrainRequest
from fedtailor.simulation.report import Stage
from fedtailor.simulation.upload_sums import Reduction

R = TypeVar("R")

_COMPLETE = -1
"""Stands in events for the complete test part, which belongs to no client."""


class RepeatedAbsences:
    """Clients of which some give no answer where they gave none before. They do not run."""

    def __init__(self, clients: Clients, events: Iterable[Mapping[str, Any]]) -> None:
        """Repeat what happened to clients.

        Args:
            clients: answer all other requests.
            events: of the rounds that are run again; those of kind ``absent`` count.
        """
        self._clients = clients
        self._reasons: dict[tuple[int, int, Stage], dict[int, str]] = {}
        for event in events:
            if event["kind"] == "absent":
                reason = str(event["reason"]).removeprefix(f"{event['stage']}: ")
                place = (event["round"], event.get("attempt", 0), event["stage"])
                self._reasons.setdefault(place, {})[event["client"]] = reason

    @property
    def personal(self) -> Mapping[int, Any]:
        """The personal models that were kept, by client."""
        return self._clients.personal

    def train(
        self,
        request: TrainRequest,
        shared: Any,
        clients: Sequence[int],
        round: int,
        reduction: Reduction | None = None,
    ) -> Iterator[tuple[int, TrainReply | Failure]]:
        """Run a round of those who answered."""
        reasons = self._reasons.get((round, request.attempt, "local_update"), {})
        return _ask(
            reasons,
            clients,
            lambda present: self._clients.train(request, shared, present, round, reduction),
        )

    def accept(self, client: int) -> None:
        """Make what the client's round left its state."""
        self._clients.accept(client)

    def update_per_client(self, values: Mapping[int, Any]) -> None:
        """Replace the per-client values of clients."""
        self._clients.update_per_client(values)

    def remember(self) -> None:
        """Remember what clients keep now."""
        self._clients.remember()

    def go_back(self) -> None:
        """Return to what was remembered."""
        self._clients.go_back()

    def score(
        self, request: ScoreRequest, model: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, Scores | Failure]]:
        """Score one model on the test examples of those who answered."""
        reasons = self._later(round, "evaluate")
        return _ask(
            reasons, clients, lambda present: self._clients.score(request, model, present, round)
        )

    def score_complete(
        self, request: ScoreRequest, model: Any, round: int
    ) -> Scores | Failure | None:
        """Score one model on the complete official test part."""
        reasons = self._later(round, "evaluate on the complete test part")
        if _COMPLETE in reasons:
            return Failure(NoAnswer(reasons[_COMPLETE]))
        return self._clients.score_complete(request, model, round)

    def personalize(
        self, request: PersonalizeRequest, shared: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, PersonalizeReply | Failure]]:
        """Make and score the personal models of those who answered."""
        reasons = self._later(round, "personalize")
        return _ask(
            reasons,
            clients,
            lambda present: self._clients.personalize(request, shared, present, round),
        )

    def _later(self, round: int, stage: Stage) -> dict[int, str]:
        """Return who gave no answer after the training of a round, whichever attempt succeeded."""
        found: dict[int, str] = {}
        for (event_round, _, event_stage), reasons in self._reasons.items():
            if (event_round, event_stage) == (round, stage):
                found.update(reasons)
        return found


def _ask(
    reasons: Mapping[int, str],
    clients: Sequence[int],
    ask: Callable[[Sequence[int]], Iterator[tuple[int, R | Failure]]],
) -> Iterator[tuple[int, R | Failure]]:
    """Yield the answers as they come, and the absences of the others, each at its place."""
    places = {client: place for place, client in enumerate(clients)}
    absent = [client for client in clients if client in reasons]
    for client, answer in ask([client for client in clients if client not in reasons]):
        while absent and places[absent[0]] < places.get(client, 0):
            missing = absent.pop(0)
            yield missing, Failure(NoAnswer(reasons[missing]))

        yield client, answer

    for missing in absent:
        yield missing, Failure(NoAnswer(reasons[missing]))
