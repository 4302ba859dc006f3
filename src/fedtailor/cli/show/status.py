"""The page of a running federation, and that of one of its sites."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedtailor.cli.show.console import duration
from fedtailor.core.text import counted, percent
from fedtailor.experiment.worth_it import sentence
from fedtailor.report.charts import CurvePoint, curves, page_svg
from fedtailor.report.page.build import render_page
from fedtailor.report.parts import Cell, Figure, Panel, ReportTable, Section
from fedtailor.report.records import POINTS

REFRESH = 5
"""Seconds after which a page loads itself again."""
_OUT_OF_DATE = 60.0
"""Seconds after which a page must have been written again while the server runs."""
_PAUSE = 100.0
"""Times as long as curves took to draw, before they are drawn again."""
_MOST_SITES = 200
"""Sites of the table; of more, those are listed first that need somebody."""
_ORDER = (
    *("excluded", "silent", "stopped", "not connected"),
    *("joining", "working", "connected", "paused", "removed"),
)
"""States of sites, those first that need somebody."""
_SERVED = ("starting", "running")
"""States of a server that runs."""
_STATES = {
    "starting": "The server waits until all sites have agreed on the plan.",
    "running": "The run continues.",
    "finished": "The run has finished.",
    "stopped": "The server was stopped. The same command continues the run.",
    "failed": "The server has ended with an error.",
}


class StatusPage:
    """Makes the pages of a status that changes. Curves cost most, so they are drawn seldom."""

    def __init__(self) -> None:
        """Begin without curves."""
        self._drawn: Any = None
        self._figures: list[Figure] = []
        self._next = 0.0

    def __call__(self, status: Mapping[str, Any]) -> str:
        """Return the page of a status, as HTML.

        Args:
            status: of :class:`fedtailor.deployment.status.StatusReader`.
        """
        # While the run continues, a hundredth of a processor is for curves; the last ones are
        # drawn in any case.
        curves = (status["curves"], status["site_curves"])
        began = time.monotonic()
        if curves != self._drawn and (began >= self._next or status["state"] not in _SERVED):
            self._figures = _figures(status)
            self._drawn = curves
            now = time.monotonic()
            self._next = now + _PAUSE * (now - began)

        return _page(status, self._figures)


def _page(status: Mapping[str, Any], figures: Sequence[Figure]) -> str:
    method = status["algorithm"] or "A federation"
    title = f"{method}: {counted(len(status['sites']), 'site')}, run {status['run']}"
    sections = [
        Section(name="now", title="Now", notes=_sentences(status)),
        Section(name="sites", title="Sites", tables=_sites_tables(status)),
        Section(name="curves", title="Curves", figures=figures),
        Section(name="messages", title="Messages", tables=_message_tables(status)),
    ]
    return render_page(
        title,
        [section for section in sections if not section.is_empty],
        refresh=0 if status["state"] == "finished" else REFRESH,
        latest=status["time"] + _OUT_OF_DATE if status["state"] in _SERVED else 0,
    )


def _sentences(status: Mapping[str, Any]) -> list[str]:
    """Return what a person wants to know first."""
    sentences = [_STATES[status["state"]]]
    if status["message"]:
        sentences.append(status["message"])
    if status["rounds"]:
        sentences.append(f"{status['round']} of {counted(status['rounds'], 'round')} are done.")
    if status["seconds_left"] is not None and status["state"] == "running":
        end = _clock(status["time"] + status["seconds_left"], status["time"])
        left = duration(status["seconds_left"])
        sentences.append(f"About {left} left, until {end}, if rounds take as long as the latest.")

    sites = status["sites"]
    connected = sum(site["connected"] for site in sites)
    if status["state"] in _SERVED:
        sentences.append(f"{connected} of {counted(len(sites), 'site')} are connected.")
    if status["verdicts"]:
        sentences.append(f"{sentence(status['verdicts'])}.")
    if status["secure_sums"]:
        sentences.append("Secure sums: scores are known as means over sites only.")
    return sentences


def _sites_tables(status: Mapping[str, Any]) -> list[ReportTable]:
    # Without a server, no site is connected, and none needs somebody for it.
    is_served = status["state"] in _SERVED
    sites = sorted(status["sites"], key=lambda site: _ORDER.index(site["state"]))
    has_scores = any(site["accuracy"] is not None for site in sites)
    rows: list[list[Cell]] = []
    for site in sites[:_MOST_SITES]:
        since = "" if site["since"] is None else _clock(site["since"], status["time"])
        heard = "never" if site["heard"] is None else _clock(site["heard"], status["time"])
        name = f"{site['name']} (new)" if site["new"] else site["name"]
        is_usual = site["state"] == "not connected" and not is_served
        row: list[Cell] = [name, "" if is_usual else site["state"], since, heard]
        if has_scores:
            row.append(None if site["accuracy"] is None else percent(site["accuracy"]))
        rows.append([*row, site["problem"]])

    columns = ["site", "state", "since", "last answer"]
    below = ""
    if has_scores:
        columns.append("accuracy, %")
        below = "Accuracy is that of the site's personalized model, if it shares its scores. "
    more = len(sites) - _MOST_SITES
    if more > 0:
        below += f"{counted(more, 'more site')}: status.json has them all."
    title = "Sites, those first that need somebody"
    table = ReportTable(
        columns=[*columns, "problem"], rows=rows, title=title, name="sites", below=below
    )
    return [table] if rows else []


def _figures(status: Mapping[str, Any]) -> list[Figure]:
    """Return the curves: means over sites, and those of single sites that show theirs."""
    means = {POINTS.get(point, point): curve for point, curve in status["curves"].items()}
    if not means:
        return []

    panels = [_panel("Mean over sites", means)]
    rows = _rows("all sites", means)
    if len(status["site_curves"]) > 1:
        panels.append(_panel("Personalized models of single sites", status["site_curves"]))
        for name, curve in status["site_curves"].items():
            rows += _rows(name, {POINTS["personalized"]: curve})

    caption = "On the sites' own test examples, as far as sites share their scores."
    return [_figure(caption, panels, rows)]


def _figure(caption: str, panels: Sequence[Panel], rows: Sequence[Sequence[Cell]]) -> Figure:
    """Return the figure of accuracies by round."""
    return Figure(
        name="accuracy",
        title="Accuracy by round",
        caption=caption,
        panels=panels,
        table=ReportTable(columns=["site", "of", "round", "accuracy, %"], rows=rows),
    )


def _panel(title: str, series: Mapping[str, Sequence[Sequence[float]]]) -> Panel:
    """Return a curve of accuracies for every series."""
    points = {}
    for label, curve in series.items():
        values = [(int(number), 100 * value) for number, value in curve]
        points[label] = [CurvePoint(number, value, value, value) for number, value in values]

    panel = Panel(
        chart=curves(points, list(points), "accuracy, %", has_tooltips=False), title=title
    )
    return replace(panel, picture=page_svg(panel, is_alone=False))


def _rows(site: str, series: Mapping[str, Sequence[Sequence[float]]]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for label, curve in series.items():
        rows += [[site, label, int(number), round(100 * value, 2)] for number, value in curve]
    return rows


def _message_tables(status: Mapping[str, Any]) -> list[ReportTable]:
    # The day of today says nothing, and a phone is narrow.
    today = time.strftime("%Y-%m-%d ")
    rows = [
        [message["time"].removeprefix(today), message["text"]]
        for message in reversed(status["messages"])
    ]
    title = "The latest messages, the newest first"
    table = ReportTable(columns=["time", "message"], rows=rows, title=title, name="messages")
    return [table] if rows else []


def site_page(record: Mapping[str, Any]) -> str:
    """Return the page of a site, as HTML.

    Args:
        record: of :func:`fedtailor.deployment.site_status.read_site_status`.
    """
    series = _curves_of_site(record)
    figures = []
    if series:
        rows = _rows(record["site"], series)
        figures = [_figure("On the test examples of this site.", [_panel("", series)], rows)]

    sections = [
        Section(name="curve", title="Accuracy", figures=figures),
        Section(name="sent", title="What was sent", tables=_sent_tables(record)),
        Section(name="told", title="What noise has let pass", notes=record["told"]),
    ]
    title = f"{record['site']}: what was sent, and how well its models do"
    return render_page(title, [section for section in sections if not section.is_empty])


def _curves_of_site(record: Mapping[str, Any]) -> dict[str, list[list[float]]]:
    """Return the curves of a site by what they are of, its own model as one that stays the same."""
    series = {POINTS.get(point, point): curve for point, curve in record["curves"].items()}
    own = record["own"]
    rounds = sorted({number for curve in series.values() for number, _ in curve})
    if own is not None and own["accuracy"] is not None and rounds:
        title = f"alone: {own['name'].replace('_', ' ')}"
        series[title] = [[number, own["accuracy"]] for number in rounds]
    return series


def _sent_tables(record: Mapping[str, Any]) -> list[ReportTable]:
    """Return the latest answers of a site, and what it has sent in all."""
    answers = ReportTable(
        columns=["time", "answer to", "round", "bytes", "refused"],
        rows=_cells(record["messages"], ("time", "kind", "round", "bytes", "refused"))[::-1],
        title="The latest answers, the newest first",
        name="answers",
    )
    totals = ReportTable(
        columns=["what", "times", "bytes", "first", "last"],
        rows=_cells(record["sent"], ("what", "times", "bytes", "first", "last")),
        title="In all",
        name="sent",
    )
    return [table for table in (answers, totals) if table.rows]


def _cells(records: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> list[list[Cell]]:
    return [[record[key] for key in keys] for record in records]


def _clock(moment: float, now: float) -> str:
    """Return a time of this day as hours and minutes, with the day if it is another one."""
    then = time.localtime(moment)
    is_today = then[:3] == time.localtime(now)[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M", then)
