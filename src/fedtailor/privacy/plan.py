"""The releases that a run plans, and the noise for its budget."""

from __future__ import annotations

from typing import Any

from fedtailor.core.schedule import Schedule
from fedtailor.privacy.accountant import Release, epsilon_of, noise_for
from fedtailor.privacy.options import PrivacyOptions


def rate_of(schedule: Schedule, round: int) -> float:
    """Return with which probability a client takes part in a round, for the accountant.

    Only independent draws hide who takes part. A cohort of fixed size, and one that is drawn again
    until it is large enough, count as if everybody were there.
    """
    participation = schedule.participation
    if participation.plan != "bernoulli" or participation.min_clients > 1:
        return 1.0
    return 1.0 if _is_full(schedule, round) else participation.probability


def expected_clients(schedule: Schedule, round: int, num_trainable: int) -> float:
    """Return how many of the clients that can train take part in a round, on average."""
    if _is_full(schedule, round):
        return float(num_trainable)
    return max(1.0, schedule.participation.share(num_trainable) * num_trainable)


def _is_full(schedule: Schedule, round: int) -> bool:
    return round == schedule.rounds and schedule.participation.full_last_round


def planned(schedule: Schedule, unit: str = "client") -> list[tuple[float, int]]:
    """Return rate and number of the releases of all rounds.

    Args:
        schedule: of the run.
        unit: ``client``, or ``example``: no draw hides an example.
    """
    if unit == "example":
        return [(1.0, schedule.rounds)]

    rates = [rate_of(schedule, round) for round in range(1, schedule.rounds + 1)]
    return [(rate, rates.count(rate)) for rate in dict.fromkeys(rates)]


def noise_of(privacy: PrivacyOptions, schedule: Schedule) -> float:
    """Return the noise that is asked for, or the least one that keeps to the budget."""
    if privacy.noise:
        return privacy.noise
    return noise_for(privacy.epsilon, privacy.delta, planned(schedule, privacy.unit))


def planned_record(privacy: PrivacyOptions, schedule: Schedule) -> dict[str, Any]:
    """Return what all rounds of a run will tell, in the form of its result.

    Of an example if that is the unit of the options, else of a client.
    """
    unit = "example" if privacy.unit == "example" else "client"
    noise = noise_of(privacy, schedule)
    releases = [Release(noise, rate, times) for rate, times in planned(schedule, unit)]
    known = [Release(noise, 1.0, schedule.rounds)]
    who = {}
    if unit == "example":
        who = {"bounds": "features", "noise_from": privacy.noise_from}
    return {
        "unit": unit,
        **who,
        "delta": privacy.delta,
        "noise": noise,
        "epsilon": epsilon_of(privacy.delta, releases),
        "epsilon_known_cohort": epsilon_of(privacy.delta, known),
    }
