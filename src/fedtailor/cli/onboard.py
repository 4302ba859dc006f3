"""The command ``fedtailor onboard``."""

from __future__ import annotations

from typing import Annotated

from fedtailor.cli.adapt import LabelColumn
from fedtailor.cli.options import Json, NewFolder, switch, text_option
from fedtailor.cli.predict import RunPath, RunSeed
from fedtailor.cli.shell import print_result


def onboard(
    run: RunPath,
    data: Annotated[str, text_option("PATH", "Labelled data of the new site.")],
    out: NewFolder,
    name: Annotated[str, text_option("NAME", "Name of the site (default: that of the data).")] = "",
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
