"""The steps of a run that hide single examples: counted, and reported."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from fedtailor.core import tree
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.devices import to_host
from fedtailor.core.message import Received
from fedtailor.privacy.accountant import Release
from fedtailor.privacy.class_statistics import NoisySums, SumsMechanism, of_sums
from fedtailor.privacy.examples import ExamplePlan, epsilon_of_steps
from fedtailor.privacy.ledger import Ledger, LedgerEntry
from fedtailor.simulation.noisy_sums import budget_used_up
from fedtailor.simulation.report import RoundReport


class NoisySteps:
    """Enters what clients are about to send into the ledger, round by round."""

    def __init__(
        self,
        plan: ExamplePlan,
        algorithm: AnyAlgorithm,
        num_train: Sequence[int],
        ledger: Ledger | None,
    ) -> None:
        """Begin.

        Args:
            plan: the noise and the steps of every client.
            algorithm: what they run.
            num_train: training examples by client.
            ledger: what was released before, and what will be; None: it stays in memory.
        """
        self.plan = plan
        self._algorithm = algorithm
        self._num_train = num_train
        self._ledger = ledger if ledger is not None else Ledger()

    def enter(
        self, report: RoundReport, clients: Sequence[int], shared: tree.Tree, seed: int
    ) -> None:
        """Enter the steps that clients will take in an attempt at a round, before they train.

        Whoever then fails or is absent has told less than the ledger says.

        Args:
            report: of the round; after the last one, it says what all of them tell.
            clients: those that train.
            shared: what they receive.
            seed: of the run.

        Raises:
            RunError: they would tell more than the budget allows, or the ledger cannot be written.
        """
        alike: defaultdict[Release, list[int]] = defaultdict(list)
        for client in clients:
            alike[self.plan.releases[client]].append(client)

        # The same model, data and noise lead to the same uploads: after a kill, they tell nothing
        # new.
        begin = self._digest(shared, seed)
        entries = []
        for (noise, rate, steps), members in alike.items():
            digest = hashlib.sha256(f"{begin}/{noise}/{rate}/{steps}/{members}".encode())
            entry = LedgerEntry(
                round=report.round,
                attempt=report.attempt,
                noise=noise,
                rate=rate,
                clip=self.plan.privacy.clip,
                cohort=tuple(members),
                digest=digest.hexdigest(),
                steps=steps,
            )
            entries.append(entry)
            if self.plan.radius:
                # Sums over the features of all examples follow the steps.
                digest.update(b"/sums")
                sums = entry._replace(rate=1.0, clip=self.plan.radius, steps=1)
                entries.append(sums._replace(digest=digest.hexdigest()))

        self._check_budget(report, entries)
        self._ledger.add(*entries)
        if report.round == self.plan.rounds:
            delta = self.plan.privacy.delta
            taken = self._ledger.steps_by_client()
            epsilons = {client: epsilon_of_steps(delta, one) for client, one in taken.items()}
            report.privacy = self.plan.record(epsilons)

    def bounds(self, report: RoundReport, seed: int) -> NoisySums | None:
        """Return what adds noise to sums over features in an attempt at a round; None: nothing."""
        if not self.plan.radius:
            return None

        # Another attempt has another body, and other noise.
        mechanisms = self._mechanisms(self.plan.releases)
        return NoisySums(mechanisms, seed, report.round, f"privacy/sums/{report.attempt}")

    def repaired(self, received: Received, clients: Sequence[int]) -> Received:
        """Return what the server received of clients, with sums that examples could have."""
        if not self.plan.radius:
            return received

        noise = noise_together(self._mechanisms(clients).values(), received)
        return self._algorithm.repaired(received, noise)

    def _mechanisms(self, clients: Iterable[int]) -> dict[int, SumsMechanism]:
        """Return what adds noise to the sums of clients."""
        return {
            client: SumsMechanism(
                self.plan.radius, self.plan.bound(client).noise, self._num_train[client]
            )
            for client in clients
        }

    def _digest(self, shared: tree.Tree, seed: int) -> str:
        digest = hashlib.sha256(f"{seed}/{self._algorithm}/{self.plan.privacy.clip}".encode())
        on_host = to_host(tree.paths(shared), "the digest of a model")
        for path, leaf in on_host.items():
            digest.update(path.encode())
            digest.update(leaf.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _check_budget(self, report: RoundReport, entries: Sequence[LedgerEntry]) -> None:
        """Check that no client would tell more than the budget allows.

        Raises:
            RunError: one would.
        """
        taken = self._ledger.steps_by_client(*entries)
        for client in {client for entry in entries for client in entry.cohort}:
            if not self.plan.keeps_budget(client, taken[client]):
                raise budget_used_up(self.plan.privacy, report, self.plan.rounds)


def noise_together(
    mechanisms: Iterable[SumsMechanism], received: Received, shares: int = 1
) -> dict[str, float]:
    """Return the deviations of the noises of clients on their sum, by field.

    ``shares``: how many clients make the noise of a mechanism together.
    """
    squares: defaultdict[str, float] = defaultdict(float)
    for mechanism in mechanisms:
        for name, deviation in mechanism.deviations(of_sums(received)).items():
            squares[name] += deviation**2 / shares
    return {name: math.sqrt(square) for name, square in squares.items()}
