"""Clients that are sites elsewhere: what the round loop asks of them goes out as messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedtailor.core.engine import Failure, NoAnswer, ProgramError
from fedtailor.core.errors import DataError, FedtailorError, describe_error, one_line
from fedtailor.core.fixed_point import FixedPoint
from fedtailor.core.message import Messages, upload_bytes, with_noise_on_counts
from fedtailor.core.reduction import PartialSum, Reduction
from fedtailor.core.scores import ReportSums, Scores
from fedtailor.core.upload_checks import Problem, problem_with
from fedtailor.deployment.agreement import Agreement
from fedtailor.deployment.conduct import Conduct
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import Exchange, SiteFailure
from fedtailor.deployment.limits import LONGEST_METRIC_NAME, MOST_EXAMPLES, MOST_STEPS
from fedtailor.deployment.mask_kinds import SumFailedError
from fedtailor.deployment.masked_sum import MaskedSum
from fedtailor.deployment.packing import VALUE_PROBLEMS, pack_download, unpack_upload
from fedtailor.deployment.score_checks import check_scores
from fedtailor.deployment.secure_sums import SecureSums
from fedtailor.deployment.state import Version
from fedtailor.deployment.sum_vector import SumVector
from fedtailor.deployment.wire import (
    Work,
    answers_to,
    from_blob,
    largest_answer,
    refusal_in,
    to_blob,
    wrong,
)
from fedtailor.simulation.checkpoint import readable_modules
from fedtailor.simulation.clients import PersonalizeReply, Storage, TrainReply
from fedtailor.simulation.noise_elsewhere import NoiseElsewhere
from fedtailor.simulation.programs import PersonalizeRequest, Request, ScoreRequest, TrainRequest
from fedtailor.simulation.quarantine import problem_with_numbers, usable_numbers
from fedtailor.simulation.trial import reported_numbers

Reply = TypeVar("Reply")


class Summed(NamedTuple, Generic[Reply]):
    """The answers of sites of which a part is a sum."""

    replies: dict[int, Reply | Failure]
    """What is not in the sum, by site."""
    report: ReportSums
    """Scores and numbers, or why there is no sum."""
    upload: Mapping[str, PartialSum] = {}
    """The sums of uploads, by field."""

    @property
    def lowest(self) -> int:
        """The lowest number of a site that is in the sum; -1 without a sum."""
        return min(self.report.clients, default=-1)


class _Question(NamedTuple):
    """What some sites are asked in a round."""

    request: Request
    shared: bytes
    """What all of them receive."""
    clients: Sequence[int]
    round: int


class RemoteClients:
    """The sites of a run, as the round loop sees them.

    Their states stay with them. The server keeps, for every site, from which state it is to
    continue (``bases``): the one of the last round that was accepted. Sites keep that one and the
    newest few.
    """

    def __init__(
        self,
        agreement: Agreement,
        exchange: Exchange,
        *,
        needed: int,
        storage: Storage,
        conduct: Conduct,
        sums: SecureSums | None = None,
        rare_classes: tuple[int, ...] = (),
        own_noise: NoiseElsewhere | None = None,
    ) -> None:
        """Start with sites that have not done anything yet, or with those of a run that is resumed.

        Args:
            agreement: what all agree on, and what each site has said of itself.
            exchange: carries requests and answers.
            needed: sites without whose answers a round is not closed.
            storage: where ``bases``, ``per_client``, and what :meth:`remember` remembers of them,
                are kept.
            conduct: which sites have sent what cannot be used.
            sums: makes the sums of uploads under masks; None: uploads come as they are.
            rare_classes: of secure sums: classes of too few sites for a mean over them.
            own_noise: what is known of the noise of the sites; None: there is none.
        """
        self.own_noise = own_noise
        self.bases = storage("bases")
        self.per_client = storage("per_client")
        self._best_bases = storage("best_bases")
        self._best_per_client = storage("best_per_client")
        self._plan = agreement.plan
        self._members = agreement.members
        self._exchange = exchange
        self._needed = needed
        self._conduct = conduct
        self._sums = sums
        self._rare_classes = rare_classes
        algorithm = self._plan.algorithm
        task = agreement.roster().common_task
        self._num_classes = task.num_classes
        self._modules = readable_modules(algorithm)
        self._messages: Messages = algorithm.messages(algorithm.bind(task))
        if own_noise is not None:
            self._messages = with_noise_on_counts(self._messages)
        self._task = task
        self._trained: dict[int, Version] = {}
        """The rounds that wait for :meth:`accept`."""

    @cached_property
    def _reported(self) -> tuple[str, ...]:
        """The names of what the method reports of its training, which go into sums."""
        return reported_numbers(self._plan.algorithm, self._task)

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
        """Run a round of some sites.

        Their uploads come as they are, or as one sum that was made under masks.
        """
        # What a round leaves counts only once the server has accepted it.
        self._trained = {}
        question = _Question(request, self._pack(shared), clients, round)
        if self._sums is None:
            read = partial(self._train_reply, request=request, round=round)
            replies = self._replies(question, read, needed=self._needed)
        else:
            assert reduction is not None
            replies = self._trained_in_sum(question, request, reduction)

        for client, reply in replies:
            if isinstance(reply, TrainReply) and reply.problem is None:
                self._trained[client] = Version(round, request.attempt)

            yield client, reply

    def _trained_in_sum(
        self, question: _Question, request: TrainRequest, reduction: Reduction
    ) -> Iterator[tuple[int, TrainReply | Failure]]:
        """Run a round of some sites, of whose uploads the server learns the sum."""
        fixed = reduction.fixed
        assert fixed is not None
        cohort = frozenset(reduction.cohort)

        def read(client: int, answer: Envelope) -> TrainReply:
            reply = self._train_reply(client, answer, request, question.round, with_upload=False)
            is_sent = client in cohort and reply.problem is None
            return reply._replace(num_bytes=fixed.num_bytes if is_sent else 0)

        others = set(question.clients) - cohort
        summed = self._ask_for_sum(
            question, read, cohort=reduction.cohort, others=others, fixed=fixed
        )
        if summed.report.problem:
            # Nothing is known of any upload.
            failure = Failure(NoAnswer(f"no secure sum: {summed.report.problem}"))
            for client in question.clients:
                yield client, failure
            return

        # The round loop takes a sum as that of its lowest client.
        for client, reply in summed.replies.items():
            if client == summed.lowest and isinstance(reply, TrainReply):
                reply = reply._replace(upload=summed.upload, sums=summed.report)
            yield client, reply

    def _ask_for_sum(
        self,
        question: _Question,
        read: Callable[[int, Envelope], Reply],
        *,
        cohort: Sequence[int],
        others: Collection[int],
        fixed: FixedPoint | None = None,
    ) -> Summed[Reply]:
        """Ask sites for masked vectors, and return their sum and the rest of their answers.

        Args:
            question: to them.
            read: returns what an answer says beside its vector, or raises an error.
            cohort: the sites whose vectors count.
            others: those that are asked in any case.
            fixed: of a request to train: how uploads become whole numbers.
        """
        assert self._sums is not None
        request = question.request
        vector = SumVector(self._plan, request, self._reported, self._messages, fixed)
        replies: dict[int, Reply | Failure] = {}
        try:
            asked = vector.request(question.round, question.shared)
            masked = self._sums.draw(asked, cohort, vector.entries)
            invited = {*masked.asked, *others}
            able = [client for client in question.clients if client in invited]
            replies = self._masked_replies(masked, question._replace(clients=able), read)
            if not masked.senders <= {*cohort}:
                raise masked.void("a site that was in the sum when it was closed has left since")

            numbers, senders = masked.open()
            total = torch.from_numpy(numbers)
            problem = vector.problem_with_sum(total, len(senders))
            if problem:
                raise masked.void(f"the sum cannot be right: {problem}")
        except SumFailedError as error:
            return Summed(replies, ReportSums(problem=error.message))

        # A site without keys cannot be in the sum, nor one that was not when the sum was closed.
        absent = Failure(NoAnswer("it has sent no keys for this sum, or no vector in time"))
        in_question = {*cohort, *others}
        members = [client for client in question.clients if client in in_question]
        return Summed(
            {client: replies.get(client, absent) for client in members},
            vector.decode_report(total, senders),
            {} if fixed is None else vector.decode_upload(total, len(senders)),
        )

    def _masked_replies(
        self, masked: MaskedSum, question: _Question, read: Callable[[int, Envelope], Reply]
    ) -> dict[int, Reply | Failure]:
        """Ask sites for masked vectors, and add them up; return the rest of their answers."""
        replies: dict[int, Reply | Failure] = {}
        if masked.is_closed:
            # Their answers were read before the sum was closed. After a new start of the server, a
            # site may be asked that was paused then.
            absent = Failure(NoAnswer("the sum was closed without it"))
            for client in question.clients:
                answer = masked.answers.get(client, absent)
                replies[client] = answer if isinstance(answer, Failure) else read(client, answer)
            return replies

        def add(client: int, answer: Envelope) -> Reply:
            reply = read(client, answer)
            has_problem = isinstance(reply, TrainReply) and reply.problem is not None
            if client in masked.asked and not has_problem:
                masked.add(client, answer.blobs.get("masked", b""))
            masked.answers[client] = answer
            return reply

        blobs = dict.fromkeys(masked.asked, masked.blobs)
        needed = masked.needed
        if isinstance(question.request, TrainRequest):
            needed = max(needed, self._needed)
        replies = dict(self._replies(question, add, blobs, needed=needed))
        for client, reply in replies.items():
            if isinstance(reply, Failure):
                masked.answers[client] = reply

        return replies

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
    ) -> Iterator[tuple[int, Scores | ReportSums | Failure]]:
        """Score one model at the sites that share scores."""

        def read(client: int, answer: Envelope) -> Scores | None:
            scores = self._out(client, answer, {"scores"})["scores"]
            if self._sums is not None and not isinstance(scores, Scores) and scores == ():
                return None
            if not self._members[client].counts_known:
                return None
            return self._check_scores(client, scores, rank=request.rank)

        # The others would refuse.
        single = self._sharing(clients, single=True)
        question = _Question(request, to_blob(model, self._modules), clients, round)
        summed: Summed[Scores | None] | None = None
        replies: Iterable[tuple[int, Scores | Failure | None]]
        cohort = self._in_sums(clients)
        if cohort:
            summed = self._ask_for_sum(question, read, cohort=cohort, others=single)
            replies = summed.replies.items()
        else:
            needed = self._needed_scores(single) if len(single) == len(clients) else 0
            replies = self._replies(question._replace(clients=single), read, needed=needed)

        for client, reply in replies:
            if reply is not None:
                yield client, reply
        if summed is not None:
            yield summed.lowest, summed.report

    def _needed_scores(self, clients: Sequence[int]) -> int:
        """Return how many of the sites that are scored must answer.

        If all sites that train gave no answer, the run would end. It goes on without new ones.
        """
        return int(any(client < self._plan.population for client in clients))

    def _sharing(self, clients: Sequence[int], *, single: bool) -> list[int]:
        """Return the sites that share scores, or those that show them site by site."""
        word = "single" if single and self._sums is not None else "scores"
        words = {"scores", word}
        return [client for client in clients if words <= set(self._members[client].share)]

    def _in_sums(self, clients: Sequence[int]) -> list[int]:
        """Return the sites with scores for a sum: new sites have no keys for it."""
        if self._sums is None:
            return []
        in_sums = []
        for client in self._sharing(clients, single=False):
            member = self._members[client]
            if client < self._plan.population and member.num_test + member.num_val:
                in_sums.append(client)
        return in_sums

    def score_complete(
        self, request: ScoreRequest, model: Any, round: int
    ) -> Scores | Failure | None:
        """Return None: no test part belongs to all sites."""
        return None

    def personalize(
        self, request: PersonalizeRequest, shared: Any, clients: Sequence[int], round: int
    ) -> Iterator[tuple[int, PersonalizeReply | Failure]]:
        """Have some sites make and score their personal models."""
        read = partial(self._personalize_reply, request=request)
        question = _Question(request, self._pack(shared), clients, round)
        needed = self._needed_scores(clients)
        cohort = self._in_sums(clients)
        if not cohort:
            yield from self._replies(question, read, needed=needed)
            return

        # Without a sum, sites make their models all the same.
        summed = self._ask_for_sum(question, read, cohort=cohort, others=clients)
        replies = summed.replies or dict(self._replies(question, read, needed=needed))
        sums: ReportSums | None = summed.report
        for client, reply in replies.items():
            if isinstance(reply, PersonalizeReply):
                reply = reply._replace(sums=sums)
                sums = None
            yield client, reply

    def _replies(
        self,
        question: _Question,
        read: Callable[[int, Envelope], Reply],
        blobs: Mapping[int, Mapping[str, bytes]] = {},
        *,
        needed: int,
    ) -> Iterator[tuple[int, Reply | Failure]]:
        """Ask some sites, and yield what each has answered, or why that cannot be used.

        No answer of a site raises an error here.

        Args:
            question: to them.
            read: returns what an answer says, or raises an error.
            blobs: what else some of them receive.
            needed: answers that are waited for, however long that takes.
        """
        excluded = {**self._exchange.away(), **self._conduct.excluded()}
        requests = {}
        for client in question.clients:
            if client not in excluded:
                requests[client] = self._message(question, client, blobs.get(client, {}))

        answers: Mapping[int, Envelope | SiteFailure] = {}
        if requests:
            needed = min(needed, len(requests))
            answers = self._exchange.ask(requests, needed=needed, accept=answers_to(requests))

        for client in question.clients:
            if client in excluded:
                yield client, Failure(NoAnswer(excluded[client]))
                continue

            reply, offence = _read(client, answers.get(client), read)
            if offence:
                self._conduct.note(client, question.request.name, question.round, offence)
            yield client, reply

    def _pack(self, shared: Any) -> bytes:
        return to_blob(pack_download(shared, self._messages), self._modules)

    def _message(self, question: _Question, client: int, more: Mapping[str, bytes]) -> Envelope:
        """Return the request to a site."""
        work = Work(
            question.request,
            self._plan.run,
            question.round,
            client,
            base=self._version(self.bases, client),
            best=self._version(self._best_bases, client),
            rare_classes=self._rare_classes,
            numbers=() if self._sums is None else self._reported,
        )

        # The plan travels with each request, so that a site that was started again knows it.
        blobs = {"plan": self._plan.raw, "shared": question.shared, **more}
        if client in self.per_client:
            blobs["own"] = to_blob(self.per_client[client], self._modules)
        return Envelope(work.to_head(), blobs)

    @staticmethod
    def _version(bases: Mapping[int, Tensor], client: int) -> Version | None:
        return Version(*bases[client].tolist()) if client in bases else None

    def _out(self, client: int, answer: Envelope, keys: set[str]) -> Mapping[str, Any]:
        member = self._members[client]
        counts = [member.num_test, member.num_val]
        if not member.counts_known:
            counts = [MOST_EXAMPLES] * 2
        size = largest_answer(self._messages, self._num_classes, counts)
        out = from_blob(answer.blobs.get("out", b""), self._modules, size=size)
        if not isinstance(out, Mapping) or set(out) != keys:
            raise wrong("out", ", ".join(sorted(keys)), "something else")
        return out

    def _train_reply(
        self,
        client: int,
        answer: Envelope,
        request: TrainRequest,
        round: int,
        *,
        with_upload: bool = True,
    ) -> TrainReply:
        problem = _problem_text(answer)
        if problem:
            flaw: Problem | None = Problem("state", "", problem)
            return TrainReply(round, request.attempt, {}, {}, (), flaw, num_bytes=0)

        # Every part is checked by itself: whatever a site sends, its round alone is left out.
        parts = {"metrics", "scores", *(("upload",) if with_upload else ())}
        out = self._out(client, answer, parts)
        metrics = _numbers(out["metrics"])
        text = problem_with_numbers(metrics, "metric")
        flaw = Problem("metric", "", text) if text else None

        # A site that shares no scores sends (), as all do where none are asked for.
        scores = out["scores"]
        if scores != () or isinstance(scores, Scores):
            if not request.evaluate:
                raise DataError("the scores were not asked for.", key="scores")
            if self._members[client].counts_known:
                scores = self._check_scores(client, scores, rank=request.rank)
            else:
                scores = ()

        if not with_upload:
            return TrainReply(round, request.attempt, {}, metrics, scores, flaw, num_bytes=0)

        upload = unpack_upload(out["upload"], self._messages)
        flaw = problem_with(upload, self._messages, self._members[client].num_train) or flaw
        num_bytes = upload_bytes(upload, self._messages) if flaw is None else 0
        return TrainReply(round, request.attempt, upload, metrics, scores, flaw, num_bytes)

    def _personalize_reply(
        self, client: int, answer: Envelope, request: PersonalizeRequest
    ) -> PersonalizeReply:
        out = self._out(client, answer, {"scores", "diagnostics"})
        test_sets = out["scores"]
        allowed = {"clients", "validation"} if request.validate else {"clients"}
        if not isinstance(test_sets, Mapping) or not set(test_sets) <= allowed:
            raise wrong("scores", "scores by test set", "something else")
        if not self._members[client].counts_known:
            test_sets = {}

        scores = {}
        for name, value in test_sets.items():
            is_validation = name == "validation"
            scores[name] = self._check_scores(
                client, value, rank=request.rank, validation=is_validation
            )

        diagnostics = usable_numbers(_numbers(out["diagnostics"]))
        return PersonalizeReply(scores, diagnostics, _problem_text(answer))

    def _check_scores(
        self, client: int, scores: Any, *, rank: bool, validation: bool = False
    ) -> Scores:
        """Return scores if they can be those of the examples that the site has declared."""
        member = self._members[client]
        examples = member.num_val if validation else member.num_test
        return check_scores(scores, self._num_classes, examples, rank=rank)


def _read(
    client: int,
    answer: Envelope | SiteFailure | None,
    read: Callable[[int, Envelope], Reply],
) -> tuple[Reply | Failure, str]:
    """Return what an answer holds, or a failure; and what no honest site sends, if it is that."""
    if answer is None:
        return Failure(NoAnswer("no answer in time")), ""
    if isinstance(answer, SiteFailure):
        reason = one_line(answer.text)
        return Failure(NoAnswer(reason)), reason if answer.kind == "damaged" else ""

    # Its own words: an honest site may be without memory, or without the data.
    reason = refusal_in(answer.head) or ""
    if reason:
        return Failure(ProgramError(f"the site says: {reason}")), ""

    try:
        reply = read(client, answer)
    except FedtailorError as error:
        reason = one_line(f"the answer cannot be used: {error.message}")
        return Failure(ProgramError(reason)), reason
    except Exception as error:  # what no check has foreseen must not end a run
        reason = f"the answer cannot be used: unexpected {describe_error(error)}"
        return Failure(ProgramError(reason)), reason

    # Honest training can diverge; then its numbers are of no use, and nothing more is wrong.
    problem = reply.problem if isinstance(reply, TrainReply) else None
    if isinstance(problem, Problem) and problem.kind not in (*VALUE_PROBLEMS, "state"):
        return reply, one_line(str(problem))
    return reply, ""


def _problem_text(answer: Envelope) -> str:
    """Return what a site says is wrong with its work; empty: nothing."""
    problem = answer.head.get("problem", "")
    if not isinstance(problem, str):
        raise wrong("problem", "a text", problem)
    return one_line(problem)


def _numbers(value: Any) -> dict[str, Tensor]:
    """Return numbers by name; steps are counted, so they are a whole number from 0.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(value, Mapping):
        raise wrong("metrics", "numbers by name", "something else")

    for name in value:
        is_name = isinstance(name, str) and len(name) <= LONGEST_METRIC_NAME
        if not is_name or not name.isprintable():
            allowed = f"names of at most {LONGEST_METRIC_NAME} printable characters"
            raise wrong("metrics", allowed, "something else")

    steps = value.get("steps", torch.zeros(()))
    is_number = isinstance(steps, Tensor) and steps.dim() == 0
    if not is_number or not 0 <= float(steps) <= MOST_STEPS or not float(steps).is_integer():
        raise wrong("steps", f"a whole number from 0 to {MOST_STEPS}", "something else")
    return dict(value)
