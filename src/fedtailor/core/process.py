"""Which process wrote something, and whether it still lives."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any


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
