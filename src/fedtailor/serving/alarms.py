"""Have the inputs of a model changed? Alarms that need no labels.

Recent inputs are compared with held-out examples of the client, by what its model says of them.
Each alarm has a threshold that ordinary inputs, which come from where the held-out examples came
from, pass with a probability of at most :data:`RATE`, whatever the model and the data are. This
holds for independent inputs; several inputs of a patient are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import DataError
from fedtailor.serving.signals import Signals
from fedtailor.simulation.calibration import threshold_rank
from fedtailor.statistics.class_mix import fit_class_mix, log_gain, mean_mix

RATE = 0.01
"""Chance, at most, with which each alarm rings on ordinary inputs."""
FEWEST_HELD_OUT = 20
FEWEST_RECENT = 10
_DRAWS = 999
"""Random exchanges of held-out and recent inputs."""
_STEPS = 10
"""Of expectation-maximization, for the alarm on the class mix."""
MOST_COMPARED = 2_000
"""Held-out and recent inputs, at most, that are exchanged: more would take long, and tell little.
Of more, evenly spaced ones are."""
_CHUNK = 2**21
"""Numbers in memory at the same time."""


class Alarm(NamedTuple):
    """What one alarm says of recent inputs."""

    value: float
    """Of the recent inputs."""
    threshold: float
    """The alarm rings above it, and for a value with a sign below its negative, too."""
    p_value: float
    """How often ordinary inputs have such a value, or one farther from zero."""

    @property
    def rings(self) -> bool:
        """Whether the value is beyond the threshold: so large a one is rare."""
        return self.p_value <= RATE


class Alarms(NamedTuple):
    """What all alarms say, and the class mix."""

    unusual: Alarm
    """Share of unusual inputs: those stranger than 95 % of the held-out examples are."""
    surprise: Alarm | None
    """Shift of the ranks of the negative log-density; None: the method has no density."""
    doubt: Alarm
    """Shift of the ranks of the entropy of the probabilities."""
    class_mix: Alarm
    """How much better the class mix of recent inputs explains them than that of the held-out
    examples, in nats an input."""
    held_out_mix: Tensor
    """Mean probabilities of held-out examples (classes,)."""
    recent_mix: Tensor
    """The most likely class mix of recent inputs (classes,), see
    :mod:`fedtailor.statistics.class_mix`."""


def check_inputs(held_out: Signals, recent: Signals) -> Alarms:
    """Compare recent inputs with held-out examples.

    Raises:
        DataError: there are too few of either.
    """
    num_held_out = len(held_out.strangeness)
    refuse_few_inputs(len(recent.strangeness))
    if num_held_out < FEWEST_HELD_OUT:
        message = f"alarms need at least {FEWEST_HELD_OUT} held-out examples of the client, got "
        message += f"{num_held_out}: data.val_fraction of the run says how many there are."
        raise DataError(message, key="data", allowed=f">= {FEWEST_HELD_OUT}", got=num_held_out)

    prior = mean_mix(held_out.probabilities)
    few_held_out = held_out.at_most(MOST_COMPARED)
    few_recent = recent.at_most(MOST_COMPARED)
    surprise = None
    if len(recent.surprise):
        surprise = rank_shift(few_held_out.surprise, few_recent.surprise)

    return Alarms(
        unusual=unusual_share(held_out.strangeness, recent.strangeness),
        surprise=surprise,
        doubt=rank_shift(few_held_out.doubt, few_recent.doubt),
        class_mix=_mix_gain(few_held_out.probabilities, few_recent.probabilities),
        held_out_mix=prior,
        recent_mix=fit_class_mix(recent.probabilities, prior),
    )


def refuse_few_inputs(count: int) -> None:
    """Check that there are enough recent inputs.

    Raises:
        DataError: there are not.
    """
    if count < FEWEST_RECENT:
        message = f"alarms need at least {FEWEST_RECENT} recent inputs, got {count}."
        raise DataError(message, key="inputs", allowed=f">= {FEWEST_RECENT}", got=count)


def unusual_share(held_out: Tensor, recent: Tensor) -> Alarm:
    """Return the alarm on the share of recent inputs that are stranger than the threshold.

    The threshold is the k-th smallest of n scores of held-out examples, see
    :func:`fedtailor.simulation.calibration.score_threshold`. Of m ordinary inputs, the number above
    it is beta-binomial with the parameters m, n + 1 - k and k, for any continuous distribution of
    scores (of others, less are above it): the chance of one to lie there is that of the (n + 1 -
    k)-th largest of n uniform numbers.

    Args:
        held_out: scores of held-out examples (n,).
        recent: scores of recent inputs (m,).
    """
    from scipy.stats import betabinom  # takes time to import

    num_held_out = len(held_out)
    num_recent = len(recent)
    rank = threshold_rank(num_held_out)
    count = int((recent > held_out.sort().values[rank - 1]).sum())

    # The chance of j or more, for every j from 0 to m.
    above = betabinom(num_recent, num_held_out + 1 - rank, rank)
    chance_of = above.pmf(np.arange(num_recent + 1))
    chances = np.minimum(chance_of[::-1].cumsum()[::-1], 1.0)
    most = int(np.flatnonzero(chances > RATE).max())
    return Alarm(count / num_recent, most / num_recent, float(chances[count]))


def rank_shift(held_out: Tensor, recent: Tensor) -> Alarm:
    """Return how far recent scores rank above held-out ones, with its p-value by exchanges.

    The share of pairs in which the recent score is larger, less the share in which it is smaller:
    1 where all recent scores are above, 0 where they are mixed, -1 where all are below. A shift to
    either side counts. Mann and Whitney 1947, "On a test of whether one of two random variables is
    stochastically larger than the other".

    Args:
        held_out: scores of held-out examples (n,).
        recent: scores of recent inputs (m,).
    """
    from scipy.stats import rankdata  # takes time to import

    ranks = torch.from_numpy(rankdata(torch.cat([recent, held_out]).numpy()))
    shifts = [_shift(ranks[order], len(recent)) for order in _orders(len(ranks), 1)]
    return _alarm(torch.cat(shifts))


def _mix_gain(held_out: Tensor, recent: Tensor) -> Alarm:
    """Return the alarm on the class mix, by exchanges.

    Args:
        held_out: probabilities of held-out examples (n, classes).
        recent: probabilities of recent inputs (m, classes).
    """
    probabilities = torch.cat([recent, held_out])
    count, classes = probabilities.shape
    gains = [_gain(probabilities[order], len(recent)) for order in _orders(count, classes)]
    return _alarm(torch.cat(gains))


def _orders(count: int, classes: int) -> Iterator[Tensor]:
    """Yield orders of inputs (draws, count) in parts: as they are, and then random ones."""
    yield torch.arange(count)[None]

    generator = np.random.default_rng(0)
    size = max(1, _CHUNK // (count * classes))
    for start in range(0, _DRAWS, size):
        draws = generator.random((min(size, _DRAWS - start), count))
        yield torch.from_numpy(draws.argsort(1))


def _shift(ranks: Tensor, count: int) -> Tensor:
    """Return how far the first scores rank above the others, by order (draws,)."""
    others = ranks.shape[1] - count
    sums = ranks[:, :count].sum(1) - count * (count + 1) / 2
    return 2 * sums / (count * others) - 1


def _gain(probabilities: Tensor, count: int) -> Tensor:
    """Return the gain of the class mix of the first inputs over that of the others (draws,)."""
    recent = probabilities[:, :count]
    prior = mean_mix(probabilities[:, count:])
    return log_gain(recent, prior, fit_class_mix(recent, prior, _STEPS))


def _alarm(values: Tensor) -> Alarm:
    """Return the alarm of the first value, from the 999 of random exchanges that follow it.

    Ordinary inputs could as well be held-out ones. So each of the 1 + 999 values is equally likely
    to lie farthest from zero; the threshold is the tenth farthest of the others.
    """
    value = values[0]
    sizes = values.abs()
    rank = math.ceil((1 - RATE) * len(values))
    threshold = sizes[1:].sort().values[rank - 1]

    # Sums of the same numbers in another order may differ in the last bits.
    at_least = (sizes >= sizes[0] - 1e-12).sum()
    return Alarm(float(value), float(threshold), int(at_least) / len(values))
