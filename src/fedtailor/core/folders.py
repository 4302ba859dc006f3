"""Folders: written whole or not at all, locked, and marked with the process that owns them."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import secrets
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import synchronize_folder, writing

if sys.platform != "win32":
    import fcntl

_SUFFIX = ".fedtailor.tmp"
_LONGEST_NAME = 100
_ABANDONED = 86_400.0
"""Seconds after which an unfinished folder counts as abandoned."""
_SYNCHRONIZED_AT_ONCE = 16
"""Files. A disk synchronizes several in about the time of one."""


def write_folder_whole(path: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write a folder of many files so that it is there whole or not at all.

    An older one at its place is removed once the new one is there. Files with the same content
    share the space on the disk, such as the models of clients that all have the global one. Every
    file is written before the first one is synchronized: to wait for the disk after each would take
    most of the time where files are small and many.

    Args:
        path: the folder.
        files: names and contents, one at a time.

    Raises:
        RunError: a file cannot be written.
    """
    written: dict[bytes, Path] = {}
    with writing(path), whole_folder(path, replace=True) as unfinished:
        for name, content in files:
            digest = hashlib.sha256(content).digest()
            if not _link(written.get(digest), unfinished / name):
                (unfinished / name).write_bytes(content)
                written[digest] = unfinished / name

        _synchronize_files(written.values())
        synchronize_folder(unfinished)


def _link(existing: Path | None, path: Path) -> bool:
    """Give a file a second name; return whether there is such a file, and that was possible."""
    if existing is None:
        return False
    try:
        os.link(existing, path)
    except OSError:  # the file system has no links, or no more of them
        return False
    return True


def _synchronize_files(paths: Iterable[Path]) -> None:
    with ThreadPoolExecutor(_SYNCHRONIZED_AT_ONCE) as pool:
        list(pool.map(_synchronize_file, paths))  # raises, and cancels what has not begun


def _synchronize_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def whole_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a folder beside ``target`` to write into, which becomes ``target`` when the block ends.

    If the block raises, nothing is left. What a killed process has left beside ``target`` is
    removed after a day.

    Args:
        target: where the folder will be.
        replace: whether it takes the place of an older folder.

    Raises:
        OSError: the folder cannot be made, or ``target`` exists and is not an empty folder, nor one
            to replace.
    """
    target = target.parent.resolve() / target.name  # a link at its place is not followed
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target.parent)
    unfinished = _hidden_beside(target)

    try:
        unfinished.mkdir()
        yield unfinished
        with _set_aside(target) if replace else nullcontext():
            _put_in_place(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _hidden_beside(target: Path) -> Path:
    """Return a new name for a folder beside ``target`` that does not stay."""
    return target.with_name(f".{target.name[:_LONGEST_NAME]}.{secrets.token_hex(4)}{_SUFFIX}")


def _put_in_place(unfinished: Path, target: Path) -> None:
    """Rename a finished folder to ``target``."""
    if os.name == "nt" and target.is_dir():
        target.rmdir()

    os.rename(unfinished, target)
    try:
        synchronize_folder(target.parent)
    except OSError:
        shutil.rmtree(target, ignore_errors=True)
        raise


@contextmanager
def _set_aside(target: Path) -> Iterator[None]:
    """Move an older folder out of the way, and remove it when the block ends.

    If the block raises, it is moved back.
    """
    if not os.path.lexists(target):
        yield
        return
    if target.is_symlink() or not target.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(target))

    # Its age counts from now on: another process must not take it for abandoned.
    aside = _hidden_beside(target)
    with suppress(OSError):
        os.utime(target)

    os.rename(target, aside)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.rename(aside, target)
        raise

    shutil.rmtree(aside, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove the unfinished folders of killed processes, as far as possible."""
    with suppress(OSError):
        for unfinished in folder.glob(f".*{_SUFFIX}"):
            if time.time() - unfinished.stat().st_mtime > _ABANDONED:
                shutil.rmtree(unfinished, ignore_errors=True)


class LockedError(Exception):
    """Another process has the lock."""


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Keep other processes that lock a folder out while the block runs.

    Not on Windows, and not on file systems without locks.

    Args:
        folder: exists.
        wait: whether to wait for another process that has the lock.

    Raises:
        LockedError: another process has it, and this one does not wait.
        OSError: the folder cannot be opened.
    """
    if sys.platform == "win32":
        yield
        return

    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as reason:
            raise LockedError from reason
        except OSError:
            pass  # a file system without locks

        yield
    finally:
        os.close(descriptor)  # and with it the lock


def this_process() -> dict[str, Any]:
    """Return what identifies this process: its number, its machine, and when it started.

    Numbers are given again to later processes, so the start is part of it.
    """
    return {"pid": os.getpid(), "host": platform.node(), "started": _start_of(os.getpid())}


def lives(process: Any) -> bool:
    """Return whether a process still lives that :func:`this_process` has described.

    Where that cannot be known, because it ran on another machine or the system does not tell, it
    counts as living. What describes no process does not.
    """
    match process:
        case {"pid": int(pid), "host": str(host), "started": str(started)} if 0 < pid < 2**31:
            if host != platform.node() or sys.platform == "win32":
                return True
            return _start_of(pid) == started and _exists(pid)
    return False


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user
        return True

    # A process that has ended, of which only its exit code is left, is a zombie.
    return _status_of(pid)[:1] != ["Z"]


def _start_of(pid: int) -> str:
    """Return when a process started, in ticks after boot; empty where only Linux tells."""
    status = _status_of(pid)
    return status[19] if status else ""


def _status_of(pid: int) -> list[str]:
    """Return what Linux tells of a process after its name, its state first; else nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
