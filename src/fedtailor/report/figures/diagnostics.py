"""Figures of what single methods report of their clients: beta, confidence, deviation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedtailor.report.figures.axes import (
    horizontal_axis,
    horizontal_title,
    panels,
    strip_chart,
    titles,
    vertical_axis,
)
from fedtailor.report.figures.clients import MOST_DOTS, bars
from fedtailor.report.figures.drawing import Drawing
from fedtailor.report.figures.figure import Cell, Figure, Table
from fedtailor.report.figures.records import MethodRecords, Unit, mean_by_unit, unit_names
from fedtailor.report.figures.scales import linear, logarithmic

_CLEAN = "clean"


def beta(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return beta of every client by corruption and number of examples; none if no method reports
    it.
    """
    figures: list[Figure] = []
    for method in records:
        if method.method.config["algorithm"].get("beta") == "none":  # then it is 1 for every client
            continue

        found = [
            (unit, scores) for unit, scores in method.scores() if "beta_means" in scores.diagnostics
        ]
        values = mean_by_unit((unit, scores.diagnostics["beta_means"]) for unit, scores in found)
        if values:
            conditions = {
                unit: scores.condition.rpartition("-")[0] or _CLEAN for unit, scores in found
            }
            sizes = {unit: scores.num_train for unit, scores in found}
            figures.append(
                _beta_figure(
                    method.label, len(figures), values, conditions, sizes, unit_names(records)
                )
            )

    return figures


def _beta_figure(
    label: str,
    place: int,
    values: Mapping[Unit, float],
    conditions: Mapping[Unit, str],
    sizes: Mapping[Unit, int],
    names: Mapping[Unit, str],
) -> Figure:
    """Return strips by corruption, if there are several, above dots by number of examples."""
    groups: dict[str, list[tuple[float, str]]] = {}
    for condition in sorted(set(conditions.values()), key=lambda name: (name != _CLEAN, name)):
        own = [unit for unit in values if conditions[unit] == condition]
        groups[condition] = [(values[unit], f"{names[unit]}: {values[unit]:.3f}") for unit in own]

    with_size = [unit for unit in values if sizes[unit] > 0]
    caption = (
        "Beta is the weight of a client's own estimate against the server's: 1 is all its own. In pFedFDA (2024), "
        "Figure 2, clients with corrupted data have a larger beta than clients with clean data."
    )
    if len(groups) > 1:
        caption += " Every dot is a client, the dark line a mean."

    def draw(width: int) -> Drawing:
        drawing = Drawing(width)
        if len(groups) > 1:
            strip_chart(
                drawing,
                0,
                groups,
                title="Beta by corruption",
                subtitle="a dot per client",
                axis="beta",
            )

        if with_size:
            (panel,) = panels(drawing, 1, drawing.height, height=150)
            x = logarithmic([float(sizes[unit]) for unit in with_size], panel.left, panel.right)
            y = linear([0.0, 1.0], panel.bottom, panel.top, include=list(values.values()))
            titles(panel, "Beta by local data size", "beta")
            vertical_axis(panel, y)
            horizontal_axis(panel, x, "Training examples of the client")

            for unit in with_size[:MOST_DOTS]:
                tip = f"{names[unit]}: {values[unit]:.3f}"
                drawing.circle(x(sizes[unit]), y(values[unit]), 3.5, "dot fill0", tip=tip)

        return drawing

    rows: list[list[Cell]] = [
        [names[unit], conditions[unit], sizes[unit], values[unit]] for unit in values
    ]
    return Figure(
        name="beta" if place == 0 else f"beta-{place + 1}",
        title=f"{label}: beta and corruption",
        caption=caption,
        draw=draw,
        table=Table(["client", "corruption", "training examples", "beta"], rows),
    )


def confidence(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return the clients' shares of the confidence in their last round; none if no method reports
    it.
    """
    shares = {}
    for method in records:
        found = _last_training(method, "confidence")
        if found:
            total = math.fsum(found.values())
            shares[method.label] = {unit: 100 * value / total for unit, value in found.items()}

    return _sorted_bars(
        "confidence",
        "Shares of the confidence",
        "The weight of every client's head in the server's mean, in percent of all, after the last round, as in "
        "pFedVEM (2023), Figure 10. Every bar is a client, sorted; the dashed line is the share if all were equal.",
        "share, %",
        shares,
        records,
    )


def deviation(records: Sequence[MethodRecords]) -> list[Figure]:
    """Return how far the clients' heads are from the global one; none if no method reports it."""
    found = {method.label: _last_training(method, "model_deviation") for method in records}
    return _sorted_bars(
        "model-deviation",
        "Deviation of the clients' heads",
        "The squared distance of every client's head from the global one, per parameter, after the last round, as in "
        "pFedVEM (2023), Figure 11. Every bar is a client, sorted; the dashed line is the mean.",
        "squared distance",
        {label: values for label, values in found.items() if values},
        records,
    )


def _last_training(method: MethodRecords, metric: str) -> dict[Unit, float]:
    """Return a training metric of every client, the mean over seeds with the same split."""
    return mean_by_unit(
        ((seed.split, client), value)
        for seed in method.seeds.values()
        for client, value in seed.last_training.get(metric, {}).items()
    )


def _sorted_bars(
    name: str,
    title: str,
    caption: str,
    unit_of_values: str,
    values: Mapping[str, Mapping[Unit, float]],
    records: Sequence[MethodRecords],
) -> list[Figure]:
    """Return sorted bars, a panel per method; no figure without values."""
    if not values:
        return []

    names = unit_names(records)

    def draw(width: int) -> Drawing:
        drawing = Drawing(width)
        for panel, (label, found) in zip(
            panels(drawing, len(values), 0, height=150), values.items(), strict=True
        ):
            units = bars(found)
            y = linear(list(found.values()), panel.bottom, panel.top, include=[0.0])
            titles(panel, label, unit_of_values)
            vertical_axis(panel, y)
            step = panel.width / len(units)

            for number, unit in enumerate(units):
                top = y(found[unit])
                tip = f"{names.get(unit, unit[1])}: {found[unit]:.4g}"
                left = panel.left + number * step + step * 0.075
                drawing.bar(left, top, max(step * 0.85, 0.5), y(0) - top, "soft fill0", tip=tip)

            mean = y(math.fsum(found.values()) / len(found))
            drawing.line(panel.left, mean, panel.right, mean, "guide")
            drawing.line(panel.left, y(0), panel.right, y(0), "axis")
            horizontal_title(panel, f"{len(found)} clients, sorted")

        return drawing

    rows: list[list[Cell]] = [
        [label, names.get(unit, str(unit[1])), value]
        for label, found in values.items()
        for unit, value in found.items()
    ]
    table = Table(["method", "client", unit_of_values], rows)

    return [Figure(name=name, title=title, caption=caption, draw=draw, table=table)]
