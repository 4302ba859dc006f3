"""A server and two sites as real processes with TLS and node keys, and what happens when parts of
them die.

One deployment serves all tests of this file, in their order: it takes half a minute to start.
"""

import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower': make test-sites")

from fedtailor.core.errors import RunError
from fedtailor.deployment.flower import processes
from fedtailor.deployment.flower.processes import ServerProcesses, SiteProcesses, explain
from fedtailor.deployment.keys import make_node_key, make_server_keys

PROGRAMS = Path(__file__).parent / "programs"
SITES = int(os.environ.get("FEDTAILOR_TEST_SITES", "2"))
pytestmark = pytest.mark.xdist_group("loopback")


class Deployment:
    """The processes of a server and its sites, and the log of exchanges."""

    def __init__(self, folder):
        self.folder = folder
        self.events = []
        self.times = {}
        self.run = folder / "run"
        self.run.mkdir()
        make_server_keys(folder / "server", [])
        keys = {}
        for number in range(SITES):
            make_node_key(folder / f"site{number}" / "node")
            public = folder / f"site{number}" / "node.pub"
            keys[f"site{number}"] = public.read_text().strip()
        self.port = processes.free_port()
        self.server = ServerProcesses(folder / "server", folder / "server", "127.0.0.1", self.port)
        self.sites = []
        self.keys = keys

    def start(self):
        begun = time.monotonic()
        self.server.start()
        self.times["server"] = time.monotonic() - begun
        begun = time.monotonic()
        self.nodes = self.server.register(self.keys)
        self.times["register"] = time.monotonic() - begun
        (self.run / "nodes.json").write_text(
            json.dumps({n: self.nodes[f"site{n}"] for n in range(SITES)})
        )
        begun = time.monotonic()
        for number in range(SITES):
            self.sites.append(self.site(self.folder / f"site{number}"))
        self.wait(lambda: all(site.is_connected() for site in self.sites))
        self.times["sites"] = time.monotonic() - begun
        begun = time.monotonic()
        self.id = self.server.submit(self.run)
        self.wait(lambda: self.exchanges())
        self.times["first exchange"] = time.monotonic() - begun

    def site(self, folder, ca=None):
        site = SiteProcesses(
            folder, "127.0.0.1", self.port, ca or self.folder / "server" / "ca.crt", folder / "node"
        )
        site.start([sys.executable, str(PROGRAMS / "echo_site.py"), str(folder)])
        return site

    def status(self):
        """Return Flower's status of the run, such as ``running`` or ``finished:completed``."""
        return self.server._flwr("list", "fedtailor", "--run-id", self.id)["runs"][0]["status"]

    def exchanges(self):
        path = self.run / "exchanges.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self, condition, seconds=240):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for part in (self.server, *self.sites):
                self.events += part.watch()
            if condition():
                return
            time.sleep(0.1)
        raise AssertionError(f"waited in vain\n{self.tails()}")

    def wait_for_exchanges(self, count):
        target = len(self.exchanges()) + count
        self.wait(lambda: len(self.exchanges()) >= target)
        return self.exchanges()[target - 1]

    def tails(self):
        logs = [*self.folder.glob("server/*.log"), *self.folder.glob("site*/flower/*.log")]
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')[-1500:]}" for path in logs)

    def stop(self):
        for part in (*self.sites, self.server):
            part.stop()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    source = Path(processes.__file__).parents[3]
    patch.setenv("PYTHONPATH", f"{source}{os.pathsep}{PROGRAMS}")
    app = processes._APP.replace("fedtailor.deployment.flower.server_app:", "echo_server:")
    patch.setattr(processes, "_APP", app)
    patch.setattr(processes, "_ONLY_OUR_APP", "only_echo_app")
    made = Deployment(tmp_path_factory.mktemp("deployment"))
    try:
        made.start()
        yield made
    finally:
        made.stop()
        patch.undo()


def test_messages_come_back_as_they_were_sent(deployment):
    deployment.wait(lambda: len(deployment.exchanges()) >= 4)
    records = deployment.exchanges()[:4]
    for record in records:
        assert record["failures"] == []
        assert len(record["heads"]) == SITES
        assert all(record["same"].values())
    assert records[0]["heads"]["1"]["site"] == "site1"
    assert records[1]["heads"]["0"] == {"failed": "ValueError: I was told to fail"}
    assert {client: head["pid"] for client, head in records[2]["heads"].items()} == {
        client: head["pid"] for client, head in records[3]["heads"].items()
    }, "the resident processes stay"
    times = {name: round(seconds, 1) for name, seconds in deployment.times.items()}
    print("start-up", times, "exchange", statistics.median(record["seconds"] for record in records))


def test_registering_again_changes_nothing(deployment):
    assert deployment.server.register(deployment.keys) == deployment.nodes
    (deployment.folder / "server" / "nodes.json").rename(deployment.folder / "nodes.kept")
    (deployment.folder / "nodes.kept").rename(deployment.folder / "server" / "nodes.json")
    assert deployment.status() == "running"


def test_strangers_are_refused_with_a_reason(deployment, tmp_path):
    make_node_key(tmp_path / "stranger" / "node")
    make_server_keys(tmp_path / "other", [])
    folders = {"stranger": None, "wrong": tmp_path / "other" / "ca.crt", "twin": None}
    for name in ("wrong", "twin"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "node").write_bytes((deployment.folder / "site0" / "node").read_bytes())
    reasons = {}
    for name, ca in folders.items():
        site = deployment.site(tmp_path / name, ca)
        ended = []
        try:
            deployment.wait(lambda site=site, ended=ended: ended.extend(site.watch()) or ended, 60)
        finally:
            site.stop()
        reasons[name] = explain(ended[0])
    assert "not registered" in reasons["stranger"], reasons
    assert "CA" in reasons["wrong"], reasons
    assert "in use" in reasons["twin"], reasons


def test_a_resident_process_that_dies_is_started_again(deployment):
    before = deployment.wait_for_exchanges(1)
    os.kill(before["heads"]["0"]["pid"], signal.SIGKILL)
    after = deployment.wait_for_exchanges(2)
    assert len(after["heads"]) == SITES
    assert after["failures"] == []
    assert after["heads"]["0"]["pid"] != before["heads"]["0"]["pid"]
    assert [event.code for event in deployment.events if event.name == "resident"] == [
        -signal.SIGKILL
    ]


@pytest.mark.slow
def test_a_supernode_that_was_killed_comes_back(deployment):
    deployment.wait_for_exchanges(1)
    os.kill(deployment.sites[0]._supervisor.pid("supernode"), signal.SIGKILL)
    begun = time.monotonic()
    deployment.wait(lambda: not deployment.sites[0].is_connected(), 10)
    deployment.wait(deployment.sites[0].is_connected, 120)
    print("SuperNode back after", round(time.monotonic() - begun, 1), "s")
    after = deployment.wait_for_exchanges(2)
    assert len(after["heads"]) == SITES


def test_a_run_ends_and_nothing_is_left(deployment):
    (deployment.run / "stop").touch()
    deployment.wait(lambda: deployment.status().startswith("finished"), 60)
    assert deployment.status() == "finished:completed"
    with pytest.raises(RunError, match="Flower refused"):
        deployment.server._flwr("stop", "123", "fedtailor")
    deployment.stop()
    assert [
        path
        for path in Path("/proc").glob("[0-9]*")
        if str(deployment.folder).encode() in command_line(path)
    ] == []


def command_line(process):
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
