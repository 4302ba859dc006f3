"""Predictions as rows: class, probabilities of all classes, and how strange an input is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from fedtailor.core.engine import one_thread
from fedtailor.core.text import csv_text, inert
from fedtailor.serving.model import PersonalModel, batches
from fedtailor.serving.sources import NamedExamples

_UNUSUAL = {True: "yes", False: "no", None: "not known"}


class Prediction(NamedTuple):
    """The prediction for one input."""

    input: str
    """Name of the file, or of the row."""
    label: str
    """The most probable class, or the class by the threshold of the model's operating point."""
    probabilities: tuple[float, ...]
    """Of all classes, in the order of ``model.classes_``."""
    ood_score: float | None = None
    """How strange the input is; None: the method does not say."""
    unusual: bool | None = None
    """Whether its score is above the threshold of the client's examples, see
    :func:`fedtailor.simulation.calibration.score_threshold`; None: not known."""
    kept: tuple[str, ...] = ()
    """The cells of the columns that were to be kept."""


def predictions(model: PersonalModel, named: NamedExamples) -> Iterator[Prediction]:
    """Yield the prediction for every input of a batch."""
    threshold = model.ood_threshold
    row = 0
    for batch in batches(named.stored):
        with torch.no_grad(), one_thread():
            logits = model.module(batch)
            strangeness = model.module.ood_score(batch) if model.scores_strangers else None

        labels = model.classify(logits).tolist()
        probabilities = model.probabilities(logits).tolist()
        scores = [None] * len(labels) if strangeness is None else strangeness.tolist()

        for label, shares, score in zip(labels, probabilities, scores, strict=True):
            unusual = None if score is None or threshold is None else score > threshold
            yield Prediction(
                named.names[row],
                str(model.classes_[label]),
                tuple(shares),
                score,
                unusual,
                named.kept[row] if named.kept else (),
            )
            row += 1


def to_csv(model: PersonalModel, rows: Sequence[Prediction], keep: Sequence[str] = ()) -> str:
    """Return predictions as CSV that is safe to open in a spreadsheet.

    The columns of probabilities begin with ``uncalibrated`` if no temperature was fitted.

    Args:
        model: that predicted.
        rows: its predictions.
        keep: names of the columns that were kept; they come first.
    """
    words = "probability of" if model.is_calibrated else "uncalibrated probability of"
    header = [inert(name) for name in keep]
    header += ["input", "class", *(f"{words} {name}" for name in model.classes_)]
    if model.scores_strangers:
        header += ["ood_score", "unusual"]

    lines = [header]
    for row in rows:
        cells = [inert(cell) for cell in (*row.kept, row.input, row.label)]
        cells += [f"{share:.6g}" for share in row.probabilities]
        if model.scores_strangers:
            cells += [f"{row.ood_score:.6g}", _UNUSUAL[row.unusual]]

        lines.append(cells)

    return csv_text(lines)


def to_record(
    model: PersonalModel, rows: Sequence[Prediction], keep: Sequence[str] = ()
) -> dict[str, Any]:
    """Return predictions as one object, ready for JSON; arguments as of :func:`to_csv`."""
    return {
        "client": model.client,
        "algorithm": model.card.get("algorithm"),
        "classes": [str(name) for name in model.classes_],
        "calibrated": model.is_calibrated,
        "temperature": model.temperature,
        "ood_threshold": model.ood_threshold,
        "operating_point": dict(model.operating_point) or None,
        "predictions": [_row_record(model, row, keep) for row in rows],
    }


def _row_record(model: PersonalModel, row: Prediction, keep: Sequence[str]) -> dict[str, Any]:
    classes = map(str, model.classes_)
    record: dict[str, Any] = {
        "input": row.input,
        "class": row.label,
        "probabilities": dict(zip(classes, row.probabilities, strict=True)),
        "ood_score": row.ood_score,
        "unusual": row.unusual,
    }
    if keep:
        record["kept"] = dict(zip(keep, row.kept, strict=True))

    return record
