"""The output of ``fedtailor deploy`` and ``fedtailor site``."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedtailor.cli.show.console import duration, say, table
from fedtailor.cli.show.results import show_verdicts
from fedtailor.cli.show.serve import show_means, show_shared_verdicts
from fedtailor.core.atomic import to_json
from fedtailor.core.text import percent
from fedtailor.deployment.init import CERTIFICATE, NewSite
from fedtailor.deployment.options import FEDERATION_FILE, SITE_FILE

if TYPE_CHECKING:
    # They need the package cryptography, or torch.
    from fedtailor.deployment.keys import PublicKey
    from fedtailor.deployment.roster import SiteRoster
    from fedtailor.deployment.site_check import Check


_MOST_ROUNDS = 10
"""Rounds of a table, the latest ones."""


def show_server(folder: Path, certificate: Path, address: str) -> None:
    """Print what was made for a server, and what comes next."""
    quoted = shlex.quote(str(folder))
    say(f"The server's folder is {quoted}. What comes next:")
    say(f"1. Edit {quoted}/{FEDERATION_FILE}: the method, the number of rounds, the deadline.")
    say(
        f"2. Send every site the address {address} and the file "
        f"{shlex.quote(str(certificate))}, which is not a secret."
    )
    say("3. Every site sends back its public key, site.key.pub, and its name. Register it:")
    say(f"   fedtailor deploy add {quoted} NAME site.key.pub")
    say(f"4. Start: fedtailor serve {quoted}")


def show_added(name: str, key: PublicKey, joins: bool) -> None:
    """Print that a site is registered, and what to do with its fingerprint.

    Args:
        name: of the site.
        key: of the site.
        joins: whether it joins the run that is under way.
    """
    say(f"{name} is registered with the key {key.fingerprint}.")
    say("Compare this fingerprint with the one that the site has seen, for instance by telephone.")
    if joins:
        say(f"When it has connected, {name} takes part from the next round on.")
    else:
        say(f"{name} belongs to the runs that begin from now on.")


def show_roster(roster: SiteRoster) -> None:
    """Print how many sites a roster has, and what to do with its fingerprint."""
    from fedtailor.deployment.roster import spell

    typer.echo(f"{len(roster.sites)} sites. Fingerprint: {spell(roster.pin)}")
    say(roster.describe())
    what = "Every site compares the fingerprint with the others, by telephone, before"
    say(f"{what} 'fedtailor site trust'.")


def show_trusted(roster: SiteRoster, name: str) -> None:
    """Print what the site with this name is about to trust."""
    from fedtailor.deployment.roster import spell

    names = []
    for site in roster.sites:
        names.append(f"{site.name} (this site)" if site.name == name else site.name)

    typer.echo(f"{', '.join(names)}. Fingerprint: {spell(roster.pin)}")
    typer.echo(roster.describe())


def show_sites(record: Mapping[str, Any]) -> None:
    """Print the registered sites, and when each was last heard from."""
    if not record["sites"]:
        say("No site is registered yet: fedtailor deploy add FOLDER NAME KEY")
        return

    now = time.time()
    rows = []
    for site in record["sites"]:
        heard = site.get("heard")
        role = "new" if site["new"] else "trains"
        rows.append(
            [
                site["name"],
                f"{role}, paused" if site["paused"] else role,
                "yes" if site.get("online") else "no",
                "never" if heard is None else f"{duration(max(now - heard, 0))} ago",
                str(site.get("problem", "")),
            ]
        )

    table("Sites", ["site", "role", "connected", "last heard", "problem"], rows, left=5)


def show_sites_demo(folder: Path, result: Mapping[str, Any]) -> None:
    """Print the scores of the sites of the demonstration, and how to use their models."""
    rows = []
    for name, site in result["sites"].items():
        examples = [str(site["num_train"]), str(site["num_test"])]
        rows.append([name, *examples, percent(site["accuracy"])])

    # With secure sums, the server knows no score of a single site.
    show_means(result)
    columns = ["site", "training\nexamples", "test\nexamples", "personalized\naccuracy %"]
    unit = "exchanges" if result["exchanges"] else "rounds"
    if rows:
        table(f"Four sites, {result['algorithm']}, {result['rounds']} {unit}", columns, rows)
    if result.get("shared_verdicts"):
        show_shared_verdicts(result["shared_verdicts"], len(result["uses"]))
    _show_uses(result)
    if result["same_as_simulation"]:
        say("All personal models have the bits of a simulation with the same data.")
    else:
        say("A simulation with the same data gives other models.", style="bold red")

    folders = sorted(path.parent.name for path in folder.glob(f"*/{SITE_FILE}"))
    first = [*result["sites"], *folders][0]
    model = folder / first / "model"
    say(f"Every site keeps its own model: {shlex.quote(str(model))} is that of {first}.")
    say(f"What has left {first}: fedtailor site leaves {shlex.quote(str(folder / first))}")


def _show_uses(result: Mapping[str, Any]) -> None:
    """Print which sites use their personalized model, and which keep what they have alone."""
    personalized = [name for name, model in result["uses"].items() if model == result["algorithm"]]
    if personalized:
        say(f"The personalized model is used at {', '.join(personalized)}.")

    for name, model in result["uses"].items():
        if name not in personalized:
            own = model.replace("_", " ")
            say(f"{name} keeps what it would use alone ({own}).")


def show_made(folder: Path, made: NewSite, name: str, server: str) -> None:
    """Print what was made for a site, and what comes next; ``server`` may be empty."""
    quoted = shlex.quote(str(folder))
    say(f"The folder of {name} is {quoted}. What comes next:")
    address = "" if server else f', and its address as server = "HOST:PORT" into {quoted}/site.toml'
    say(
        f"1. Send {shlex.quote(str(made.public_key))} to the server. "
        f"Its fingerprint: {made.key.fingerprint}"
    )
    say(f"2. Put the server's file {CERTIFICATE} into {quoted}{address}.")
    say(f"3. Check: fedtailor site check {quoted}")
    say(f"4. Start: fedtailor site start {quoted}")


def show_site_check(check: Check) -> None:
    """Print what one check found."""
    mark = "ok     " if check.ok else "PROBLEM"
    say(f"{mark}  {check.what}: {check.text}", style="" if check.ok else "bold red")


def show_models(folder: Path, name: str, versions: Sequence[Mapping[str, Any]]) -> None:
    """Print the versions of the model of the site with this name."""
    if not versions:
        say("There is no model yet: a run makes it when it ends.")
        return

    rows = []
    for version in versions:
        # Whether it is better than what the site would use alone, if that is known.
        worth_it = version["worth_it"]
        verdict = str(worth_it["sites"][0]["verdict"]) if worth_it else "-"
        rows.append(
            [
                str(version["version"]),
                "in use" if version["in_use"] else "",
                version["algorithm"],
                version["created"],
                str(version["round"]),
                percent(version["accuracy"]),
                verdict,
            ]
        )

    columns = ["version", "", "method", "made", "round", "accuracy %", "verdict"]
    table("Models", columns, rows, left=4)
    for version in versions:
        if version["in_use"] and version["worth_it"]:
            show_verdicts({version["algorithm"]: version["worth_it"]}, version["algorithm"])

    say(f"To use one: fedtailor predict {shlex.quote(str(folder))}/model --client {name} PATH...")


def show_site_status(folder: Path, record: Mapping[str, Any]) -> None:
    """Print what a site has sent and when, and how well its models do."""
    state = record["connection"] if record["started"] else "not started"
    say(f"{record['site']}: {state or 'starting'}.")
    if not record["messages"]:
        say("Nothing was sent yet.")
        return

    rows = []
    for message in record["messages"]:
        number = "-" if message["round"] is None else str(message["round"])
        size = f"{message['bytes']:,}" if message["bytes"] else "-"
        rows.append([message["time"], message["kind"], message["refused"], number, size])

    columns = ["sent", "answer to", "refused", "round", "bytes"]
    below = "bytes: those of arrays; a dash: only a few names and numbers, such as counts."
    table("The latest answers", columns, rows, left=3, below=below)
    if record["curves"]:
        _show_curves(record)
    for sentence in record["told"][-1:]:
        say(f"What noise has let pass: {sentence}")
    say(f"All that was sent: fedtailor site leaves {shlex.quote(str(folder))}")


def _show_curves(record: Mapping[str, Any]) -> None:
    """Print the accuracy of a site by round, beside that of what it would use alone."""
    curves = {point: dict(curve) for point, curve in record["curves"].items()}
    rounds = sorted({number for curve in curves.values() for number in curve})
    own = record["own"]
    columns = ["round", *(f"{point}\nmodel" for point in curves)]
    below = "What it would use alone is known when a run ends."
    if own is not None and own["accuracy"] is not None:
        name = own["name"].replace("_", " ")
        below = f"Alone it would use {name}: {percent(own['accuracy'])} %."

    rows = []
    for number in rounds[-_MOST_ROUNDS:]:
        accuracies = [percent(curve.get(number)) for curve in curves.values()]
        rows.append([str(number), *accuracies])

    table("Accuracy on its own test examples, %", columns, rows, below=below)


def show_sentence(text: str, *, json: bool) -> None:
    """Show a sentence of ``fedtailor site start``: on stderr, or as a line of JSON on stdout."""
    if json:
        sys.stdout.write(to_json({"message": text}) + "\n")
        sys.stdout.flush()
    else:
        say(text)
