"""The log of a site: everything that it received and sent, by digest, and a page that sums it up.

``audit.jsonl`` has a line for every message. Every line names its own digest and that of the line
before, so a line that was removed or changed later is noticed. ``audit.state.json`` names the
number of lines and the digest of the last one, so the end of the log is covered too.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedtailor.core.atomic import append_lines, cut_unfinished_line, to_json, write_json
from fedtailor.core.errors import DataError
from fedtailor.core.reading import read_lines, read_object
from fedtailor.core.text import markdown_table
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.policy import SitePolicy, Tally

AUDIT_FILE = "audit.jsonl"
STATE_FILE = "audit.state.json"
_HEAD_KEYS = ("kind", "run", "round", "attempt")
"""What a line repeats of the head of a message."""
_PAGE = """\
# What has left {name}

This site has sent {messages} messages{when}, for {rounds} rounds of training. No example and no \
personal model is among them: both stay here.

{table}

Bytes are those of arrays, {total} in all. A dash stands for a few names and numbers beside them, \
such as the names of the classes or the number of examples. What each means is in the reference: \
"What leaves a site".

{refused}Beside the messages of the method, this site shares: {share} (`share` in site.toml).{sums}

{told}## What this site answers

{policy}

This page counts the lines of `{file}`, which names the SHA-256 of every message.
"""


class _End(NamedTuple):
    """Where a log ends."""

    lines: int = 0
    digest: str = ""
    """Of the last line; empty before the first one."""


class Audit:
    """The log of one site."""

    def __init__(self, folder: Path) -> None:
        """Continue the log in a folder, or begin one."""
        self._folder = folder
        self._path = folder / AUDIT_FILE
        cut_unfinished_line(self._path)

        # A log that was changed is continued from the state: the line that follows does not fit
        # the log, so what was removed stays noticed.
        self._noted = _read_state(folder)
        self.tally = Tally()
        for line in _whole_lines(self._path):
            self.tally.count(_read_record(line) or {})
        broken, end = _follow(folder)
        self._end = self._noted if broken is not None else end

    def add(
        self,
        way: Literal["received", "sent"],
        envelope: Envelope,
        sizes: Mapping[str, int],
        **notes: str,
    ) -> None:
        """Write a line about a message, before it is sent or used.

        Args:
            way: which way it goes.
            envelope: the message.
            sizes: what is in it, with the number of bytes.
            notes: what else the line says, such as the digest of the plan; empty ones are left
                out.

        Raises:
            RunError: the log cannot be written; then nothing must be sent.
        """
        # The state could not be written after the last line: it must never be two lines behind.
        if self._noted != self._end:
            self._write_state()

        blobs = envelope.blobs
        record = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "way": way,
            **{key: envelope.head[key] for key in _HEAD_KEYS if key in envelope.head},
            **{name: text for name, text in notes.items() if text},
            "bytes": sum(map(len, blobs.values())),
            "head": digest_of(to_json(envelope.head)),
            "blobs": {name: digest_of(blobs[name]) for name in sorted(blobs)},
            "sizes": dict(sizes),
            "previous": self._end.digest,
        }

        # The line comes first: after a kill, the log may be one line ahead of the state, never
        # behind it.
        digest = _digest_of_record(record)
        append_lines(self._path, [{**record, "digest": digest}])
        self._end = _End(self._end.lines + 1, digest)
        self.tally.count(record)
        self._write_state()

    def _write_state(self) -> None:
        write_json(self._folder / STATE_FILE, self._end._asdict())
        self._noted = self._end


def broken_line(folder: Path) -> int | None:
    """Return the number of the first line that is changed, missing or too many; None: none is."""
    return _follow(folder)[0]


def _follow(folder: Path) -> tuple[int | None, _End]:
    """Return the number of the first wrong line of a log, None if all are right, and the end."""
    noted = _read_state(folder)
    end = _End()
    for line in _whole_lines(folder / AUDIT_FILE):
        number = end.lines + 1
        record = _read_record(line)
        if record is None or record["previous"] != end.digest:
            return number, end

        end = _End(number, record["digest"])
        if number == noted.lines and end != noted:
            return number, end

    if end.lines < noted.lines:
        return end.lines + 1, end

    # A kill leaves one line more than the state says. The site may have written meanwhile, so the
    # state is read again.
    most = _read_state(folder).lines + 1
    return (most + 1 if end.lines > most else None), end


def _read_record(line: bytes) -> dict[str, Any] | None:
    """Return a line of the log; None if it is not what was written."""
    try:
        record = json.loads(line)
        rest = {name: value for name, value in record.items() if name != "digest"}
        is_right = record["digest"] == _digest_of_record(rest) and "previous" in rest
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return record if is_right else None


def _read_state(folder: Path) -> _End:
    """Return the end of the log that the state names; without a state, nothing was logged."""
    try:
        record = read_object(folder / STATE_FILE, within=folder)
        return _End(int(record["lines"]), str(record["digest"]))
    except (DataError, KeyError, TypeError, ValueError):
        return _End()


def sent_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the log of a site about what it has sent.

    Raises:
        DataError: the log cannot be read.
    """
    lines = read_lines(folder / AUDIT_FILE, within=folder)
    return [line for line in lines if line.get("way") == "sent"]


def tally_of(folder: Path) -> Tally:
    """Return how much a site has answered so far.

    Raises:
        DataError: the log cannot be read.
    """
    tally = Tally()
    for line in sent_lines(folder):
        tally.count(line)

    return tally


def totals_of(sent: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return how often and when each thing was sent, and its bytes in all, in their order."""
    totals: dict[str, dict[str, Any]] = {}
    for line in sent:
        moment = str(line.get("time"))
        for what, size in line.get("sizes", {}).items():
            start = {"what": str(what), "times": 0, "bytes": 0, "first": moment}
            total = totals.setdefault(what, start)
            total["times"] += 1
            total["bytes"] += int(size)
            total["last"] = moment

    return [totals[what] for what in sorted(totals)]


def page(
    folder: Path, name: str, share: tuple[str, ...], policy: SitePolicy, told: Sequence[str]
) -> str:
    """Return the page "what has left this site", made from what was in fact sent.

    Args:
        folder: of the site.
        name: of the site.
        share: what it shares beside the messages of the method.
        policy: what it answers.
        told: sentences about what noise has let pass of its training examples.
    """
    sent = sent_lines(folder)
    # A request that was refused can name anything as its round.
    trained = [line for line in sent if line.get("kind") == "train" and "refused" not in line]
    rounds = {(str(line.get("run")), str(line.get("round"))) for line in trained}

    # What was asked for and not answered is worth a look.
    reasons = [str(line["refused"]) for line in sent if "refused" in line]
    refused = ""
    if reasons:
        refused = f"{len(reasons)} requests were refused, the last one because: {reasons[-1]}\n\n"

    told_of = ""
    if told:
        sentences = "\n".join(f"* {sentence}" for sentence in told)
        told_of = f"## What noise has let pass of its training examples\n\n{sentences}\n\n"

    rows = []
    totals = totals_of(sent)
    for total in totals:
        size = f"{total['bytes']:,}" if total["bytes"] else "-"
        rows.append([str(total["what"]), str(total["times"]), size])

    return _PAGE.format(
        name=name,
        messages=len(sent),
        when=f" between {sent[0].get('time')} and {sent[-1].get('time')}" if sent else "",
        rounds=len(rounds),
        table=markdown_table(["what", "times", "bytes"], rows) if rows else "Nothing was sent yet.",
        total=f"{sum(total['bytes'] for total in totals):,}",
        share=", ".join(share) or "nothing",
        sums=_in_sums(share),
        policy="\n".join(f"* {sentence}" for sentence in policy.describe()),
        refused=refused,
        told=told_of,
        file=AUDIT_FILE,
    )


def _in_sums(share: tuple[str, ...]) -> str:
    """Return how scores and metrics leave in runs with secure sums, as a sentence."""
    words = [word for word in ("scores", "metrics") if word in share]
    if not words:
        return ""

    how = "under masks and as they are" if "single" in share else "under masks only"
    return f" With secure sums, {' and '.join(words)} leave {how}."


def digest_of(raw: bytes | str) -> str:
    """Return the SHA-256 of bytes, or of a text."""
    return hashlib.sha256(raw.encode() if isinstance(raw, str) else raw).hexdigest()


def _digest_of_record(record: Mapping[str, Any]) -> str:
    return digest_of(to_json(record, compact=True))


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a log; a last one without an end was never finished."""
    if not path.is_file():
        return

    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line
