"""The figure of a table whose methods differ in one setting: accuracy over the setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from experiments.cells import Cell
from experiments.paper import Paper
from experiments.records import Record, Row, compare
from fedtailor.report.charts import inline, tooltip
from fedtailor.report.parts import Figure, Panel, ReportTable, to_percent

_COLORS = [f"var(--s{number})" for number in range(8)]


def figure(paper: Paper, table: str, records: Sequence[Record]) -> Figure:
    """Return the figure: a panel for every column that has a record.

    Lines are our means over seeds; rings are printed numbers.
    """
    entry = paper.tables[table]
    rows = [row for row in compare(paper, table, records) if row.mean is not None]
    panels = []
    for column in dict.fromkeys(row.cell.column for row in rows):
        of_column = [row for row in rows if row.cell.column == column]
        panels.append(Panel(chart=_chart(of_column), title=paper.columns[column].label))

    setting = entry.over.rpartition(".")[2].replace("_", " ")
    columns = ["data", "algorithm", setting, "seeds", "ours, %", "deviation", "printed, %"]
    return Figure(
        name=f"{paper.name}-{table}",
        title=entry.title,
        caption=" ".join(["Lines: ours, the mean over seeds. Rings: printed.", *entry.notes]),
        panels=panels,
        table=ReportTable(columns=columns, rows=[_numbers(row) for row in rows]),
    )


def value_over(cell: Cell) -> Any:
    """Return the value of the setting in which the methods of a cell's table differ."""
    section, _, name = cell.paper.tables[cell.table].over.partition(".")
    return cell.values[section][name]


def _numbers(row: Row) -> list[Any]:
    label = row.cell.paper.columns[row.cell.column].label
    seeds = ", ".join(map(str, row.seeds))
    shares = [to_percent(share) for share in (row.mean, row.deviation, row.printed.value)]
    return [label, row.cell.values["algorithm"]["name"], value_over(row.cell), seeds, *shares]


def _chart(rows: Sequence[Row]) -> alt.LayerChart:
    """Draw a line for every algorithm, and a ring for every printed number."""
    values = sorted({value_over(row.cell) for row in rows})
    points = []
    for row in rows:
        point = {"algorithm": row.cell.values["algorithm"]["name"], "value": value_over(row.cell)}
        point |= {"ours": to_percent(row.mean), "printed": to_percent(row.printed.value)}
        points.append(point)

    algorithms = list(dict.fromkeys(point["algorithm"] for point in points))
    legend = None
    if len(algorithms) > 1:
        legend = alt.Legend(title=None, symbolType="stroke", symbolStrokeWidth=3)

    setting = rows[0].cell.paper.tables[rows[0].cell.table].over.rpartition(".")[2]
    scale = alt.Scale(domain=algorithms, range=_COLORS)
    axis = alt.Axis(labelAngle=0)
    base = alt.Chart(inline(points), height=190).encode(
        x=alt.X("value:O", title=setting.replace("_", " "), sort=values, axis=axis),
        color=alt.Color("algorithm:N", scale=scale, legend=legend),
        tooltip=[
            tooltip("algorithm", "algorithm"),
            tooltip("ours", "ours, %", ".1f"),
            tooltip("printed", "printed, %", ".1f"),
        ],
    )
    y = alt.Y("ours:Q", title="accuracy, %", scale=alt.Scale(zero=False, nice=5))
    lines = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=45)).encode(y=y)
    rings = base.mark_point(size=130, filled=False).encode(y="printed:Q")
    return alt.LayerChart(layer=[lines, rings])
