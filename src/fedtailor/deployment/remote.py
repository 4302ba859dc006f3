"""Clients that are sites elsewhere: what the round loop asks of them goes out as messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.algorithm import Algorithm
from fedtailor.core.engine import Failure, NoAnswer, ProgramError
from fedtailor.core.errors import DataError, FedtailorError, one_line
from fedtailor.core.message import Messages, Problem
from fedtailor.core.roster import Roster
from fedtailor.core.scores import Scores
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import Exchange, SiteFailure
from fedtailor.deployment.packing import pack_download, unpack_upload
from fedtailor.deployment.plan import Plan
from fedtailor.deployment.state import Version
from fedtailor.deployment.wire import (
    from_blob,
    head_of,
    problem_with_scores,
    to_blob,
    wrong,
)
from fedtailor.simulation.checkpoint import readable_modules
from fedtailor.simulation.clients import PersonalizeReply, Storage, TrainReply
from fedtailor.simulation.programs import PersonalizeRequest, Request, ScoreRequest, TrainRequest
from fedtailor.simulation.quarantine import problem_with_numbers, usable_numbers
from fedtailor.simulation.upload_sums import Reduction


class RemoteClients:
    """The sites of a run, as the round loop sees them.

    Their states stay with them. The server keeps, for every site, from which state it is to go on
    (``bases``): the one of the last round that was accepted. Sites keep that one and the newest
    few.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any, Any, Any],
        roster: Roster,
        plan: Plan,
        exchange: Exchange,
        *,
        shares: Sequence[frozenset[str]],
        needed: int,
        storage: Storage,
    ) -> None:
        """Start with sites that have not done anything yet, or with those of a run that is resumed.

        Args:
            algorithm: what the sites run.
            roster: who there is.
            plan: what all agree on.
            exchange: carries requests and answers.
            shares: what each site shares beside the messages of the method.
            needed: sites without whose answers a round is not closed.
            storage: where ``bases``, ``per_client``, and what :meth:`remember` remembers of them,
                are kept.
        """
        self.algorithm = algorithm
        self.roster = roster
        self.plan = plan
        self.bases = storage("bases")
        self.per_client = storage("per_client")
        self._storage = storage
        self._exchange = exchange
        self._shares = shares
        self._needed = needed
        self._modules = readable_modules(algorithm)
        self._messages: Messages = algorithm.messages(algorithm.bind(roster.common_task))
        self._trained: dict[int, Version] = {}
        """The rounds that wait for :meth:`accept`."""

    @property
    def personal(self) -> Mapping[int, Any]:
        """Nothing: personal models stay at the sites."""
        return {}

    def train(
        self,
        request: TrainRequest,
        shared: Any,
        clients: Sequence[int],
        round: int,
        reduction: Reduction | None = None,
    ) -> Iterator[tuple[int, TrainReply | Failure]]:
        """Run a round of some sites; their uploads come as they are."""
        self._trained = {}
        blob = to_blob(pack_download(shared, self._messages), self._modules)
        answers = self._ask(request, blob, clients, round)
        for client in clients:
            reply = self._read(
                client, answers.get(client), self._train_reply, round, request.attempt
            )
            if isinstance(reply, TrainReply) and reply.problem is None:
                self._trained[client] = Version(round, request.attempt)

            yield client, reply

    def accept(self, client: int) -> None:
        """Make what the site's round left the state from which it goes on."""
        self.bases[client] = torch.tensor(self._trained.pop(client))

    def update_per_client(self, values: Mapping[int, Any]) -> None:
        """Replace what single sites receive beside the broadcast."""
        self.per_client.update(values)

    def remember(self) -> None:
        """Remember from which states the sites would go on now, and what they would receive."""
        for kept, remembered in self._kept_and_remembered():
            for client in kept:
                remembered[client] = kept[client]

    def go_back(self) -> None:
        """Return to what was remembered."""
        for kept, remembered in self._kept_and_remembered():
            for client in list(kept):
                if client not in remembered:
                    del kept[client]
            for client in remembered:
                kept[client] = remembered[client]

    def _kept_and_remembered(self) -> list[tuple[Any, Any]]:
        return [
            (self.bases, self._storage("best_bases")),
            (self.per_client, self._storage("best_per_client")),
        ]

    def score(
        self, request: ScoreRequest, model: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, Scores | Failure]]:
        """Score one model at the sites that share scores."""
        asked = [client for client in clients if "scores" in self._shares[client]]
        answers = self._ask(request, to_blob(model, self._modules), asked, round)
        for client in asked:
            yield client, self._read(client, answers.get(client), self._scores, round)

    def score_complete(
        self, request: ScoreRequest, model: Any, round: int
    ) -> Scores | Failure | None:
        """Return None: no test part belongs to all sites."""
        return None

    def personalize(
        self, request: PersonalizeRequest, shared: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, PersonalizeReply | Failure]]:
        """Have some sites make and score their personal models."""
        blob = to_blob(pack_download(shared, self._messages), self._modules)
        answers = self._ask(request, blob, clients, round)
        for client in clients:
            yield client, self._read(client, answers.get(client), self._personalize_reply, round)

    def _ask(
        self, request: Request, shared: bytes, clients: Sequence[int], round: int
    ) -> dict[int, Envelope | SiteFailure]:
        """Send a request to some sites, and return their answers."""
        requests = {}
        for client in clients:
            base = self._base(client)
            head = head_of(
                request,
                run=self.plan.run,
                round=round,
                client=client,
                base=base,
                keep=self._to_keep(client),
            )
            blobs = {"plan": self.plan.raw, "shared": shared}
            if client in self.per_client:
                blobs["own"] = to_blob(self.per_client[client], self._modules)

            requests[client] = Envelope(head, blobs)

        if not requests:
            return {}

        def belongs(client: int, answer: Envelope) -> bool:
            return _belongs(answer.head, requests[client].head)

        return self._exchange.ask(requests, needed=min(self._needed, len(requests)), accept=belongs)

    def _base(self, client: int) -> Version | None:
        if client not in self.bases:
            return None
        round, attempt = self.bases[client].tolist()
        return Version(round, attempt)

    def _to_keep(self, client: int) -> list[Version]:
        """Return the state that a site must not remove, however old it is: that of the best round
        so far.
        """
        remembered = self._storage("best_bases")
        return [Version(*remembered[client].tolist())] if client in remembered else []

    def _read(
        self, client: int, answer: Envelope | SiteFailure | None, read: Any, *arguments: Any
    ) -> Any:
        """Return what an answer holds, or a failure; whatever a site sends is no error."""
        if answer is None:
            return Failure(NoAnswer("no answer in time"))
        if isinstance(answer, SiteFailure):
            return Failure(NoAnswer(one_line(answer.text)))

        for key in ("refused", "failed"):
            if key in answer.head:
                return Failure(ProgramError(one_line(f"the site says: {answer.head[key]!s:.500}")))

        try:
            return read(client, answer, *arguments)
        except FedtailorError as error:
            return Failure(ProgramError(one_line(f"the answer cannot be used: {error.message}")))

    def _out(self, answer: Envelope, keys: set[str]) -> Mapping[str, Any]:
        out = from_blob(answer.blobs.get("out", b""), self._modules)
        if not isinstance(out, Mapping) or set(out) != keys:
            raise wrong("out", ", ".join(sorted(keys)), "something else")
        return out

    def _train_reply(self, client: int, answer: Envelope, round: int, attempt: int) -> TrainReply:
        problem = answer.head.get("problem")
        if problem is not None:
            return TrainReply(round, attempt, {}, {}, (), _problem(problem))

        out = self._out(answer, {"upload", "metrics", "scores"})
        scores = self._checked_scores(out["scores"])
        text = problem_with_numbers(_numbers(out["metrics"]), "metric")
        found = Problem("metric", "", text) if text else None

        return TrainReply(
            round,
            attempt,
            unpack_upload(out["upload"], self._messages),
            out["metrics"],
            scores,
            found,
        )

    def _personalize_reply(self, client: int, answer: Envelope, round: int) -> PersonalizeReply:
        out = self._out(answer, {"scores", "diagnostics"})
        if not isinstance(out["scores"], Mapping) or not set(out["scores"]) <= {
            "clients",
            "validation",
        }:
            raise wrong("scores", "scores by test set", "something else")

        scores = {name: self._checked_scores(each) for name, each in out["scores"].items()}
        problem = answer.head.get("problem", "")
        return PersonalizeReply(
            {name: each for name, each in scores.items() if isinstance(each, Scores)},
            usable_numbers(_numbers(out["diagnostics"])),
            one_line(problem) if isinstance(problem, str) else "",
        )

    def _scores(self, client: int, answer: Envelope, round: int) -> Scores:
        scores = self._checked_scores(self._out(answer, {"scores"})["scores"])
        if not isinstance(scores, Scores):
            raise wrong("scores", "scores", "none")
        return scores

    def _checked_scores(self, scores: Any) -> Scores | tuple[()]:
        if isinstance(scores, tuple) and scores == ():
            return ()
        text = problem_with_scores(scores, self.roster.common_task.num_classes)
        if text:
            raise DataError(f"{text}.", key="scores")
        found: Scores = scores
        return found


def _belongs(answer: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Return whether an answer is one to a request, judged by the heads of both."""
    if "refused" in answer:
        return bool(answer.get("kind") == asked["kind"])
    expected = {key: asked[key] for key in ("kind", "run", "round", "client")}
    if "attempt" in asked["options"]:
        expected["attempt"] = asked["options"]["attempt"]
    return all(answer.get(key) == value for key, value in expected.items())


def _numbers(value: Any) -> dict[str, Tensor]:
    """Return numbers by name.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise wrong("metrics", "numbers by name", "something else")
    return dict(value)


def _problem(value: Any) -> Problem:
    """Return the problem that a site says its round has; every site may say that of itself."""
    if (
        not isinstance(value, list)
        or len(value) != 3
        or not all(isinstance(each, str) for each in value)
    ):
        raise wrong("problem", "a kind, a field and a text", value)

    text = (
        one_line(value[2]) or f"the site says that its work cannot be used ({one_line(value[0])})"
    )
    return Problem("state", "", text)
