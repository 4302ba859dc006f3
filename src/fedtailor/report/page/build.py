"""Building of a page: methods become sections, and sections one HTML file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fedtailor import __version__
from fedtailor.core.errors import DataError
from fedtailor.report.figures.calibration import reliability
from fedtailor.report.figures.clients import accuracy_by_client, accuracy_by_size, gains, partition
from fedtailor.report.figures.curves import accuracy_curves, costs, gaussianity
from fedtailor.report.figures.diagnostics import beta, confidence, deviation
from fedtailor.report.figures.drawing import DARK, LIGHT, STYLE, clean
from fedtailor.report.figures.figure import NARROW, WIDE, Figure, show_cell
from fedtailor.report.figures.records import MethodRecords, read_records
from fedtailor.report.methods import Method
from fedtailor.report.page.comparison import comparison_section
from fedtailor.report.page.facts import SECTIONS
from fedtailor.report.page.section import Section

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
        DataError: a file of records is damaged.
    """
    records = [read_records(method) for method in methods]
    try:
        sections = [section for section in _sections(records) if not section.is_empty]
        return Page(render_page(_title(methods), sections, refresh=refresh), sections)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as reason:
        places = ", ".join(f"'{method.path}'" for method in methods)
        message = f"the records in {places} are damaged: they have another form than expected (--debug shows where)."
        raise DataError(message, path=str(methods[0].path)) from reason


def render_page(title: str, sections: Sequence[Section], *, refresh: int = 0) -> str:
    """Return the HTML of a page.

    Args:
        title: of the page.
        sections: those that are not empty.
        refresh: seconds after which the page loads itself again; 0: never.
    """
    template = _environment().from_string(_resource("page.html"))
    return template.render(
        title=title,
        sections=sections,
        styles=Markup(_styles()),  # our own file
        script=Markup(_resource("page.js")),
        mark=Markup(MARK),
        refresh=refresh,
        made=time.strftime("%Y-%m-%d %H:%M %Z"),
        version=__version__,
        WIDE=WIDE,
        NARROW=NARROW,
    )


def _sections(records: Sequence[MethodRecords]) -> list[Section]:
    """Return all sections of a page, empty ones too."""
    return [
        comparison_section(records),
        Section(name="curves", title="Accuracy by round", figures=accuracy_curves(records)),
        Section(
            name="clients",
            title="Clients",
            figures=[
                *accuracy_by_client(records),
                *gains(records),
                *accuracy_by_size(records),
                *partition(records),
            ],
        ),
        Section(
            name="methods",
            title="Inside the methods",
            figures=[
                *beta(records),
                *confidence(records),
                *deviation(records),
                *gaussianity(records),
            ],
        ),
        Section(name="reliability", title="Calibration", figures=reliability(records)),
        Section(name="costs", title="Seconds and bytes", figures=costs(records)),
        *(section(records) for section in SECTIONS),
    ]


def _title(methods: Sequence[Method]) -> str:
    """Return the title of a page: the methods and the data."""
    labels = ", ".join(method.label for method in methods)
    datasets = dict.fromkeys(
        str(method.config.get("data", {}).get("dataset") or "own data") for method in methods
    )
    title = f"{labels} on {', '.join(datasets)}"
    if len(title) > _LONGEST_TITLE:
        title = f"{len(methods)} methods on {', '.join(datasets)}"
    return title if len(title) <= _LONGEST_TITLE else f"{title[:_LONGEST_TITLE]}…"


def _styles() -> str:
    """Return the style of the page and of its drawings, with the colors for light and dark."""
    return (
        _resource("page.css")
        .replace("/* light */", _colors(LIGHT))
        .replace("/* dark */", _colors(DARK))
        + STYLE
    )


def _colors(colors: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {color};" for name, color in colors.items())


def _environment() -> Environment:
    """Return the environment of templates: every value is escaped, and control characters can be
    seen.
    """
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    environment.filters["as_text"] = show_cell

    return environment


def _resource(name: str) -> str:
    return (files("fedtailor.report.page") / name).read_text(encoding="utf-8")
