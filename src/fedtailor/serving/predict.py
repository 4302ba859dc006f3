"""Predictions as rows: class, probability, and how strange an input is."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from fedtailor.core.engine import one_thread
from fedtailor.data.own.names import inert
from fedtailor.serving.model import PersonalModel, batches
from fedtailor.serving.sources import NamedExamples


class Prediction(NamedTuple):
    """The prediction for one input."""

    input: str
    """Name of the file, or of the row."""
    label: str
    probability: float
    """Of the class."""
    ood_score: float | None = None
    """How strange the input is; None: the method does not say."""
    unusual: bool | None = None
    """Whether it is stranger than 95 % of the client's validation examples; None: not known."""


def predictions(model: PersonalModel, named: NamedExamples) -> Iterator[Prediction]:
    """Yield the prediction for every input of a batch."""
    threshold = model.ood_threshold
    names = iter(named.names)
    for batch in batches(named.stored):
        with torch.no_grad(), one_thread():
            logits = model.module(batch)
            strangeness = model.module.ood_score(batch) if model.scores_strangers else None

        labels = logits.argmax(1)
        probabilities = model.probabilities(logits).gather(1, labels[:, None])[:, 0]
        scores = [None] * len(labels) if strangeness is None else strangeness.tolist()

        # Names come last, because zip must not take one too many at the end of a batch.
        columns = (labels.tolist(), probabilities.tolist(), scores, names)
        for label, probability, score, name in zip(*columns, strict=False):
            unusual = None if score is None or threshold is None else score > threshold
            yield Prediction(name, str(model.classes_[label]), probability, score, unusual)


def to_csv(model: PersonalModel, rows: Sequence[Prediction]) -> str:
    """Return predictions as CSV that is safe to open in a spreadsheet.

    The column of probabilities is called ``uncalibrated_probability`` if no temperature was fitted.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    has_scores = model.scores_strangers
    has_threshold = model.ood_threshold is not None
    probability = "probability" if model.is_calibrated else "uncalibrated_probability"
    header = ["input", "class", probability]
    writer.writerow(header + ["ood_score"] * has_scores + ["unusual"] * has_threshold)
    for row in rows:
        cells: list[Any] = [inert(row.input), inert(row.label), f"{row.probability:.6g}"]
        if has_scores:
            cells.append(f"{row.ood_score:.6g}")
        if has_threshold:
            cells.append("yes" if row.unusual else "no")

        writer.writerow(cells)

    return text.getvalue()


def to_record(model: PersonalModel, rows: Sequence[Prediction]) -> dict[str, Any]:
    """Return predictions as one object, ready for JSON."""
    return {
        "client": model.client,
        "algorithm": model.card.get("algorithm"),
        "classes": [str(name) for name in model.classes_],
        "calibrated": model.is_calibrated,
        "temperature": model.temperature,
        "ood_threshold": model.ood_threshold,
        "predictions": [_row_record(row) for row in rows],
    }


def _row_record(row: Prediction) -> dict[str, Any]:
    return {
        "input": row.input,
        "class": row.label,
        "probability": row.probability,
        "ood_score": row.ood_score,
        "unusual": row.unusual,
    }
