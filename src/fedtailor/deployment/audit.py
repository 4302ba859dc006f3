"""The record of everything that a site received and sent, by digest, and the page that says what
has left it.

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
from typing import Any, Literal

from fedtailor.core.atomic import append_lines, to_json
from fedtailor.core.reading import read_lines
from fedtailor.deployment.envelope import Envelope

AUDIT_FILE = "audit.jsonl"
_NAMED = ("kind", "run", "round", "attempt")
"""What a line repeats of the head of a message."""


class Audit:
    """The log of one site."""

    def __init__(self, folder: Path) -> None:
        """Go on with the log in a folder, or begin one."""
        self.path = folder / AUDIT_FILE
        _cut_unfinished_line(self.path)
        self._previous = _last_digest(self.path)

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
        head: dict[str, Any] = {key: envelope.head[key] for key in _NAMED if key in envelope.head}
        blobs = {
            name: hashlib.sha256(blob).hexdigest() for name, blob in sorted(envelope.blobs.items())
        }
        record: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "way": way,
            **head,
            "bytes": sum(map(len, envelope.blobs.values())),
            "head": hashlib.sha256(to_json(envelope.head).encode()).hexdigest(),
            "blobs": blobs,
            "contents": dict(contents),
            "previous": self._previous,
        }
        line = append_lines(self.path, [record])
        self._previous = hashlib.sha256(line.strip()).hexdigest()


def broken_line(folder: Path) -> int | None:
    """Return the number of the first line of a log that does not name the digest of the line
    before; None: all do.
    """
    previous = ""
    for number, raw in enumerate(_raw_lines(folder / AUDIT_FILE), start=1):
        try:
            found = json.loads(raw)["previous"]
        except (ValueError, KeyError, TypeError):
            return number

        if found != previous:
            return number

        previous = hashlib.sha256(raw).hexdigest()

    return None


def page(folder: Path, name: str, share: tuple[str, ...]) -> str:
    """Return the page "what leaves this site", made from what was in fact sent."""
    times: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    rounds: set[tuple[str, int]] = set()
    messages = 0
    first = ""
    last = ""
    path = folder / AUDIT_FILE

    for line in read_lines(path, within=folder) if path.is_file() else ():
        if line.get("way") != "sent":
            continue

        messages += 1
        first = first or str(line.get("time"))
        last = str(line.get("time"))
        if line.get("kind") == "train":
            rounds.add((str(line.get("run")), int(line.get("round", 0))))

        for what, size in line.get("contents", {}).items():
            times[what] += 1
            sizes[what] += int(size)

    rows = [f"| {what} | {times[what]} | {_in_words(sizes[what])} |" for what in sorted(times)]
    table = (
        "\n".join(["| what | times | bytes |", "|---|---|---|", *rows])
        if rows
        else "Nothing was sent yet."
    )
    when = f" between {first} and {last}" if messages else ""
    policy = ", ".join(share) or "nothing"

    return (
        f"# What has left {name}\n\n"
        f"This site has sent {messages} messages{when}, for {len(rounds)} rounds of training. No example and no "
        "personal model is among them: both stay here.\n\n"
        f"{table}\n\n"
        f"Beside the messages of the method, this site shares: {policy} (`share` in site.toml).\n\n"
        f"This page counts the lines of `{AUDIT_FILE}`, which names the SHA-256 of every message.\n"
    )


def _in_words(size: int) -> str:
    return f"{size:,}"


def _raw_lines(path: Path) -> Iterator[bytes]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            yield line.strip()


def _cut_unfinished_line(path: Path) -> None:
    """Remove the last line if it has no end: the process was killed while it wrote, before it sent
    anything.
    """
    if not path.is_file():
        return
    raw = path.read_bytes()
    end = raw.rfind(b"\n") + 1
    if end < len(raw):
        with path.open("rb+") as file:
            file.truncate(end)


def _last_digest(path: Path) -> str:
    digest = ""
    for line in _raw_lines(path):
        digest = hashlib.sha256(line).hexdigest()
    return digest
