"""The noisy sums of a run with differential privacy: made, counted, and reported."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace

from fedtailor.core import rng
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.errors import RunError
from fedtailor.core.federation import Roster
from fedtailor.core.message import Messages, Received, Reduced
from fedtailor.core.reduction import PartialSum
from fedtailor.core.schedule import Schedule
from fedtailor.privacy.accountant import Release, epsilon_of
from fedtailor.privacy.class_statistics import NoisySums, SumsMechanism
from fedtailor.privacy.ledger import Ledger, LedgerEntry
from fedtailor.privacy.mechanism import ClientBounds, ClientMechanism, Sent, digest_of
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.privacy.plan import Drawn, expected_clients, noise_of, rate_of
from fedtailor.simulation.report import RoundReport


def for_noise(
    algorithm: AnyAlgorithm, roster: Roster, schedule: Schedule, privacy: PrivacyOptions
) -> AnyAlgorithm:
    """Return a method as it should be run with the noise that hides examples in its sums.

    What decides is public: options, and numbers of examples.
    """
    mechanism = _sums_mechanism(algorithm, roster, schedule, privacy)
    messages = algorithm.messages(algorithm.bind(roster.common_task))
    fields = [name for name, field in messages.items() if field.reduction == "sum"]
    noise = mechanism.deviations(fields)
    if privacy.noise_from == "sites":
        factor = math.sqrt(len(roster.trainable_clients))
        noise = {name: factor * deviation for name, deviation in noise.items()}

    # New clients send nothing.
    num_train = sum(roster.num_train[client] for client in roster.known)
    return algorithm.for_noise(roster.common_task, noise, num_train)


def _sums_mechanism(
    algorithm: AnyAlgorithm, roster: Roster, schedule: Schedule, privacy: PrivacyOptions
) -> SumsMechanism:
    return SumsMechanism(
        radius=algorithm.feature_bound or 0.0,
        noise=noise_of(privacy, schedule),
        most_examples=max(roster.num_train, default=0),
    )


class Releases:
    """Makes the noisy sums of a run whose clients are protected as wholes."""

    def __init__(
        self,
        privacy: PrivacyOptions,
        schedule: Schedule,
        messages: Messages,
        drawn: Drawn,
        ledger: Ledger | None,
    ) -> None:
        """Find the noise.

        Args:
            privacy: the options, whose unit is the client.
            schedule: how many rounds there are, and who takes part.
            messages: the declaration of the method.
            drawn: whom cohorts are drawn from.
            ledger: what was released before, and what will be; None: it stays in memory.
        """
        self._privacy = privacy
        self._schedule = schedule
        self.drawn = drawn
        self._ledger = ledger if ledger is not None else Ledger()
        self.mechanism = ClientMechanism(
            messages=messages,
            clip=privacy.clip,
            noise=noise_of(privacy, schedule, drawn),
            expected=expected_clients(schedule, drawn, 1),
            scales=privacy.scales,
            weights=privacy.weights,
        )

    def rounds_trained(self, rounds: int) -> float:
        """Return in how many of the first rounds a client that can train has trained, on average.

        It is what the draws promise: how many took part would tell who did.
        """
        expected = [
            expected_clients(self._schedule, self.drawn, round) for round in range(1, rounds + 1)
        ]
        return sum(expected) / max(self.drawn.trainable, 1)

    def bounds(self, report: RoundReport, sent: Sent, seed: int) -> ClientBounds:
        """Return what bounds the uploads of a round, in which the server has sent some values."""
        return ClientBounds(self.mechanism, sent)

    def release(
        self, report: RoundReport, totals: Mapping[str, PartialSum], sent: Sent, seed: int
    ) -> Received:
        """Return the noisy sums of a round, once they are in the ledger.

        Raises:
            RunError: they would tell more than the budget allows, or the ledger cannot be written.
        """
        entry = LedgerEntry(
            round=report.round,
            attempt=report.attempt,
            noise=self.mechanism.noise,
            rate=rate_of(self._privacy, self._schedule, self.drawn, report.round),
            clip=self._privacy.clip,
            cohort=tuple(report.cohort),
            digest=digest_of(totals),
        )
        _enter(entry, report, self._ledger, self._privacy, self._schedule)

        key = rng.new_key(seed, round=report.round, purpose=f"privacy/attempt/{report.attempt}")
        # All take part in a full last round.
        expected = expected_clients(self._schedule, self.drawn, report.round)
        return replace(self.mechanism, expected=expected).release(totals, sent, key)


class ExampleReleases:
    """Makes the noisy sums over features of a run whose examples are protected."""

    def __init__(
        self,
        privacy: PrivacyOptions,
        schedule: Schedule,
        roster: Roster,
        algorithm: AnyAlgorithm,
        ledger: Ledger | None,
    ) -> None:
        """Find the noise.

        Args:
            privacy: the options, whose unit is the example.
            schedule: how many rounds there are.
            roster: the clients, and their numbers of examples.
            algorithm: bounds the features, and repairs noisy sums.
            ledger: what was released before, and what will be; None: it stays in memory.
        """
        self._privacy = privacy
        self._schedule = schedule
        self._algorithm = algorithm
        self._ledger = ledger if ledger is not None else Ledger()
        self.mechanism = _sums_mechanism(algorithm, roster, schedule, privacy)
        self._clients = roster.known

    def bounds(self, report: RoundReport, sent: Sent, seed: int) -> NoisySums | None:
        """Return what adds noise to uploads, once they are in the ledger; None: the server does.

        Raises:
            RunError: they would tell more than the budget allows, or the ledger cannot be written.
        """
        if self._privacy.noise_from == "server":
            return None

        # Another attempt sends the same numbers, of the same noise.
        name = f"sites/{seed}/{report.round}/{self._algorithm}/{self.mechanism}"
        self._enter(report, hashlib.sha256(name.encode()).hexdigest(), attempt=0)
        mechanisms = dict.fromkeys(self._clients, self.mechanism)
        return NoisySums(mechanisms, seed, report.round, "privacy/site")

    def release(
        self, report: RoundReport, totals: Mapping[str, PartialSum], sent: Sent, seed: int
    ) -> Received:
        """Return the noisy sums of a round, once they are in the ledger.

        Raises:
            RunError: they would tell more than the budget allows, or the ledger cannot be written.
        """
        sums = {name: total.leaves[""] for name, total in totals.items()}
        noise = self.mechanism.deviations(sums)
        if self._privacy.noise_from == "server":
            self._enter(report, digest_of(totals), report.attempt)
            key = rng.new_key(seed, round=report.round, purpose=f"privacy/attempt/{report.attempt}")
            sums = self.mechanism.with_noise(sums, key)
        else:
            # Noises of clients add up.
            num_clients = float(totals["counts"].weight)
            noise = {name: one * math.sqrt(num_clients) for name, one in noise.items()}
            self._report_sums(report, num_clients)

        received = {name: Reduced(sums[name], total.weight) for name, total in totals.items()}
        return self._algorithm.repaired(received, noise)

    def _report_sums(self, report: RoundReport, num_clients: float) -> None:
        """Report what sums tell whoever sees nothing else: it is claimed for one release."""
        if not self._privacy.secure_sums or self._schedule.rounds > 1:
            return

        release = Release(self.mechanism.noise * math.sqrt(num_clients), rate=1.0, times=1)
        report.privacy["epsilon_of_sums"] = epsilon_of(self._privacy.delta, [release])

    def _enter(self, report: RoundReport, digest: str, attempt: int) -> None:
        entry = LedgerEntry(
            round=report.round,
            attempt=attempt,
            noise=self.mechanism.noise,
            rate=1.0,
            clip=self.mechanism.radius,
            cohort=tuple(report.cohort),
            digest=digest,
        )
        _enter(entry, report, self._ledger, self._privacy, self._schedule)


def _enter(
    entry: LedgerEntry,
    report: RoundReport,
    ledger: Ledger,
    privacy: PrivacyOptions,
    schedule: Schedule,
) -> None:
    """Write a release into the ledger, and what all of them tell into the report.

    Raises:
        RunError: it would tell more than the budget allows, or the ledger cannot be written.
    """
    spent = ledger.spent(privacy.delta, entry)
    if privacy.epsilon and spent.epsilon > privacy.epsilon:
        raise budget_used_up(privacy, report, schedule.rounds)

    # No release without its entry.
    ledger.add(entry)
    report.privacy = {"unit": privacy.unit, "delta": privacy.delta, **spent._asdict()}
    if privacy.unit == "example":
        report.privacy |= {"noise": entry.noise, "noise_from": privacy.noise_from}
        report.privacy["bounds"] = "features"


def budget_used_up(privacy: PrivacyOptions, report: RoundReport, rounds: int) -> RunError:
    """Return the error for a run whose next release would exceed the budget."""
    message = f"privacy.epsilon = {privacy.epsilon:g} is used up after {report.round - 1} of "
    return RunError(f"{message}{rounds} rounds.", key="privacy.epsilon")
