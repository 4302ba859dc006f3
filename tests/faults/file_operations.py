"""Makes single file operations of this process fail, or ends the process there.

Every operation below a folder is counted: opening for writing, each write, fsync, replace, rename,
mkdir, unlink, rmdir, truncate and sendfile. :func:`watch` calls a function before each of them, and
after it.
"""

import builtins
import errno
import io
import os
import signal
import threading
from pathlib import Path

CALLS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "truncate", "sendfile")
FAULTS = ("ENOSPC", "EIO", "broken", "kill", "SIGINT", "SIGTERM")
"""``ENOSPC`` and ``EIO``: this operation fails; ``broken``: all fail from this one on; else the
process gets a signal before the operation, or after it."""


class Injected(OSError):
    """An error that was put in."""


class Watch:
    """Counts operations below a folder, and calls ``before`` and ``after`` with the number and the
    name of each."""

    def __init__(self, folder, before, after):
        self.folder = str(folder)
        self.before = before
        self.after = after
        self.places = []
        self.lock = threading.Lock()

    def concerns(self, place, dir_fd=None):
        if dir_fd is not None:
            return True  # as shutil.rmtree calls it
        return path_of(place).startswith(self.folder)

    def around(self, name, place, operation, partial=None):
        """Do an operation; ``partial`` does a part of it before it fails."""
        # Some files are synchronized in threads, and each operation has a number of its own.
        with self.lock:
            number = len(self.places)
            self.places.append(path_of(place))

        try:
            self.before(number, name)
        except Injected:
            if partial is not None:
                partial()
            raise
        try:
            return operation()
        finally:
            self.after(number, name)


def path_of(place):
    """Return the path of a file, a folder or a descriptor; empty if it has none."""
    if isinstance(place, int):
        try:
            place = os.readlink(f"/proc/self/fd/{place}")
        except OSError:
            return ""
    return os.path.abspath(os.fspath(place))


class WatchedFile(io.FileIO):
    """A file whose writes are operations."""

    watch = None

    def write(self, data):
        data = bytes(data)

        def half():
            super(WatchedFile, self).write(data[: len(data) // 2])

        def whole():
            return super(WatchedFile, self).write(data)

        return self.watch.around("write", self.name, whole, half)


def watch(folder, before=lambda number, name: None, after=lambda number, name: None):
    """Watch all operations of this process below a folder, for good."""
    watched = Watch(folder, before, after)
    WatchedFile.watch = watched
    for name in CALLS:
        setattr(os, name, wrapped(watched, name, getattr(os, name)))
    plain_open = io.open

    def open_file(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, **named):
        writes = any(letter in mode for letter in "wax+")
        if not writes or not isinstance(file, str | os.PathLike) or not watched.concerns(file):
            return plain_open(file, mode, buffering, encoding, errors, newline, **named)
        raw_mode = mode.replace("b", "").replace("t", "")
        raw = watched.around("open", file, lambda: WatchedFile(os.fspath(file), raw_mode))
        if buffering == 0:
            return raw
        binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding, errors, newline)

    io.open = open_file
    builtins.open = open_file
    return watched


def wrapped(watched, name, original):
    def call(*arguments, **named):
        place = arguments[0]
        if not watched.concerns(place, named.get("dir_fd")):
            return original(*arguments, **named)
        return watched.around(name, place, lambda: original(*arguments, **named))

    return call


def inject(folder, place, fault):
    """Make one operation fail: the one of number ``place // 2``, and signals come before it or, if
    odd, after it."""

    def error(kind):
        return Injected(getattr(errno, kind), os.strerror(getattr(errno, kind)))

    def before(number, name):
        if fault == "broken" and number >= place // 2:
            raise error("EIO")
        if number != place // 2:
            return
        if fault in ("ENOSPC", "EIO"):
            raise error(fault)
        if place % 2 == 0:
            send()

    def after(number, name):
        if number == place // 2 and place % 2 == 1 and fault not in ("ENOSPC", "EIO", "broken"):
            send()

    def send():
        os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else getattr(signal, fault))

    return watch(folder, before, after)


BLOCK = 4096


def fill(folder, budget):
    """Give a folder a disk of so many bytes, in blocks: what does not fit is not written.

    A single write that is longer than what is left goes over the end; the disk is then as large as
    its content.
    """
    folder = Path(folder)
    size = budget

    def used():
        lengths = [
            path.stat().st_size
            for path in folder.rglob("*")
            if path.is_file() and path.suffix != ".log"
        ]
        return sum(-(-length // BLOCK) * BLOCK for length in lengths)

    def before(number, name):
        nonlocal size
        if name not in ("write", "sendfile"):
            return
        content = used()
        size = max(size, content)
        if content + BLOCK > size:
            raise Injected(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return watch(folder, before)
