"""The output of ``fedtailor deploy``."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtailor.cli.show.console import duration, percent, say, table
from fedtailor.deployment.federation_folder import Registered
from fedtailor.deployment.keys import PublicKey
from fedtailor.deployment.options import FEDERATION_FILE


def show_server(folder: Path, certificate: Path, address: str) -> None:
    """Print what was made for a server, and what comes next."""
    place = shlex.quote(str(folder))
    say(f"The server's folder is {place}. What comes next:")
    say(f"1. Edit {place}/{FEDERATION_FILE}: the method, the number of rounds, the deadline.")
    say(
        f"2. Send every site the address {address} and the file {shlex.quote(str(certificate))}, which is no secret."
    )
    say("3. Every site sends back its public key, site.key.pub, and its name. Register it:")
    say(f"   fedtailor deploy add {place} NAME site.key.pub")
    say(f"4. Start: fedtailor serve {place}")


def show_added(name: str, key: PublicKey) -> None:
    """Print that a site is registered, and what to do with its fingerprint."""
    say(f"{name} is registered with the key {key.fingerprint}.")
    say("Compare this fingerprint with the one that the site has seen, for instance by telephone.")
    say(
        f"{name} belongs to the runs that begin from now on. A server that is running must be started again for it."
    )


def show_sites(sites: Sequence[Registered], attendance: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the registered sites, and when each was last heard of."""
    if not sites:
        say("No site is registered yet: fedtailor deploy add FOLDER NAME KEY")
        return

    now = time.time()
    rows = []
    for site in sites:
        seen = attendance.get(site.name, {})
        heard = seen.get("heard")
        rows.append(
            [
                site.name,
                "new" if site.new else "trains",
                "yes" if seen.get("online") else "no",
                "never" if heard is None else f"{duration(max(now - heard, 0))} ago",
                str(seen.get("problem", "")),
            ]
        )

    table("Sites", ["site", "role", "connected", "last heard", "problem"], rows, left=5)


def show_demo(folder: Path, result: Mapping[str, Any]) -> None:
    """Print the scores of the sites of the demonstration, and how to use their models."""
    rows = [
        [name, str(site["num_train"]), str(site["num_test"]), percent(site["accuracy"])]
        for name, site in result["sites"].items()
    ]
    columns = ["site", "training\nexamples", "test\nexamples", "its own model\naccuracy %"]
    table(f"Three sites, {result['algorithm']}, {result['rounds']} rounds", columns, rows)
    first = next(iter(result["sites"]))
    place = folder / first / "model"
    say(f"Every site keeps its own model: {shlex.quote(str(place))} is that of {first}.")
    say(f"What has left {first}: fedtailor site leaves {shlex.quote(str(folder / first))}")
