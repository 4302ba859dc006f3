"""Noise in every step of training, for a budget: what each client adds, and what it tells.

Each client trains with bounded examples (:mod:`fedtailor.training.private_steps`). Neighbors differ
by one example of one client. Examples of other clients say nothing about it, so a federation has
the largest epsilon of its clients.

Some methods also send sums over the features of the trained body, once a round. They are one more
release (:mod:`fedtailor.privacy.class_statistics`), of all examples and with the same noise.

``noise_from = "sites"``: each client hides its own examples from whoever sees its uploads. Its
noise follows from its steps, and from the probability of an example in a step.

``noise_from = "server"``: in one step a round with all examples, a sum over clients needs the noise
of one of them. If h clients of a sum keep their noise to themselves, each adds that noise over the
root of h.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import Roster
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import ExampleBound
from fedtailor.privacy.accountant import Release, epsilon_of, noise_for
from fedtailor.privacy.options import PrivacyOptions, colluding_of

Steps = Counter[tuple[float, float]]
"""How many steps a client has taken, by noise and rate."""


@dataclass(frozen=True)
class ExamplePlan:
    """What hides the examples of every client in all rounds of a run."""

    releases: Mapping[int, Release]
    """By client that can train: what a round tells of its examples."""
    privacy: PrivacyOptions
    rounds: int
    fewest: int = 1
    """Clients that a sum is over, at least."""
    shares: int = 1
    """How many of them keep their noise to themselves; 1: each client adds all noise."""
    radius: float = 0.0
    """Largest norm of features in the sums that a client sends too; 0: it sends none."""
    secret: bytes = b""
    """Of a real site, for a round: its draws and its noise follow from it."""

    def bound(self, client: int) -> ExampleBound:
        """Return what a client does in a round."""
        noise, rate, steps = self.releases[client]
        share = noise / math.sqrt(self.shares)
        return ExampleBound(self.privacy.clip, share, rate, steps, self.secret)

    def steps(self, client: int) -> Steps:
        """Return the steps of a client in all rounds; sums over features are one with all."""
        noise, rate, steps = self.releases[client]
        taken = Counter({(noise, rate): self.rounds * steps})
        if self.radius:
            taken[noise, 1.0] += self.rounds
        return taken

    def keeps_budget(self, client: int, taken: Steps) -> bool:
        """Return whether some steps of a client tell no more than the budget allows."""
        privacy = self.privacy
        if not privacy.epsilon:
            return True

        # The noise is made for the steps that are planned.
        if not privacy.noise and taken <= self.steps(client):
            return True
        return epsilon_of_steps(privacy.delta, taken) <= privacy.epsilon

    def epsilons(self) -> dict[int, float]:
        """Return what all rounds tell of the examples of every client."""
        delta = self.privacy.delta
        return {client: epsilon_of_steps(delta, self.steps(client)) for client in self.releases}

    def record(self, epsilons: Mapping[int, float]) -> dict[str, Any]:
        """Return what some rounds tell, in the form of a result.

        Args:
            epsilons: by client.
        """
        noises = [release.noise for release in self.releases.values()]
        record = {
            "unit": "example",
            "bounds": "gradients and features" if self.radius else "gradients",
            "noise_from": self.privacy.noise_from,
            "delta": self.privacy.delta,
            "noise": max(noises, default=0.0),
            "least_noise": min(noises, default=0.0),
            "epsilon": max(epsilons.values(), default=0.0),
        }
        if self.privacy.noise_from == "server":
            return record | {"fewest": self.fewest, "shares": self.shares}
        return record | {"by_client": {str(client): one for client, one in epsilons.items()}}


def plan_examples(
    privacy: PrivacyOptions, schedule: Schedule, algorithm: AnyAlgorithm, roster: Roster
) -> ExamplePlan:
    """Find the noise of every client.

    Without ``privacy.noise``, it is the least that keeps a client that takes part in every round to
    ``privacy.epsilon``.

    Raises:
        ConfigError: no client of a sum would keep its noise to itself.
    """
    fewest = 1
    shares = 1
    if privacy.noise_from == "server":
        fewest, shares = shares_of_noise(privacy, schedule, roster)

    # The noise of a client is close to that of one with about as many examples.
    by_size: dict[int, Release] = {}
    near = 1.0
    for size in sorted({roster.num_train[client] for client in roster.trainable_clients}):
        by_size[size] = release_of(privacy, schedule, algorithm, size, near=near)
        near = by_size[size].noise

    releases = {client: by_size[roster.num_train[client]] for client in roster.trainable_clients}
    radius = algorithm.feature_bound or 0.0
    return ExamplePlan(releases, privacy, schedule.rounds, fewest, shares, radius)


def release_of(
    privacy: PrivacyOptions,
    schedule: Schedule,
    algorithm: AnyAlgorithm,
    num_train: int,
    *,
    near: float = 1.0,
) -> Release:
    """Return what the steps of a round tell of the examples of a client that has some.

    Args:
        privacy: the options.
        schedule: how many rounds there are.
        algorithm: what the client runs.
        num_train: its training examples.
        near: where the search for its noise begins; it changes no result.
    """
    rate = min(algorithm.training.batch_size or num_train, num_train) / num_train
    steps = algorithm.bounded_steps(num_train)
    times = Counter({rate: steps * schedule.rounds})
    if algorithm.feature_bound:
        times[1.0] += schedule.rounds
    counted = sorted((rate, count) for rate, count in times.items() if count)
    noise = privacy.noise
    if not noise:
        noise = _noise(privacy.epsilon, privacy.delta, *counted, near=near) if counted else 1.0
    return Release(noise, rate, steps)


def shares_of_noise(privacy: PrivacyOptions, schedule: Schedule, roster: Roster) -> tuple[int, int]:
    """Return how many clients a sum is over at least, and how many of them keep their noise.

    Raises:
        ConfigError: a round never has so many clients.
    """
    colluding = colluding_of(roster.population, privacy.colluding)
    fewest = max(privacy.smallest_sum, colluding + 2, schedule.participation.min_clients)
    drawn = len(roster.trainable_clients)
    if schedule.participation.plan == "fixed":
        drawn = min(drawn, schedule.participation.count)

    if fewest > drawn:
        raise ConfigError(
            f"privacy.noise_from = 'server' needs {fewest} clients in a round, of which "
            f"{colluding} may give their noise away (privacy.colluding), got {drawn}: set it to "
            "'sites'.",
            key="privacy.noise_from",
            got=drawn,
        )
    return fewest, fewest - colluding


def bounds_of(algorithm: AnyAlgorithm) -> str:
    """Return what of examples a method bounds, in the words of a record."""
    if not algorithm.bounds_examples:
        return "features"
    return "gradients and features" if algorithm.feature_bound else "gradients"


def epsilon_of_steps(delta: float, steps: Steps) -> float:
    """Return what steps tell of an example of the client that took them.

    Example:
        >>> round(epsilon_of_steps(1e-5, Counter({(2.0, 0.1): 100})), 2)
        2.34
    """
    releases = [Release(noise, rate, times) for (noise, rate), times in sorted(steps.items())]
    return _epsilon(delta, *releases)


# Many clients are alike, and a run asks again at its end.
@cache
def _epsilon(delta: float, *releases: Release) -> float:
    return epsilon_of(delta, releases)


def _noise(epsilon: float, delta: float, *times: tuple[float, int], near: float) -> float:
    """Return the least noise of releases, by their rate, as many times as is said."""
    budget = (epsilon, delta, *times)
    if budget not in _noises:
        _noises[budget] = noise_for(epsilon, delta, times, near=near)
    return _noises[budget]


_noises: dict[tuple[object, ...], float] = {}
"""What was found before: a run asks for the same noise several times."""
