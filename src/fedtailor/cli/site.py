"""The commands ``fedtailor site ...``, for the machine of a site."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtailor.cli.adapt import LabelColumn, Labels
from fedtailor.cli.options import Json, argument, number_option, switch, text_option
from fedtailor.cli.parsing import Command, make_group
from fedtailor.cli.shell import Interrupted, print_json, print_result
from fedtailor.cli.show.console import say
from fedtailor.cli.watch import RecentPaths
from fedtailor.core.errors import DataError, RunError, UsageError

if TYPE_CHECKING:
    from fedtailor.deployment.roster import SiteRoster

site_app = make_group("Take part in training across sites; data and personal models stay here.")

SiteFolder = Annotated[Path, argument("FOLDER", "Folder of the site.")]


@site_app.command("init", cls=Command)
def init(
    folder: SiteFolder,
    name: Annotated[str, text_option("NAME", "Name of the site.")],
    data: Annotated[str, text_option("PATH", "Labelled data of the site: a folder or a table.")],
    server: Annotated[
        str, text_option("HOST:PORT", "Address of the server; can be written into site.toml later.")
    ] = "",
    json: Json = False,
) -> None:
    """Make the folder of a site: its configuration and its key."""
    from fedtailor.cli.show.console import say
    from fedtailor.cli.show.sites import show_made
    from fedtailor.deployment.init import init_site

    # The site may be started from another folder. "package.module:function" is not a path.
    is_path = ":" not in data and data.strip()
    source = os.path.abspath(os.path.expanduser(data)) if is_path else data
    made = init_site(folder, name, source, server)

    record = {"folder": str(folder), "key": str(made.public_key)}
    record["fingerprint"] = made.key.fingerprint
    print_result(record, json, show_made, folder, made, name, server)

    # A disk may be mounted later; a misspelt name is more likely.
    if is_path and not os.path.exists(source):
        say(f"warning: there is no folder or table '{source}' yet.", style="yellow")


@site_app.command("check", cls=Command)
def check(folder: SiteFolder, json: Json = False) -> None:
    """Check data, key, certificate, server, log and versions.

    Nothing about the data leaves the site.
    """
    from fedtailor.cli.show.sites import show_site_check
    from fedtailor.deployment.site_check import check_site

    # A check may take seconds: each is printed when it ends.
    checks = []
    for site_check in check_site(folder):
        checks.append(site_check)
        if not json:
            show_site_check(site_check)

    problems = [site_check.what for site_check in checks if not site_check.ok]
    if json:
        print_json({"ok": not problems, "checks": [one._asdict() for one in checks]})
        if problems:
            raise typer.Exit(RunError.exit_code)

    elif problems:
        what = "problem" if len(problems) == 1 else "problems"
        message = f"{len(problems)} {what} to put right: {', '.join(problems)}."
        raise RunError(message, key="site")


@site_app.command("policy", cls=Command)
def policy(
    folder: SiteFolder,
    study: Annotated[
        str,
        text_option(
            "PLAN",
            "Allow one agreed study only: its federation.toml, or plan.json of a run.",
            "--from",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Say what this site answers, as the section `policy` of its site.toml decides."""
    from dataclasses import asdict

    from fedtailor.deployment.options import load_site

    decided = load_site(folder).policy
    if study:
        from fedtailor.deployment.agreed_study import allow_study

        decided = allow_study(folder, Path(study))

    if json:
        print_json({"policy": asdict(decided), "text": decided.describe()})
        return
    for sentence in decided.describe():
        say(sentence)
    for key, value in decided.study.items():
        say(f"  {key} = {value}")


@site_app.command("trust", cls=Command)
def trust(
    folder: SiteFolder,
    roster: Annotated[
        str, argument("ROSTER", "The server's list of all sites, from 'fedtailor deploy roster'.")
    ],
    yes: Annotated[bool, switch("--yes", "Do not ask: the fingerprint was compared.")] = False,
    fingerprint: Annotated[
        str, text_option("DIGITS", "Do not ask: trust the roster if it has this fingerprint.")
    ] = "",
    replace: Annotated[bool, switch("--replace", "Trust it in place of another roster.")] = False,
    json: Json = False,
) -> None:
    """Trust the sites of a roster in secure sums, once its fingerprint was compared.

    Compare it with the other sites, for instance by telephone, not with the server alone.
    """
    from fedtailor.cli.show.sites import show_trusted
    from fedtailor.deployment.options import load_site
    from fedtailor.deployment.trust import acceptable_roster, pin_roster

    path = Path(roster)
    chosen = acceptable_roster(folder, path, replace=replace)
    if fingerprint:
        _compare(fingerprint, chosen, path)

    is_asked = not yes and not fingerprint
    if not json:
        show_trusted(chosen, load_site(folder).name)
    if is_asked and not _agrees(json):
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(RunError.exit_code)

    pin_roster(folder, chosen)
    is_required = load_site(folder).privacy.require_secure_sums
    record = {"folder": str(folder), **chosen.summary(), "require_secure_sums": is_required}
    rule = "and refuses plans without secure sums" if is_required else "and needs no secure sums"
    print_result(record, json, typer.echo, f"{folder} trusts them from its next start, {rule}.")


def _compare(typed: str, roster: SiteRoster, path: Path) -> None:
    """Refuse a roster with another fingerprint than the one that was typed."""
    from fedtailor.deployment.roster import parse_fingerprint, spell

    pin = parse_fingerprint(typed)
    if pin is None:
        message = "--fingerprint must be all 64 hex digits, with or without blanks."
        raise UsageError(message, key="--fingerprint", allowed="64 hex digits", got=typed)
    if pin != roster.pin:
        message = f"'{path}' has the fingerprint {spell(roster.pin)}: nothing was changed."
        raise DataError(message, key="--fingerprint", path=path, allowed=pin, got=roster.pin)


def _agrees(json: bool) -> bool:
    """Ask the person at the terminal."""
    if json or not sys.stdin.isatty():
        hint = "compare the fingerprint, then give --fingerprint DIGITS or --yes"
        raise UsageError(f"nobody can be asked here: {hint}.", key="--fingerprint")

    typer.echo("Trust them? [y/N] ", nl=False, err=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@site_app.command("start", cls=Command)
def start(folder: SiteFolder, json: Json = False) -> None:
    """Connect the site, and keep it connected until Ctrl-C."""
    import functools
    import shlex

    from fedtailor.cli.show.sites import show_sentence
    from fedtailor.deployment.supervise_site import supervise_site

    try:
        supervise_site(folder, functools.partial(show_sentence, json=json))
    except KeyboardInterrupt:
        message = f"stopped. To connect again: fedtailor site start {shlex.quote(str(folder))}"
        raise Interrupted(message, path=folder) from None


@site_app.command("status", cls=Command)
def status(
    folder: SiteFolder,
    out: Annotated[str, text_option("FILE.html", "Also write a page with the curves.")] = "",
    json: Json = False,
) -> None:
    """Print what this site has sent and when, and how well its models do on its own examples.

    Its accuracy by round stands beside that of the best model which it would use alone.
    """
    from fedtailor.cli.show.sites import show_site_status
    from fedtailor.deployment.site_status import read_site_status

    record = read_site_status(folder)
    if out:
        from fedtailor.cli.show.status import site_page
        from fedtailor.core.atomic import write_whole
        from fedtailor.report.page.files import check_page_path

        check_page_path(Path(out))
        write_whole(Path(out), site_page(record))

    print_result(record, json, show_site_status, folder, record)


@site_app.command("leaves", cls=Command)
def leaves(folder: SiteFolder, json: Json = False) -> None:
    """Print what has left this site so far, from its log of all messages."""
    from fedtailor.deployment.audit import broken_line, page
    from fedtailor.deployment.options import load_site
    from fedtailor.deployment.site_privacy import describe_told

    options = load_site(folder)
    told = describe_told(folder, options.privacy)
    text = page(folder, options.name, options.share, options.policy, told)
    broken = broken_line(folder)

    if json:
        print_json({"text": text, "complete": broken is None})
        return

    print(text, end="")  # noqa: T201  # data on stdout
    if broken is not None:
        say(
            f"The log was changed: line {broken} is not the one that was written, or is missing. "
            "This page does not show all that left the site."
        )


@site_app.command("models", cls=Command)
def models(folder: SiteFolder, json: Json = False) -> None:
    """List the versions of the site's personal model."""
    from fedtailor.cli.show.sites import show_models
    from fedtailor.deployment.options import load_site
    from fedtailor.deployment.site_models import describe_version, versions

    name = load_site(folder).name
    records = [describe_version(version) for version in versions(folder)]

    print_result({"versions": records}, json, show_models, folder, name, records)


@site_app.command("restore", cls=Command)
def restore(
    folder: SiteFolder,
    version: Annotated[
        int | None,
        number_option("--version", "Version to put in use (default: the one before).", at_least=1),
    ] = None,
    json: Json = False,
) -> None:
    """Put an earlier version of the personal model in use again."""
    from fedtailor.deployment.options import load_site
    from fedtailor.deployment.site_models import previous, use

    load_site(folder)
    chosen = use(folder, previous(folder).number if version is None else version)

    record = {"version": chosen.number, "path": str(chosen.path)}
    print_result(record, json, say, f"Version {chosen.number} is in use.")


@site_app.command("watch", cls=Command)
def watch(folder: SiteFolder, paths: RecentPaths, json: Json = False) -> None:
    """Compare recent inputs, without labels, with the site's held-out examples: alarms."""
    from fedtailor.cli.show.watch import show_watched
    from fedtailor.deployment.options import load_site
    from fedtailor.deployment.site_models import model_in_use
    from fedtailor.serving.run import load

    load_site(folder)

    # The folder of a version holds one client.
    record = load(model_in_use(folder)).watch(0, paths)
    print_result(record, json, show_watched)


@site_app.command("adapt", cls=Command)
def adapt(
    folder: SiteFolder,
    paths: RecentPaths,
    labels: Labels = False,
    label_column: LabelColumn = "",
    json: Json = False,
) -> None:
    """Adapt the model of the site to recent inputs in closed form, as a new version.

    Without labels, only the class prior changes. 'fedtailor site restore' takes it back.
    """
    from fedtailor.cli.show.watch import show_adapted
    from fedtailor.deployment.options import load_site
    from fedtailor.deployment.site_models import add_version, model_in_use
    from fedtailor.experiment.reader import read_run
    from fedtailor.serving.adapt import adapt_client, write_adapted

    load_site(folder)
    records = read_run(model_in_use(folder))
    adapted = adapt_client(records, 0, paths, labels=labels, label_column=label_column)
    version = add_version(folder, lambda path: write_adapted(path, records, adapted))

    record = {"version": version.number, "run": str(version.path), "adapted": adapted.facts}
    record["notes"] = list(adapted.notes)
    print_result(record, json, show_adapted)
