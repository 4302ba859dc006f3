"""One exchange with the sites: send a request to each, wait for answers, and know when to stop."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from fedtailor.core.errors import one_line
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.options import DeployOptions

_POLL = 0.5
"""Most seconds that one look at the transport takes."""
_RETURN = 60.0
"""Seconds that a site that was stopped has to come back, as after a change of its options."""


class SiteFailure(NamedTuple):
    """A request that got no usable reply."""

    kind: Literal["unavailable", "failed", "damaged"]
    """``unavailable``: the site is not connected, or was lost. ``failed``: its programs gave no
    answer. ``damaged``: it answered, but not with a message."""
    text: str
    """What happened, in one line."""


class Transport(Protocol):
    """Carries messages between the server and the sites, which are known by client number."""

    def send(self, requests: Mapping[int, Envelope]) -> None:
        """Send a request to each client.

        A client may be asked again before it has answered. The reply to any of its requests since
        :meth:`forget` counts; once one has arrived, the replies to the others are dropped.
        """

    def receive(self, seconds: float) -> list[tuple[int, Envelope | SiteFailure]]:
        """Return the replies that have arrived, by client; wait at most ``seconds`` for one."""

    def forget(self) -> None:
        """Drop all later replies to what was sent so far."""

    def online(self) -> set[int]:
        """Return the clients whose sites are connected."""

    def stopped(self) -> Mapping[int, float]:
        """Return the clients whose sites were stopped and said so, and when (since 1970)."""


@dataclass
class Seen:
    """When a site has answered: what ``fedtailor serve`` shows. Times are seconds since 1970."""

    heard: float | None = None
    """When it last answered."""
    waiting_since: float | None = None
    """When it was first asked what it has not answered yet."""
    silent_since: float | None = None
    """Since when it is asked in vain, if it did not answer in time when it was last asked."""
    problem: str = ""
    """What the transport last said, if the site gave no answer."""


Attendance = Mapping[int, Seen]
"""What is known of sites, by number."""


@dataclass
class Exchange:
    """Asks sites, and waits for them as ``[deploy]`` says."""

    transport: Transport
    """Carries the messages."""
    options: DeployOptions
    """How long to wait."""
    clock: Callable[[], float] = time.monotonic
    notify: Callable[[Attendance], None] = lambda attendance: None
    """Is called with who is there, whenever that may have changed."""
    away: Callable[[], Mapping[int, str]] = dict
    """Gives the sites that take no part at the moment, and why; nobody waits for them."""
    attendance: defaultdict[int, Seen] = field(default_factory=lambda: defaultdict(Seen))

    def ask(
        self,
        requests: Mapping[int, Envelope],
        *,
        needed: int = 1,
        enough: int | None = None,
        accept: Callable[[int, Envelope], bool] = lambda client, answer: True,
    ) -> dict[int, Envelope | SiteFailure]:
        """Return the answer of every site that gave one in time, in the order of the sites.

        The exchange ends when all have answered, or ``grace`` seconds after the quorum, or at the
        deadline, or when nobody else can be expected: a site that was stopped has a minute to come
        back, and one that was paused or removed none. But it does not end before ``needed`` sites
        have answered, as far as there are so many: a deployment waits where a simulation would
        stop.

        Args:
            requests: by the number of the site.
            needed: answers without which the run cannot continue.
            enough: answers after which nobody else is waited for; None: of all.
            accept: whether an answer belongs to the request; others are dropped.
        """
        # Late answers to the exchange before this one do not count.
        self.transport.forget()
        self.transport.send(requests)
        asked = time.time()
        repeats = Waits(self.options.resend)
        for client in requests:
            self.attendance[client].waiting_since = asked
            repeats.postpone(client, self.clock())

        end = self.clock() + self.options.deadline
        quorum = max(needed, math.ceil(self.options.quorum * len(requests) - 1e-9))
        answers: dict[int, Envelope] = {}
        failures: dict[int, SiteFailure] = {}

        enough = len(requests) if enough is None else enough
        while len(answers) < enough:
            self.notify(self.attendance)
            now = self.clock()
            silent = [client for client in requests if client not in answers]
            away = {client: why for client, why in self.away().items() if client in silent}
            for client in away:
                self.attendance[client].waiting_since = None

            stopped = {**dict.fromkeys(self._stopped(silent), "it was stopped"), **away}
            if len(answers) >= quorum:  # time runs on, so the first end is the one that counts
                end = min(end, now + self.options.grace)

            is_over = now >= end or len(stopped) == len(silent)
            if is_over and len(answers) >= min(needed, len(requests) - len(away)):
                for client, why in stopped.items():
                    failures.setdefault(client, SiteFailure("unavailable", why))
                break

            # Requests can be lost, so silent sites are asked again. A site that works for long must
            # not find a queue of them when it is done, so that is less and less often.
            due = [client for client in silent if repeats.is_due(client, now)]
            for client in due:
                repeats.postpone(client, now)
            if due:
                self.transport.send({client: requests[client] for client in due})

            for client, reply in self.transport.receive(_POLL):
                if client not in requests:
                    continue
                if isinstance(reply, Envelope) and accept(client, reply):
                    answers[client] = reply
                    self.attendance[client] = Seen(heard=time.time())
                elif self._is_lost(client, reply, failures):
                    repeats.hasten(client, self.clock())

        self.transport.forget()
        self._note_end(has_enough=len(answers) >= enough)
        self.notify(self.attendance)
        replies: dict[int, Envelope | SiteFailure] = {**failures, **answers}
        return {client: replies[client] for client in requests if client in replies}

    def _stopped(self, clients: Iterable[int]) -> list[int]:
        """Return those of some sites that were stopped and have had the time to come back."""
        latest = time.time() - _RETURN
        stopped = self.transport.stopped()
        return [client for client in clients if stopped.get(client, math.inf) <= latest]

    def _note_end(self, *, has_enough: bool) -> None:
        """Note who gave no answer, unless the others were enough, and end the wait."""
        away = self.away()
        for client, seen in self.attendance.items():
            if not has_enough and client not in away and seen.silent_since is None:
                seen.silent_since = seen.waiting_since
            seen.waiting_since = None

    def _is_lost(
        self, client: int, reply: Envelope | SiteFailure, failures: dict[int, SiteFailure]
    ) -> bool:
        """Return whether a request was lost, and note why; a site that failed may still answer."""
        if isinstance(reply, SiteFailure):
            self.attendance[client].problem = reply.text
            if reply.kind != "unavailable":
                failures.setdefault(client, reply)
            return True

        # At the site, nobody could read the request. Other answers belong to older requests.
        if "failed" in reply.head:
            self.attendance[client].problem = one_line(str(reply.head["failed"]))
            return True
        return False


class Waits:
    """When each site is asked again; each time, the wait doubles.

    Args:
        first: the first wait, in seconds or rounds.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self._next: dict[int | str, tuple[float, float]] = {}
        """By site: when it is due, and the wait after that."""

    def is_due(self, site: int | str, now: float) -> bool:
        """Return whether a site may be asked; one that was never asked may."""
        return now >= self._next.get(site, (now, 0))[0]

    def postpone(self, site: int | str, now: float) -> None:
        """Note that a site is asked now."""
        _, wait = self._next.get(site, (now, self._first))
        self._next[site] = (now + wait, 2 * wait)

    def hasten(self, site: int | str, now: float) -> None:
        """Begin again with the first wait, such as after a request that was lost."""
        due, _ = self._next[site]
        self._next[site] = (min(due, now + self._first), 2 * self._first)
