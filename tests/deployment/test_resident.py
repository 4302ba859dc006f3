"""A process that stays and answers messages: nothing that a client does ends it."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from fedtailor.core.errors import DataError, RunError
from fedtailor.deployment.envelope import Envelope, receive, send
from fedtailor.deployment.resident import ask, serve, socket_path
from sites import to_bytes
from waiting import wait_for


def echo(envelope):
    return Envelope({"echo": envelope.head}, envelope.blobs)


@pytest.fixture
def path(tmp_path_factory, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    folder = tmp_path_factory.mktemp("r")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return socket_path(folder)


@pytest.fixture
def served(path):
    """Return a function that serves an answer at the path."""
    stop = threading.Event()
    threads = []

    def start(answer):
        thread = threading.Thread(target=serve, args=(path, answer, stop))
        thread.start()
        threads.append(thread)
        wait_for(path.exists)
        return path

    yield start
    stop.set()
    for thread in threads:
        thread.join()
    assert not path.exists()


def test_it_answers(served):
    path = served(echo)
    message = Envelope({"round": 1}, {"shared": os.urandom(3_000_000)})
    reply = ask(path, message, timeout=30)
    assert reply.head == {"echo": {"round": 1}}
    assert reply.blobs == message.blobs
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_one_request_at_a_time_in_one_thread(served):
    working = []
    most = []
    threads = set()

    def answer(envelope):
        working.append(envelope)
        most.append(len(working))
        threads.add(threading.get_ident())
        time.sleep(0.02)
        working.pop()
        return envelope

    path = served(answer)
    replies = []
    asking = [
        threading.Thread(
            target=lambda n=n: replies.append(ask(path, Envelope({"n": n}), 30).head["n"])
        )
        for n in range(6)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert sorted(replies) == list(range(6))
    assert set(most) == {1}
    assert len(threads) == 1


def test_exceptions_become_replies(served):
    def answer(envelope):
        if envelope.head["what"] == "data":
            raise DataError("the file has\nno labels")
        if envelope.head["what"] == "bug":
            raise ZeroDivisionError("oh")
        if envelope.head["what"] == "nan":
            return Envelope({"x": float("nan")})
        return None if envelope.head["what"] == "none" else envelope

    path = served(answer)
    assert ask(path, Envelope({"what": "data"}), 30).head == {"failed": "the file has no labels"}
    assert ask(path, Envelope({"what": "bug"}), 30).head == {"failed": "ZeroDivisionError: oh"}
    assert "failed" in ask(path, Envelope({"what": "nan"}), 30).head
    assert "failed" in ask(path, Envelope({"what": "none"}), 30).head
    assert ask(path, Envelope({"what": "fine"}), 30).head == {"what": "fine"}


def test_broken_connections_end_nothing(served, monkeypatch):
    monkeypatch.setattr("fedtailor.deployment.resident._PATIENCE", 3.0)
    path = served(echo)
    silent = socket.socket(socket.AF_UNIX)
    silent.connect(str(path))  # says nothing, and stays
    half = socket.socket(socket.AF_UNIX)
    half.connect(str(path))
    half.sendall(to_bytes(Envelope({"a": 1}, {"b": bytes(100)}))[:-50])
    half.close()
    impatient = socket.socket(socket.AF_UNIX)
    impatient.connect(str(path))
    send(impatient, Envelope({}, {"b": bytes(5_000_000)}))
    impatient.close()  # before the reply
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(path))
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert "too large" in receive(stranger).head["failed"]
    assert ask(path, Envelope({"still": "there"}), 30).head == {"echo": {"still": "there"}}
    silent.close()


def test_one_process_a_socket(served):
    path = served(echo)
    with pytest.raises(RunError, match="already serves"):
        serve(path, echo)
    assert ask(path, Envelope({}), 30).head == {"echo": {}}


def test_a_socket_left_behind_is_replaced(path, served):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    served(lambda envelope: envelope)
    wait_for(lambda: served_at(path))


def test_paths_follow_the_folder(tmp_path, path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert socket_path(tmp_path / "a") == socket_path(tmp_path / "b")
    assert socket_path(tmp_path / "a") != socket_path(tmp_path)


def test_a_folder_of_others_is_refused(tmp_path, path):
    path.parent.chmod(0o755)
    with pytest.raises(RunError, match="0700"):
        socket_path(tmp_path)
    path.parent.rmdir()
    path.parent.symlink_to(tmp_path)
    with pytest.raises(RunError, match="0700"):
        socket_path(tmp_path)


PROGRAM = """
import contextlib, signal, sys, time
from pathlib import Path
from fedtailor.deployment.resident import _end, serve
signal.signal(signal.SIGTERM, _end)
def answer(envelope):
    if envelope.head.get("slow"):
        time.sleep(60)
    return envelope
with contextlib.suppress(KeyboardInterrupt):
    serve(Path(sys.argv[1]), answer)
"""


@pytest.mark.parametrize("busy", [False, True])
def test_sigterm_ends_it_cleanly(path, busy):
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], stderr=subprocess.PIPE)
    wait_for(path.exists)
    wait_for(lambda: served_at(path))
    with socket.socket(socket.AF_UNIX) as connection:
        if busy:
            connection.connect(str(path))
            send(connection, Envelope({"slow": True}))
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()
    assert not path.exists()


def served_at(path):
    try:
        return ask(path, Envelope({}), 5) == Envelope({})
    except OSError:
        return False
