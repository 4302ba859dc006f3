"""A process that stays, and answers messages over a Unix socket: it keeps data, model and torch.

Flower starts a new process for every message. That process asks this one, so that nothing is loaded
twice.
"""

from __future__ import annotations

import hashlib
import logging
import os
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
from fedtailor.deployment.envelope import Envelope, receive, send, to_frame

_LONGEST_PATH = 100
"""Bytes. The systems' limits for the path of a Unix socket are 104 and 108."""
_PATIENCE = 10.0
"""Seconds for which a connection may be silent while its message is read or written."""
_LONGEST_QUEUE = 128
"""Connections that wait for their turn."""
_TURN = 0.5
"""Seconds between two looks at whether to stop."""


def socket_path(folder: Path) -> Path:
    """Return the path of a site's socket, in a folder that only this user may enter.

    Raises:
        RunError: that folder is not ours alone, or the path is too long for a socket.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())

    # A folder of this user alone: whoever reaches the socket can ask for the work of a site.
    parent = base / f"fedtailor-{os.getuid()}"
    _check_private(parent)

    # The path of the folder may be too long for a socket.
    digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    path = parent / f"{digest}.sock"

    if len(os.fsencode(path)) > _LONGEST_PATH:
        message = f"the path of the site's socket is too long, at most {_LONGEST_PATH} bytes"
        raise RunError(f"{message}; set TMPDIR to a shorter folder", path=path)

    return path


def serve(
    path: Path,
    answer: Callable[[Envelope], Envelope],
    stop: threading.Event | None = None,
    idle: Callable[[], None] = lambda: None,
) -> None:
    """Answer messages at a Unix socket, one connection at a time, in the calling thread.

    An exception of ``answer`` becomes a reply with the head ``{"failed": reason}``. Others that
    connect wait in the socket's queue.

    Args:
        path: where to put the socket; a socket left there by a dead process is replaced.
        answer: returns the reply to a message.
        stop: set it to end the loop after the present request.
        idle: is called again and again while nobody asks; requests wait until it returns.

    Raises:
        RunError: another process serves this socket.
    """
    with _listen(path) as listener:
        listener.settimeout(_TURN)
        try:
            while stop is None or not stop.is_set():
                try:
                    connection, _ = listener.accept()
                    _converse(connection, answer)
                except TimeoutError:
                    idle()
                except OSError:  # an error ends its own connection only
                    continue
        finally:
            path.unlink(missing_ok=True)


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


def _converse(connection: socket.socket, answer: Callable[[Envelope], Envelope]) -> None:
    """Read one request and reply to it."""
    with connection:
        connection.settimeout(_PATIENCE)
        try:
            request = receive(connection)
        except DataError as error:
            send(connection, _failed(one_line(error.message)))
            return

        for part in _reply(answer, request):
            connection.sendall(part)


def _reply(answer: Callable[[Envelope], Envelope], request: Envelope) -> list[bytes]:
    """Return the frame of the reply; any exception becomes one."""
    try:
        return to_frame(answer(request))
    except FedtailorError as error:
        return to_frame(_failed(one_line(error.message)))
    except Exception as error:
        return to_frame(_failed(describe_error(error)))


def _failed(reason: str) -> Envelope:
    return Envelope({"failed": reason})


def _listen(path: Path) -> socket.socket:
    # One that outlived its supervisor still answers, and must not lose its socket.
    if _is_served(path):
        raise RunError("another process already serves this site; stop it first", path=path)

    # A process that was killed has left its socket.
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_LONGEST_QUEUE)
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
        status = folder.lstat()  # not what another user's link leads to
    except OSError as error:
        message = f"cannot make the folder of the site's socket: {error.strerror}"
        raise RunError(message, path=folder) from error

    # Somebody else may have made it first, in a folder that all can write.
    mode = stat.S_IMODE(status.st_mode)
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_ours or mode & 0o077:
        message = "the folder of the site's socket must be a folder of this user with mode 0700"
        raise RunError(message, path=folder, allowed="0700", got=oct(mode))


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
        serve(socket_path(folder), site.answer, idle=site.judge)
    except KeyboardInterrupt:
        return
    except FedtailorError as error:
        sys.stderr.write(f"{error.kind}: {one_line(error.message)}\n")
        raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    main()
