"""The command ``fedtailor report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedtailor.cli.options import Json, argument, switch, text_option
from fedtailor.cli.shell import print_json


def report(
    paths: Annotated[
        list[str], argument("RUN...", "Folders of runs or of comparisons, finished or not.")
    ],
    out: Annotated[
        str,
        text_option(
            "FILE", "HTML file to write (default: report-NAME.html, NAME of the first RUN)."
        ),
    ] = "",
    figures: Annotated[
        str, text_option("FOLDER", "New folder for every figure and its numbers.")
    ] = "",
    format_: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", help="Of the figures: pdf (default), svg or png."
        ),
    ] = "",
    watch: Annotated[
        bool, switch("--watch", "Write the report again after every round, until the runs end.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a report of runs as one HTML file that needs no network.

    It holds figures, tables and settings. It is made from the records alone, so it can be made
    again at any time, also while a run continues.
    """
    from rich.filesize import decimal

    from fedtailor.cli.show.console import say
    from fedtailor.core.atomic import safe_name
    from fedtailor.core.errors import UsageError, find_name
    from fedtailor.core.text import counted
    from fedtailor.report.charts import FORMATS
    from fedtailor.report.methods import read_methods
    from fedtailor.report.page.build import Page, build_page
    from fedtailor.report.page.files import (
        check_figures_folder,
        check_page_path,
        write_figures,
        write_page,
    )
    from fedtailor.report.page.watch import follow

    # What can be refused is refused before anything is read.
    if format_ and not figures:
        raise UsageError("--format is of the figures: give --figures FOLDER too.", key="--format")

    ending = find_name("format", format_ or "pdf", FORMATS, key="format")
    target = Path(out or f"report-{safe_name(Path(paths[0]).resolve().name)}.html")
    check_page_path(target)
    if figures:
        check_figures_folder(Path(figures))

    sizes = []

    def write(page: Page) -> None:
        sizes.append(write_page(page, target))
        if watch and len(sizes) == 1 and not json:
            say(f"{target} follows the run; Ctrl-C ends this, and the report stays.")

    if watch:
        page = follow(paths, write)
    else:
        page = build_page(read_methods(paths))
        write(page)

    files = write_figures(page.figures, Path(figures), ending) if figures else []
    if json:
        record: dict[str, Any] = {"report": str(target), "bytes": sizes[-1]}
        record["figures"] = [{"name": one.name, "title": one.title} for one in page.figures]
        record["files"] = [str(path) for path in files]
        print_json(record)
        return

    count = len(page.figures)
    say(f"{target}: {counted(count, 'figure')}, {decimal(sizes[-1])}. Open it in any browser.")
    if figures:
        say(f"The figures as {ending.upper()}, and their numbers as CSV, are in {figures}")
