"""The commands ``fedtailor privacy ...``: what noise promises, before a run is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from fedtailor.cli.options import (
    NOTHING_NAMED,
    Assignments,
    ConfigFile,
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
    config: ConfigFile = "",
    named: Named = NOTHING_NAMED,
    set_: Assignments = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say which noise a budget needs, or what is left of it with a given noise.

    Nothing is trained. What counts is the number of rounds, who takes part in them, and the options
    privacy.epsilon, privacy.delta and privacy.noise; for examples also [training], and how many
    every client has.

    Example: fedtailor privacy plan experiment.toml --set privacy.epsilon=4
    """
    print_result(_plan(read_config(config, named, set_)), json, _show)


def _plan(config: Config) -> dict[str, Any]:
    """Return noise and epsilons of a run that is not made."""
    privacy = config.privacy
    budgets = [privacy.epsilon] if privacy.epsilon or privacy.noise else list(_BUDGETS)
    plans = []
    schedule = config.schedule
    if privacy.unit == "example":
        # Noise follows from the examples of every client, and from the rounds of the method.
        from fedtailor.experiment.assembly import assemble, planned_privacy
        from fedtailor.experiment.config import first_training

        parts = assemble(first_training(config), config.seeds[0])
        schedule = parts.config.schedule
        plans.append(planned_privacy(parts))
    else:
        from fedtailor.privacy.plan import planned_record

        for budget in budgets:
            plans.append(planned_record(replace(privacy, epsilon=budget), schedule))

    return {
        "unit": privacy.unit,
        "rounds": schedule.rounds,
        "participation": schedule.participation.as_value(),
        "plans": plans,
    }


def _show(record: Mapping[str, Any]) -> None:
    from fedtailor.privacy.claims import promise_of

    rounds = "1 round" if record["rounds"] == 1 else f"{record['rounds']} rounds"
    of = "privacy.clip"
    if record["plans"][0].get("bounds") == "features":
        of = "the largest norm of what an example adds"

    typer.echo(
        f"{rounds}, participation {record['participation']}. The noise is a multiple of {of}."
    )
    for plan in record["plans"]:
        noise = f"{plan['noise']:.4g}"
        least = f"{plan.get('least_noise', plan['noise']):.4g}"
        if least != noise:  # clients have different numbers of examples
            noise = f"{least} to {noise}"
        typer.echo(f"noise {noise}: {promise_of(plan)}.")
