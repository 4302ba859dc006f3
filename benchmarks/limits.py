"""What the largest messages cost that a site's or a server's border accepts, as a table.

    python -m benchmarks.limits

Each row is read in a process of its own, twice: once for processor time and resident memory, once
for the memory that Python traces. Memory is what reading adds to the message itself, at its peak.
The table of docs/reference/site-network.md is this one. It needs 9 GB of memory, and Linux.
"""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from fedtailor.core.codec import encode
from fedtailor.core.scores import BINS, SCORE_BINS, Scores, packed
from fedtailor.deployment import limits
from fedtailor.deployment.envelope import head_from_text, receive
from fedtailor.deployment.score_checks import check_scores
from fedtailor.deployment.wire import from_blob

MODULES = {"fedtailor"}
EXAMPLES = 1000
"""Of the scores with the most classes."""


class Message(NamedTuple):
    """A message, and what reads it."""

    size: int
    read: Callable[[], object]


class Zeros:
    """A connection over which one frame of zeros comes, which takes no memory here."""

    def __init__(self, size: int) -> None:
        """Announce a blob of some bytes."""
        text = json.dumps({"head": {}, "blobs": {"out": size}}).encode()
        self._start = struct.pack("<I", len(text)) + text

    def recv(self, size: int) -> bytes:
        """Return the next bytes."""
        chunk = self._start[:size] or bytes(size)
        self._start = self._start[size:]
        return chunk


def head_of_values() -> Message:
    """Return a head with as many values as there may be."""
    text = b'{"a":[' + b"[]," * (limits.MOST_HEAD_VALUES // 2 - 8) + b"1]}"
    return Message(len(text), partial(head_from_text, text))


def head_of_texts() -> Message:
    """Return a head as long as it may be, of texts as long as they may be."""
    word = "x" * limits.LONGEST_TEXT
    text = json.dumps({"a": [word] * (limits.LARGEST_HEAD // (len(word) + 4) - 1)}).encode()
    return Message(len(text), partial(head_from_text, text))


def frame() -> Message:
    """Return a message as large as it may be."""
    size = limits.LARGEST_FRAME
    return Message(size, lambda: receive(Zeros(size)))  # type: ignore[arg-type]


def tensor() -> Message:
    """Return a tree of one tensor that is nearly as large as a message may be."""
    blob = encode({"x": torch.zeros((limits.LARGEST_FRAME - 2**20) // 4)})
    return Message(len(blob), partial(from_blob, blob, MODULES))


def tensors() -> Message:
    """Return a tree of as many tensors as there may be, with as many axes as fit."""
    shape = [1] * limits.MOST_AXES
    tree = {f"{number}": torch.zeros(shape) for number in range(limits.MOST_LEAVES)}
    blob = encode(tree)
    return Message(len(blob), partial(from_blob, blob, MODULES))


def scores() -> Message:
    """Return scores of the most classes."""
    classes = limits.MOST_CLASSES
    zeros = torch.zeros(classes, dtype=torch.float64)
    total = zeros.clone()
    total[0] = EXAMPLES
    bins = torch.zeros(BINS, dtype=torch.float64)
    bins[0] = EXAMPLES
    confusion = torch.zeros(classes, classes, dtype=torch.float64)
    confusion[0, 1] = EXAMPLES

    # All examples are of one class, and lie in one bin for every class.
    histogram = torch.zeros(2, classes, SCORE_BINS, dtype=torch.int64)
    histogram[0, 0, 0] = EXAMPLES
    histogram[1, 1:, 0] = EXAMPLES
    value = Scores(
        class_correct=zeros,
        class_total=total,
        loss_sum=torch.tensor(5000.0, dtype=torch.float64),
        bin_count=bins,
        bin_confidence=0.01 * bins,
        bin_correct=0 * bins,
        confusion=confusion,
        pairs=zeros,
        pairs_won=zeros,
        histogram=histogram,
    )
    blob = encode({"scores": packed(value)}, modules=MODULES)

    def read() -> object:
        tree = from_blob(blob, MODULES)
        return check_scores(tree["scores"], classes, EXAMPLES, rank=True)

    return Message(len(blob), read)


CASES: dict[str, tuple[Callable[[], Message], str]] = {
    "head, most values": (head_of_values, f"{limits.MOST_HEAD_VALUES:,} values"),
    "head, longest texts": (
        head_of_texts,
        f"{limits.LARGEST_HEAD // 2**20} MiB; {limits.LONGEST_TEXT:,} characters of a text",
    ),
    "whole message": (frame, "2 GiB"),
    "one tensor": (tensor, f"2 GiB; {limits.MOST_AXES} axes"),
    "most tensors": (
        tensors,
        f"{limits.MOST_LEAVES:,} tensors; {limits.LARGEST_TREE_HEADER // 2**20} MiB of header",
    ),
    "scores, most classes": (scores, f"{limits.MOST_CLASSES:,} classes"),
}


def measure(case: str, is_traced: bool) -> dict[str, Any]:
    """Read one message, and return what it cost."""
    message = CASES[case][0]()
    if is_traced:
        tracemalloc.start()
        message.read()
        return {"traced": tracemalloc.get_traced_memory()[1]}

    # Memory that making the message has left goes back, and the kernel forgets its peak.
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident("VmRSS")
    start = time.process_time()
    message.read()
    seconds = time.process_time() - start
    grown = max(resident("VmHWM") - before, 0)
    return {"size": message.size, "seconds": seconds, "resident": grown}


def resident(name: str) -> int:
    """Return bytes that the system knows of this process."""
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return 1024 * int(lines[name].split()[0])


def main() -> None:
    """Print the table."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], sys.argv[2] == "traced")))
        return

    columns = ("limit", "its size", "memory traced", "memory resident", "processor time")
    print(f"| largest message | {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|")
    for case, (_, limit) in CASES.items():
        result: dict[str, Any] = {}
        for kind in ("plain", "traced"):
            command = [sys.executable, "-m", "benchmarks.limits", case, kind]
            result |= json.loads(subprocess.check_output(command, text=True))

        memory = " | ".join(f"{result[kind] / 2**20:,.0f} MiB" for kind in ("traced", "resident"))
        size = f"{result['size'] / 2**20:,.1f} MiB"
        print(f"| {case} | {limit} | {size} | {memory} | {result['seconds']:.2f} s |", flush=True)


if __name__ == "__main__":
    main()
