"""Flower's programs on a server and on a site, as supervised processes."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import write_private, write_whole
from fedtailor.core.errors import RunError, one_line
from fedtailor.core.extras import install_command
from fedtailor.deployment.flower.goodbyes import GOODBYES_FILE
from fedtailor.deployment.options import FLOWER_FOLDER
from fedtailor.deployment.supervise import Ended, Supervisor

_START_SECONDS = 90.0
_COMMAND_SECONDS = 120.0
_NODES = "nodes.json"
"""The file in which the node of every registered key is noted; the gate reads it too."""
_CONNECTION = "fedtailor"
"""The name of the connection in ``_SETTINGS``."""

_APP = """[project]
name = "fedtailor-app"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedtailor"

[tool.flwr.app.components]
serverapp = "fedtailor.deployment.flower.server_app:server_app"
clientapp = "fedtailor.deployment.flower.client_app:client_app"

[tool.flwr.app.config]
folder = ""
"""
_SETTINGS = """[superlink]
default = "fedtailor"
[superlink.fedtailor]
address = {address}
root-certificates = {certificate}
"""

_REASONS = {
    "CERTIFICATE_VERIFY_FAILED": (
        "the server's certificate is not signed by this site's CA; copy ca.crt again"
    ),
    "[code: 2004]": (
        "the server does not accept this site's key yet: it has just started, or the key is not "
        "registered (`fedtailor deploy add`), or in use by another process; after a crash the "
        "server counts it as in use for 20 seconds"
    ),
    "Connection attempt failed": (
        "the server does not answer: it is not running, or a firewall is between"
    ),
}
"""What a SuperNode prints when something is wrong, and what it means; the first one counts."""
_REACHES = ("Connection successful", "Received successfully", "Sent successfully")
"""What a SuperNode prints when it has reached the server. Nothing says when a lost connection is
back."""
_STUCK = ("Giving up reconnection", "Server error '", "Client error '")
"""What a SuperNode prints when its loop has ended and its process stays, seen with Flower 1.41."""
_IN_USE = "Public key already in use"
"""What Flower says of a key that it knows."""
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
"""What colors a word on a terminal."""

_ONLY_OUR_APP = "fedtailor.deployment.flower.only_our_app"
_SUPERNODE = ("-m", "fedtailor.deployment.flower.supernode")
_OTHER_PROGRAMS = (
    "flwr-agentapp",
    "flwr-connector",
    "flwr-model",
    "flwr-serverapp",
    "flwr-simulation",
)
"""Flower's programs that would run what a server sends, and that a site does not need."""


class ServerProcesses:
    """The programs of a server.

    They are the SuperLink, the gate through which sites reach it, and the SuperExec, which starts
    the round loop.

    Args:
        folder: their database, logs and settings.
        keys: holds ``ca.crt``, ``server.pem`` and ``server.key``.
        host: the address to listen at; ``0.0.0.0`` for all.
        port: the one port that is open.

    Raises:
        RunError: the folder is in use by another process.
    """

    def __init__(self, folder: Path, keys: Path, host: str, port: int) -> None:
        self._folder = folder.resolve()
        self._keys = keys.resolve()
        self._certificate = self._keys / "ca.crt"
        self._host = host
        self._port = port
        self._address = f"127.0.0.1:{free_port()}"
        # One program, at the start of a run, so it need not look for work often.
        self._environment = _environment(self._folder, poll=1.0)
        self._supervisor = Supervisor(self._folder, self._environment)

    def start(self) -> None:
        """Start all programs, and wait until the SuperLink answers.

        Raises:
            RunError: it does not, or the port is not free.
        """
        _refuse_taken_port(self._host, self._port)
        # Nobody else who reaches the SuperLink's port gets the tasks of the SuperExec.
        secret = self._folder / "superexec.secret"
        write_private(secret, secrets.token_bytes(32))
        only_ours = ["--superexec-auth-secret-file", str(secret)]

        command = [_program("flower-superlink"), "--isolation", "process", *only_ours]
        command += ["--host", "127.0.0.1", "--port", self._address.rpartition(":")[2]]
        command += ["--database", str(self._folder / "superlink.db"), "--enable-supernode-auth"]
        command += ["--ssl-ca-certfile", str(self._certificate)]
        command += ["--ssl-certfile", str(self._keys / "server.pem")]
        command += ["--ssl-keyfile", str(self._keys / "server.key")]
        self._supervisor.start("superlink", command)
        self._wait_for_health("superlink", self._address)

        # Sites reach the gate, and never the SuperLink itself.
        command = [sys.executable, "-m", "fedtailor.deployment.flower.gate"]
        command += [self._host, str(self._port), self._address, str(self._keys)]
        command += [str(self._folder / _NODES), str(self._folder / GOODBYES_FILE)]
        self._supervisor.start("gate", command)
        reached = "127.0.0.1" if self._host in ("", "0.0.0.0", "::") else self._host
        reached = f"[{reached}]" if ":" in reached else reached
        self._wait_for_health("gate", f"{reached}:{self._port}")

        command = [_program("flower-superexec"), "--runtime-api-address", self._address]
        command += ["--root-certificates", str(self._certificate), *only_ours]
        self._supervisor.start("superexec", command)

    def register(self, keys: Mapping[str, str], *, forget: bool = True) -> dict[str, int]:
        """Register the public keys of new sites, and return the node ids of all sites by name.

        Args:
            keys: of all sites, by name.
            forget: whether keys of sites that were removed are registered no more. While a round
                is under way, they must stay: Flower would wait for minutes for what such a site has
                answered.

        Raises:
            RunError: Flower refuses.
        """
        path = self._folder / _NODES
        noted: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
        listed = self._flwr("supernode", "list", _CONNECTION)["nodes"]
        registered = {int(node["node-id"]) for node in listed if node["status"] != "unregistered"}

        # The database may be a new one.
        wanted = set(keys.values())
        nodes = {}
        for text, node in noted.items():
            if node in registered and (text in wanted or not forget):
                nodes[text] = node

        write_whole(path, json.dumps(nodes))
        unnoted = registered - set(noted.values())
        for text in keys.values():
            if text not in nodes:
                nodes[text] = self._register(text, unnoted)
                write_whole(path, json.dumps(nodes))

        for node in registered - set(nodes.values()) if forget else ():
            self._flwr("supernode", "unregister", str(node), _CONNECTION)

        return {name: nodes[text] for name, text in keys.items()}

    def _register(self, key: str, unnoted: set[int]) -> int:
        """Register a public key, and return its node.

        Args:
            key: one that is not noted.
            unnoted: nodes that are registered and not noted.
        """
        file = self._folder / "site.pub"
        write_whole(file, key + "\n")
        try:
            return int(self._flwr("supernode", "register", str(file), _CONNECTION)["node-id"])
        except RunError as error:
            # A registration that was interrupted before it was noted: Flower takes no key twice.
            if _IN_USE in error.message and len(unnoted) == 1:
                return unnoted.pop()
            raise

    def submit(self, run_folder: Path) -> str:
        """Start the round loop for a run's folder, and return Flower's id of the run."""
        app = self._folder / "app"
        app.mkdir(exist_ok=True)
        write_whole(app / "pyproject.toml", _APP)
        setting = f"folder={json.dumps(str(run_folder.resolve()))}"
        return str(self._flwr("run", str(app), _CONNECTION, "--run-config", setting)["run-id"])

    def watch(self) -> list[Ended]:
        """Start again what has died, and return what has died since the last call."""
        return self._supervisor.watch()

    def last_words(self) -> str:
        """Return the last problem that the SuperExec, which starts the round loop, has printed."""
        lines = _COLORS.sub("", self._supervisor.output("superexec")).splitlines()
        problems = [line for line in lines if not line.startswith("INFO")]
        return _last_line("\n".join(problems))

    def stop(self) -> None:
        """End all programs and all that they started."""
        self._supervisor.stop()

    def _wait_for_health(self, name: str, address: str) -> None:
        """Wait until a program answers at an address."""
        # The programs start slowly; nothing may connect before they listen.
        # It is at an address of this machine, for which the certificate need not be.
        context = ssl.create_default_context(cafile=str(self._certificate))
        context.check_hostname = False
        end = time.monotonic() + _START_SECONDS
        needed = {"superlink", name}
        while time.monotonic() < end and all(map(self._supervisor.is_running, needed)):
            try:
                with urllib.request.urlopen(f"https://{address}/health", None, 5, context=context):
                    return
            except OSError:
                time.sleep(0.1)

        reason = _last_line(self._supervisor.output(name))
        raise RunError(f"the server's {name} did not start: {reason}")

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        """Run one of Flower's commands, and return its JSON answer."""
        # The command line takes the address of the SuperLink only from this file.
        settings = Path(self._environment["FLWR_HOME"]) / "config.toml"
        settings.parent.mkdir(exist_ok=True)
        certificate = json.dumps(str(self._certificate))
        address = json.dumps(self._address)
        write_whole(settings, _SETTINGS.format(address=address, certificate=certificate))

        try:
            done = subprocess.run(
                [_program("flwr"), *arguments, "--format", "json"],
                env=self._environment,
                cwd=self._folder,
                capture_output=True,
                text=True,
                timeout=_COMMAND_SECONDS,
            )
            answer: dict[str, Any] = json.loads(done.stdout)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = one_line(str(error))
            raise RunError(f"Flower's command line failed at `{arguments[0]}`: {reason}") from error
        except ValueError:
            answer = {"error-message": one_line(done.stdout + done.stderr)}

        if not answer.get("success"):
            reason = answer.get("error-message", "no reason")
            raise RunError(f"Flower refused `{' '.join(arguments[:2])}`: {reason}")

        return answer


class SiteProcesses:
    """The resident process of a site, and the SuperNode, which connects to the server.

    Args:
        folder: the site's folder; its subfolder ``flower`` holds logs and settings.
        server: name or address of the server.
        port: its port.
        ca: the certificate of its authority.
        key: the site's private key.

    Raises:
        RunError: the folder is in use by another process.
    """

    def __init__(self, folder: Path, server: str, port: int, ca: Path, key: Path) -> None:
        self._folder = folder.resolve()
        # Absolute paths, because the SuperNode runs in another folder.
        self._command = ["--superlink", f"{server}:{port}"]
        self._command += ["--root-certificates", str(ca.resolve())]
        self._command += ["--auth-supernode-private-key", str(key.resolve())]

        # One program for every message, so it looks for work often. Ours come first in the path.
        flower_folder = self._folder / FLOWER_FOLDER
        environment = _environment(flower_folder, poll=0.05)
        environment["PATH"] = f"{flower_folder / 'bin'}{os.pathsep}{environment['PATH']}"
        _write_programs(flower_folder / "bin")
        self._accepted: int | None = None
        self._supervisor = Supervisor(flower_folder, environment)

    def start(self, resident: list[str] | None = None) -> None:
        """Start both programs.

        Args:
            resident: the command of the resident process; None: that of this package.
        """
        _program("flower-supernode")  # where Flower is missing, nothing is started
        module = "fedtailor.deployment.resident"
        command = resident or [sys.executable, "-m", module, str(self._folder)]
        self._supervisor.start("resident", command)

        command = [sys.executable, *_SUPERNODE, *self._command, "--port", str(free_port())]
        command += ["--node-config", f"folder={json.dumps(str(self._folder))}"]
        self._supervisor.start("supernode", command)

    def watch(self) -> list[Ended]:
        """Start again what has died, and return what has died since the last call."""
        output = self._supervisor.output("supernode")
        signs = [sign for sign in _STUCK if sign in output]
        if signs:
            reason = f"printed {signs[0]!r} and did no more work, so it was ended"
            self._supervisor.kill("supernode", reason)

        return self._supervisor.watch()

    def problem(self) -> str | None:
        """Return why the site does not reach the server now; None if nothing is known."""
        return _reason_now(self._supervisor.output("supernode"))

    def is_connected(self) -> bool:
        """Tell whether the present SuperNode has been accepted by the server."""
        pid = self._supervisor.pid("supernode")
        # Noted, because the line is lost when much is printed after it.
        if pid != self._accepted and "SuperNode ID" in self._supervisor.output("supernode"):
            self._accepted = pid
        return self._supervisor.is_running("supernode") and pid == self._accepted

    def stop(self) -> None:
        """End both programs and all that they started."""
        self._supervisor.stop()


def explain(ended: Ended) -> str:
    """Say in one sentence why a process of a site or server ended."""
    # A kill is not the doing of what was printed before it.
    was_killed = ended.code < 0 and not ended.reason
    reason = _reason_now(ended.output)
    if ended.name == "supernode" and reason is not None and not was_killed:
        return reason
    if ended.reason:
        return f"{ended.name} {ended.reason}"

    printed = _last_line(ended.output)
    if ended.code == -signal.SIGKILL:
        return f"{ended.name} was killed by signal 9, as for lack of memory: {printed}"
    if ended.code < 0:
        return f"{ended.name} was killed by signal {-ended.code}: {printed}"
    return f"{ended.name} ended with code {ended.code}: {printed}"


def require_flower() -> None:
    """Check that Flower is installed.

    Raises:
        RunError: it is not.
    """
    _program("flower-superlink")


def free_port() -> int:
    """Return a port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _reason_now(output: str) -> str | None:
    """Return why a SuperNode does not reach the server, after it last did; None if unknown."""
    last = max(output.rfind(sign) for sign in _REACHES)
    now = output[max(last, 0) :]
    return next((reason for sign, reason in _REASONS.items() if sign in now), None)


def _write_programs(folder: Path) -> None:
    """Write the programs that a SuperNode starts: one that runs our app only, and refusals."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = dict.fromkeys(_OTHER_PROGRAMS, "#!/bin/sh\necho 'not at this site' >&2\nexit 1\n")
    python = shlex.quote(sys.executable)
    texts["flwr-clientapp"] = f'#!/bin/sh\nexec {python} -m {_ONLY_OUR_APP} "$@"\n'

    for name, text in texts.items():
        write_whole(folder / name, text)
        (folder / name).chmod(0o700)


def _environment(folder: Path, poll: float) -> dict[str, str]:
    """Return the environment of Flower's programs, which look for work every ``poll`` seconds."""
    programs = Path(sys.executable).parent  # Flower starts its own by their names
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(poll),
        "OMP_NUM_THREADS": "1",
    }


def _program(name: str) -> str:
    """Return the path of one of Flower's programs.

    Raises:
        RunError: Flower is not installed.
    """
    path = Path(sys.executable).parent / name
    if not path.exists():
        remedy = install_command("flower")
        message = f"Flower is not installed here ('{path}' is missing): {remedy}."
        raise RunError(message, key="flower", path=path)
    return str(path)


def _refuse_taken_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # Connections that have ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            message = f"cannot listen on {host}, port {port}: {error.strerror or error}."
            raise RunError(message, key="deploy.port", got=port) from error


def _last_line(output: str) -> str:
    lines = [line for line in _COLORS.sub("", output).splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else "it printed nothing"
