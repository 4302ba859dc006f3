"""The command ``fedtailor watch``."""

from __future__ import annotations

from typing import Annotated

from fedtailor.cli.options import Json, argument
from fedtailor.cli.predict import ClientName, RunPath, RunSeed
from fedtailor.cli.shell import print_result

RecentPaths = Annotated[
    list[str],
    argument(
        "PATH...",
        "Recent inputs, without labels: pictures, folders of pictures, .npz files with an "
        "array x, CSV or Parquet tables.",
    ),
]


def watch(
    run: RunPath,
    paths: RecentPaths,
    client: ClientName,
    seed: RunSeed = None,
    json: Json = False,
) -> None:
    """Compare recent inputs, without labels, with a client's held-out examples: alarms."""
    from fedtailor.cli.show.watch import show_watched
    from fedtailor.serving.run import load

    print_result(load(run).watch(client, paths, seed=seed), json, show_watched)
