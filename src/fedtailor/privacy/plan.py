"""The releases that a run plans, and the noise for its budget."""

from __future__ import annotations

from fedtailor.core.schedule import Schedule
from fedtailor.privacy.accountant import Release, epsilon_of, noise_for
from fedtailor.privacy.options import PrivacyOptions


def rate_of(schedule: Schedule, round: int) -> float:
    """Return with which probability a client takes part in a round, for the accountant.

    Only independent draws hide who takes part. A cohort of fixed size, and one that is drawn again
    until it is large enough, count as if everybody were there.
    """
    participation = schedule.participation
    is_full = round == schedule.rounds and participation.full_last_round
    if participation.plan != "bernoulli" or participation.min_clients > 1 or is_full:
        return 1.0
    return participation.probability


def planned(schedule: Schedule) -> list[tuple[float, int]]:
    """Return rate and number of the releases of all rounds."""
    rates = [rate_of(schedule, round) for round in range(1, schedule.rounds + 1)]
    return [(rate, rates.count(rate)) for rate in dict.fromkeys(rates)]


def noise_of(privacy: PrivacyOptions, schedule: Schedule) -> float:
    """Return the noise that is asked for, or the least one that keeps to the budget."""
    if privacy.noise:
        return privacy.noise
    return noise_for(privacy.epsilon, privacy.delta, planned(schedule))


def epsilons_of(privacy: PrivacyOptions, schedule: Schedule) -> tuple[float, float]:
    """Return epsilon of a whole run: as planned, and for those who know who takes part."""
    noise = noise_of(privacy, schedule)
    releases = [Release(noise, rate, times) for rate, times in planned(schedule)]
    known = [Release(noise, 1.0, schedule.rounds)]
    return epsilon_of(privacy.delta, releases), epsilon_of(privacy.delta, known)
