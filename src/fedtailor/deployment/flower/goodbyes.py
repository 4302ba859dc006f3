"""Which sites were stopped on purpose: the gate notes it, and the round loop reads it.

A SuperNode that is stopped tells the server, and one that crashes or loses its connection does not.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from fedtailor.core.atomic import write_json
from fedtailor.core.errors import DataError
from fedtailor.core.reading import read_object

GOODBYES_FILE = "goodbyes.json"
"""In the folder of Flower's programs at the server."""


class Goodbyes(NamedTuple):
    """The nodes that have said good-bye and have not come back."""

    path: Path
    """The file, which need not exist."""

    def read(self) -> dict[int, float]:
        """Return since when each node is away, in seconds since 1970."""
        try:
            record = read_object(self.path, within=self.path.parent)
            return {int(node): float(since) for node, since in record.items()}
        except (DataError, ValueError, TypeError):  # there is none yet, or it was edited
            return {}

    def note(self, node: int, *, is_here: bool) -> None:
        """Note that a node has come or gone.

        Raises:
            RunError: the file cannot be written.
        """
        away = self.read()
        away.pop(node, None)
        if not is_here:
            away[node] = time.time()
        write_json(self.path, {str(node): since for node, since in away.items()})
