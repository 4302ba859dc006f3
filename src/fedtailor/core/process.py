"""Which process wrote something, and whether it still lives."""

from __future__ import annotations

import os
import platform
import subprocess
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
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Return whether a process has ended and only its exit code is left."""
    fields = _status_of(pid)
    return bool(fields) and fields[0] == "Z"


def _start_of(pid: int) -> str:
    """Return when a process started, in any form that differs between two processes of one number.

    It is empty if there is no such process, or the system does not tell.
    """
    fields = _status_of(pid)
    if fields:
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            boot = ""

        return f"{fields[19]} ticks after boot {boot}"

    if sys.platform == "darwin":
        found = subprocess.run(
            ["/bin/ps", "-o", "lstart=", "-p", str(pid)],
            capture_output=True,
            text=True,
            check=False,
        )

        return found.stdout.strip()

    return ""


def _status_of(pid: int) -> list[str]:
    """Return what Linux tells of a process after its name, its state first; empty if there is
    none.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
