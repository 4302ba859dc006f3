"""The releases that a run plans, and the noise for its budget."""

from __future__ import annotations

from typing import Any, NamedTuple

from scipy.special import bdtr

from fedtailor.core.schedule import Schedule
from fedtailor.privacy.accountant import Release, epsilon_of, noise_for
from fedtailor.privacy.options import PrivacyOptions

_MOST_REDRAWN = 1e-9
"""Share of delta that all draws of too few clients may have as their probability. They change delta
by that share times 1 + e^epsilon, which is nothing then."""


class Drawn(NamedTuple):
    """The clients from which cohorts are drawn."""

    population: int
    """How many can be drawn."""
    trainable: int
    """How many of them have training examples."""
    fewest: int
    """A cohort of fewer clients is drawn again."""


def drawn_from(
    privacy: PrivacyOptions, schedule: Schedule, *, population: int, trainable: int
) -> Drawn:
    """Return whom the cohorts of a run with noise are drawn from.

    Args:
        privacy: the options of noise; a sum under masks needs some clients.
        schedule: of the run.
        population: how many clients can be drawn.
        trainable: how many of them have training examples.
    """
    smallest = privacy.smallest_sum if privacy.secure_sums else 1
    return Drawn(population, trainable, max(schedule.participation.min_clients, smallest))


def rate_of(privacy: PrivacyOptions, schedule: Schedule, drawn: Drawn, round: int) -> float:
    """Return with which probability a client takes part in a round, for the accountant.

    Only independent draws hide who takes part. A cohort of fixed size counts as if everybody were
    there. So does one that is drawn again until it is large enough, unless that hardly happens.
    """
    participation = schedule.participation
    if participation.plan != "bernoulli" or _is_full(schedule, round):
        return 1.0

    too_few = float(bdtr(drawn.fewest - 1, drawn.trainable, participation.probability))
    is_rare = schedule.rounds * too_few <= _MOST_REDRAWN * privacy.delta
    return participation.probability if is_rare else 1.0


def expected_clients(schedule: Schedule, drawn: Drawn, round: int) -> float:
    """Return how many of the clients that can train take part in a round, on average."""
    if _is_full(schedule, round):
        return float(drawn.trainable)
    return max(1.0, schedule.participation.share(drawn.population) * drawn.trainable)


def _is_full(schedule: Schedule, round: int) -> bool:
    return round == schedule.rounds and schedule.participation.full_last_round


def planned(
    privacy: PrivacyOptions, schedule: Schedule, drawn: Drawn | None = None
) -> list[tuple[float, int]]:
    """Return rate and number of the releases of all rounds.

    Args:
        privacy: the options of noise.
        schedule: of the run.
        drawn: whom cohorts are drawn from; None: no draw hides anything, as with examples.
    """
    if drawn is None or privacy.unit == "example":
        return [(1.0, schedule.rounds)]

    rates = [rate_of(privacy, schedule, drawn, round) for round in range(1, schedule.rounds + 1)]
    return [(rate, rates.count(rate)) for rate in dict.fromkeys(rates)]


def noise_of(privacy: PrivacyOptions, schedule: Schedule, drawn: Drawn | None = None) -> float:
    """Return the noise that is asked for, or the least one that keeps to the budget.

    Arguments are as of :func:`planned`.
    """
    if privacy.noise:
        return privacy.noise
    return noise_for(privacy.epsilon, privacy.delta, planned(privacy, schedule, drawn))


def planned_record(
    privacy: PrivacyOptions, schedule: Schedule, drawn: Drawn | None = None
) -> dict[str, Any]:
    """Return what all rounds of a run will tell, in the form of its result.

    Of an example if that is the unit of the options, else of a client. Arguments are as of
    :func:`planned`.
    """
    unit = "example" if privacy.unit == "example" else "client"
    noise = noise_of(privacy, schedule, drawn)
    releases = [Release(noise, rate, times) for rate, times in planned(privacy, schedule, drawn)]
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
