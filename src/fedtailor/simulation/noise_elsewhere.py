"""Noise of clients elsewhere, who add it and count it by themselves: the server's part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.core import tree
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.message import Received, Reduced
from fedtailor.core.reduction import PartialSum
from fedtailor.core.schedule import Schedule
from fedtailor.privacy.accountant import Release, epsilon_of
from fedtailor.privacy.class_statistics import SumsMechanism, of_sums
from fedtailor.privacy.examples import ExamplePlan, bounds_of, release_of
from fedtailor.privacy.mechanism import Sent
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.privacy.plan import noise_of
from fedtailor.simulation.noisy_steps import noise_together
from fedtailor.simulation.report import RoundReport


class NoiseElsewhere:
    """What the server of such clients knows of their noise: it repairs sums, and reports a bound.

    It has no ledger. Every client has one, and keeps to the budget by itself.
    """

    def __init__(
        self,
        privacy: PrivacyOptions,
        schedule: Schedule,
        algorithm: AnyAlgorithm,
        num_train: Mapping[int, int] | None,
        fewest: int,
        colluding: int,
    ) -> None:
        """Find what the clients will tell at most.

        Args:
            privacy: the options, whose unit is the example.
            schedule: how many rounds there are.
            algorithm: what clients run; it repairs noisy sums over features.
            num_train: training examples of every client that has some; None: they are not known.
            fewest: clients that a secure sum is over, at least.
            colluding: how many of them may give their noise away.
        """
        self._privacy = privacy
        self._schedule = schedule
        self._algorithm = algorithm
        self._num_train = num_train
        self._shares = 1
        self.record: dict[str, Any] = {
            "unit": "example",
            "bounds": bounds_of(algorithm),
            "noise_from": privacy.noise_from,
            "delta": privacy.delta,
            "epsilon": self._planned_epsilon(),
            "at_sites": True,
        }
        if privacy.noise_from == "server":
            self._shares = fewest - colluding
            self.record |= {"fewest": fewest, "shares": self._shares}

    @property
    def releases_sums(self) -> bool:
        """Whether clients send nothing but sums over features."""
        return not self._algorithm.bounds_examples

    def enter(
        self, report: RoundReport, clients: Sequence[int], shared: tree.Tree, seed: int
    ) -> None:
        """Report after the last round what all of them tell at most."""
        if report.round == self._schedule.rounds:
            report.privacy = self.record

    def bounds(self, report: RoundReport, *of_round: object) -> None:
        """Return None: uploads come with their noise."""
        return

    def release(
        self, report: RoundReport, totals: Mapping[str, PartialSum], sent: Sent, seed: int
    ) -> Received:
        """Return sums over features, repaired for the noise of all who are in them."""
        received = {name: Reduced(total.leaves[""], total.weight) for name, total in totals.items()}
        return self.repaired(received, range(int(totals["counts"].weight)))

    def repaired(self, received: Received, clients: Sequence[int]) -> Received:
        """Return what the server received of clients, with sums that examples could have."""
        if not self._algorithm.feature_bound:
            return received

        mechanisms = self._mechanisms(received, clients)
        noise = noise_together(mechanisms, received, self._shares)
        return self._algorithm.repaired(received, noise)

    def _mechanisms(self, received: Received, clients: Sequence[int]) -> list[SumsMechanism]:
        """Return the noise on the sums of clients, without their shares."""
        radius = self._algorithm.feature_bound or 0.0
        privacy = self._privacy
        if self.releases_sums:
            most = privacy.most_examples if self._shares > 1 else max(self._counts() or [0])
            mechanism = SumsMechanism(radius, noise_of(privacy, self._schedule), most)
            return [mechanism] * len(clients)

        mechanisms = []
        for count in self._counts_of(received, clients):
            release = release_of(privacy, self._schedule, self._algorithm, count)
            mechanisms.append(SumsMechanism(radius, release.noise, count))
        return mechanisms

    def _counts(self) -> list[int]:
        return list((self._num_train or {}).values())

    def _counts_of(self, received: Received, clients: Sequence[int]) -> list[int]:
        """Return training examples of clients; if they are a secret, their mean for each."""
        if self._num_train is not None:
            return [self._num_train[client] for client in clients]

        # The weight of a mean over clients is their number of examples.
        weights = [1.0]
        for name, field in received.items():
            if name not in of_sums(received) and not field.total_weight.dim():
                weights.append(float(field.total_weight))
        return [max(1, round(max(weights) / len(clients)))] * len(clients)

    def _planned_epsilon(self) -> float | None:
        """Return what all rounds tell of an example at most; None: that is not known."""
        privacy = self._privacy
        schedule = self._schedule
        algorithm = self._algorithm
        if privacy.epsilon:
            return privacy.epsilon
        if self.releases_sums:
            return epsilon_of(privacy.delta, [Release(privacy.noise, 1.0, schedule.rounds)])

        counts = self._counts()
        if self._num_train is None:
            # With all examples in every step, their number does not matter.
            if algorithm.training.batch_size:
                return None
            counts = [1]

        releases = {count: release_of(privacy, schedule, algorithm, count) for count in set(counts)}
        radius = algorithm.feature_bound or 0.0
        plan = ExamplePlan(releases, privacy, schedule.rounds, radius=radius)
        return max(plan.epsilons().values(), default=0.0)
