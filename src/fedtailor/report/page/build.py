"""Building of a page: methods become sections, and sections one HTML file."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from fedtailor import __version__
from fedtailor.core.errors import DataError
from fedtailor.core.reading import UNEXPECTED
from fedtailor.report.charts import DARK, LIGHT, page_library, page_specification, page_svg
from fedtailor.report.figures.clients import accuracy_by_client, accuracy_by_size, gains, partition
from fedtailor.report.figures.inside import beta, confidence, deviation
from fedtailor.report.figures.reliability import reliability
from fedtailor.report.figures.rounds import accuracy_curves, costs, epsilons, gaussianity
from fedtailor.report.figures.verdicts import verdict_section
from fedtailor.report.methods import Method
from fedtailor.report.page.comparison import compare_finished, comparison_section
from fedtailor.report.page.facts import (
    configuration_section,
    environment_section,
    events_section,
    reported_section,
    runs_section,
)
from fedtailor.report.parts import Figure, Section, show_cell, visible
from fedtailor.report.records import MethodRecords, read_records

MARK = '<meta name="generator" content="fedtailor report">'
"""In every page."""
_LONGEST_TITLE = 120


@dataclass(frozen=True)
class Page:
    """A report."""

    html: str
    sections: Sequence[Section]

    @property
    def figures(self) -> list[Figure]:
        """The figures of all sections."""
        return [figure for section in self.sections for figure in section.figures]


def build_page(methods: Sequence[Method], *, refresh: int = 0) -> Page:
    """Build the page of some methods from their records.

    Args:
        methods: see :func:`fedtailor.report.methods.read_methods`.
        refresh: seconds after which the page loads itself again; 0: never.

    Raises:
        DataError: a file of records is damaged, or no run has begun.
    """
    if not methods:
        raise DataError("no run has begun yet, so there is nothing to report.", key="paths")

    sections = build_sections(methods)
    return Page(render_page(_title(methods), sections, refresh=refresh), sections)


def build_sections(methods: Sequence[Method]) -> list[Section]:
    """Return the parts of a page that are not empty.

    Raises:
        DataError: a file of records is damaged.
    """
    records = [read_records(method) for method in methods]
    try:
        return [section for section in _sections(records) if not section.is_empty]
    except UNEXPECTED as reason:
        folders = ", ".join(f"'{method.path}'" for method in methods)
        message = f"the records in {folders} are damaged (--debug shows where)."
        raise DataError(message, path=methods[0].path) from reason


def render_page(
    title: str,
    sections: Sequence[Section],
    *,
    refresh: int = 0,
    latest: float = 0,
) -> str:
    """Return the HTML of a page.

    Only scripts whose digests are in its policy run, and nothing is loaded.

    Args:
        title: of the page.
        sections: those that are not empty.
        refresh: seconds after which the page loads itself again; 0: never.
        latest: when the page is out of date, in seconds since 1970; then it says so. 0: never.
    """
    # The library is a megabyte, so a page that does not need it goes without it.
    scripts = [_resource("page.js")]
    panels = [
        panel for section in sections for figure in section.figures for panel in figure.panels
    ]
    if not all(panel.picture for panel in panels):
        scripts.insert(0, page_library())

    return _template().render(
        title=title,
        sections=sections,
        styles=Markup(_styles()),
        scripts=[Markup(script) for script in scripts],
        policy=" ".join(map(_digest, scripts)),
        mark=Markup(MARK),
        refresh=refresh,
        latest=latest,
        made=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        version=__version__,
    )


def _sections(records: Sequence[MethodRecords]) -> list[Section]:
    """Return all sections of a page, empty ones too."""
    comparison = compare_finished(records)
    clients = [
        *accuracy_by_client(records),
        *gains(records),
        *accuracy_by_size(records),
        *partition(records),
    ]
    by_round = [*accuracy_curves(records), *epsilons(records)]
    inside = [*beta(records), *confidence(records), *deviation(records), *gaussianity(records)]

    return [
        verdict_section(records, comparison),
        comparison_section(records, comparison),
        Section(name="curves", title="Accuracy by round", figures=by_round),
        Section(name="clients", title="Clients", figures=clients),
        Section(name="methods", title="Inside the methods", figures=inside),
        Section(name="reliability", title="Calibration", figures=reliability(records)),
        Section(name="costs", title="Seconds and bytes", figures=costs(records)),
        runs_section(records),
        events_section(records),
        reported_section(records),
        configuration_section(records),
        environment_section(records),
    ]


def _title(methods: Sequence[Method]) -> str:
    """Return the title of a page: the methods and the data."""
    labels = ", ".join(method.label for method in methods)
    datasets = ", ".join(dict.fromkeys(_data_name(method) for method in methods))
    title = f"{labels} on {datasets}"
    if len(title) > _LONGEST_TITLE:
        title = f"{len(methods)} methods on {datasets}"

    return title if len(title) <= _LONGEST_TITLE else f"{title[:_LONGEST_TITLE]}…"


def _data_name(method: Method) -> str:
    """Return the name of a known data set, or that of the folder or file of own data."""
    data = method.config.get("data", {})
    path = str(data.get("path") or "")
    return Path(path).name or path or str(data.get("dataset") or "own data")


def _styles() -> str:
    """Return the style of the page, with the colors for light and dark."""
    styles = _resource("page.css").replace("/* light */", _colors(LIGHT))
    return styles.replace("/* dark */", _colors(DARK))


def _colors(colors: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {color};" for name, color in colors.items())


def _digest(script: str) -> str:
    """Return the digest of a script as a content security policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def _template() -> Template:
    """Return the template of a page: every value is escaped and visible."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters["as_text"] = show_cell
    environment.filters["as_specification"] = lambda panel: Markup(page_specification(panel))
    environment.filters["as_svg"] = lambda panel, **options: Markup(page_svg(panel, **options))

    return environment.from_string(_resource("page.html"))


def _resource(name: str) -> str:
    return (files("fedtailor.report.page") / name).read_text(encoding="utf-8")
