"""Who is there: a small file that the server's round loop writes, and other processes read. No
torch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import to_json, write_whole
from fedtailor.core.errors import DataError
from fedtailor.core.process import lives, this_process
from fedtailor.core.reading import read_object

ATTENDANCE_FILE = "attendance.json"


def write_attendance(folder: Path, sites: Mapping[str, Mapping[str, Any]]) -> None:
    """Write who is there, by the name of the site."""
    record = {"process": this_process(), "time": time.time(), "sites": sites}
    write_whole(folder / ATTENDANCE_FILE, to_json(record) + "\n")


def read_attendance(folder: Path) -> dict[str, dict[str, Any]]:
    """Return who is there, by the name of the site; nothing if that is not known.

    While no server runs, no site is connected, and none is waited for.
    """
    try:
        record = read_object(folder / ATTENDANCE_FILE, within=folder)
    except DataError:
        return {}

    sites = record.get("sites")
    if not isinstance(sites, dict):
        return {}

    found = {str(name): dict(seen) for name, seen in sites.items() if isinstance(seen, dict)}
    if not lives(record.get("process")):
        found = {
            name: {**seen, "online": False, "waiting_since": None} for name, seen in found.items()
        }

    return found
