"""The command ``fedtailor onboard``."""

from __future__ import annotations

from typing import Annotated

import typer

from fedtailor.cli.adapt import LabelColumn
from fedtailor.cli.options import Json, NewFolder, switch
from fedtailor.cli.predict import RunPath, RunSeed
from fedtailor.cli.shell import print_result


def onboard(
    run: RunPath,
    data: Annotated[
        str,
        typer.Option(
            "--data", metavar="PATH", show_default=False, help="Labelled data of the new site."
        ),
    ],
    out: NewFolder,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the site (default: that of the data).")
    ] = "",
    label_column: LabelColumn = "",
    validate: Annotated[
        bool,
        switch(
            "--validate",
            "Say by 5-fold cross-validation if the model is better than the site's own.",
        ),
    ] = False,
    seed: RunSeed = None,
    json: Json = False,
) -> None:
    """Make the model of a site that never took part, from a run and the site's own data.

    The run stays as it is.
    """
    from fedtailor.cli.show.results import show_onboarded
    from fedtailor.serving.run import load

    onboarded = load(run).onboard(
        data, out, name=name, label_column=label_column, validate=validate, seed=seed
    )
    result = onboarded.result or {}

    print_result(result, json, show_onboarded)
