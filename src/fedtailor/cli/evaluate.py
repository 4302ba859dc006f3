"""The command ``fedtailor evaluate``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedtailor.cli.adapt import LabelColumn
from fedtailor.cli.options import Json, argument, text_option
from fedtailor.cli.predict import ClientName, RunPath, RunSeed, check_out
from fedtailor.cli.shell import print_result
from fedtailor.core.errors import WARNING

if TYPE_CHECKING:
    from fedtailor.serving.run import Run
    from fedtailor.serving.site_data import SiteData


def evaluate(
    run: RunPath,
    paths: Annotated[
        list[str],
        argument(
            "PATH...", "Labelled data: a folder with a folder of pictures per class, or a table."
        ),
    ],
    client: ClientName,
    label_column: LabelColumn = "",
    out: Annotated[str, text_option("FILE", "Write the metrics as CSV, too.")] = "",
    seed: RunSeed = None,
    json: Json = False,
) -> None:
    """Score a client's personal model on new labelled data, and compare with training."""
    import numpy as np

    from fedtailor.cli.show.console import say
    from fedtailor.cli.show.evaluation import show_evaluation
    from fedtailor.core.atomic import write_whole
    from fedtailor.experiment.config import make_config
    from fedtailor.serving.evaluate import to_csv
    from fedtailor.serving.inputs import Stored
    from fedtailor.serving.run import load
    from fedtailor.serving.site_data import groups_of, load_labelled

    check_out(out)
    records = load(run)
    model = records.model(client, seed=seed)
    options = make_config(records.records.of_seed(seed).config).data
    sites = load_labelled(paths, model.inputs, options, label_column=label_column)

    inputs = Stored(np.concatenate([site.x for site in sites]))
    labels = model.classes_[np.concatenate([site.y for site in sites])]
    record = model.evaluate(inputs, labels, groups=groups_of(sites))
    if out:
        write_whole(Path(out), to_csv(record))

    record["notes"] = list(_notes(paths, sites))
    print_result(record, json, show_evaluation)

    for path in paths:
        if _is_of_the_run(records, path):
            say(
                f"warning: '{path}' lies in the data from which the model was made: it may have "
                "learned from these examples, and the figures are then too good.",
                style="yellow",
            )


def _notes(paths: Sequence[str], sites: Sequence[SiteData]) -> Iterator[str]:
    """Yield the warnings on the data, with their paths where there are several."""
    for path, site in zip(paths, sites, strict=True):
        where = f"'{path}': " if len(paths) > 1 else ""
        for warning in site.warnings:
            yield f"{WARNING}{where}{warning.removeprefix(WARNING)}"


def _is_of_the_run(run: Run, path: str) -> bool:
    """Return whether data lie where the data of the run, or of its onboarded site, were read."""
    from fedtailor.experiment.reader import site_data_of

    records = run.records
    of_run = records.config.get("data", {}).get("path", "")
    read = [data for data in (of_run, *site_data_of(records)) if data]

    # A path that is not absolute began in the working folder of then, which often holds the run.
    starts = [Path(), *records.path.resolve().parents]
    folders = [(start / os.path.expanduser(data)).resolve() for data in read for start in starts]
    return any(Path(path).resolve().is_relative_to(folder) for folder in folders)
