"""The commands ``fedtailor deploy ...`` and ``serve``: the server's folder, its sites, the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.options import Json, Out, argument, number_option, switch, text_option
from fedtailor.cli.parsing import Command, make_group
from fedtailor.cli.shell import Interrupted, print_result
from fedtailor.cli.show.console import say

deploy_app = make_group("Train across real sites: prepare the server.")

ServerFolder = Annotated[Path, argument("FOLDER", "Folder of the server.")]
SiteName = Annotated[str, argument("NAME", "Name of the site.")]


@deploy_app.command("init", cls=Command)
def init(
    folder: ServerFolder,
    host: Annotated[str, text_option("HOST", "Name or address by which sites reach the server.")],
    port: Annotated[int, number_option("--port", "Port of the server.", at_least=1)] = 8000,
    experiment: Annotated[
        str, text_option("FILE", "Experiment file to begin with (default: pFedFDA, 30 rounds).")
    ] = "",
    json: Json = False,
) -> None:
    """Make the folder of a server: its configuration, its keys and its certificates."""
    from fedtailor.cli.show.sites import show_server
    from fedtailor.deployment.init import CERTIFICATE, KEYS, init_server

    made = init_server(folder, host, port, Path(experiment) if experiment else None)
    certificate = made.path / KEYS / CERTIFICATE
    server = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    record = {"folder": str(made.path), "certificate": str(certificate), "server": server}
    print_result(record, json, show_server, made.path, certificate, server)


@deploy_app.command("add", cls=Command)
def add(
    folder: ServerFolder,
    name: SiteName,
    key: Annotated[str, argument("KEY", "File with the site's public key: site.key.pub.")],
    new: Annotated[
        bool,
        switch("--new", "The site takes no part in training; it gets a model when a run ends."),
    ] = False,
    json: Json = False,
) -> None:
    """Register a site, so that it can connect.

    It takes part in a run that is under way from the next round on, and in later runs. If it
    connects during the last round, it belongs to the next run.
    """
    from fedtailor.cli.show.sites import show_added
    from fedtailor.deployment.federation_folder import FederationFolder
    from fedtailor.deployment.init import add_site
    from fedtailor.deployment.membership import joins_run

    server_folder = FederationFolder(folder)
    public = add_site(server_folder, name, Path(key), new=new)
    joins = joins_run(server_folder, name)

    record = {"site": name, "new": new, "fingerprint": public.fingerprint, "joins": joins}
    print_result(record, json, show_added, name, public, joins)


@deploy_app.command("remove", cls=Command)
def remove(
    folder: ServerFolder,
    name: SiteName,
    json: Json = False,
) -> None:
    """Remove a site for good: a run that is under way continues without it.

    It cannot connect once the server has been started again. Its key is not used again, unless the
    server has never been started.
    """
    from fedtailor.deployment.federation_folder import FederationFolder
    from fedtailor.deployment.membership import remove_site

    remove_site(FederationFolder(folder), name)
    print_result({"removed": name}, json, say, f"{name} is no longer registered.")


@deploy_app.command("pause", cls=Command)
def pause(
    folder: ServerFolder,
    name: SiteName,
    json: Json = False,
) -> None:
    """Stop asking a site, and waiting for it, until it is resumed.

    It works while the server runs, and while it does not.
    """
    from fedtailor.deployment.federation_folder import FederationFolder
    from fedtailor.deployment.membership import pause_site

    pause_site(FederationFolder(folder), name)
    text = f"{name} is paused: nothing is asked of it until 'fedtailor deploy resume'."
    print_result({"paused": name}, json, say, text)


@deploy_app.command("resume", cls=Command)
def resume(
    folder: ServerFolder,
    name: SiteName,
    json: Json = False,
) -> None:
    """Let a paused site take part again, from the next round on."""
    from fedtailor.deployment.federation_folder import FederationFolder
    from fedtailor.deployment.membership import resume_site

    resume_site(FederationFolder(folder), name)
    print_result({"resumed": name}, json, say, f"{name} takes part again from the next round on.")


@deploy_app.command("allow", cls=Command)
def allow(
    folder: ServerFolder,
    name: SiteName,
    json: Json = False,
) -> None:
    """Ask a site again that was excluded for what it has sent.

    A server that is running asks it from the next round.
    """
    from fedtailor.deployment.conduct import allow as allow_site
    from fedtailor.deployment.federation_folder import FederationFolder

    count = allow_site(FederationFolder(folder).path, name)
    text = f"{name} is asked again; {count} answers that could not be used are forgotten."
    print_result({"allowed": name, "forgotten": count}, json, say, text)


@deploy_app.command("sites", cls=Command)
def sites(folder: ServerFolder, json: Json = False) -> None:
    """List the registered sites, and when each was last heard from."""
    from fedtailor.cli.show.sites import show_sites
    from fedtailor.deployment.federation_folder import FederationFolder, read_attendance

    server_folder = FederationFolder(folder)
    registered = server_folder.sites()
    attendance = read_attendance(server_folder.path)

    records = []
    for site in registered:
        record = {"name": site.name, "new": site.new, "paused": site.paused}
        records.append({**record, **attendance.get(site.name, {})})

    print_result({"sites": records}, json, show_sites)


@deploy_app.command("roster", cls=Command)
def roster(
    folder: ServerFolder,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="File to write.")
    ] = "roster.json",
    replace: Annotated[bool, switch("--replace", "Overwrite another roster.")] = False,
    json: Json = False,
) -> None:
    """Write the names and keys of all sites that train, for every site to trust.

    It goes to every site, for 'fedtailor site trust'.
    """
    from fedtailor.cli.show.sites import show_roster
    from fedtailor.deployment.federation_folder import FederationFolder
    from fedtailor.deployment.roster import roster_of, write_roster

    path = Path(out)
    written = roster_of(FederationFolder(folder))
    write_roster(path, written, replace=replace)

    print_result({"roster": out, **written.summary()}, json, show_roster, written)


@deploy_app.command("renew", cls=Command)
def renew(folder: ServerFolder, json: Json = False) -> None:
    """Make a new certificate for the server, for the host that federation.toml names.

    Sites need nothing new.
    """
    import shlex

    from fedtailor.deployment.federation_folder import FederationFolder
    from fedtailor.deployment.init import renew_certificate

    days = renew_certificate(FederationFolder(folder))

    text = (
        f"The new certificate is valid for {days:.0f} days. It is used from the next start of the "
        f"server: fedtailor serve {shlex.quote(str(folder))}"
    )
    print_result({"folder": str(folder), "days": days}, json, say, text)


@deploy_app.command("demo", cls=Command)
def demo(
    out: Out = "",
    rounds: Annotated[int, number_option("--rounds", "Number of rounds.", at_least=1)] = 3,
    encoder: Annotated[
        str,
        text_option(
            "TARGET",
            "Frozen encoder, as of fedtailor run: one_shot_fda on its features, in two exchanges.",
        ),
    ] = "",
    secure: Annotated[bool, switch("--secure", "Train with secure sums.")] = False,
    json: Json = False,
) -> None:
    """Start a server and four sites on this machine, and train on digits: is it worth it?

    The labels of the fourth site are shuffled.

    It takes some minutes.
    """
    from fedtailor.cli.show.sites import show_sites_demo
    from fedtailor.deployment.demo import run_demo
    from fedtailor.experiment.run import unused_folder

    folder = Path(out) if out else unused_folder("sites-demo")
    result = run_demo(folder, rounds=rounds, encoder=encoder, secure=secure, say=say)

    print_result(result, json, show_sites_demo, folder, result)


def serve(
    folder: ServerFolder,
    new: Annotated[
        bool, switch("--new", "Begin another run; the last one must have finished.")
    ] = False,
    status_port: Annotated[
        int | None,
        number_option(
            "--status-port",
            "Also show the status page at this port of this machine, with a token, "
            "and /status.json and /metrics (Prometheus).",
            at_least=1,
        ),
    ] = None,
    start: Annotated[
        str,
        text_option(
            "RUN",
            "Begin another run with the server's state of a finished one, such as "
            "FOLDER/runs/0001.",
            "--from",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Train across the registered sites.

    After Ctrl-C, the same command continues where it stopped.

    While it runs, the page FOLDER/status.html shows rounds, sites and messages.
    """
    import shlex

    from fedtailor.cli.show.serve import ServeOutput, show_finished
    from fedtailor.cli.show.status import StatusPage
    from fedtailor.deployment.supervise_server import has_finished, supervise_server

    messages = ServeOutput()
    run = Path(start) if start else None
    try:
        result = supervise_server(
            folder,
            messages,
            draw_status=StatusPage(),
            status_port=status_port,
            new=new or run is not None,
            start=run,
        )
    except KeyboardInterrupt:
        # Where the new run has not begun yet, the next command must ask for it again.
        again = f" --from {shlex.quote(start)}" if start else " --new"
        again = again if (new or start) and has_finished(folder) else ""
        message = f"stopped. To continue: fedtailor serve {shlex.quote(str(folder))}{again}"
        raise Interrupted(message, path=folder) from None
    finally:
        messages.close()

    print_result(result, json, show_finished, folder, result)
