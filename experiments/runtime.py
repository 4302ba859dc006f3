"""Tables 6 and 9 of pFedFDA, and the last column of its Table 5: seconds of local training.

McLaughlin and Su 2024, "Personalized federated learning via feature distribution adaptation",
NeurIPS. Methods take turns, so that whatever else the machine does touches all of them, and each
pass gives a ratio to the first method. Seconds are those of this machine: compare the ratios.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from experiments.cells import settings_of
from experiments.paper import Paper
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.config import make_config
from fedtailor.simulation.report import RoundReport
from fedtailor.simulation.rounds import simulate

TABLE_6 = {
    "fedavg": 18.42,
    "apfl": 21.41,
    "ditto": 19.97,
    "fedbabu": 17.41,
    "fedrep": 34.82,
    "fedpac": 33.60,
    "pfedfda": 22.58,
}
"""Printed seconds of local training on CIFAR-10."""
TABLE_5 = {"pfedfda_nb": 0.0, "pfedfda": 22.35, "pfedfda_mb": 36.11}
"""Printed overhead over no beta, in percent, the mean over six settings of CIFAR-100."""
TABLE_9 = {
    "cifar10_dir05": (84.88, 0.765, 14.36),
    "cifar100_dir05": (77.70, 2.861, 19.43),
}
"""Printed shares of pFedFDA's local training, in percent: network, moments, search for beta."""


class Timing(NamedTuple):
    """How long a method's local training takes."""

    method: str
    seconds: float
    """Of a round: the median of the passes."""
    ratio: float
    """To the first method: the median of the passes."""
    least: float
    largest: float


def time_methods(
    paper: Paper, column: str, methods: Sequence[str], passes: int, data_dir: str = ""
) -> list[Timing]:
    """Train a round of every method in turn, several times.

    In each pass, all methods have the same cohort.

    Args:
        paper: of the methods and the column.
        column: the data.
        methods: of the paper; the first one is what the others are compared to.
        passes: how often every method has its turn.
        data_dir: folder of the data sets.
    """
    rounds = {name: _rounds(paper, column, name, passes, data_dir) for name in methods}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for number in range(passes + 1):
        print(f"{column}: round {number + 1} of {passes + 1}", file=sys.stderr, flush=True)
        for name, reports in rounds.items():
            taken = next(reports).seconds["train"]
            if number > 0:  # in its first round, an engine records the steps
                seconds[name].append(taken)

    first = seconds[methods[0]]
    return [_timing(name, taken, first) for name, taken in seconds.items()]


def _rounds(
    paper: Paper, column: str, method: str, passes: int, data_dir: str
) -> Iterator[RoundReport]:
    """Return the rounds of a method, one by one."""
    # The last round, in which all models are scored, is never run.
    overrides: list[tuple[str, Any]] = [("federation.rounds", passes + 2)]
    overrides += [("federation.full_last_round", False), ("evaluation.every", 0)]
    overrides += [("evaluation.personalized_every", 0), ("evaluation.baselines", "none")]
    if data_dir:
        overrides.append(("data.dir", data_dir))

    values, _ = settings_of(paper, column, method)
    prepared = assemble(make_config(values, overrides), seed=0)
    schedule = prepared.config.schedule
    return simulate(prepared.algorithm, prepared.federation, prepared.engine, schedule, seed=0)


def _timing(method: str, seconds: Sequence[float], first: Sequence[float]) -> Timing:
    ratios = [value / base for value, base in zip(seconds, first, strict=True)]
    middle = statistics.median(ratios)
    return Timing(method, statistics.median(seconds), middle, min(ratios), max(ratios))


def shares(timings: Sequence[Timing]) -> tuple[float, float, float]:
    """Return which percentage of pFedFDA's training its parts take: network, moments, search.

    FedBABU trains the same body under a fixed head: the passes through the network. pFedFDA without
    beta adds the moments of the features, and with beta the search.

    Args:
        timings: of ``fedbabu``, ``pfedfda_nb`` and ``pfedfda``.
    """
    seconds = {timing.method: timing.seconds for timing in timings}
    whole = seconds["pfedfda"]
    network = seconds["fedbabu"] / whole
    without_search = seconds["pfedfda_nb"] / whole
    return 100 * network, 100 * (without_search - network), 100 * (1 - without_search)
