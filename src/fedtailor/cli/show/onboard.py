"""The output of ``fedtailor onboard``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from fedtailor.cli.show.console import percent, say, table


def show_onboarded(result: Mapping[str, Any]) -> None:
    """Print what was made for a new site, and how good it is."""
    name = result["onboarded"]
    validation = result.get("validation")
    if validation:
        rows = [
            [
                each["name"],
                percent(each["accuracy"]),
                f"{percent(each['low'])} to {percent(each['high'])}",
            ]
            for each in validation["candidates"]
        ]
        groups = f" of {validation['groups']} groups" if validation["groups"] else ""
        examples = f"{validation['examples']} examples{groups}"
        below = f"{validation['folds']}-fold cross-validation on {examples}. {validation['advice']}"
        table(f"Models for {name}", ["model", "accuracy %", "95 % interval"], rows, below=below)

    examples = f"{result['examples']} examples, {result['steps']} gradient steps"
    say(f"{name}: a model of {result['algorithm']} from {examples}.")
    if "metrics" in result:
        say(
            f"accuracy on its test examples: {percent(result['metrics']['personalized']['accuracy'])} %"
        )

    folder = shlex.quote(result["run"])
    say(f"To use it: fedtailor predict {folder} --client {shlex.quote(name)} PATH...")
