"""The command ``fedtailor adapt``."""

from __future__ import annotations

from typing import Annotated

from fedtailor.cli.options import Json, NewFolder, switch, text_option
from fedtailor.cli.predict import ClientName, RunPath, RunSeed
from fedtailor.cli.shell import print_result
from fedtailor.cli.watch import RecentPaths

Labels = Annotated[
    bool, switch("--labels", "The inputs have labels, as for evaluate: adapt the class means too.")
]
LabelColumn = Annotated[
    str, text_option("NAME", "Column of the labels in a table (default: that of the run).")
]


def adapt(
    run: RunPath,
    paths: RecentPaths,
    client: ClientName,
    out: NewFolder,
    labels: Labels = False,
    label_column: LabelColumn = "",
    seed: RunSeed = None,
    json: Json = False,
) -> None:
    """Adapt the model of a client to recent inputs in closed form, as a run folder of its own.

    The run stays as it is. Without labels, only the class prior changes.
    """
    from fedtailor.cli.show.watch import show_adapted
    from fedtailor.serving.run import load

    adapted = load(run).adapt(
        client, paths, out, labels=labels, label_column=label_column, seed=seed
    )
    print_result(adapted.result or {}, json, show_adapted)
