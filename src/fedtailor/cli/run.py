"""The command ``fedtailor run``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtailor.cli.options import (
    NOTHING_NAMED,
    Algorithm,
    Assignments,
    ConfigFile,
    Json,
    Named,
    Out,
    Seed,
    Track,
    read_config,
    switch,
    with_config_flags,
)
from fedtailor.cli.shell import guarded, print_json, print_result

if TYPE_CHECKING:
    from fedtailor.experiment.config import Config


@with_config_flags()
def run_(
    config: ConfigFile = "",
    algorithm: Algorithm = "",
    named: Named = NOTHING_NAMED,
    seed: Seed = None,
    set_: Assignments = None,
    out: Out = "",
    track: Track = None,
    dry_run: Annotated[
        bool,
        switch(
            "--dry-run",
            "Only check the experiment and its data, and print it with every option resolved.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Run an experiment. Its folder holds the scores and a model for every client.

    If the folder holds the same run, interrupted or killed, it is resumed.
    """
    # Before torch is imported: a mistake is reported at once.
    values = {**named, "algorithm.name": algorithm, "seed": seed}
    settings = read_config(config, values, set_)

    from fedtailor.experiment.tracking import check_trackers

    trackers = check_trackers(track or [])

    if dry_run:
        _print_resolved(settings, as_json=json)
        return

    from fedtailor.cli.show.progress import make_progress
    from fedtailor.cli.show.results import show_result
    from fedtailor.experiment.run import count_unfinished, default_folder, run

    # Seeds that an earlier call has finished are not trained again.
    folder = out or str(default_folder(settings))
    progress = make_progress(runs=count_unfinished(Path(folder), settings))
    with guarded(folder, resumable=True):
        result = run(settings, out=folder, progress=progress, track=trackers)

    print_result(result, json, show_result)


def _print_resolved(settings: Config, *, as_json: bool) -> None:
    """Check that an experiment can run, and print it with every option resolved."""
    import dataclasses
    import tomllib

    from fedtailor.cli.show.progress import make_progress
    from fedtailor.experiment.assembly import assemble
    from fedtailor.experiment.config import first_training, to_toml, with_fold

    progress = make_progress()
    prepared = assemble(first_training(settings), settings.seeds[0], progress=progress)
    prepared.engine.close()
    progress.end()

    for note in prepared.notes:
        progress.note(note)

    resolved = with_fold(prepared.config, settings.data.fold)
    text = to_toml(dataclasses.replace(resolved, seeds=settings.seeds))
    if as_json:
        print_json(tomllib.loads(text))
    else:
        typer.echo(text, nl=False)
