"""What the server asks sites about sums under masks, and which of their answers can be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from fedtailor.core.errors import FedtailorError, one_line
from fedtailor.deployment.conduct import Conduct
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import Exchange, SiteFailure
from fedtailor.deployment.mask_kinds import SumFailedError
from fedtailor.deployment.plan import DeploymentPlan
from fedtailor.deployment.wire import answers_to, refusal_in
from fedtailor.privacy.masks.session import Session

Value = TypeVar("Value")


class Answers(NamedTuple, Generic[Value]):
    """What sites have answered, by number."""

    usable: dict[int, Value]
    reasons: dict[int, str]
    """Why other answers cannot be used."""


@dataclass(frozen=True)
class SumExchange:
    """Asks the sites of a run about its sums."""

    session: Session
    """The run, as masks know it."""
    plan: DeploymentPlan
    names: Sequence[str]
    """Of the sites that train, by number."""
    exchange: Exchange
    conduct: Conduct
    """What sites have done wrong."""

    def holders(self) -> list[int]:
        """Return the sites that can be asked for shares and signatures."""
        silent = {**self.exchange.away(), **self.conduct.excluded()}
        return [number for number in range(len(self.names)) if number not in silent]

    def message(
        self,
        kind: str,
        number: int,
        head: Mapping[str, Any],
        blobs: Mapping[str, bytes] | None = None,
    ) -> Envelope:
        """Return a request about sums to a site."""
        head = {"kind": kind, "run": self.plan.run, "client": number, **head}
        return Envelope(head, {"plan": self.plan.raw, **(blobs or {})})

    def ask(
        self,
        kind: str,
        round: int,
        requests: Mapping[int, Envelope],
        read: Callable[[int, Envelope], Value],
        *,
        needed: int,
        enough: int | None = None,
    ) -> Answers[Value]:
        """Ask sites once.

        Args:
            kind: of the requests.
            round: of the sum, for the note of what a site has done wrong.
            requests: by site.
            read: returns what an answer says, or raises an error of fedtailor.
            needed: answers that are waited for, whether they can be used or not.
            enough: answers after which nobody else is waited for; None: of all.
        """
        usable = {}
        reasons = {}
        answers = self.exchange.ask(
            requests, needed=needed, enough=enough, accept=answers_to(requests)
        )
        for number, answer in answers.items():
            if isinstance(answer, SiteFailure):
                if answer.kind == "damaged":
                    self.conduct.note(number, kind, round, answer.text)
                continue

            refusal = refusal_in(answer.head)
            if refusal is not None:
                reasons[number] = refusal
                continue
            try:
                usable[number] = read(number, answer)
            except FedtailorError as error:
                reasons[number] = one_line(error.message)
                self.conduct.note(number, kind, round, error.message)

        return Answers(usable, reasons)

    def collect(
        self,
        kind: str,
        round: int,
        requests: Mapping[int, Envelope],
        read: Callable[[int, Envelope], Value],
        *,
        needed: int,
        known: Mapping[int, Value] | None = None,
    ) -> dict[int, Value]:
        """Ask sites until enough have given an answer that can be used; see :meth:`ask`.

        Args:
            kind: of the requests.
            round: of the sum.
            requests: by site.
            read: returns what an answer says, or raises an error of fedtailor.
            needed: answers that are waited for.
            known: answers that are there already.

        Raises:
            SumFailedError: so many sites refuse that the others are too few.
        """
        usable = dict(known or {})
        reasons: dict[int, str] = {}
        while len(usable) < needed:
            # A site that was paused meanwhile answers no more.
            done = {*usable, *reasons, *self.exchange.away()}
            rest = {number: request for number, request in requests.items() if number not in done}
            missing = needed - len(usable)
            if len(rest) < missing:
                raise SumFailedError(self._too_few(kind, needed, len(usable), reasons))

            answers = self.ask(kind, round, rest, read, needed=missing, enough=missing)
            usable |= answers.usable
            reasons |= answers.reasons

        return usable

    def _too_few(self, kind: str, needed: int, usable: int, reasons: Mapping[int, str]) -> str:
        number, reason = next(iter(reasons.items()), (None, ""))
        example = "" if number is None else f"; site '{self.names[number]}' says: {reason}"
        return f"{usable} of {needed} needed sites have answered the request '{kind}'{example}"
