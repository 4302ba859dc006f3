"""The noisy sums of a run whose clients are protected as wholes: made, counted, and reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedtailor.core import rng
from fedtailor.core.errors import RunError
from fedtailor.core.message import Messages, Received
from fedtailor.core.reduction import PartialSum
from fedtailor.core.schedule import Schedule
from fedtailor.privacy.ledger import Ledger, LedgerEntry
from fedtailor.privacy.mechanism import ClientBounds, ClientMechanism, Sent, digest_of
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.privacy.plan import expected_clients, noise_of, rate_of
from fedtailor.simulation.report import RoundReport


class Releases:
    """Makes the noisy sums of a run."""

    def __init__(
        self,
        privacy: PrivacyOptions,
        schedule: Schedule,
        messages: Messages,
        num_trainable: int,
        ledger: Ledger | None,
    ) -> None:
        """Find the noise.

        Args:
            privacy: the options, whose unit is the client.
            schedule: how many rounds there are, and who takes part.
            messages: the declaration of the method.
            num_trainable: how many clients can train.
            ledger: what was released before, and what will be; None: it stays in memory.
        """
        self._privacy = privacy
        self._schedule = schedule
        self._num_trainable = num_trainable
        self._ledger = ledger if ledger is not None else Ledger()
        self.mechanism = ClientMechanism(
            messages=messages,
            clip=privacy.clip,
            noise=noise_of(privacy, schedule),
            expected=expected_clients(schedule, 1, num_trainable),
            scales=privacy.scales,
        )

    def bounds(self, sent: Sent) -> ClientBounds:
        """Return what bounds the uploads of a round, in which the server has sent some values."""
        return ClientBounds(self.mechanism, sent)

    def release(
        self, report: RoundReport, totals: Mapping[str, PartialSum], sent: Sent, seed: int
    ) -> Received:
        """Return the noisy sums of a round, once they are in the ledger.

        Raises:
            RunError: they would tell more than the budget allows, or the ledger cannot be written.
        """
        privacy = self._privacy
        entry = LedgerEntry(
            round=report.round,
            attempt=report.attempt,
            noise=self.mechanism.noise,
            rate=rate_of(self._schedule, report.round),
            clip=privacy.clip,
            cohort=tuple(report.cohort),
            digest=digest_of(totals),
        )

        spent = self._ledger.spent(privacy.delta, [entry])
        if privacy.epsilon and spent.epsilon > privacy.epsilon:
            done = report.round - 1
            raise RunError(
                f"privacy.epsilon = {privacy.epsilon:g} is used up after {done} of "
                f"{self._schedule.rounds} rounds.",
                key="privacy.epsilon",
            )

        # No release without its entry.
        self._ledger.add(entry)
        report.privacy = {"unit": "client", "delta": privacy.delta, **spent._asdict()}
        key = rng.new_key(seed, round=report.round, purpose=f"privacy/attempt/{report.attempt}")
        # All take part in a full last round.
        expected = expected_clients(self._schedule, report.round, self._num_trainable)
        return replace(self.mechanism, expected=expected).release(totals, sent, key)
