"""The processes of a site and a server, with stand-ins for Flower's programs."""

import socket
import sys
import time

import pytest

from fedtailor.core.errors import RunError
from fedtailor.deployment.flower import processes
from fedtailor.deployment.flower.processes import ServerProcesses, SiteProcesses, explain
from fedtailor.deployment.run_site import run_site

WAITS = "import sys, time\nprint(sys.argv, flush=True)\n"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that writes a stand-in for one of Flower's programs."""
    place = tmp_path / "bin"
    place.mkdir()
    python = sys.executable
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    (place / "python").symlink_to(python)
    monkeypatch.setattr(processes, "_SUPERNODE", (str(place / "flower-supernode"),))

    def write(name, code):
        path = place / name
        path.write_text(f"#!{python}\n{WAITS}{code}\ntime.sleep(600)\n")
        path.chmod(0o755)

    return write


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a function that starts the processes of a site, from a relative folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "site"
    folder.mkdir()
    for name in ("ca.crt", "site.key"):
        (folder / name).write_text("")
    started = []

    def start():
        relative = folder.relative_to(tmp_path)
        made = SiteProcesses(relative, "localhost", 1, relative / "ca.crt", relative / "site.key")
        started.append(made)
        made.start([sys.executable, "-c", "import time; time.sleep(600)"])
        return made

    yield start
    for made in started:
        made.stop()


def wait_for(condition):
    for _ in range(2000):
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def test_a_site_can_be_started_from_a_relative_folder(program, site):
    program(
        "flower-supernode",
        "from pathlib import Path\n"
        "trust = sys.argv[sys.argv.index('--root-certificates') + 1]\n"
        "key = sys.argv[sys.argv.index('--auth-supernode-private-key') + 1]\n"
        "print('SuperNode ID' if Path(trust).is_file() and Path(key).is_file() else 'missing', flush=True)",
    )
    started = site()
    wait_for(started.is_connected)
    assert started.problem() is None


def test_a_lost_connection_is_a_problem_until_something_is_received(program, site, tmp_path):
    program(
        "flower-supernode",
        "from pathlib import Path\n"
        "print('SuperNode ID 1: Connection successful', flush=True)\n"
        "print('Connection attempt failed, retrying', flush=True)\n"
        f"while not Path({str(tmp_path / 'on')!r}).exists():\n    time.sleep(0.01)\n"
        "print('Received successfully', flush=True)",
    )
    started = site()
    assert "the server does not answer" in wait_for(started.problem)
    (tmp_path / "on").touch()
    wait_for(lambda: started.problem() is None)


def test_what_a_program_says_at_its_end_is_told_without_colors(program, site):
    program(
        "flower-supernode",
        "print('\\x1b[91mERROR \\x1b[0m: no luck', flush=True)\nraise SystemExit(1)",
    )
    started = site()
    ended = wait_for(started.watch)
    assert explain(ended[0]) == "supernode ended with code 1: ERROR : no luck"


def test_a_site_says_when_the_server_is_away(program, tmp_path, monkeypatch):
    program("flower-supernode", "print('Connection attempt failed, retrying', flush=True)")
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "site.toml").write_text('name = "clinic"\ndata = "data"\nserver = "localhost:1"\n')
    for name in ("ca.crt", "site.key"):
        (folder / name).write_text("")
    said = []

    class Messages:
        def say(self, text):
            said.append(text)
            if "does not answer" in text:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_site(folder, Messages())
    assert said[0] == "clinic: connecting to localhost:1"
    assert said[-1].startswith("not connected to localhost:1: the server does not answer")
    assert "stopped" in (folder / "logs" / "site.log").read_text()


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = ServerProcesses(tmp_path / "server", tmp_path, "127.0.0.1", port)
        with pytest.raises(RunError, match=f"cannot listen on 127.0.0.1, port {port}"):
            server.start()
        server.stop()
