"""The command ``fedtailor list``."""

from __future__ import annotations

from typing import Annotated

import typer

from fedtailor.cli.options import Debug, Json
from fedtailor.cli.shell import print_json
from fedtailor.core.errors import UsageError, did_you_mean, match_name

KINDS = ("algorithms", "datasets", "models", "partitions", "engines", "metrics")


def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            show_default=False,
            help="One of: algorithms, datasets, models, partitions, engines, metrics.",
        ),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="For algorithms: the model whose bytes are counted, or package.module:function.",
        ),
    ] = "cifar_cnn",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the algorithms, data sets, models, partitions, engines or metrics."""
    name = match_name(kind, KINDS)
    if name is None:
        kinds = ", ".join(KINDS)
        if kind:
            hint = did_you_mean(kind, KINDS) or "."
            message = f"unknown list '{kind}'{hint} Known: {kinds}."
        else:
            message = f"say what to list: {kinds}. Example: fedtailor list algorithms."

        raise UsageError(message, key="kind", allowed=list(KINDS), got=kind)

    from fedtailor.cli.show.lists import show_algorithms, show_list
    from fedtailor.experiment.catalog import list_algorithms, list_table

    entries = list_algorithms(model) if name == "algorithms" else list_table(name)
    if json:
        print_json({name: entries})
    elif name == "algorithms":
        show_algorithms(entries, model)
    else:
        show_list(name, entries)
