"""A process that stays, and answers messages over a Unix socket: it keeps data, model and torch.

Flower starts a new process for every message. That process asks this one, so that nothing is loaded
twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import select
import signal
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from fedtailor.core.errors import DataError, FedtailorError, RunError, describe_error, one_line
from fedtailor.deployment.envelope import Envelope, check, receive, send

_LONGEST_PATH = 100
"""Bytes. The systems' limits for the path of a Unix socket are 104 and 108."""
_PATIENCE = 30.0
"""Seconds for which a connection may be silent while its message is read or written."""
_MOST_CONNECTIONS = 16
_TURN = 0.5
"""Seconds between two looks at whether to stop."""


def socket_path(folder: Path) -> Path:
    """Return the path of a site's socket, in a folder that only this user may enter.

    Raises:
        RunError: that folder is not ours alone, or the path is too long for a socket.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    parent = base / f"fedtailor-{os.getuid()}"
    _check_private(parent)
    digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    path = parent / f"{digest}.sock"

    if len(os.fsencode(path)) > _LONGEST_PATH:
        message = f"the path of the site's socket is too long, at most {_LONGEST_PATH} bytes"
        raise RunError(f"{message}; set TMPDIR to a shorter folder", path=str(path))

    return path


def serve(
    path: Path, answer: Callable[[Envelope], Envelope], stop: threading.Event | None = None
) -> None:
    """Answer messages at a Unix socket, one at a time, in the calling thread.

    An exception of ``answer`` becomes a reply with the head ``{"failed": reason}``. A request whose
    sender has gone before its turn is dropped.

    Args:
        path: where to put the socket; a socket left there by a dead process is replaced.
        answer: returns the reply to a message.
        stop: set it to end the loop after the present request.

    Raises:
        RunError: another process serves this socket.
    """
    listener = _listen(path)
    requests: queue.Queue[_Request] = queue.Queue()
    threading.Thread(target=_accept, args=(listener, requests), daemon=True).start()
    try:
        while stop is None or not stop.is_set():
            with contextlib.suppress(queue.Empty):
                requests.get(timeout=_TURN).work(answer)
    finally:
        path.unlink(missing_ok=True)
        listener.close()


def ask(path: Path, envelope: Envelope, timeout: float) -> Envelope:
    """Return a resident process's reply to a message.

    Args:
        path: its socket.
        envelope: the message.
        timeout: seconds to wait, for the reply and for each part of it.

    Raises:
        OSError: nobody serves the socket, the process ended before it replied, or the time is over.
        DataError: the message or the reply is malformed.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        send(connection, envelope)
        return receive(connection)


class _Request:
    """A request that waits for its turn, with the connection that it came from."""

    def __init__(self, connection: socket.socket, envelope: Envelope) -> None:
        self.connection = connection
        self.envelope = envelope
        self.reply: Envelope | None = None
        self.done = threading.Event()

    def work(self, answer: Callable[[Envelope], Envelope]) -> None:
        try:
            if not _has_gone(self.connection):
                self.reply = _answer(answer, self.envelope)
        finally:
            self.done.set()


def _answer(answer: Callable[[Envelope], Envelope], envelope: Envelope) -> Envelope:
    try:
        reply = answer(envelope)
        check(reply)
        return reply
    except FedtailorError as error:
        return _failed(one_line(error.message))
    except Exception as error:
        return _failed(describe_error(error))


def _failed(reason: str) -> Envelope:
    return Envelope({"failed": reason})


def _has_gone(connection: socket.socket) -> bool:
    """Tell whether the other side closed its connection."""
    try:
        readable, _, _ = select.select([connection], [], [], 0)
        return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def _accept(listener: socket.socket, requests: queue.Queue[_Request]) -> None:
    free = threading.Semaphore(_MOST_CONNECTIONS)
    while True:
        free.acquire()
        try:
            connection, _ = listener.accept()
        except OSError:  # the listener was closed
            return
        threading.Thread(target=_converse, args=(connection, requests, free), daemon=True).start()


def _converse(
    connection: socket.socket, requests: queue.Queue[_Request], free: threading.Semaphore
) -> None:
    """Read one request, wait for its reply and write it; errors end this connection only."""
    try:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_PATIENCE)
            reply = _reply(connection, requests)
            if reply is not None:
                send(connection, reply)
    finally:
        free.release()


def _reply(connection: socket.socket, requests: queue.Queue[_Request]) -> Envelope | None:
    try:
        envelope = receive(connection)
    except DataError as error:
        return _failed(one_line(error.message))
    request = _Request(connection, envelope)
    requests.put(request)
    request.done.wait()
    return request.reply


def _listen(path: Path) -> socket.socket:
    if path.exists():
        if _is_served(path):
            message = "another process already serves this site; stop it first"
            raise RunError(message, path=str(path))

        # A process that was killed has left its socket.
        path.unlink(missing_ok=True)

    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_MOST_CONNECTIONS)
    except OSError:
        listener.close()
        raise

    return listener


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


def _check_private(folder: Path) -> None:
    """Make a folder that only this user may enter, or check that it is one."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()  # not what a link of somebody else leads to
    except OSError as error:
        message = f"cannot make the folder of the site's socket: {error.strerror}"
        raise RunError(message, path=str(folder)) from error

    mode = stat.S_IMODE(status.st_mode)
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_ours or mode & 0o077:
        message = "the folder of the site's socket must be a folder of this user with mode 0700"
        raise RunError(message, path=str(folder), allowed="0700", got=oct(mode))


def _end(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt  # it does not count as a failure of the method that runs


def main() -> None:
    """Serve the site whose folder is the only argument, until SIGTERM."""
    from fedtailor.deployment.site import DeployedSite

    folder = Path(sys.argv[1])
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%Y-%m-%d %H:%M:%S"
    )
    signal.signal(signal.SIGTERM, _end)

    try:
        site = DeployedSite(folder)
        serve(socket_path(folder), site.answer)
    except KeyboardInterrupt:
        return
    except FedtailorError as error:
        sys.stderr.write(f"{error.kind}: {one_line(error.message)}\n")
        raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    main()
