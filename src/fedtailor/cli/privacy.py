"""The commands ``fedtailor privacy ...``: what noise promises, before a run is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedtailor.cli.options import (
    NOTHING_NAMED,
    Assignments,
    ConfigFile,
    Json,
    Named,
    read_config,
    switch,
    with_config_flags,
)
from fedtailor.cli.parsing import Command, make_group
from fedtailor.cli.shell import print_result
from fedtailor.core.errors import FedtailorError
from fedtailor.privacy.claims import promise_of

if TYPE_CHECKING:
    from fedtailor.experiment.config import Config
    from fedtailor.privacy.plan import Drawn

_BUDGETS = (8.0, 4.0, 2.0, 1.0)
"""Epsilons for which the noise is shown where the configuration names none."""

privacy_app = make_group("Say which noise a budget needs, before a run is made.")


@privacy_app.command("plan", cls=Command)
@with_config_flags()
def plan(
    config: ConfigFile = "",
    named: Named = NOTHING_NAMED,
    simulate: Annotated[
        bool,
        switch(
            "--simulate",
            "Also make the run, without noise and with it, and say what accuracy it costs.",
        ),
    ] = False,
    set_: Assignments = None,
    json: Json = False,
) -> None:
    """Say which noise a budget needs, or what is left of it with a given noise.

    What counts is the number of rounds, who takes part in them, and the options privacy.epsilon,
    privacy.delta and privacy.noise; where clients are drawn also how many there are, and for
    examples the options of training, and how many every client has. Nothing is trained, unless you
    ask for it.

    Example: fedtailor privacy plan experiment.toml --set privacy.epsilon=4
    """
    settings = read_config(config, named, set_)
    record = _plan(settings)
    if simulate:
        _simulate(settings, record)
    print_result(record, json, _show)


def _simulate(config: Config, record: dict[str, Any]) -> None:
    """Add to plans what accuracy the run is expected to have."""
    from fedtailor.cli.show.console import say
    from fedtailor.experiment.expected_loss import expected_accuracies, without_noise

    plans = record["plans"]
    say(f"run 1 of {1 + len(plans)}: without noise")
    record["without_noise"] = expected_accuracies(config, without_noise(config.privacy))
    record["seeds"] = list(config.seeds)
    unit: Literal["client", "example"] = "client"
    if config.privacy.unit == "example":
        unit = "example"
    for number, plan in enumerate(plans, start=2):
        say(f"run {number} of {1 + len(plans)}: {promise_of(plan)}")
        privacy = replace(config.privacy, unit=unit, epsilon=plan["budget"])
        plan["accuracy"] = expected_accuracies(config, privacy)


def _plan(config: Config) -> dict[str, Any]:
    """Return noise and epsilons of a run that is not made."""
    privacy = config.privacy
    budgets = [privacy.epsilon] if privacy.epsilon or privacy.noise else list(_BUDGETS)
    plans = []
    notes: list[str] = []
    schedule = config.schedule
    if privacy.unit == "example":
        # Noise follows from the examples of every client, and from the rounds of the method.
        from fedtailor.experiment.assembly import assemble, planned_privacy
        from fedtailor.experiment.config import first_training

        parts = assemble(first_training(config), config.seeds[0])
        schedule = parts.config.schedule
        plans.append({**planned_privacy(parts), "budget": privacy.epsilon})
    else:
        from fedtailor.experiment.assembly import make_algorithm, with_exchanges
        from fedtailor.privacy.plan import planned_record

        # Methods of few exchanges have rounds of their own.
        schedule = with_exchanges(schedule, make_algorithm(config))
        drawn = _drawn(replace(config, schedule=schedule), notes)
        for budget in budgets:
            plan = planned_record(replace(privacy, epsilon=budget), schedule, drawn)
            plans.append({**plan, "budget": budget})

    return {
        "unit": privacy.unit,
        "rounds": schedule.rounds,
        "participation": schedule.participation.as_value(),
        "plans": plans,
        "notes": notes,
    }


def _drawn(config: Config, notes: list[str]) -> Drawn | None:
    """Return whom cohorts are drawn from; None if everybody takes part.

    The data say which clients have training examples. A plan can be for other data than are here.

    Args:
        config: of the run.
        notes: gets a sentence if the data do not say it.

    Raises:
        FedtailorError: the data cannot be used, and the number of clients is not given.
    """
    if config.schedule.participation.plan != "bernoulli":
        return None

    from fedtailor.experiment.assembly import assemble
    from fedtailor.experiment.config import first_training
    from fedtailor.privacy.plan import drawn_from

    population = config.data.clients - config.data.num_new
    trainable = population
    try:
        roster = assemble(first_training(config), config.seeds[0]).federation.roster
    except FedtailorError as error:
        if not config.data.clients:
            raise

        notes.append(f"every client is taken to have training examples, because: {error.message}")
    else:
        population = roster.population
        trainable = len(roster.trainable_clients)

    return drawn_from(config.privacy, config.schedule, population=population, trainable=trainable)


def _show(record: Mapping[str, Any]) -> None:
    for note in record["notes"]:
        typer.echo(f"note: {note}")

    rounds = "1 round" if record["rounds"] == 1 else f"{record['rounds']} rounds"
    of = {
        "features": "the largest norm of what an example adds",
        "gradients and features": "privacy.clip, and of the largest norm of what an example adds "
        "to sums",
    }.get(record["plans"][0].get("bounds"), "privacy.clip")

    typer.echo(
        f"{rounds}, participation {record['participation']}. The noise is a multiple of {of}."
    )
    for plan in record["plans"]:
        noise = f"{plan['noise']:.4g}"
        least = f"{plan.get('least_noise', plan['noise']):.4g}"
        if least != noise:  # clients have different numbers of examples
            noise = f"{least} to {noise}"
        expected = ""
        if "accuracy" in plan:
            expected = f" Expected: {_accuracies(plan['accuracy'], record['without_noise'])}."
        typer.echo(f"noise {noise}: {promise_of(plan)}.{expected}")

    if "without_noise" in record:
        seeds = ", ".join(map(str, record["seeds"]))
        typer.echo(
            f"Without noise: {_accuracies(record['without_noise'])}. Accuracies are means over "
            f"clients after the last round, seed {seeds}. No budget counts what these runs tell of "
            "their data: use public data like yours."
        )


def _accuracies(found: Mapping[str, float], without: Mapping[str, float] | None = None) -> str:
    """Return accuracies in words, and what they have lost if there are others."""
    words = []
    for point, accuracy in found.items():
        lost = f" ({100 * (accuracy - without[point]):+.1f})" if without else ""
        words.append(f"{point} {100 * accuracy:.1f} %{lost}")
    return ", ".join(words)
