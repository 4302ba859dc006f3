"""Real processes on this machine: `fedtailor serve`, `fedtailor site start`, and all that Flower
starts below them."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import tomli_w

from fedtailor.core.atomic import to_json
from fedtailor.deployment.keys import make_node_key, make_server_keys, read_own_key
from waiting import wait_for

PROGRAMS = Path(__file__).parent / "deployment_flower" / "programs"
SOURCE = Path(__file__).parents[1] / "src"
LONGEST = 300.0
"""Seconds after which a test gives up waiting."""


def free_port():
    """Return a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Command:
    """A program that runs beside the test, and what it prints."""

    def __init__(self, arguments, log, **environment):
        """Start it: a module of Python, or a path."""
        self.log = log
        self.start = log.stat().st_size if log.exists() else 0
        own = {
            "PYTHONPATH": f"{SOURCE}{os.pathsep}{PROGRAMS}",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # Flower starts its own by name
        }
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **own, **environment},
                start_new_session=True,
            )

    @property
    def text(self):
        """What it has printed so far."""
        return self.log.read_bytes()[self.start :].decode(errors="replace")

    def runs(self):
        """Return whether it still runs."""
        return self.process.poll() is None

    def wait_for_text(self, text, seconds=LONGEST):
        """Wait until it has printed a text; return the seconds."""
        begun = time.monotonic()
        wait_for(lambda: text in self.text or not self.runs(), seconds, lambda: self.text)
        assert text in self.text, self.text
        return time.monotonic() - begun

    def wait(self, seconds=LONGEST):
        """Wait until it ends, and return its exit code."""
        wait_for(lambda: not self.runs(), seconds, lambda: self.text)
        return self.process.returncode

    def send(self, number):
        """Send it a signal."""
        self.process.send_signal(number)

    def stop(self):
        """Have it end as Ctrl-C does, and wait; return the seconds."""
        begun = time.monotonic()
        if self.runs():
            self.send(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        return time.monotonic() - begun


class Deployment:
    """A world (see ``sites.World``) whose server and sites are commands with TLS and keys."""

    def __init__(self, world):
        """Make the keys of a world that was written."""
        self.world = world
        self.server = world.path / "server"
        self.port = free_port()
        self.sites = {}
        self.serving = None
        make_server_keys(self.server / "keys", ["localhost"])
        registered = []
        for name in world.names:
            folder = self.folder(name)
            path = folder / "site.key"
            key = read_own_key(path) if world.secure else make_node_key(path)
            shutil.copy(self.server / "keys" / "ca.crt", folder / "ca.crt")
            options = (folder / "site.toml").read_text()
            (folder / "site.toml").write_text(f'server = "localhost:{self.port}"\n{options}')
            registered.append({"name": name, "key": key.text, "new": name in world.new})
        (self.server / "sites.json").write_text(to_json({"sites": registered}))
        self.configure()

    def folder(self, name):
        """Return the folder of a site."""
        return self.world.path / "sites" / name

    def configure(self, **values):
        """Write ``federation.toml`` with other values."""
        self.world.values = {**self.world.values, **values}
        deploy = {**self.world.values.get("deploy", {}), "host": "localhost", "port": self.port}
        (self.server / "federation.toml").write_text(
            tomli_w.dumps({**self.world.values, "deploy": deploy})
        )

    def start_sites(self, *names):
        """Start some sites, or all."""
        for name in names or self.world.names:
            self.start_site(name)

    def start_site(self, name, *arguments, **environment):
        """Start a site with ``fedtailor site start``, or with another program."""
        command = arguments or ("-m", "fedtailor", "site", "start", self.folder(name))
        self.sites[name] = Command(command, self.world.path / f"{name}.log", **environment)
        return self.sites[name]

    def serve(self, *options):
        """Start ``fedtailor serve``."""
        arguments = ("-m", "fedtailor", "serve", self.server, *options)
        self.serving = Command(arguments, self.world.path / "server.log")
        return self.serving

    def serve_to_the_end(self, *options):
        """Serve until the run has finished; return the seconds."""
        begun = time.monotonic()
        code = self.serve(*options).wait()
        assert code == 0, self.tails()
        return time.monotonic() - begun

    def run(self, number=1):
        """Return the folder of a run."""
        return self.server / "runs" / f"{number:04d}"

    def rounds(self, number=1):
        """Return the records of the rounds that are done."""
        path = self.run(number) / "rounds.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def wait_for_round(self, done, number=1):
        """Wait until so many rounds are done."""
        wait_for(
            lambda: len(self.rounds(number)) >= done or not self.serving.runs(), explain=self.tails
        )
        assert len(self.rounds(number)) >= done, self.tails()

    def processes(self, owner, *words):
        """Return the processes below the supervisor of the server or a site whose command has all
        words."""
        folder = self.server if owner == "server" else self.folder(owner)
        return processes_below(folder, *words)

    def kill(self, owner, *words):
        """Kill such processes with all that they have started, as soon as there are some."""
        found = wait_for(lambda: self.processes(owner, *words), explain=self.tails)
        for pid in found:
            for child in [pid, *children_of(pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)

    def kill_all(self, owner):
        """Kill everything that belongs to the server or a site, as a power cut does."""
        command = self.serving if owner == "server" else self.sites[owner]
        for pid in [command.process.pid, *self.processes(owner)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        command.process.wait()

    def tails(self):
        """Return the ends of all logs."""
        logs = [*self.world.path.glob("*.log"), *self.world.path.rglob("flower/*.log")]
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')[-1500:]}" for path in logs)

    def stop(self):
        """End all commands, and assert that nothing is left of them."""
        for command in [self.serving, *self.sites.values()]:
            if command is not None:
                command.stop()
        assert left_of(self.world.path) == []


def commands():
    """Return the command line of every process of this machine."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            raw = (path / "cmdline").read_bytes()
            found[int(path.name)] = raw.replace(b"\0", b" ").decode(errors="replace")
    return {pid: command for pid, command in found.items() if command}


def processes_below(folder, *words):
    """Return the processes that Flower or a supervisor has started for a folder, whose command has
    all words."""
    own = f"FLWR_HOME={folder.resolve()}/flower/".encode()
    found = []
    for pid, command in commands().items():
        with contextlib.suppress(OSError):
            if (
                all(word in command for word in words)
                and own in Path(f"/proc/{pid}/environ").read_bytes()
            ):
                found.append(pid)
    return found


def children_of(pid):
    """Return all processes below a process."""
    parents = {}
    for other in commands():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(status[1]), []).append(other)
    found = []
    waiting = [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def left_of(path):
    """Return the commands of processes that belong to a folder."""
    left = []
    for pid, command in commands().items():
        environment = b""
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        if str(path) in command or f"FLWR_HOME={path.resolve()}/".encode() in environment:
            left.append(command)
    return left
