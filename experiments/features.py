"""Figure 2 of FedCR: two features of one client's test images, with and without the penalty.

Zhang et al. 2023, "FedCR: Personalized federated learning based on across-client common
representation with conditional mutual information regularization", ICML. MNIST, 100 clients, 10 of
them a round. After 20 rounds, a client trains body and head for 10 more epochs; then every test
image is drawn at the mean of its Gaussian of two features.

The paper prints no numbers, and does not say which beta it has, nor which client it picked at
random. Here beta is that of its tables, and the client is the first one of those with the most
classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from experiments.paper import Paper
from experiments.records import Record, compare
from fedtailor import toolkit as ft
from fedtailor.algorithms.fedcr import ClientState, FedCR, Personal, ServerState
from fedtailor.report.charts import inline, tooltip
from fedtailor.report.parts import Figure, Panel, ReportTable
from fedtailor.serving.run import Run

_DECIMALS = 3


class TrainedOnceMore(FedCR):
    """FedCR whose personal models are those of another round of training, with nothing frozen."""

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> Personal:
        """Train body and head as in a round."""
        personal: Personal = self.local_update(task, download, state, data, key).personal
        return personal


def measure(run: Run, examples: Sequence[tuple[np.ndarray, np.ndarray]]) -> Record:
    """Return the features of one client's test images.

    Args:
        run: a finished run of two features.
        examples: the test images of every client, and their labels.
    """
    classes = [len(np.unique(labels)) for _, labels in examples]
    client = int(np.argmax(classes))
    images, labels = examples[client]
    features = run.model(client).features(images)
    return {
        "client": client,
        "labels": labels.tolist(),
        "points": np.round(features, _DECIMALS).tolist(),
    }


def within_classes(points: np.ndarray, labels: np.ndarray) -> float:
    """Return which share of the points' variance is within classes: 0 if every class is a point."""
    inside = 0.0
    for label in np.unique(labels):
        of_class = points[labels == label]
        inside += float(((of_class - of_class.mean(0)) ** 2).sum())

    return inside / float(((points - points.mean(0)) ** 2).sum())


def figure(paper: Paper, table: str, records: Sequence[Record]) -> Figure:
    """Return the figure: a panel for every run that has a record."""
    panels = []
    rows: list[list[Any]] = []
    for row in compare(paper, table, records):
        column = paper.columns[row.cell.column].label
        method = paper.methods[row.cell.method].label
        for record, accuracy in zip(row.records, row.values, strict=True):
            measured = record["features"]
            points = np.array(measured["points"])
            labels = np.array(measured["labels"])
            share = round(100 * within_classes(points, labels), 1)
            numbers = [record["seed"], measured["client"], len(labels), len(np.unique(labels))]
            rows.append([column, method, *numbers, share, round(100 * accuracy, 1)])
            panels.append(
                Panel(
                    chart=_chart(points, labels),
                    title=f"{column}: {method}",
                    subtitle=f"{share:.1f} % of the variance is within classes",
                )
            )

    columns = ["data", "method", "seed", "client", "images", "classes", "within classes, %"]
    return Figure(
        name=f"{paper.name}-{table}",
        title=paper.tables[table].title,
        caption="A dot is a test image of one client, at the mean of its two features. The paper "
        "prints no numbers.",
        panels=panels,
        table=ReportTable(columns=[*columns, "accuracy over clients, %"], rows=rows),
    )


def _chart(points: np.ndarray, labels: np.ndarray) -> alt.Chart:
    """Draw a dot for every image, in the color of its class."""
    rows = [
        {"first": float(first), "second": float(second), "class": str(label)}
        for (first, second), label in zip(points, labels, strict=True)
    ]
    scale = alt.Scale(domain=[str(label) for label in range(10)], scheme="tableau10")
    legend = alt.Legend(title="class", columns=5)
    marks = alt.Chart(inline(rows), height=220).mark_circle(size=30, opacity=0.7)
    chart: alt.Chart = marks.encode(
        x=alt.X("first:Q", title="first feature", scale=alt.Scale(zero=False)),
        y=alt.Y("second:Q", title="second feature", scale=alt.Scale(zero=False)),
        color=alt.Color("class:N", scale=scale, legend=legend),
        tooltip=[tooltip("class", "class")],
    )
    return chart
