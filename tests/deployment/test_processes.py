"""Flower's processes with stand-ins for its programs: what is watched, explained and registered."""

import json
import os
import signal
import sys
import time

import pytest

from fedtailor.core.errors import RunError
from fedtailor.deployment.flower import processes
from fedtailor.deployment.flower.processes import ServerProcesses, SiteProcesses, explain
from fedtailor.deployment.keys import PublicKey
from fedtailor.deployment.supervise import Ended

RESIDENT = [sys.executable, "-c", "import time; time.sleep(600)"]
FLWR = """
import json, pathlib, sys
path = pathlib.Path("registered.json")
nodes = json.loads(path.read_text()) if path.exists() else {}
command = sys.argv[2]
if command == "register":
    key = pathlib.Path(sys.argv[3]).read_text()
    if key in nodes.values():
        print(json.dumps({"success": False, "error-message": "Public key already in use"}))
        raise SystemExit(1)
    number = str(100 + len(pathlib.Path("log").read_text().split()) if pathlib.Path("log").exists() else 100)
    nodes[number] = key
    print(json.dumps({"success": True, "node-id": number}))
elif command == "unregister":
    del nodes[sys.argv[3]]
    print(json.dumps({"success": True}))
else:
    rows = [{"node-id": number, "status": "registered"} for number in nodes]
    print(json.dumps({"success": True, "nodes": rows}))
path.write_text(json.dumps(nodes))
with open("log", "a") as log:
    log.write(command + "\\n")
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Return a function that replaces a program of Flower by Python code."""

    def replace(code):
        path = tmp_path / "program"
        path.write_text(f"#!{sys.executable}\n{code}")
        path.chmod(0o755)
        monkeypatch.setattr(processes, "_program", lambda name: str(path))
        monkeypatch.setattr(processes, "_SUPERNODE", (str(path),))

    return replace


def wait_for(condition):
    for _ in range(2000):
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def site_of(folder):
    site = SiteProcesses(folder, "server", 8000, folder / "ca.crt", folder / "node")
    site.start(RESIDENT)
    return site


def test_without_flower_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RunError, match=r"pip install 'fedtailor\[flower\]'"):
        processes._program("flower-superlink")


def test_a_supernode_that_gave_up_but_stays_is_started_again(tmp_path, stand_in):
    stand_in("import time; print('SuperNode ID: 5', flush=True); time.sleep(1);"
             "print('Giving up reconnection after 1 s', flush=True); time.sleep(600)")  # fmt: skip
    site = site_of(tmp_path / "site")
    try:
        wait_for(site.is_connected)
        (ended,) = wait_for(site.watch)
        assert ended.name == "supernode"
        assert ended.code == -signal.SIGKILL
        assert not site.is_connected()
    finally:
        site.stop()


def test_a_site_that_waits_for_the_server_says_so(tmp_path, stand_in):
    stand_in(
        "import time; print('Connection attempt failed, retrying in 1 s', flush=True); time.sleep(600)"
    )
    site = site_of(tmp_path / "site")
    try:
        assert "does not answer" in wait_for(site.problem)
        assert not site.is_connected()
    finally:
        site.stop()
    stand_in("import time; print('Connection attempt failed\\nConnection successful\\nSuperNode ID', flush=True);"
             "time.sleep(600)")  # fmt: skip
    site = site_of(tmp_path / "other")
    try:
        wait_for(site.is_connected)
        assert site.problem() is None
    finally:
        site.stop()


@pytest.mark.parametrize(
    ("name", "code", "output", "said"),
    [
        ("supernode", 1, "[SSL: CERTIFICATE_VERIFY_FAILED] no", "CA"),
        ("supernode", 1, "[code: 2004] Failed to activate SuperNode.", "not registered"),
        ("supernode", -9, "", "supernode was killed by signal 9"),
        ("superlink", 3, "first\n\nlast words\n\n", "superlink ended with code 3: last words"),
        ("resident", 4, "", "resident ended with code 4: it printed nothing"),
    ],
)
def test_ends_are_explained(name, code, output, said):
    assert said in explain(Ended(name, code, 0.0, 1.0, 1.0, output))


def test_registration_can_be_repeated_and_resumed(tmp_path, stand_in, monkeypatch):
    stand_in(FLWR)
    monkeypatch.setattr(
        processes, "read_public_key", lambda path: PublicKey(path.read_text(), "SHA256:x")
    )
    keys = {}
    for name in ("a", "b"):
        keys[name] = tmp_path / f"{name}.pub"
        keys[name].write_text(f"key of {name}")
    folder = tmp_path / "server"
    server = ServerProcesses(folder, folder, "127.0.0.1", 8000)
    try:
        first = server.register(keys)
        assert len(set(first.values())) == 2
        assert server.register(keys) == first
        assert (folder / "log").read_text().split().count("register") == 2
        noted = json.loads((folder / "nodes.json").read_text())
        del noted[
            "key of b"
        ]  # as if the process had been killed between the registration and the note
        (folder / "nodes.json").write_text(json.dumps(noted))
        again = server.register(keys)
        assert again["a"] == first["a"]
        assert json.loads((folder / "registered.json").read_text())[str(again["b"])] == "key of b"
        (folder / "registered.json").unlink()  # a new database
        server.register(keys)
        assert len(json.loads((folder / "registered.json").read_text())) == 2
    finally:
        server.stop()


def test_a_refusal_of_flower_is_an_error_with_its_reason(tmp_path, stand_in):
    server = ServerProcesses(tmp_path / "server", tmp_path / "server", "127.0.0.1", 8000)
    try:
        stand_in(
            "import json; print(json.dumps({'success': False, 'error-message': 'no such app'}))"
        )
        with pytest.raises(RunError, match="no such app"):
            server.submit(tmp_path)
        stand_in("print('not JSON')")
        with pytest.raises(RunError, match="not JSON"):
            server.submit(tmp_path)
    finally:
        server.stop()


def test_a_superlink_that_ends_at_once_is_an_error_with_its_last_words(tmp_path, stand_in):
    stand_in("print('address already in use'); raise SystemExit(1)")
    server = ServerProcesses(
        tmp_path / "server", tmp_path / "server", "127.0.0.1", 8000, insecure=True
    )
    try:
        with pytest.raises(RunError, match="address already in use"):
            server.start()
    finally:
        server.stop()


def test_the_environment_is_quiet_and_its_own(tmp_path):
    env = processes._environment(tmp_path, poll=0.05)
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert env["FLWR_HOME"].startswith(str(tmp_path))
    assert env["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)
