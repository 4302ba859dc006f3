"""The command ``fedtailor list``."""

from __future__ import annotations

from typing import Annotated

from fedtailor.cli.options import Json, argument
from fedtailor.cli.shell import print_json
from fedtailor.core.errors import UsageError, find_name

KINDS = ("algorithms", "datasets", "models", "partitions", "engines", "metrics")


def list_(
    kind: Annotated[
        str, argument("KIND", "One of: algorithms, datasets, models, partitions, engines, metrics.")
    ] = "",
    name: Annotated[
        str, argument("NAME", "One of the algorithms, to show its paper and options.")
    ] = "",
    json: Json = False,
) -> None:
    """List the algorithms, data sets, models, partitions, engines or metrics."""
    if not kind:
        raise UsageError(f"KIND is missing: one of {', '.join(KINDS)}.", key="kind")

    table = find_name("list", kind, KINDS, key="kind", kind=UsageError)
    if name and table != "algorithms":
        message = f"'{name}': only an algorithm can be shown alone, as in list algorithms ditto."
        raise UsageError(message, key="name", got=name)

    from fedtailor.cli.show.lists import show_algorithm, show_algorithms, show_list
    from fedtailor.experiment.catalog import list_algorithms, list_table

    entries = list_algorithms(name) if table == "algorithms" else list_table(table)
    if json:
        print_json({table: entries})
    elif name:
        show_algorithm(entries[0])
    elif table == "algorithms":
        show_algorithms(entries)
    else:
        show_list(table, entries)
