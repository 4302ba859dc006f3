"""The papers' figures that records can give. Drawing needs the extra ``plot``. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedtailor.papers.records import Record
from fedtailor.papers.tables import Paper

if TYPE_CHECKING:
    from fedtailor.data.plot.style import Picture
    from fedtailor.papers.pictures import Kind

Row = dict[str, Any]

_CLEAN = "clean"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of a paper: what it shows there, and how it is drawn from our records."""

    name: str
    number: str
    """The figure in the paper."""
    title: str
    shown: str
    """What the paper's figure shows, in words."""
    kind: Kind
    """See :func:`fedtailor.papers.pictures.picture`."""
    axis: str
    """What the values are."""
    rows: Callable[[Paper, Record], list[Row]]
    """Returns the marks of a record: none if the record lacks what is drawn."""


def draw(paper: Paper, figure: Figure, records: Iterable[Record]) -> Picture | None:
    """Draw a figure; None if no record has what it needs.

    Args:
        paper: the paper, for the names of columns and methods.
        figure: one of :data:`FIGURES`.
        records: of the paper.
    """
    rows = [row for record in records for row in figure.rows(paper, record)]
    if not rows:
        return None
    from fedtailor.papers.pictures import picture

    seeds = sorted({row["seed"] for row in rows})
    seeds_text = f"Seed{'s'[: len(seeds) > 1]} {', '.join(map(str, seeds))}."
    subtitle = f"{seeds_text} The paper's Figure {figure.number}: {figure.shown}"
    return picture(figure.kind, rows, axis=figure.axis, title=figure.title, subtitle=subtitle)


def _labels(paper: Paper, record: Record) -> Row:
    """Return what belongs to every mark of a record."""
    return {
        "column": paper.columns[record["column"]].label,
        "method": paper.methods[record["method"]].label,
        "seed": record["seed"],
    }


def _rows(columns: Mapping[str, Sequence[Any] | None]) -> list[Row]:
    """Return a row for every place of some lists, unless it holds a None; no rows if a list is missing or empty."""
    found = [each or () for each in columns.values()]
    if not all(found):
        return []
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*found, strict=True)]
    return [row for row in rows if None not in row.values()]


def _beta(paper: Paper, record: Record) -> list[Row]:
    """Return the beta of every client's final model, with its condition and number of training examples."""
    if record["config"]["algorithm"].get("beta") == "none":  # then it is 1 for every client
        return []
    own = record.get("by_client", {})
    betas = own.get("diagnostics", {}).get("beta_means", [])
    columns = {"value": betas, "client": range(len(betas)), "num_train": own.get("num_train")}
    rows = _rows({**columns, "condition": own.get("condition") or [_CLEAN] * len(betas)})
    labels = _labels(paper, record)
    return [{**labels, **row, "corruption": row["condition"].rpartition("-")[0] or _CLEAN} for row in rows]


def _accuracy_by_size(paper: Paper, record: Record) -> list[Row]:
    """Return the accuracy of every client's model, at the point of the method, with its number of examples."""
    own = record.get("by_client", {})
    correct = own.get("correct", {}).get(paper.methods[record["method"]].point, [])
    columns = {"correct": correct, "client": range(len(correct))}
    rows = _rows({**columns, "num_train": own.get("num_train"), "num_test": own.get("num_test")})
    labels = _labels(paper, record)
    return [{**labels, **row, "value": row["correct"] / row["num_test"]} for row in rows]


def _curve(paper: Paper, record: Record) -> list[Row]:
    """Return the accuracy by round, the mean over the clients that were scored.

    Global models are scored as in the tables, on all test examples. Personal models are scored right after local
    training, which is done more often than for the final ones; only clients that train in a round have such a score.
    """
    labels = _labels(paper, record)
    point = paper.methods[record["method"]].point
    if point == "personalized":
        point = "local"
    found = [each for each in record.get("curve", []) if each["point"] == point and each["clients"] == "known"]
    return [{**labels, "round": each["round"], "value": each["mean"]} for each in found]


def _surprise(paper: Paper, record: Record) -> list[Row]:
    """Return the negative log-likelihood of the clients' features by round, the mean over clients."""
    curve = record.get("training", {}).get("curve", {})
    rows = _rows({"round": curve.get("round"), "value": curve.get("feature_surprise")})
    return [{**_labels(paper, record), **row} for row in rows]


def _confidence(paper: Paper, record: Record) -> list[Row]:
    """Return every client's share of the confidence in the last round."""
    rows = _last_round(record, "confidence")
    total = math.fsum(row["value"] for row in rows)
    return [{**_labels(paper, record), **row, "value": row["value"] / total} for row in rows]


def _deviation(paper: Paper, record: Record) -> list[Row]:
    """Return the squared distance of every client's head from the global one, per parameter, in the last round."""
    return [{**_labels(paper, record), **row} for row in _last_round(record, "model_deviation")]


def _last_round(record: Record, metric: str) -> list[Row]:
    """Return a training metric of every client that trained in the last round."""
    found = record.get("training", {}).get("last_round", {})
    return _rows({"client": found.get("client"), "value": found.get(metric)})


_ACCURACY = "Accuracy: global models, or local ones"

FIGURES: Mapping[str, Sequence[Figure]] = {
    "pfedfda": [
        Figure(
            name="beta",
            number="2",
            title="pFedFDA: beta of the clients' final models",
            shown="clients with clean data have a smaller beta than those with corrupted data, and corruptions with a "
            "large beta, such as contrast, are often the harder ones.",
            kind="beta",
            axis="beta",
            rows=_beta,
        ),
    ],
    "fedlda": [
        Figure(
            name="gaussianity",
            number="1a",
            title="FedLDA: how Gaussian the features are",
            shown="the negative log-likelihood of the features, under the true statistics, shows that they stay "
            "Gaussian. Ours is under the statistics that a client has just refreshed, on its training examples.",
            kind="lines",
            axis="Negative log-likelihood, nats",
            rows=_surprise,
        ),
        Figure(
            name="curves",
            number="1b",
            title="FedLDA: accuracy by round",
            shown="FedLDA converges quickly to a better model.",
            kind="lines",
            axis=_ACCURACY,
            rows=_curve,
        ),
    ],
    "fedcr": [
        Figure(
            name="curves",
            number="3, 4",
            title="FedCR: accuracy by round",
            shown="FedCR converges a little more slowly at first, and to a higher accuracy.",
            kind="lines",
            axis=_ACCURACY,
            rows=_curve,
        ),
    ],
    "pfedvem": [
        Figure(
            name="accuracy-by-size",
            number="2",
            title="pFedVEM: accuracy and local data size",
            shown="clients with few examples gain most from a federation, and pFedVEM helps clients of all sizes.",
            kind="points",
            axis="Accuracy",
            rows=_accuracy_by_size,
        ),
        Figure(
            name="confidence",
            number="10",
            title="pFedVEM: the clients' shares of the confidence",
            shown="at the end of training the shares vary most on CIFAR-100.",
            kind="strips",
            axis="Share of the confidence in the last round",
            rows=_confidence,
        ),
        Figure(
            name="deviation",
            number="11",
            title="pFedVEM: deviation of the clients' heads",
            shown="the heads spread most on CIFAR-100, and stay near the global one on Fashion-MNIST.",
            kind="strips",
            axis="Squared distance from the global head per parameter, in the last round",
            rows=_deviation,
        ),
        Figure(
            name="curves",
            number="12",
            title="pFedVEM: accuracy by round",
            shown="pFedVEM converges faster than the others, and is good after 30 rounds.",
            kind="lines",
            axis=_ACCURACY,
            rows=_curve,
        ),
    ],
}
"""The figures that records can give, by paper."""

MISSING: Mapping[str, Mapping[str, str]] = {
    "pfedfda": {"3": "divisions of data, which need no run: fedtailor data plot bubbles"},
    "fedcr": {
        "2": "features of single images and class means in two dimensions, which no record holds",
        "3d": "accuracy by the weight of the regularizer, for which the paper's file has no runs",
    },
    "pfedvem": {"3 to 6": "local sizes over many divisions, which need no run: fedtailor data plot sizes"},
}
"""The other figures with data or results, by paper and number: what they show."""
