"""A log file that a person can read and send to support: a time and a sentence in every line."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fedtailor.core.atomic import unwritable

_LARGEST = 10 * 1024**2
"""Bytes, at which the file becomes ``NAME.1`` and a new one begins."""


class LogFile:
    """A log file."""

    def __init__(self, path: Path) -> None:
        """Append to a file; its folder is made.

        Raises:
            RunError: the folder cannot be made.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as reason:
            raise unwritable(path.parent, reason) from reason

    def write(self, text: str) -> None:
        """Append a line.

        Raises:
            RunError: the file cannot be written.
        """
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {' '.join(text.split())}\n"
        try:
            if self.path.is_file() and self.path.stat().st_size > _LARGEST:
                os.replace(self.path, self.path.with_name(f"{self.path.name}.1"))
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as reason:
            raise unwritable(self.path, reason) from reason
