"""The commands ``fedtailor audit ...``: what an attacker can tell from a run, measured."""

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
    Methods,
    Named,
    Out,
    Seed,
    number_option,
    read_config,
    with_config_flags,
)
from fedtailor.cli.parsing import Command, make_group
from fedtailor.cli.shell import guarded, print_result
from fedtailor.core.errors import RunError

if TYPE_CHECKING:
    from fedtailor.experiment.config import Config

audit_app = make_group(
    "Measure what an attacker can tell from a run.\n\nAn audit finds leaks; it proves nothing."
)


@audit_app.command("members", cls=Command)
@with_config_flags()
def members(
    config: ConfigFile = "",
    algorithm: Methods = None,
    trainings: Annotated[
        int,
        number_option("--trainings", "Trainings of every method, each with half of the examples."),
    ] = 16,
    named: Named = NOTHING_NAMED,
    seed: Annotated[
        int | None, number_option("--seed", "Seed from which every training gets its own.")
    ] = None,
    set_: Assignments = None,
    out: Out = "",
    json: Json = False,
) -> None:
    """Can models tell which examples they were trained on? Attack them, and count.

    Each method is trained several times, each time with a random half of every client's training
    examples. If the folder holds the same audit, interrupted or killed, it is resumed; methods and
    trainings can be added.
    """
    # Before torch is imported: a mistake is reported at once.
    settings = read_config(config, {**named, "seed": seed}, set_)

    from fedtailor.experiment.methods import with_methods

    configs = with_methods(settings, algorithm or []) or [settings]

    from fedtailor.experiment.audits import default_members_folder

    _run(configs, trainings, Path(out) if out else default_members_folder(settings), json=json)


@audit_app.command("noise", cls=Command)
@with_config_flags()
def noise(
    config: ConfigFile = "",
    algorithm: Algorithm = "",
    canaries: Annotated[
        int,
        number_option("--canaries", "Clients or examples that are made up; half take part."),
    ] = 200,
    named: Named = NOTHING_NAMED,
    seed: Seed = None,
    set_: Assignments = None,
    json: Json = False,
) -> None:
    """Does noise hide a client, or an example, as well as it claims? Try to find made-up ones.

    The run of the configuration is made, which must set privacy.unit to "client" or "example".
    Made-up clients, or examples of one client, the canaries, add to its sums what the bound lets
    them. From the noisy sums, it is estimated which epsilon the run really has. If this contradicts
    the epsilon that the run claims, the exit code is 5. Nothing is written.

    Example: fedtailor audit noise experiment.toml --set privacy.unit=client --set privacy.epsilon=4
    """
    # Before torch is imported: a mistake is reported at once.
    values = {**named, "algorithm.name": algorithm, "seed": seed}
    settings = read_config(config, values, set_)

    from fedtailor.cli.show.audit import show_noise
    from fedtailor.cli.show.progress import make_progress
    from fedtailor.experiment.noise_audit import audit_noise

    record = audit_noise(settings, canaries=canaries, progress=make_progress())
    print_result(record, json, show_noise)
    if record["contradiction"]:
        raise typer.Exit(RunError.exit_code)


def resume_members(folder: Path, *, json: bool) -> None:
    """Resume the audit of members in a folder, and print its result."""
    from fedtailor.experiment.audits import read_members_plan

    configs, trainings = read_members_plan(folder)
    _run(configs, trainings, folder, json=json)


def _run(configs: list[Config], trainings: int, folder: Path, *, json: bool) -> None:
    """Run an audit, or what is left of it, and print its result."""
    from fedtailor.cli.show.audit import show_members
    from fedtailor.cli.show.progress import make_progress
    from fedtailor.experiment.audits import audit_members, count_trainings

    progress = make_progress(runs=max(1, count_trainings(folder, configs, trainings)))
    with guarded(str(folder), resumable=True):
        record = audit_members(configs, trainings=trainings, out=folder, progress=progress)

    print_result(record, json, show_members)
