"""The command ``fedtailor what-leaves``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedtailor.cli.options import (
    DataDir,
    DatasetName,
    Debug,
    Json,
    OwnData,
    read_assignments,
    refuse_two_data_sets,
)
from fedtailor.cli.shell import print_json
from fedtailor.core.errors import UsageError


def what_leaves(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|ALGORITHM",
            show_default=False,
            help="Folder of a run, or an algorithm (see: fedtailor list algorithms), or package.module:Class.",
        ),
    ],
    dataset: DatasetName = "",
    data: OwnData = "",
    data_dir: DataDir = "",
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Model (see: fedtailor list models).")
    ] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any option of a run. May be repeated."),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", metavar="", help="Print the page as Markdown.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Tell what leaves a site: every value that is sent, its size, and what it can tell.

    For an algorithm, the model and the data are those of fedtailor demo, unless options name
    others.
    """
    from fedtailor.experiment.records import holds_run

    if json and markdown:
        raise UsageError("give --json or --markdown, not both.", key="--markdown")

    named = {"data.dataset": dataset, "data.path": data, "data.dir": data_dir, "model.name": model}
    given: list[tuple[str, Any]] = [(key, value) for key, value in named.items() if value]
    given += read_assignments(set_)
    is_run = holds_run(Path(subject))
    if is_run and any(key != "data.dir" for key, _ in given):
        raise UsageError(
            f"'{subject}' is a run, which has its own data, model and options.", key=given[0][0]
        )

    refuse_two_data_sets(dataset, data)

    from fedtailor.experiment.leaving_pages import page_of_algorithm, page_of_run

    page = page_of_run(Path(subject), given) if is_run else page_of_algorithm(subject, given)
    if json:
        print_json(page)
        return

    from fedtailor.cli.show.what_leaves import show_page
    from fedtailor.experiment.what_leaves import to_markdown

    show_page(to_markdown(page), as_text=markdown)
