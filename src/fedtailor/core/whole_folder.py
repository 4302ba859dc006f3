"""Folders that appear whole or not at all, and locks on folders."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedtailor.core.atomic import synchronize_folder

if sys.platform != "win32":
    import fcntl

_SUFFIX = ".fedtailor.tmp"
_LONGEST_NAME = 100
_ABANDONED = 86_400.0
"""Seconds after which an unfinished folder counts as abandoned where the file system has no
locks."""


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a folder beside ``target`` to write into, which becomes ``target`` when the block ends.

    If the block raises, nothing is left. What a killed process has left beside ``target`` is
    removed.

    Raises:
        OSError: the folder cannot be made, or ``target`` exists and is not an empty folder.
    """
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target.parent)
    unfinished = target.with_name(f".{target.name[:_LONGEST_NAME]}.{secrets.token_hex(4)}{_SUFFIX}")
    descriptor = None

    try:
        descriptor = _make_locked(unfinished)
        yield unfinished
        if os.name == "nt" and target.is_dir():
            target.rmdir()

        os.rename(unfinished, target)
        try:
            synchronize_folder(target.parent)
        except OSError:
            shutil.rmtree(target, ignore_errors=True)
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


class LockedError(Exception):
    """Another process has the lock."""


def lock(folder: Path) -> int | None:
    """Lock a folder until the returned descriptor is closed, or the process ends.

    Returns:
        None if the system has no such locks.

    Raises:
        LockedError: another process has it.
        OSError: the folder cannot be opened.
    """
    if sys.platform == "win32":
        return None

    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as reason:
        os.close(descriptor)
        raise LockedError from reason
    except OSError:  # a file system without locks
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise

    return descriptor


def _make_locked(unfinished: Path) -> int | None:
    """Make an unfinished folder and lock it, so that others see that it is not abandoned."""
    while True:
        unfinished.mkdir(exist_ok=True)
        with suppress(
            LockedError, FileNotFoundError
        ):  # another process takes it for abandoned in this moment
            descriptor = lock(unfinished)
            if unfinished.exists():
                return descriptor
            if descriptor is not None:
                os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    """Remove the unfinished folders of killed processes, as far as possible."""
    with suppress(OSError):
        for unfinished in folder.glob(f".*{_SUFFIX}"):
            _remove_if_abandoned(unfinished)


def _remove_if_abandoned(unfinished: Path) -> None:
    try:
        descriptor = lock(unfinished)
    except (LockedError, OSError):
        return
    if descriptor is not None or time.time() - unfinished.stat().st_mtime > _ABANDONED:
        shutil.rmtree(unfinished, ignore_errors=True)
    if descriptor is not None:
        os.close(descriptor)
