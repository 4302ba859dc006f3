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
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="One of the algorithms, to show its paper and options.",
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
    table = match_name(kind, KINDS)
    if table is None:
        kinds = ", ".join(KINDS)
        if kind:
            hint = did_you_mean(kind, KINDS) or "."
            message = f"unknown list '{kind}'{hint} Known: {kinds}."
        else:
            message = f"say what to list: {kinds}. Example: fedtailor list algorithms."

        raise UsageError(message, key="kind", allowed=list(KINDS), got=kind)

    if name and table != "algorithms":
        message = f"'{name}': only an algorithm can be shown alone, as in list algorithms ditto."
        raise UsageError(message, key="name", got=name)

    from fedtailor.cli.show.lists import show_algorithm, show_algorithms, show_list
    from fedtailor.experiment.catalog import list_algorithms, list_table

    entries = list_algorithms(model, name) if table == "algorithms" else list_table(table)
    if json:
        print_json({table: entries})
    elif name:
        show_algorithm(entries[0], model)
    elif table == "algorithms":
        show_algorithms(entries, model)
    else:
        show_list(table, entries)
