"""The log of a site: everything that it received and sent, by digest, and a page that sums it up.

``audit.jsonl`` has a line for every message. Every line names the digest of the line before, so
that a line that was removed or changed later is noticed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from fedtailor.core.atomic import append_lines, to_json
from fedtailor.core.reading import read_lines
from fedtailor.deployment.envelope import Envelope

AUDIT_FILE = "audit.jsonl"
_HEAD_KEYS = ("kind", "run", "round", "attempt")
"""What a line repeats of the head of a message."""
_PAGE = """\
# What has left {name}

This site has sent {messages} messages{when}, for {rounds} rounds of training. No example and no \
personal model is among them: both stay here.

{table}

Beside the messages of the method, this site shares: {share} (`share` in site.toml).

This page counts the lines of `{file}`, which names the SHA-256 of every message.
"""


class Audit:
    """The log of one site."""

    def __init__(self, folder: Path) -> None:
        """Continue the log in a folder, or begin one."""
        self.path = folder / AUDIT_FILE
        _cut_unfinished_line(self.path)
        self._previous = ""
        for line in _raw_lines(self.path):
            self._previous = _digest(line)

    def add(
        self, way: Literal["received", "sent"], envelope: Envelope, contents: Mapping[str, int]
    ) -> None:
        """Write a line about a message, before it is sent or used.

        Args:
            way: which way it goes.
            envelope: the message.
            contents: what is in it, with the number of bytes.

        Raises:
            RunError: the log cannot be written; then nothing must be sent.
        """
        blobs = envelope.blobs
        record = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "way": way,
            **{key: envelope.head[key] for key in _HEAD_KEYS if key in envelope.head},
            "bytes": sum(map(len, blobs.values())),
            "head": _digest(to_json(envelope.head).encode()),
            "blobs": {name: _digest(blobs[name]) for name in sorted(blobs)},
            "contents": dict(contents),
            "previous": self._previous,
        }

        # The chain continues with this line.
        self._previous = _digest(append_lines(self.path, [record]).strip())


def broken_line(folder: Path) -> int | None:
    """Return the number of the first line that does not follow from the one before; None: all do.

    A line follows if it names the digest of the line before.
    """
    previous = ""
    for number, line in enumerate(_raw_lines(folder / AUDIT_FILE), start=1):
        try:
            record = json.loads(line)
            if record["previous"] != previous:
                return number
        except (ValueError, KeyError, TypeError):
            return number

        previous = _digest(line)

    return None


def page(folder: Path, name: str, share: tuple[str, ...]) -> str:
    """Return the page "what has left this site", made from what was in fact sent."""
    times: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    rounds = set()
    path = folder / AUDIT_FILE
    sent = [line for line in read_lines(path, within=folder) if line.get("way") == "sent"]
    for line in sent:
        if line.get("kind") == "train":
            rounds.add((line.get("run"), line.get("round")))
        for what, size in line.get("contents", {}).items():
            times[what] += 1
            sizes[what] += int(size)

    rows = [f"| {what} | {times[what]} | {sizes[what]:,} |" for what in sorted(times)]
    table = "\n".join(["| what | times | bytes |", "|---|---|---|", *rows])
    return _PAGE.format(
        name=name,
        messages=len(sent),
        when=f" between {sent[0].get('time')} and {sent[-1].get('time')}" if sent else "",
        rounds=len(rounds),
        table=table if rows else "Nothing was sent yet.",
        share=", ".join(share) or "nothing",
        file=AUDIT_FILE,
    )


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _raw_lines(path: Path) -> Iterator[bytes]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            yield line.strip()


def _cut_unfinished_line(path: Path) -> None:
    """Remove a last line without an end: its writer was killed before it sent the message."""
    if not path.is_file():
        return

    raw = path.read_bytes()

    # The whole lines before it were sent.
    end = raw.rfind(b"\n") + 1
    if end < len(raw):
        with path.open("rb+") as file:
            file.truncate(end)
