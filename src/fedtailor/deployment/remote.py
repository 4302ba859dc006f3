"""Clients that are sites elsewhere: what the round loop asks of them goes out as messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedtailor.core.algorithm import Algorithm
from fedtailor.core.engine import Failure, NoAnswer, ProgramError
from fedtailor.core.errors import FedtailorError, one_line
from fedtailor.core.federation import Roster
from fedtailor.core.message import Messages
from fedtailor.core.reduction import Reduction
from fedtailor.core.scores import Scores
from fedtailor.core.upload_checks import Problem
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import Exchange, SiteFailure
from fedtailor.deployment.packing import pack_download, unpack_upload
from fedtailor.deployment.plan import DeploymentPlan
from fedtailor.deployment.state import Version
from fedtailor.deployment.wire import (
    Work,
    check_scores,
    from_blob,
    refusal_in,
    repeated,
    to_blob,
    wrong,
)
from fedtailor.simulation.checkpoint import readable_modules
from fedtailor.simulation.clients import PersonalizeReply, Storage, TrainReply
from fedtailor.simulation.programs import PersonalizeRequest, Request, ScoreRequest, TrainRequest
from fedtailor.simulation.quarantine import problem_with_numbers, usable_numbers

Reply = TypeVar("Reply")


class RemoteClients:
    """The sites of a run, as the round loop sees them.

    Their states stay with them. The server keeps, for every site, from which state it is to
    continue (``bases``): the one of the last round that was accepted. Sites keep that one and the
    newest few.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any, Any, Any],
        roster: Roster,
        plan: DeploymentPlan,
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
        self.bases = storage("bases")
        self.per_client = storage("per_client")
        self._best_bases = storage("best_bases")
        self._best_per_client = storage("best_per_client")
        self._plan = plan
        self._exchange = exchange
        self._shares = shares
        self._needed = needed
        self._num_classes = roster.common_task.num_classes
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

        def read(answer: Envelope) -> TrainReply:
            return self._train_reply(answer, round, request.attempt)

        # What a round leaves counts only once the server has accepted it.
        self._trained = {}
        answers = self._ask(request, self._pack(shared), clients, round)
        for client in clients:
            reply = _read(answers.get(client), read)
            if isinstance(reply, TrainReply) and reply.problem is None:
                self._trained[client] = Version(round, request.attempt)

            yield client, reply

    def accept(self, client: int) -> None:
        """Make what the site's round left the state from which it continues."""
        self.bases[client] = torch.tensor(self._trained.pop(client))

    def update_per_client(self, values: Mapping[int, Any]) -> None:
        """Replace what single sites receive beside the broadcast."""
        self.per_client.update(values)

    def remember(self) -> None:
        """Remember from which states the sites would continue now, and what they would receive."""
        self._best_bases.update(self.bases)
        self._best_per_client.update(self.per_client)

    def go_back(self) -> None:
        """Return to what was remembered."""
        for values, remembered in (
            (self.bases, self._best_bases),
            (self.per_client, self._best_per_client),
        ):
            values.clear()
            values.update(remembered)

    def score(
        self, request: ScoreRequest, model: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, Scores | Failure]]:
        """Score one model at the sites that share scores."""
        # The others would refuse.
        sharing = [client for client in clients if "scores" in self._shares[client]]
        answers = self._ask(request, to_blob(model, self._modules), sharing, round)
        for client in sharing:
            yield client, _read(answers.get(client), self._scores)

    def score_complete(
        self, request: ScoreRequest, model: Any, round: int
    ) -> Scores | Failure | None:
        """Return None: no test part belongs to all sites."""
        return None

    def personalize(
        self, request: PersonalizeRequest, shared: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, PersonalizeReply | Failure]]:
        """Have some sites make and score their personal models."""
        answers = self._ask(request, self._pack(shared), clients, round)
        for client in clients:
            yield client, _read(answers.get(client), self._personalize_reply)

    def _pack(self, shared: Any) -> bytes:
        return to_blob(pack_download(shared, self._messages), self._modules)

    def _ask(
        self, request: Request, shared: bytes, clients: Sequence[int], round: int
    ) -> dict[int, Envelope | SiteFailure]:
        """Send a request to some sites, and return their answers."""
        if not clients:
            return {}

        requests = {}
        for client in clients:
            work = Work(
                request,
                self._plan.run,
                round,
                client,
                base=self._version(self.bases, client),
                best=self._version(self._best_bases, client),
            )

            # The plan travels with each request, so that a site that was started again knows it.
            blobs = {"plan": self._plan.raw, "shared": shared}
            if client in self.per_client:
                blobs["own"] = to_blob(self.per_client[client], self._modules)
            requests[client] = Envelope(work.to_head(), blobs)

        def belongs(client: int, answer: Envelope) -> bool:
            return repeated(requests[client].head).items() <= answer.head.items()

        # A deployment waits for these sites, however long that takes.
        needed = min(self._needed, len(requests))
        return self._exchange.ask(requests, needed=needed, accept=belongs)

    @staticmethod
    def _version(bases: Mapping[int, Tensor], client: int) -> Version | None:
        return Version(*bases[client].tolist()) if client in bases else None

    def _out(self, answer: Envelope, keys: set[str]) -> Mapping[str, Any]:
        out = from_blob(answer.blobs.get("out", b""), self._modules)
        if not isinstance(out, Mapping) or set(out) != keys:
            raise wrong("out", ", ".join(sorted(keys)), "something else")
        return out

    def _train_reply(self, answer: Envelope, round: int, attempt: int) -> TrainReply:
        problem = answer.head.get("problem")
        if problem is not None:
            if not isinstance(problem, str):
                raise wrong("problem", "a text", problem)
            return TrainReply(round, attempt, {}, {}, (), Problem("state", "", one_line(problem)))

        # Every part is checked by itself: whatever a site sends, its round alone is left out.
        out = self._out(answer, {"upload", "metrics", "scores"})
        upload = unpack_upload(out["upload"], self._messages)
        metrics = _numbers(out["metrics"])
        text = problem_with_numbers(metrics, "metric")
        flaw = Problem("metric", "", text) if text else None

        # A site that shares no scores sends ().
        scores = out["scores"]
        if not isinstance(scores, tuple) or len(scores):
            scores = check_scores(scores, self._num_classes)
        return TrainReply(round, attempt, upload, metrics, scores, flaw)

    def _personalize_reply(self, answer: Envelope) -> PersonalizeReply:
        out = self._out(answer, {"scores", "diagnostics"})
        test_sets = out["scores"]
        if not isinstance(test_sets, Mapping) or not set(test_sets) <= {"clients", "validation"}:
            raise wrong("scores", "scores by test set", "something else")

        scores = {name: check_scores(test_sets[name], self._num_classes) for name in test_sets}
        diagnostics = usable_numbers(_numbers(out["diagnostics"]))
        problem = answer.head.get("problem", "")
        if not isinstance(problem, str):
            raise wrong("problem", "a text", problem)
        return PersonalizeReply(scores, diagnostics, one_line(problem))

    def _scores(self, answer: Envelope) -> Scores:
        return check_scores(self._out(answer, {"scores"})["scores"], self._num_classes)


def _read(
    answer: Envelope | SiteFailure | None, read: Callable[[Envelope], Reply]
) -> Reply | Failure:
    """Return what an answer holds, or a failure; no answer of a site raises an error here."""
    if answer is None:
        return Failure(NoAnswer("no answer in time"))
    if isinstance(answer, SiteFailure):
        return Failure(NoAnswer(one_line(answer.text)))

    reason = refusal_in(answer.head)
    if reason is not None:
        return Failure(ProgramError(f"the site says: {reason}"))

    try:
        return read(answer)
    except FedtailorError as error:
        return Failure(ProgramError(one_line(f"the answer cannot be used: {error.message}")))


def _numbers(value: Any) -> dict[str, Tensor]:
    """Return numbers by name.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise wrong("metrics", "numbers by name", "something else")
    return dict(value)
