"""A personal model on new examples with known classes: metrics, intervals, and what has changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import DataError, unknown_name
from fedtailor.core.metrics import CLIENT_METRICS, per_client
from fedtailor.core.scores import Scores, confusion, score
from fedtailor.core.text import csv_text, inert, listed, quoted
from fedtailor.experiment.estimates import (
    NORMAL_975,
    Interval,
    difference_interval,
    mean_interval,
    mean_of_shares_interval,
    wilson_interval,
)
from fedtailor.experiment.paired import design_effect
from fedtailor.experiment.summary import classes_of_site, intervals_of_site

_DRAWS = 2_000
"""Of the noise in a calibration error."""
_COLUMNS = ("metric", "class", "value", "low", "high", "examples", "at_training")


def evaluate(
    logits: Tensor,
    labels: Any,
    classes: Sequence[str],
    card: Mapping[str, Any],
    *,
    predicted: Tensor,
    temperature: float | None,
    groups: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """Return all metrics of a client's model on examples, with 95 % intervals; ready for JSON.

    Metrics are those that a run reports, before the temperature, so they compare with
    ``at_training``. If the model has a threshold (``operating_point``), everything that counts
    right and wrong classes is by this threshold, here and at training. ``missing`` says which
    metrics have no value, and why. ``ece_calibrated`` is the calibration error of the
    probabilities that the model prints. Intervals are about the examples only: they take the model
    as given. They are Wilson's for accuracies, sensitivity and specificity, Zou and Donner's for
    balanced accuracy, Newcombe's for AUROC (of several classes the mean of the bounds, which is
    conservative), a t interval for the loss, and :func:`calibration_interval`.

    ``comparison`` has the differences of accuracy, balanced accuracy and AUROC from those on the
    client's test examples at training, with intervals for two samples: "higher" or "lower" if it
    leaves out 0. Nothing corrects for their number.

    Args:
        logits: of the model (n, classes), before calibration.
        labels: their classes (n,), names or numbers.
        classes: of the model, in the order of the logits.
        card: of the model.
        predicted: numbers of the classes (n,) that the model predicts, by its threshold if it has
            one.
        temperature: of the model; None if it is not calibrated.
        groups: which inputs belong together (n,); intervals then count as many examples as give the
            spread of the groups' accuracies.

    Raises:
        DataError: labels are not those of the model, or there are none.
    """
    numbers = numbers_of(labels, classes)
    if len(logits) != len(numbers) or not len(numbers):
        message = f"expected a label for each of at least one input, got {len(numbers)} labels"
        raise DataError(f"{message} for {len(logits)} inputs.", key="labels", got=len(numbers))

    scores = score(logits, numbers, torch.ones(len(numbers)), len(classes))
    scores = _with_classes(scores, numbers, predicted)
    right = (predicted == numbers).numpy().astype(float)

    # Repeated examples of a patient say less than as many patients.
    group_numbers = None
    if groups is not None:
        number_of = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        group_numbers = np.array([number_of[group] for group in groups])

    independent = 1 / design_effect(right, group_numbers)
    figures = classes_of_site(scores, classes, independent)
    metrics = _metrics(logits, numbers, scores, independent)
    if temperature is not None:
        metrics["ece_calibrated"] = _calibrated(logits / temperature, numbers, independent)

    point = card.get("calibration", {}).get("operating_point")
    at_training = _at_training(card, point)
    missing = _missing(figures)
    comparison = {} if "comparison" in missing else _comparison(metrics, at_training)
    for name, metric in metrics.items():
        metric["at_training"] = at_training.values.get(name)

    return {
        "client": card.get("client"),
        "algorithm": card.get("algorithm"),
        "operating_point": point,
        "examples": len(right),
        "groups": None if group_numbers is None else int(group_numbers.max()) + 1,
        "metrics": metrics,
        "missing": missing,
        "by_class": figures,
        "confusion": confusion(scores),
        "examples_at_training": card.get("num_test", 0),
        "comparison": comparison,
    }


def _with_classes(scores: Scores, labels: Tensor, predicted: Tensor) -> Scores:
    """Return scores of the most probable classes as those of the predicted classes (n,)."""
    confusion = torch.zeros_like(scores.confusion)
    ones = torch.ones(len(labels), dtype=confusion.dtype)
    confusion.index_put_((labels, predicted), ones, accumulate=True)
    return scores._replace(confusion=confusion, class_correct=confusion.diagonal())


class _AtTraining(NamedTuple):
    """The metrics of a client on its test examples at training."""

    values: Mapping[str, float]
    intervals: Mapping[str, Interval]


def _at_training(card: Mapping[str, Any], point: Mapping[str, Any] | None) -> _AtTraining:
    """Return the metrics at training; those of classes are by the threshold of an operating point.

    Args:
        card: of the model.
        point: its operating point; None: it has none.
    """
    values = card.get("scores", {})
    intervals = card.get("intervals", {})
    counts = (point or {}).get("test")
    if not counts:
        return _AtTraining(values, intervals)

    # Intervals count a group, such as a patient, once.
    independent = card.get("independence", 1.0)
    recalls = []
    sizes = []
    for right_of_class, of_class in (("found", "positives"), ("rejected", "negatives")):
        if counts[of_class]:
            recalls.append(counts[right_of_class] / counts[of_class])
            sizes.append(independent * counts[of_class])

    number = counts["positives"] + counts["negatives"]
    accuracy = (counts["found"] + counts["rejected"]) / number
    balanced = {"balanced_accuracy": sum(recalls) / len(recalls)}
    return _AtTraining(
        {**values, "accuracy": accuracy, **balanced},
        {
            **intervals,
            "accuracy": wilson_interval(accuracy, sum(sizes)),
            "balanced_accuracy": mean_of_shares_interval(recalls, sizes),
        },
    )


def _missing(classes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the metrics without a value, and why."""
    present = [entry["class"] for entry in classes.values() if entry["positives"]]
    absent = [entry["class"] for entry in classes.values() if not entry["positives"]]
    missing = {}
    if len(present) == 1:
        name = quoted(present[0])
        missing["auroc"] = f"all examples are of {name}, and it compares two classes"
        missing[f"specificity of {name}"] = "no example is of another class"
        missing["comparison"] = f"the accuracy of {name} alone is not the accuracy of all classes"
    if absent:
        missing[f"sensitivity of {listed(absent)}"] = "no example is of such a class"

    return missing


def numbers_of(labels: Any, classes: Sequence[str]) -> Tensor:
    """Return labels (n,), names or numbers, as positions in the classes of a model.

    Raises:
        DataError: the model does not know a class.
    """
    number_of = {name: number for number, name in enumerate(classes)}
    names = [str(label) for label in np.asarray(labels).reshape(-1).tolist()]
    unknown = sorted(set(names) - set(number_of))
    if unknown:
        of = "the model"
        raise unknown_name("class", unknown[0], number_of, of=of, key="labels", kind=DataError)

    return torch.tensor([number_of[name] for name in names], dtype=torch.int64)


def _metrics(logits: Tensor, labels: Tensor, scores: Scores, independent: float) -> dict[str, Any]:
    """Return value and interval of every metric of a client."""
    values = per_client(scores)
    intervals: dict[str, Interval | None] = {
        **intervals_of_site(scores, independent),
        "loss": _loss_interval(logits, labels, independent),
        "ece": calibration_interval(scores, logits, labels, independent),
    }

    metrics = {}
    for name in CLIENT_METRICS:
        metrics[name] = {"value": values.get(name), "interval": intervals.get(name)}

    return metrics


def _calibrated(logits: Tensor, labels: Tensor, independent: float) -> dict[str, Any]:
    """Return the calibration error of the probabilities that the model prints, as a metric."""
    scores = score(logits.double(), labels, torch.ones(len(labels)), logits.shape[1])
    interval = calibration_interval(scores, logits, labels, independent)
    return {"value": per_client(scores)["ece"], "interval": interval}


def _loss_interval(logits: Tensor, labels: Tensor, independent: float) -> Interval | None:
    """Return the interval of a mean cross-entropy; None if it is infinite, or of one example."""
    losses = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
    count = math.floor(independent * len(losses))
    if count < 2 or not bool(losses.isfinite().all()):
        return None
    return mean_interval(float(losses.mean()), float(losses.std()), count, is_share=False)


def calibration_interval(
    scores: Scores, logits: Tensor, labels: Tensor, independent: float = 1.0
) -> Interval:
    """Return a conservative 95 % interval of the expected calibration error.

    The measured error is too large on average, because noise in any bin adds to it. So it is at
    most the size of the noise above the true one: the lower end subtracts the 97.5 % quantile of
    the sum over bins of the size of their noise, drawn from normal distributions with a fixed seed.
    The upper end adds 1.96 standard deviations of all noise. In simulations of 20 to 400 examples
    it held the true error in 93 to 100 % of all cases, with one exception: 61 to 89 % for at most
    40 examples whose confidences are all above 90 %, if these are right.

    Args:
        scores: of the examples.
        logits: of the examples (n, classes).
        labels: their classes (n,).
        independent: how many independent examples one is worth.
    """
    confidence, predicted = torch.softmax(logits.double(), dim=1).max(1)
    gaps = (predicted == labels).double() - confidence
    bins = len(scores.bin_count)
    bin_of = ((confidence * bins).ceil() - 1).clamp(0, bins - 1).long()
    squares = torch.zeros(bins, dtype=torch.float64).index_add_(0, bin_of, gaps**2)
    variances = squares.numpy() / (independent * len(gaps) ** 2)

    noise = np.abs(np.random.default_rng(0).standard_normal((_DRAWS, bins))) @ np.sqrt(variances)
    error = per_client(scores)["ece"]
    return {
        "low": max(0.0, error - float(np.quantile(noise, 0.975))),
        "high": min(1.0, error + NORMAL_975 * math.sqrt(variances.sum())),
    }


def _comparison(metrics: Mapping[str, Any], before: _AtTraining) -> dict[str, dict[str, Any]]:
    """Return how metrics differ from those at training that are known with their intervals."""
    comparison = {}
    for name, interval_before in before.intervals.items():
        value = metrics[name]["value"]
        value_before = before.values[name]
        interval = difference_interval(
            value, metrics[name]["interval"], value_before, interval_before
        )
        verdict = "no clear difference"
        if interval["low"] > 0:
            verdict = "higher"
        elif interval["high"] < 0:
            verdict = "lower"

        difference = value - value_before
        comparison[name] = {"difference": difference, **interval, "verdict": verdict}

    return comparison


def to_csv(record: dict[str, Any]) -> str:
    """Return the metrics of :func:`evaluate` as CSV, a line for each metric and class."""
    rows: list[Sequence[object]] = [_COLUMNS]
    for name, metric in record["metrics"].items():
        bounds = metric["interval"] or {"low": None, "high": None}
        cells = (metric["value"], bounds["low"], bounds["high"])
        at_training = _cell(metric["at_training"])
        rows.append([name, "", *map(_cell, cells), record["examples"], at_training])

    for entry in record["by_class"].values():
        for name, examples in _class_metrics(entry).items():
            bounds = entry[f"{name}_interval"] or {"low": None, "high": None}
            cells = (entry[name], bounds["low"], bounds["high"])
            rows.append([name, inert(entry["class"]), *map(_cell, cells), examples, ""])

    return csv_text(rows)


def _class_metrics(entry: dict[str, Any]) -> dict[str, int]:
    """Return the metrics of a class, and of how many examples each is."""
    positives = entry["positives"]
    negatives = entry["negatives"]
    return {"auroc": positives + negatives, "sensitivity": positives, "specificity": negatives}


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
