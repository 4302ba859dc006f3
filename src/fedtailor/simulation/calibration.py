"""Calibration of personal models on validation examples.

A temperature for probabilities, and a threshold for inputs unlike the examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.algorithm import Algorithm, AnyAlgorithm
from fedtailor.core.engine import one_thread
from fedtailor.core.errors import describe_error
from fedtailor.core.federation import ExampleSet, Federation
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Batch, Task
from fedtailor.simulation.operating_point import choose_threshold, count_right
from fedtailor.simulation.programs import predict_batch
from fedtailor.training.blocks import forward

FEWEST_EXAMPLES = 30
"""Validation examples without which no temperature is fitted."""
FEWEST_SCORES = 10
"""Validation examples without which there is no threshold."""
_LARGEST_TEMPERATURE = 20.0
_PRIOR_DEVIATION = 0.5
"""Of the logarithm of the temperature."""
_USUAL = 0.95
"""Share of ordinary inputs, at least, whose score is not above the threshold."""


class Calibration(NamedTuple):
    """What validation examples say about a personal model."""

    examples: int
    """How many there are."""
    temperature: float = 1.0
    """Logits are divided by it before the softmax; 1: not calibrated."""
    threshold: float | None = None
    """An input with a larger ``ood_score`` is unlike the validation examples, see
    :func:`score_threshold`; None: not known, or no such score."""
    problem: str = ""
    """Why there is no threshold although the method has an ``ood_score``."""
    operating_point: dict[str, Any] | None = None
    """What :class:`fedtailor.simulation.operating_point.OperatingPoint` holds; None: not wanted."""


def calibrate(
    algorithm: AnyAlgorithm, task: Task, personal: Any, examples: ExampleSet
) -> Calibration:
    """Fit temperature and threshold of a personal model on validation examples.

    The temperature minimizes the negative log-likelihood (Guo et al. 2017, On calibration of modern
    neural networks, section 4.2). A few examples, all predicted right, would make it 0: so its
    logarithm has a normal prior with mean 0 and deviation 0.5, which hundreds of examples outweigh.

    Args:
        algorithm: of the model.
        task: of the client, bound to the algorithm.
        personal: the model.
        examples: validation examples of the client. With fewer than 30, no temperature is fitted;
            with fewer than 10, there is no threshold.
    """
    count = len(examples.positions)
    has_scores = type(algorithm).ood_score is not Algorithm.ood_score
    key = rng.new_key(0, purpose="calibration")
    temperature = 1.0

    with one_thread():  # the result must not depend on the number of cores
        if count >= FEWEST_EXAMPLES:
            logits = forward(task, partial(predict_batch, algorithm), personal, examples, key=key)
            temperature = fit_temperature(logits, examples.labels())

        if not has_scores or count < FEWEST_SCORES:
            return Calibration(count, temperature)

        try:
            scores = forward(task, partial(_score, algorithm), personal, examples, key=key)
            threshold = score_threshold(scores)
        except Exception as reason:  # of a user's method; no model is worth less for it
            return Calibration(count, temperature, problem=describe_error(reason))

    return Calibration(count, temperature, threshold)


def calibrate_client(
    algorithm: AnyAlgorithm,
    federation: Federation,
    client: int,
    personal: Any,
    *,
    schedule: Schedule,
    classes: Sequence[str],
) -> Calibration:
    """Calibrate the model of a client, and choose its operating point if one is wanted.

    Args:
        algorithm: of the model.
        federation: has the client's validation and test examples.
        client: its number.
        personal: the model.
        schedule: says which sensitivity is wanted.
        classes: their names, or numbers as texts.
    """
    task = algorithm.bind(federation.roster.task(client))
    validation = federation.data(client).val
    calibration = calibrate(algorithm, task, personal, validation)
    if not schedule.sensitivity:
        return calibration

    # Validation examples choose the threshold, and test examples only count.
    test = federation.test(client)
    positive = schedule.positive_of(classes)
    key = rng.new_key(0, purpose="calibration")
    predict = partial(predict_batch, algorithm)
    with one_thread():
        logits = forward(task, predict, personal, validation, key=key)
        point = choose_threshold(
            logits,
            validation.labels(),
            schedule.sensitivity,
            calibration.temperature,
            positive,
        )
        if point.log_odds is not None and len(test.positions):
            logits = forward(task, predict, personal, test, key=key)
            counts = count_right(logits, test.labels(), point.log_odds, positive)
            point = point._replace(test=counts)

    return calibration._replace(operating_point=point._asdict())


def score_threshold(scores: Tensor) -> float | None:
    """Return the score above which an input is unusual; None with fewer than 10 scores.

    It is the k-th smallest of n scores, k = ceil(0.95 (n + 1)): the conformal quantile (Vovk,
    Gammerman and Shafer 2005, Algorithmic Learning in a Random World). Of ordinary inputs, which
    come from where the n examples came from, a share of (n + 1 - k) / (n + 1) lies above it on
    average, for any distribution: at most 5 %. With fewer than 19 scores there is no such k.
    Then it is the largest score, and the share is 1 / (n + 1): 9 % for 10 scores.

    Args:
        scores: of examples that the model was not made from (n,).

    Example:
        >>> score_threshold(torch.arange(100.0)), score_threshold(torch.arange(10.0))
        (95.0, 9.0)
    """
    count = len(scores)
    if count < FEWEST_SCORES:
        return None

    threshold = float(scores.double().sort().values[threshold_rank(count) - 1])
    return threshold if math.isfinite(threshold) else None


def threshold_rank(count: int) -> int:
    """Return k, where the k-th smallest of ``count`` scores is the threshold of unusual ones."""
    return min(math.ceil(_USUAL * (count + 1)), count)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the most likely temperature under the prior of :func:`calibrate`, between 1/20 and 20.

    Examples of a class that the model rules out say nothing about it: they are infinitely unlikely
    at every temperature. They are left out; without any others, the temperature is 1.

    Args:
        logits: (n, classes).
        labels: (n,).
    """
    from scipy.optimize import minimize_scalar  # takes time to import, and few runs need it

    logits = logits.double()
    costs = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    is_possible = torch.isfinite(costs)
    if not is_possible.any():
        return 1.0

    logits = logits[is_possible]
    labels = labels[is_possible]

    def loss(log_temperature: float) -> float:
        likelihood = torch.nn.functional.cross_entropy(
            logits / math.exp(log_temperature), labels, reduction="sum"
        )
        return likelihood.item() + 0.5 * (log_temperature / _PRIOR_DEVIATION) ** 2

    # The logarithm has one scale for sharper and flatter probabilities.
    limit = math.log(_LARGEST_TEMPERATURE)
    bounds = (-limit, limit)
    minimum = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return math.exp(float(minimum.x))


def _score(
    algorithm: AnyAlgorithm,
    task: Task,
    personal: Any,
    context: Any,
    batch: Batch,
    key: rng.Key,
) -> Tensor:
    score = algorithm.ood_score(task, personal, batch.x)
    assert score is not None
    return score
