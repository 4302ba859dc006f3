"""The command ``fedtailor report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.options import Debug, Json
from fedtailor.cli.shell import print_json


def report(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            show_default=False,
            help="Folders of runs or of comparisons, finished or not.",
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="HTML file to write (default: report-NAME.html, NAME of the first RUN).",
        ),
    ] = "",
    figures: Annotated[
        str, typer.Option(metavar="FOLDER", help="New folder for every figure as PNG, SVG and CSV.")
    ] = "",
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            metavar="",
            help="Write the report again whenever a run goes on, until it ends.",
        ),
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a report of runs as one HTML file that needs no network: figures, tables, settings.

    It is made from the records alone, so it can be made again at any time, also while a run goes
    on.
    """
    from fedtailor.cli.show.report import show_report
    from fedtailor.report.methods import read_methods
    from fedtailor.report.page.build import Page, build_page
    from fedtailor.report.page.files import (
        check_figures_folder,
        check_page_path,
        write_figures,
        write_page,
    )
    from fedtailor.report.page.watch import follow

    target = Path(out) if out else default_name(paths[0])
    check_page_path(target)
    if figures:
        check_figures_folder(Path(figures))

    sizes = []

    def write(page: Page) -> None:
        sizes.append(write_page(page, target))
        if watch and len(sizes) == 1 and not json:
            from fedtailor.cli.show.console import say

            say(f"{target} follows the run; Ctrl-C ends this, and the report stays.")

    if watch:
        page = follow(paths, write)
    else:
        page = build_page(read_methods(paths))
        write(page)

    files = write_figures(page.figures, Path(figures)) if figures else []
    record = {
        "report": str(target),
        "bytes": sizes[-1],
        "figures": [{"name": figure.name, "title": figure.title} for figure in page.figures],
        "files": [str(path) for path in files],
    }

    if json:
        print_json(record)
    else:
        show_report(record, figures)


def default_name(path: str) -> Path:
    """Return the file that a report is written to by default: ``report-NAME.html`` in the working
    folder.
    """
    from fedtailor.core.atomic import safe_name

    return Path(f"report-{safe_name(Path(path).resolve().name)}.html")
