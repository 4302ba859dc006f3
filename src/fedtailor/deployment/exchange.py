"""One exchange with the sites: send a request to each, wait for the answers, and know when to wait
no longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fedtailor.core.errors import one_line
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.options import DeployOptions
from fedtailor.deployment.transport import SiteFailure, Transport

_POLL = 0.5
"""Seconds that one look at the transport takes at most."""


@dataclass
class Attendance:
    """Who is there: what ``fedtailor serve`` shows."""

    waiting: dict[int, float] = field(default_factory=dict)
    """Sites that have not answered yet, and when they were first asked."""
    heard: dict[int, float] = field(default_factory=dict)
    """When each site last answered, in seconds since 1970."""
    failures: dict[int, str] = field(default_factory=dict)
    """What the transport last said of a site that gave no answer."""


class Exchange:
    """Asks sites, and waits for them as ``[deploy]`` says."""

    def __init__(
        self,
        transport: Transport,
        options: DeployOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[Attendance], None] = lambda attendance: None,
    ) -> None:
        """Use a transport.

        Args:
            transport: carries the messages.
            options: how long to wait.
            clock: gives seconds.
            look: is called with who is there, whenever that may have changed.
        """
        self._transport = transport
        self._options = options
        self._clock = clock
        self._look = look
        self.attendance = Attendance()

    def ask(
        self,
        requests: Mapping[int, Envelope],
        *,
        needed: int = 1,
        accept: Callable[[int, Envelope], bool] = lambda client, answer: True,
    ) -> dict[int, Envelope | SiteFailure]:
        """Return the answer of every site that gave one in time, in the order of the sites.

        The exchange ends when all have answered; or at the quorum and ``grace`` seconds later; or
        at the deadline. But it does not end before ``needed`` sites have answered: a deployment
        waits where a simulation would stop.

        Args:
            requests: by the number of the site.
            needed: answers without which there is no point in going on.
            accept: whether an answer belongs to the request; others are dropped.
        """
        options = self._options
        start = self._clock()
        self._transport.forget()
        self._transport.send(requests)
        self.attendance.waiting = dict.fromkeys(requests, time.time())
        answers: dict[int, Envelope | SiteFailure] = {}
        quorum = max(needed, math.ceil(options.quorum * len(requests) - 1e-9))
        repeats = _Repeats(requests, options.resend, start)
        at_quorum: float | None = None

        while self._waiting(requests, answers):
            self._look(self.attendance)
            now = self._clock()
            answered = sum(isinstance(each, Envelope) for each in answers.values())
            if answered >= quorum and at_quorum is None:
                at_quorum = now

            is_over = now - start >= options.deadline or (
                at_quorum is not None and now - at_quorum >= options.grace
            )
            if is_over and answered >= min(needed, len(requests)):
                break

            again = repeats.due(self._waiting(requests, answers), now)
            if again:
                self._transport.send({client: requests[client] for client in again})

            for client, answer in self._transport.receive(_POLL):
                if client in requests and not self._enter(client, answer, answers, accept):
                    repeats.hasten(client, self._clock())

        self._transport.forget()
        self.attendance.waiting = {}
        self._look(self.attendance)
        return {client: answers[client] for client in requests if client in answers}

    def _enter(
        self,
        client: int,
        answer: Envelope | SiteFailure,
        answers: dict[int, Envelope | SiteFailure],
        accept: Callable[[int, Envelope], bool],
    ) -> bool:
        """Enter an answer; a failure only where there is no better one, and not if the site may
        still answer.

        Return whether it was entered, or is of no interest; False if the request was lost.
        """
        if isinstance(answer, SiteFailure):
            self.attendance.failures[client] = answer.text
            if answer.kind == "failed":
                answers.setdefault(client, answer)
            return False

        if not accept(client, answer):
            if (
                "failed" in answer.head
            ):  # nobody at the site could read the request; it is sent again
                self.attendance.failures[client] = one_line(str(answer.head["failed"]))
                return False

            return True

        answers[client] = answer
        self.attendance.heard[client] = time.time()
        self.attendance.waiting.pop(client, None)
        self.attendance.failures.pop(client, None)

        return True

    def _waiting(
        self, requests: Mapping[int, Envelope], answers: Mapping[int, Envelope | SiteFailure]
    ) -> Collection[int]:
        """Return the sites that may still answer."""
        return [client for client in requests if not isinstance(answers.get(client), Envelope)]


class _Repeats:
    """When requests are sent again.

    Each time, the wait doubles: a site that works for long must not find a queue of repeats when it
    is done. It starts anew if the request is known to be lost.
    """

    def __init__(self, clients: Iterable[int], wait: float, now: float) -> None:
        self._first = wait
        self._waits = dict.fromkeys(clients, wait)
        self._due = dict.fromkeys(clients, now + wait)

    def due(self, waiting: Iterable[int], now: float) -> list[int]:
        """Return the sites to ask again now."""
        found = [client for client in waiting if now >= self._due[client]]
        for client in found:
            self._waits[client] *= 2
            self._due[client] = now + self._waits[client]
        return found

    def hasten(self, client: int, now: float) -> None:
        """Note that the request to a site was lost."""
        self._waits[client] = self._first
        self._due[client] = min(self._due[client], now + self._first)
