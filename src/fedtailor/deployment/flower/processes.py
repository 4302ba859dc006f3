"""Flower's programs on a server and on a site, as supervised processes."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import write_whole
from fedtailor.core.errors import RunError, one_line
from fedtailor.deployment.keys import read_public_key, write_private
from fedtailor.deployment.supervise import Child, Ended, Supervisor

_START_SECONDS = 90.0
_COMMAND_SECONDS = 120.0
_CONNECTION = "fedtailor"

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

_REASONS = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the server's certificate is not signed by this site's CA; copy ca.crt again",
    ),
    (
        "[code: 2004]",
        "the server refuses this site's key: it is not registered (`fedtailor deploy add`), or in use by another "
        "process; after a crash the server counts it as in use for 20 seconds",
    ),
    (
        "Connection attempt failed",
        "the server does not answer: it is not running, or a firewall is between",
    ),
)
"""What a SuperNode prints when something is wrong, and what it means; the first that is found
counts."""
_REACHES = ("Connection successful", "Received successfully", "Sent successfully")
"""What a SuperNode prints when it has reached the server; it does not say when a lost connection is
there again."""
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
"""What makes a word colored on a terminal."""
_STUCK = ("Giving up reconnection", "Server error '", "Client error '")
"""What a SuperNode prints when its loop has ended and its process goes on without it, seen with
Flower 1.41."""


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
    """The SuperLink, the gate through which sites reach it, and the SuperExec, which starts the
    round loop.

    Args:
        folder: their database, logs and settings.
        keys: holds ``ca.crt``, ``server.pem`` and ``server.key``.
        host: the address to listen at; ``0.0.0.0`` for all.
        port: the one port that is open.
        insecure: without TLS, node keys and gate, for loopback only.

    Raises:
        RunError: the folder is in use by another process.
    """

    def __init__(
        self, folder: Path, keys: Path, host: str, port: int, insecure: bool = False
    ) -> None:
        self._folder = folder.resolve()
        self._keys = keys.resolve()
        self._host = host
        self._insecure = insecure
        self._port = port
        self._inner = port if insecure else _free_port()
        self._address = f"127.0.0.1:{self._inner}"
        self._env = _environment(
            self._folder, poll=1.0
        )  # it starts one program, at the start of a run
        self._supervisor = Supervisor(self._folder)

    def start(self) -> None:
        """Start all programs, and wait until the SuperLink answers.

        Raises:
            RunError: it does not, or the port is not free.
        """
        _refuse_taken_port(self._host, self._port)
        secret = self._folder / "superexec.secret"
        write_private(secret, secrets.token_bytes(32))
        only_ours = [
            "--superexec-auth-secret-file",
            str(secret),
        ]  # nobody else who reaches the port gets its tasks
        command = [_program("flower-superlink"), "--host", "127.0.0.1", "--port", str(self._inner)]
        command += ["--database", str(self._folder / "superlink.db"), "--isolation", "process"]

        if self._insecure:
            command += ["--insecure"]
        else:
            command += ["--enable-supernode-auth", "--ssl-ca-certfile", str(self._keys / "ca.crt")]
            command += ["--ssl-certfile", str(self._keys / "server.pem")]
            command += ["--ssl-keyfile", str(self._keys / "server.key")]

        self._start("superlink", [*command, *only_ours])
        self._wait_for_health(self._address)
        if not self._insecure:
            gate = [
                sys.executable,
                "-m",
                "fedtailor.deployment.flower.gate",
                self._host,
                str(self._port),
            ]
            self._start("gate", [*gate, self._address, str(self._keys)])
            reached = "127.0.0.1" if self._host in ("", "0.0.0.0", "::") else self._host
            self._wait_for_health(f"{reached}:{self._port}")

        roots = (
            ["--insecure"]
            if self._insecure
            else ["--root-certificates", str(self._keys / "ca.crt")]
        )
        command = [_program("flower-superexec"), "--runtime-api-address", self._address]
        self._start("superexec", [*command, *roots, *only_ours])

    def register(self, keys: Mapping[str, Path]) -> dict[str, int]:
        """Register the public keys of sites that are not registered yet, and return the node ids of
        all by name.

        Raises:
            DataError: a file is not a site's public key.
            RunError: Flower refuses.
        """
        path = self._folder / "nodes.json"
        noted: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
        listed = self._flwr("supernode", "list", _CONNECTION)["nodes"]
        there = {int(node["node-id"]) for node in listed if node["status"] != "unregistered"}
        known = {
            text: node for text, node in noted.items() if node in there
        }  # the database may be a new one
        public = {name: read_public_key(key).text for name, key in keys.items()}
        missing = {name: text for name, text in public.items() if text not in known}

        for node in there - set(
            known.values()
        ):  # its registration was interrupted before it was noted
            self._flwr("supernode", "unregister", str(node), _CONNECTION)

        for name, text in missing.items():
            answer = self._flwr("supernode", "register", str(keys[name].resolve()), _CONNECTION)
            known[text] = int(answer["node-id"])
            write_whole(path, json.dumps(known))

        return {name: known[text] for name, text in public.items()}

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

    def stop(self) -> None:
        """End both programs and all that they started."""
        self._supervisor.stop()

    def _start(self, name: str, command: list[str]) -> None:
        self._supervisor.start(
            Child(name, command, self._env, self._folder / f"{name}.log", self._folder)
        )

    def _wait_for_health(self, address: str) -> None:
        """Wait until the SuperLink answers at an address."""
        scheme = "http" if self._insecure else "https"
        context = (
            None
            if self._insecure
            else ssl.create_default_context(cafile=str(self._keys / "ca.crt"))
        )
        end = time.monotonic() + _START_SECONDS

        while time.monotonic() < end and self._supervisor.is_running("superlink"):
            try:
                with urllib.request.urlopen(
                    f"{scheme}://{address}/health", timeout=5, context=context
                ):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)

        name = "superlink" if address == self._address else "gate"
        raise RunError(
            f"the server's {name} did not start: {_last_line(self._supervisor.output(name))}"
        )

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        """Run one of Flower's commands, and return its JSON answer."""
        roots = (
            "insecure = true"
            if self._insecure
            else f"root-certificates = {json.dumps(f'{self._keys}/ca.crt')}"
        )
        settings = f'[superlink]\ndefault = "{_CONNECTION}"\n[superlink.{_CONNECTION}]\n'
        home = Path(self._env["FLWR_HOME"])
        home.mkdir(exist_ok=True)
        write_whole(home / "config.toml", f'{settings}address = "{self._address}"\n{roots}\n')
        command = [_program("flwr"), *arguments, "--format", "json"]

        try:
            done = subprocess.run(
                command,
                env=self._env,
                cwd=self._folder,
                capture_output=True,
                text=True,
                timeout=_COMMAND_SECONDS,
            )
            answer: dict[str, Any] = json.loads(done.stdout)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RunError(
                f"Flower's command line failed at `{arguments[0]}`: {one_line(str(error))}"
            ) from error
        except ValueError:
            answer = {"error-message": one_line(done.stdout + done.stderr)}

        if not answer.get("success"):
            raise RunError(
                f"Flower refused `{' '.join(arguments[:2])}`: {answer.get('error-message', 'no reason')}"
            )

        return answer


class SiteProcesses:
    """The resident process of a site, and the SuperNode, which connects to the server.

    Args:
        folder: the site's folder; its subfolder ``flower`` holds logs and settings.
        server: name or address of the server.
        port: its port.
        ca: the certificate of its authority.
        key: the site's private key.
        insecure: without TLS and node keys, for loopback only.

    Raises:
        RunError: the folder is in use by another process.
    """

    def __init__(
        self,
        folder: Path,
        server: str,
        port: int,
        ca: Path | None,
        key: Path | None,
        insecure: bool = False,
    ) -> None:
        self._folder = folder.resolve()
        self._own = self._folder / "flower"
        self._address = f"{server}:{port}"
        self._trust = ["--insecure"]
        if not insecure:
            assert ca is not None and key is not None, "TLS needs both"
            # absolute paths: the program runs in another folder
            self._trust = ["--root-certificates", str(ca.resolve())]
            self._trust += ["--auth-supernode-private-key", str(key.resolve())]

        self._env = _environment(self._own, poll=0.05)  # it starts one for every message
        programs = self._own / "bin"
        self._env["PATH"] = f"{programs}{os.pathsep}{self._env['PATH']}"
        _write_programs(programs)
        self._accepted: int | None = None
        self._supervisor = Supervisor(self._own)

    def start(self, resident: list[str] | None = None) -> None:
        """Start both programs.

        Args:
            resident: the command of the resident process, if it is another than that of this
                package.
        """
        _program(
            "flower-supernode"
        )  # before anything starts, it is refused where Flower is missing
        asked = resident or [
            sys.executable,
            "-m",
            "fedtailor.deployment.resident",
            str(self._folder),
        ]
        self._start("resident", asked)
        command = [sys.executable, *_SUPERNODE, "--superlink", self._address, *self._trust]
        command += ["--port", str(_free_port())]
        command += ["--node-config", f"folder={json.dumps(str(self._folder))}"]
        self._start("supernode", command)

    def watch(self) -> list[Ended]:
        """Start again what has died, and return what has died since the last call; see
        :func:`explain`.
        """
        if any(sign in self._supervisor.output("supernode") for sign in _STUCK):
            self._supervisor.kill("supernode")
        return self._supervisor.watch()

    def problem(self) -> str | None:
        """Return in a sentence why the site does not reach the server now; None if nothing is known
        to be wrong.
        """
        output = self._supervisor.output("supernode")
        last = max(output.rfind(sign) for sign in _REACHES)
        return _reason(output[max(last, 0) :])

    def is_connected(self) -> bool:
        """Tell whether the present SuperNode has been accepted by the server."""
        pid = self._supervisor.pid("supernode")
        if pid != self._accepted and "SuperNode ID" in self._supervisor.output("supernode"):
            self._accepted = pid  # the line is lost when much is printed after it
        return self._supervisor.is_running("supernode") and pid == self._accepted

    def stop(self) -> None:
        """End both programs and all that they started."""
        self._supervisor.stop()

    def _start(self, name: str, command: list[str]) -> None:
        self._supervisor.start(
            Child(name, command, self._env, self._own / f"{name}.log", self._own)
        )


def explain(ended: Ended) -> str:
    """Say in one sentence why a process of a site or server ended."""
    reason = _reason(ended.output) if ended.name == "supernode" else None
    if reason is not None:
        return reason
    if ended.code < 0:
        return f"{ended.name} was killed by signal {-ended.code}"
    return f"{ended.name} ended with code {ended.code}: {_last_line(ended.output)}"


def _reason(output: str) -> str | None:
    return next((reason for sign, reason in _REASONS if sign in output), None)


def _write_programs(folder: Path) -> None:
    """Write the programs that a SuperNode starts by their names: one that runs our app only, and
    none of the others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = dict.fromkeys(_OTHER_PROGRAMS, "#!/bin/sh\necho 'not at this site' >&2\nexit 1\n")
    texts["flwr-clientapp"] = (
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {_ONLY_OUR_APP} "$@"\n'
    )

    for name, text in texts.items():
        path = folder / name
        write_whole(path, text)
        path.chmod(0o700)


def _environment(folder: Path, poll: float) -> dict[str, str]:
    """Return the environment of Flower's programs; SuperExec looks for work every ``poll``
    seconds.
    """
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",  # Flower starts its own by their names
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
        message = (
            f"Flower is not installed here ('{path}' is missing): pip install 'fedtailor[flower]'."
        )
        raise RunError(message, path=str(path))
    return str(path)


def _refuse_taken_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # connections that have ended do not count
        try:
            probe.bind((host, port))
        except OSError as error:
            message = f"cannot listen on {host}, port {port}: {error.strerror or error}."
            raise RunError(message, key="deploy.port", got=port) from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last_line(output: str) -> str:
    lines = [line for line in _COLORS.sub("", output).splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else "it printed nothing"
