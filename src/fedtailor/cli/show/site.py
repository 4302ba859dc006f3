"""The output of ``fedtailor site``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.cli.show.console import percent, say, table
from fedtailor.core.atomic import to_json
from fedtailor.deployment.init import CERTIFICATE, NewSite
from fedtailor.deployment.site_check import Check


def show_made(made: NewSite, name: str, server: str) -> None:
    """Print what was made for a site, and what comes next; ``server`` is empty if it is not known
    yet.
    """
    place = shlex.quote(str(made.folder))
    say(f"The folder of {name} is {place}. What comes next:")
    address = "" if server else f', and its address as server = "HOST:PORT" into {place}/site.toml'
    say(
        f"1. Send {shlex.quote(str(made.public_key))} to the server. Its fingerprint: {made.key.fingerprint}"
    )
    say(f"2. Put the server's file {CERTIFICATE} into {place}{address}.")
    say(f"3. Check: fedtailor site check {place}")
    say(f"4. Start: fedtailor site start {place}")


def show_check(check: Check) -> None:
    """Print what one check found."""
    mark = "ok     " if check.ok else "PROBLEM"
    say(f"{mark}  {check.what}: {check.text}", style="" if check.ok else "bold red")


def show_models(folder: str, name: str, found: Sequence[Mapping[str, Any]]) -> None:
    """Print the versions of the model of the site with this name."""
    if not found:
        say("There is no model yet: it is made when a run ends.")
        return

    rows = []
    for each in found:
        accuracy = each["accuracy"]
        rows.append(
            [
                str(each["version"]),
                "in use" if each["in_use"] else "",
                each["algorithm"],
                each["created"],
                str(each["round"]),
                "-" if accuracy is None else percent(accuracy),
            ]
        )

    table("Models", ["version", "", "method", "made", "round", "accuracy %"], rows, left=4)
    say(f"To use one: fedtailor predict {shlex.quote(folder)}/model --client {name} PATH...")


def show_sentence(text: str, *, json: bool) -> None:
    """Show a sentence of ``fedtailor site start``: on stderr, or as a line of JSON on stdout."""
    if json:
        sys.stdout.write(to_json({"message": text}) + "\n")
        sys.stdout.flush()
    else:
        say(text)
