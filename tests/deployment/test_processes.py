"""Flower's processes with stand-ins for its programs: what is watched, explained, registered."""

import json
import os
import signal
import socket
import ssl
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from fedtailor.core.errors import RunError
from fedtailor.deployment.flower import processes
from fedtailor.deployment.flower.processes import ServerProcesses, SiteProcesses, explain
from fedtailor.deployment.keys import make_server_keys
from fedtailor.deployment.supervise import Ended
from fedtailor.deployment.supervise_site import supervise_site
from waiting import wait_for

RESIDENT = [sys.executable, "-c", "import time; time.sleep(600)"]
FLWR = """
import json, pathlib, sys
path = pathlib.Path("registered.json")
nodes = json.loads(path.read_text()) if path.exists() else {}
log = pathlib.Path("log")
command = sys.argv[2]
answer = {"success": True}
used = pathlib.Path("used.json")
keys = json.loads(used.read_text()) if path.exists() and used.exists() else []
key = pathlib.Path(sys.argv[3]).read_text() if command == "register" else ""
if key in keys:  # no key is registered twice, not even one that was forgotten
    answer = {"success": False, "error-message": "[code: 23] Public key already in use."}
elif command == "register":
    number = str(100 + (len(log.read_text().split()) if log.exists() else 0))
    nodes[number] = key
    answer["node-id"] = number
    used.write_text(json.dumps([*keys, key]))
elif command == "unregister":
    del nodes[sys.argv[3]]
else:
    answer["nodes"] = [{"node-id": number, "status": "registered"} for number in nodes]
print(json.dumps(answer))
path.write_text(json.dumps(nodes))
with log.open("a") as file:
    file.write(command + "\\n")
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Return a function that replaces Flower's programs by Python code, which then waits."""

    def replace(code):
        path = tmp_path / "program"
        path.write_text(f"#!{sys.executable}\nimport sys, time\nfrom pathlib import Path\n{code}\n")
        path.chmod(0o755)
        monkeypatch.setattr(processes, "_program", lambda name: str(path))
        monkeypatch.setattr(processes, "_SUPERNODE", (str(path),))

    return replace


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a function that starts the processes of a site, from a relative folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "site"
    folder.mkdir()
    for name in ("ca.crt", "site.key"):
        (folder / name).write_text("")
    (folder / "site.toml").write_text('name = "clinic"\ndata = "data"\nserver = "localhost:1"\n')
    started = []

    def start():
        place = folder.relative_to(tmp_path)
        made = SiteProcesses(place, "localhost", 1, place / "ca.crt", place / "site.key")
        started.append(made)
        made.start(RESIDENT)
        return made

    yield start
    for made in started:
        made.stop()


@pytest.fixture
def server(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = ServerProcesses(tmp_path / "server", tmp_path / "server", "127.0.0.1", port)
    yield made
    made.stop()


def test_without_flower_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RunError, match=r"pip install .*flwr"):
        processes.require_flower()


def test_a_supernode_finds_its_files_and_is_started_again_when_it_gave_up(stand_in, site):
    stand_in("""
trust = sys.argv[sys.argv.index('--root-certificates') + 1]
key = sys.argv[sys.argv.index('--auth-supernode-private-key') + 1]
print('SuperNode ID' if Path(trust).is_file() and Path(key).is_file() else 'missing', flush=True)
while not Path('give-up').exists():
    time.sleep(0.01)
print('Giving up reconnection after 1 s', flush=True)
time.sleep(600)
""")
    started = site()
    wait_for(started.is_connected)
    assert started.problem() is None
    (started._folder / "flower" / "give-up").touch()
    (ended,) = wait_for(started.watch)
    assert (ended.name, ended.code) == ("supernode", -signal.SIGKILL)
    assert not started.is_connected()


def test_a_lost_connection_is_a_problem_until_something_is_received(stand_in, site):
    stand_in("""
print('SuperNode ID 1: Connection successful\\nConnection attempt failed, retrying', flush=True)
while not Path('on').exists():
    time.sleep(0.01)
print('Received successfully', flush=True)
time.sleep(600)
""")
    started = site()
    assert "does not answer" in wait_for(started.problem)
    (started._folder / "flower" / "on").touch()
    wait_for(lambda: started.problem() is None)


def test_a_site_says_when_the_server_is_away(stand_in, site, tmp_path):
    (tmp_path / "site" / "data").mkdir()
    stand_in("print('Connection attempt failed, retrying', flush=True)\ntime.sleep(600)")
    said = []

    def show(text):
        said.append(text)
        if "does not answer" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervise_site(tmp_path / "site", show)
    assert "localhost:1" in said[0]
    assert (tmp_path / "site" / "logs" / "site.log").read_text().endswith("stopped\n")


@pytest.mark.parametrize(
    ("name", "code", "output", "said"),
    [
        ("supernode", 1, "[SSL: CERTIFICATE_VERIFY_FAILED] no", "CA"),
        ("supernode", 1, "[code: 2004] Failed to activate SuperNode.", "not registered"),
        ("supernode", -9, "Connection attempt failed", "supernode was killed by signal 9"),
        ("supernode", 1, "Connection attempt failed\nConnection successful\nbad", "1: bad"),
        ("superlink", 3, "first\n\n\x1b[91mlast \x1b[0mwords\n\n", "code 3: last words"),
        ("resident", 4, "", "resident ended with code 4"),
    ],
)
def test_ends_are_explained(name, code, output, said):
    assert said in explain(Ended(name, code, 1.0, output))


def test_registration_can_be_repeated_and_resumed(tmp_path, stand_in, server):
    stand_in(FLWR)
    keys = {name: f"key of {name}" for name in ("a", "b")}
    folder = tmp_path / "server"
    first = server.register(keys)
    assert len(set(first.values())) == 2
    assert server.register(keys) == first
    assert (folder / "log").read_text().split().count("register") == 2

    # As if the process had been killed between the registration and the note.
    noted = json.loads((folder / "nodes.json").read_text())
    del noted["key of b"]
    (folder / "nodes.json").write_text(json.dumps(noted))
    assert server.register(keys) == first, "Flower takes no key twice"

    for name in ("registered.json", "used.json"):  # a new database
        (folder / name).unlink()
    server.register(keys)
    assert len(json.loads((folder / "registered.json").read_text())) == 2

    # During a run, a site that was removed stays, so that nobody waits for its last answer.
    server.register({"a": "key of a"}, forget=False)
    assert list(json.loads((folder / "nodes.json").read_text())) == ["key of a", "key of b"]
    assert len(json.loads((folder / "registered.json").read_text())) == 2

    # A site that was removed cannot connect any more.
    server.register({"a": "key of a"})
    assert list(json.loads((folder / "nodes.json").read_text())) == ["key of a"]
    assert list(json.loads((folder / "registered.json").read_text()).values()) == ["key of a\n"]


def test_refusals_of_flower_are_errors_with_their_reasons(tmp_path, stand_in, server):
    stand_in('print(\'{"success": false, "error-message": "no such app"}\')')
    with pytest.raises(RunError, match="no such app"):
        server.submit(tmp_path)
    stand_in("print('not JSON')")
    with pytest.raises(RunError, match="not JSON"):
        server.submit(tmp_path)


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = ServerProcesses(tmp_path / "server", tmp_path, "127.0.0.1", port)
        with pytest.raises(RunError, match=str(port)):
            server.start()
        server.stop()


class Healthy(BaseHTTPRequestHandler):
    """Answers every request."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


def test_a_gate_is_found_at_an_address_that_is_not_in_the_certificate(tmp_path, monkeypatch):
    make_server_keys(tmp_path, ["fl.example.org"])
    gate = HTTPServer(("127.0.0.2", 0), Healthy)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    gate.socket = context.wrap_socket(gate.socket, server_side=True)
    Thread(target=gate.serve_forever, daemon=True).start()

    (tmp_path / "served").mkdir()
    server = ServerProcesses(tmp_path / "served", tmp_path, "127.0.0.2", gate.server_port)
    monkeypatch.setattr(server._supervisor, "is_running", lambda name: True)
    server._wait_for_health("gate", f"127.0.0.2:{gate.server_port}")
    server.stop()
    gate.shutdown()
    gate.server_close()


def test_a_gate_that_has_ended_is_not_waited_for(tmp_path, server, monkeypatch):
    make_server_keys(tmp_path / "server", ["localhost"])
    server._supervisor.start("superlink", RESIDENT)
    ends = [sys.executable, "-c", "print('no certificate'); raise SystemExit(1)"]
    server._supervisor.start("gate", ends)
    while server._supervisor.is_running("gate"):
        time.sleep(0.01)

    waits = []
    monkeypatch.setattr(processes, "_START_SECONDS", 0.5)
    monkeypatch.setattr(processes.time, "sleep", waits.append)
    with pytest.raises(RunError, match="gate did not start: no certificate"):
        server._wait_for_health("gate", "127.0.0.1:1")
    assert not waits


def test_the_environment_is_quiet_and_its_own(tmp_path):
    env = processes._environment(tmp_path, poll=0.05)
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert env["FLWR_HOME"].startswith(str(tmp_path))
    assert env["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)
