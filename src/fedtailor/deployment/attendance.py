"""Who is there: a small file that the server's round loop writes, and other processes read. No torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import to_json, write_whole
from fedtailor.core.errors import DataError
from fedtailor.core.reading import read_object

ATTENDANCE_FILE = "attendance.json"
_FRESH = 60.0
"""Seconds for which what the file says holds."""


def write_attendance(folder: Path, sites: Mapping[str, Mapping[str, Any]]) -> None:
    """Write who is there, by the name of the site."""
    write_whole(folder / ATTENDANCE_FILE, to_json({"time": time.time(), "sites": sites}) + "\n")


def read_attendance(folder: Path) -> dict[str, dict[str, Any]]:
    """Return who is there, by the name of the site; nothing if that is not known.

    If the file was not written lately, no server runs: then nobody is connected, and nobody is waited for.
    """
    try:
        record = read_object(folder / ATTENDANCE_FILE, within=folder)
    except DataError:
        return {}
    sites = record.get("sites")
    written = record.get("time")
    if not isinstance(sites, dict) or not isinstance(written, int | float):
        return {}
    found = {str(name): dict(seen) for name, seen in sites.items() if isinstance(seen, dict)}
    if time.time() - written > _FRESH:
        for seen in found.values():
            seen |= {"online": False, "waiting_since": None}
    return found
