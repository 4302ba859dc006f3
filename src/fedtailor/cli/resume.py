"""The command ``fedtailor resume``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from fedtailor.cli.audit import resume_members
from fedtailor.cli.compare import resume_comparison
from fedtailor.cli.options import Json, Track, argument
from fedtailor.cli.shell import guarded, print_result
from fedtailor.cli.sweep import resume_sweep
from fedtailor.core.errors import ConfigError, UsageError


def resume(
    run: Annotated[str, argument("RUN", "Folder of the run, or of a comparison, sweep or audit.")],
    track: Track = None,
    json: Json = False,
) -> None:
    """Resume an interrupted or killed run, comparison, sweep or audit.

    The results are those of an uninterrupted run.
    """
    from fedtailor.deployment.options import PLAN_FILE
    from fedtailor.experiment.config import load_config
    from fedtailor.experiment.reader import (
        COMPARISON_FILE,
        FOR_NEW_SITES,
        MEMBERS_FILE,
        SITE_DATA,
        holds_run,
        read_provenance,
        why_no_run,
    )
    from fedtailor.experiment.sweep_options import SWEEP_FILE
    from fedtailor.experiment.tracking import check_trackers

    path = Path(run)
    is_audit = (path / MEMBERS_FILE).is_file()
    if track and (is_audit or (path / COMPARISON_FILE).is_file()):
        message = (
            "--track works with single runs only, not with a comparison, a sweep or an audit. "
            "Leave it out."
        )
        raise UsageError(message, key="track")

    if is_audit:
        resume_members(path, json=json)
        return

    # The folders of sweeps and comparisons hold runs, and are none themselves.
    if (path / SWEEP_FILE).is_file():
        resume_sweep(path, json=json)
        return

    if (path / COMPARISON_FILE).is_file():
        resume_comparison(path, json=json)
        return

    if not holds_run(path):
        raise ConfigError(
            why_no_run(path),
            key="run",
            allowed="a folder that fedtailor run has made",
            got=run,
        )

    if (path / PLAN_FILE).is_file():
        server = path.absolute().parent.parent
        message = (
            f"'{run}' is a run across sites: its server continues it. "
            f"fedtailor serve {shlex.quote(str(server))}"
        )
        raise ConfigError(message, key="run", allowed="a run on this machine", got=run)

    provenance = read_provenance(path)
    if SITE_DATA in provenance or FOR_NEW_SITES in provenance:
        made_by = "onboard or adapt" if SITE_DATA in provenance else "hand-over"
        message = f"'{run}' was made by {made_by}: there is nothing to resume."
        raise ConfigError(message, key="run", allowed="a run on this machine", got=run)

    settings = load_config(path / "experiment.toml")
    trackers = check_trackers(track or [])

    from fedtailor.cli.show.progress import make_progress
    from fedtailor.cli.show.results import show_result
    from fedtailor.experiment.run import count_unfinished
    from fedtailor.experiment.run import run as continue_run

    progress = make_progress(runs=count_unfinished(path, settings))
    with guarded(run, resumable=True):
        result = continue_run(settings, out=path, progress=progress, track=trackers)

    print_result(result, json, show_result)
