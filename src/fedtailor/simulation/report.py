"""The report of a round, and what a resumed run takes from earlier ones: state and absences."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from fedtailor.core.devices import to_device, to_host
from fedtailor.core.engine import Failure, NoAnswer, ProgramError
from fedtailor.core.errors import describe_error, one_line
from fedtailor.core.metrics import ClientGroup, Point
from fedtailor.core.scores import NumberSum, ReportSums, Scores, ScoreSums
from fedtailor.core.upload_checks import Problem

R = TypeVar("R")

NOBODY = -1
"""Stands for the client of the complete test part, which belongs to nobody."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of one model per client, and what exactly they are scores of."""

    point: Point
    adaptation: str
    """How the model was adapted to the client's training data before."""
    group: ClientGroup
    scores: dict[int, Scores]
    """By client; of ``NOBODY`` on the complete test part."""
    test_set: Literal["clients", "validation", "complete"] = "clients"
    """The clients' own test examples, or their validation examples, or the complete official test
    part."""
    diagnostics: dict[str, dict[int, float]] = field(default_factory=dict)
    """Number by name and client."""
    sums: ScoreSums | None = None
    """The scores of clients of which only the sum is known; None: there are none."""

    @property
    def only_sums(self) -> ScoreSums | None:
        """The sum over clients, if their own scores are not all known."""
        if self.sums is None or self.sums.clients <= self.scores.keys():
            return None
        return self.sums


@dataclass(frozen=True)
class Selection:
    """The best round so far by the mean accuracy of personalized models on validation examples."""

    state: RunState
    """The run after this round; its server state is () if only the end of the run depends on the
    accuracy."""
    accuracy: float
    """The mean over known clients."""
    by_client: Mapping[int, float] = field(default_factory=dict)
    """The accuracies of these clients; empty if only the mean is known."""
    evaluations_since: int = 0
    """Evaluations of personalized models since then."""


@dataclass(frozen=True)
class RunState:
    """The server's side of a run between two rounds.

    ``federate(..., resume=state)`` continues from it.

    What clients keep is not in it.
    """

    server: Any
    """The server state of the algorithm."""
    round: int = 0
    """Rounds done."""
    client_rounds: int = 0
    """Rounds of all clients whose work was used."""
    participated: frozenset[int] = frozenset()
    """Clients whose work was used at least once."""
    selection: Selection | None = None
    """The best round so far, if that matters."""
    moments: Mapping[str, Any] = field(default_factory=dict)
    """Of the server optimizer, if there is one."""

    def on(self, device: torch.device) -> RunState:
        """Return the same state with what the server holds on a device."""
        return self._moved(lambda held: to_device(held, device))

    def on_host(self) -> RunState:
        """Return the same state on the host, for files."""
        return self._moved(lambda held: to_host(held, "the server's state for a file"))

    def _moved(self, move: Callable[[Any], Any]) -> RunState:
        best = self.selection
        if best is not None:
            best = replace(best, state=best.state._moved(move))
        return replace(self, server=move(self.server), selection=best, moments=move(self.moments))


@dataclass
class RoundReport:
    """What happened in a round."""

    round: int
    cohort: list[int]
    state: RunState
    """The state of the run: before the round while the round runs, after it once it is over."""
    attempt: int = 0
    """How often the round was attempted before without success: the cohort is that of the last
    attempt."""
    trained: list[int] = field(default_factory=list)
    """Clients that trained, without those whose work was left out."""
    evaluations: list[Evaluation] = field(default_factory=list)
    metrics: dict[str, dict[int, float]] = field(default_factory=dict)
    """The algorithm's training metrics, by name and client."""
    metric_sums: Mapping[str, NumberSum] = field(default_factory=dict)
    """Those of which only a sum over clients is known, by name."""
    events: list[dict[str, Any]] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0
    steps: int = 0
    """Gradient steps of all clients, those of onboarding and personalization after the last round
    included."""
    seconds: dict[str, float] = field(
        default_factory=lambda: {"train": 0.0, "aggregate": 0.0, "evaluate": 0.0}
    )
    personal: Mapping[int, Any] = field(default_factory=dict)
    """Personal models by client, after the last round."""
    privacy: dict[str, Any] = field(default_factory=dict)
    """What all releases so far tell of a client at most; empty: nothing is released with noise."""
    is_last: bool = False
    """Whether the run ends with this round."""
    made_in: int = 0
    """The last round of the run, if this is the evaluation of the final models; 0: it is not."""
    final: RoundReport | None = None
    """With the last round, if validation examples decide: the round of the final models, evaluated
    again. Its state is the one that belongs to these models."""


EventKind = Literal[
    "absent",
    "failed",
    "quarantine",
    "skipped",
    "repeated",
    "no sum",
    "joined",
    "paused",
    "resumed",
    "left",
]
"""A client gave no answer, its program raised, its upload was left out, or it has no examples; or a
round is attempted again, or there is no sum of scores; or a client comes or goes."""

Stage = Literal["local_update", "evaluate", "personalize", "evaluate on the complete test part"]
"""What a client was asked to do."""


def add_event(
    report: RoundReport, kind: EventKind, client: int | None, reason: str, **details: str
) -> None:
    """Note what happened, to which client if to one, and why."""
    event: dict[str, Any] = {"kind": kind, "round": report.round}
    if report.attempt > 0:
        event["attempt"] = report.attempt
    if report.made_in:
        event["made_in"] = report.made_in
    if client is not None:
        event["client"] = client

    event["reason"] = one_line(reason)
    report.events.append(event | details)


def add_problem(report: RoundReport, client: int, problem: Problem) -> None:
    """Note that a client's round is left out, and the field with the problem if there is one."""
    details = {"field": problem.field} if problem.field else {}
    add_event(report, "quarantine", client, str(problem), **details)


def too_few(usable: int, clients: int, needed: int) -> str:
    """Return in words that too few clients did usable work.

    >>> too_few(1, 4, 2), too_few(0, 4, 1)
    ('only 1 of 4 clients did usable work; 2 are needed', 'none of 4 clients did usable work')
    """
    if usable > 0:
        return f"only {usable} of {clients} clients did usable work; {needed} are needed"
    return (
        f"none of {clients} clients did usable work"
        if clients > 1
        else "the only client did no usable work"
    )


def add_repetition(report: RoundReport, usable: int, clients: int, needed: int) -> None:
    """Note that too few uploads could be used, and count the attempt."""
    reason = f"{too_few(usable, clients, needed)}: the round is repeated"
    add_event(report, "repeated", None, reason)
    report.attempt += 1


def add_failure(report: RoundReport, client: int, stage: Stage, failure: Failure) -> None:
    """Note that a client failed, or gave no answer; the latter so that it can be repeated."""
    reason = f"{stage}: {describe(failure)}"
    if isinstance(failure.reason, NoAnswer):
        add_event(report, "absent", client, reason, stage=stage)
    else:
        add_event(report, "failed", client, reason)


def add_sum_problem(report: RoundReport, stage: Stage, sums: ReportSums) -> None:
    """Note that there is no sum of scores, if there is none."""
    if sums.problem:
        add_event(report, "no sum", None, f"{stage}: {sums.problem}", stage=stage)


def describe(failure: Failure) -> str:
    """Return what a client's program raised, or why there is no output, in one line."""
    if isinstance(failure.reason, ProgramError):
        return one_line(str(failure.reason))
    return describe_error(failure.reason)


def record(
    table: dict[str, dict[int, float]], client: int, numbers: Mapping[str, Tensor | float]
) -> None:
    """Enter a client's numbers into a table by name."""
    for name, value in numbers.items():
        table.setdefault(name, {})[client] = float(value)


def all_steps(table: Mapping[str, Mapping[int, float]], sums: Mapping[str, NumberSum] = {}) -> int:
    """Return the gradient steps of all clients, from a table by name, or from sums over clients."""
    if "steps" in sums:
        return round(sums["steps"].total)
    return round(sum(table.get("steps", {}).values()))


_Request = tuple[int, int, Stage, int]
"""Round, attempt and stage of a request, and in which round the final models were made, if it asks
for these."""


class Absences:
    """Which clients gave no answer in rounds that are run again.

    Whether a client answers in time is chance. So when a run is repeated, the clients that gave no
    answer the first time are not asked again: the records of the first time count.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        """Repeat what happened to clients.

        Args:
            events: of the rounds that are run again; those of kind ``absent`` count.
        """
        self._reasons: defaultdict[_Request, dict[int, str]] = defaultdict(dict)
        for event in events:
            if event["kind"] == "absent":
                reason = str(event["reason"]).removeprefix(f"{event['stage']}: ")
                made_in = event.get("made_in", 0)
                attempt = event.get("attempt", 0)
                request = (event["round"], attempt, event["stage"], made_in)
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
        request = (report.round, report.attempt, stage, report.made_in)
        reasons = self._reasons.get(request, {})
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
