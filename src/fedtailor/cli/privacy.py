"""The commands ``fedtailor privacy ...``: what noise promises, before a run is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor.cli.options import (
    NOTHING_NAMED,
    Assignments,
    Debug,
    Json,
    Named,
    read_config,
    with_config_flags,
)
from fedtailor.cli.parsing import Command, Help, make_app, show_help
from fedtailor.cli.shell import print_result

if TYPE_CHECKING:
    from fedtailor.experiment.config import Config

_BUDGETS = (8.0, 4.0, 2.0, 1.0)
"""Epsilons for which the noise is shown where the configuration names none."""

privacy_app = make_app()


@privacy_app.callback(invoke_without_command=True, add_help_option=False)
def _root(context: typer.Context, help_: Help = False) -> None:
    """Say which noise a budget needs, before a run is made."""
    show_help(context, help_)


@privacy_app.command("plan", cls=Command)
@with_config_flags(
    "data.dataset",
    "data.path",
    "federation.rounds",
    "federation.participation",
)
def plan(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG.toml",
            show_default=False,
            help="Configuration file. Options override it.",
        ),
    ] = "",
    named: Named = NOTHING_NAMED,
    set_: Assignments = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say which noise a budget needs, or what is left of it with a given noise.

    Nothing is trained. What counts is the number of rounds, who takes part in them, and the options
    privacy.epsilon, privacy.delta and privacy.noise.

    Example: fedtailor privacy plan experiment.toml --set privacy.epsilon=4
    """
    print_result(_plan(read_config(config, named, set_)), json, _show)


def _plan(config: Config) -> dict[str, Any]:
    """Return noise and epsilons of a run that is not made."""
    from fedtailor.privacy.accountant import Release, epsilon_of, noise_for
    from fedtailor.privacy.plan import planned

    privacy = config.privacy
    parts = planned(config.schedule)
    budgets = [privacy.epsilon] if privacy.epsilon else list(_BUDGETS)
    noises = [noise_for(budget, privacy.delta, parts) for budget in budgets]
    if privacy.noise:
        noises = [privacy.noise]

    rows = []
    for noise in noises:
        releases = [Release(noise, rate, times) for rate, times in parts]
        known = [Release(noise, 1.0, config.schedule.rounds)]
        rows.append(
            {
                "noise": noise,
                "epsilon": epsilon_of(privacy.delta, releases),
                "epsilon_known_cohort": epsilon_of(privacy.delta, known),
            }
        )

    return {
        "rounds": config.schedule.rounds,
        "participation": config.schedule.participation.as_value(),
        "delta": privacy.delta,
        "plans": rows,
    }


def _show(record: Mapping[str, Any]) -> None:
    typer.echo(
        f"{record['rounds']} rounds, participation {record['participation']}, delta "
        f"{record['delta']:g}. The noise is a multiple of privacy.clip."
    )
    for row in record["plans"]:
        known = row["epsilon_known_cohort"]
        line = f"noise {row['noise']:.2f}: epsilon {row['epsilon']:.2f} for a client"
        if known > row["epsilon"]:
            line += f"; {known:.2f} for whoever knows who took part in which round"
        typer.echo(f"{line}.")
