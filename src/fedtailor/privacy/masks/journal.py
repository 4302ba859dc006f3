"""What a site has done in the sums of a run: one line per step, written before the answer leaves.

A site answers again what it has answered, with the same bits, and nothing that contradicts it. The
journal is what it knows of that after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import append_lines, cut_unfinished_line
from fedtailor.core.reading import UNEXPECTED, damaged, read_lines
from fedtailor.privacy.masks.session import SumRequest

Kind = tuple[str, int]
"""The kind and the round of a request."""


class Journal:
    """The steps of one site in the sums of one run."""

    def __init__(self, path: Path | None = None) -> None:
        """Read a journal, or begin it.

        Args:
            path: its file; None: it stays in memory.

        Raises:
            DataError: the file cannot be read, or is no journal.
        """
        self._path = path
        self.secret = ""
        """Digest of the secret under which the steps were done; empty before the first."""
        self.channels: list[bytes] = []
        """The channel keys of all sites; empty before they are known."""
        self.masked: dict[int, bytes] = {}
        """The context for which the keys of an index may be used."""
        self.vectors: dict[bytes, str] = {}
        """The SHA-256 of the vector that was masked in a context."""
        self.answered: dict[Kind, dict[int, bytes]] = {}
        """The context of every attempt that was answered."""
        self.settled: dict[bytes, frozenset[int]] = {}
        """Who is in the sum of a context."""
        self.opened: dict[tuple[int, int], tuple[bytes, bool]] = {}
        """For the keys of a site: in which context a share was given away, and whether it was that
        of the own mask."""
        self.opened_rounds: dict[Kind, bytes] = {}
        """The context of the sum that was opened."""

        if path is not None:
            cut_unfinished_line(path)
            for record in read_lines(path):
                try:
                    self._apply(record)
                except UNEXPECTED as error:
                    raise damaged(path, "a line is no step of a sum") from error

    def note_secret(self, digest: str) -> None:
        """Note under which secret all steps are done."""
        self._add({"step": "begin", "secret": digest})

    def note_channels(self, channels: list[bytes]) -> None:
        """Note the channel keys of all sites."""
        self._add({"step": "channels", "keys": [key.hex() for key in channels]})

    def note(self, step: str, request: SumRequest, context: bytes, **values: Any) -> None:
        """Note a step of a sum (mask, vector, settle, open), and what it was done with."""
        about = {"kind": request.kind, "round": request.round, "attempt": request.attempt}
        self._add({"step": step, **about, "context": context.hex(), **values})

    def _add(self, record: Mapping[str, Any]) -> None:
        if self._path is not None:
            append_lines(self._path, [record])
        self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        step = record["step"]
        if step == "begin":
            self.secret = str(record["secret"])
            return
        if step == "channels":
            self.channels = [bytes.fromhex(key) for key in record["keys"]]
            return

        kind = (str(record["kind"]), int(record["round"]))
        context = bytes.fromhex(record["context"])
        self.answered.setdefault(kind, {})[int(record["attempt"])] = context
        if step == "mask":
            self.masked[int(record["index"])] = context
        elif step == "vector":
            self.vectors[context] = str(record["sha256"])
        elif step == "settle":
            self.settled[context] = frozenset(map(int, record["survivors"]))
        elif step == "open":
            self.opened_rounds[kind] = context
            for number, index, is_own in record["shares"]:
                self.opened[int(number), int(index)] = (context, bool(is_own))
        else:
            raise ValueError(step)
