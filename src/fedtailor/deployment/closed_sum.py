"""What the server has of a sum that is closed, in one file: all that it needs to open the sum.

The file makes the sum closed. A server that was killed after it asks the sites of the sum for
nothing again; some of them may be gone.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.atomic import write_whole
from fedtailor.core.engine import Failure, NoAnswer, ProgramError
from fedtailor.core.errors import DataError
from fedtailor.core.reading import content_of, damaged, read_file
from fedtailor.deployment.envelope import Envelope, read_frame, to_frame
from fedtailor.deployment.limits import LARGEST_FRAME, LARGEST_HEAD

CLOSED = ".closed"
"""End of the names of these files."""


class ClosedSum(NamedTuple):
    """What sites have sent until a sum was closed."""

    total: np.ndarray
    """The sum of their masked vectors, (entries,)."""
    confirmed: dict[int, bytes]
    """The signatures of those whose vectors are in it."""
    answers: dict[int, Envelope | Failure]
    """The rest of what each site has answered, or why it cannot be used."""

    def write(self, path: Path) -> None:
        """Write all of it.

        Raises:
            DataError: it is too large.
            RunError: the file cannot be written.
        """
        confirmed = {str(number): signature.hex() for number, signature in self.confirmed.items()}
        failures: dict[str, Any] = {}
        problems: dict[str, Any] = {}
        blobs = {"total": self.total.tobytes()}
        for number, answer in self.answers.items():
            if isinstance(answer, Failure):
                is_absent = isinstance(answer.reason, NoAnswer)
                failures[str(number)] = [is_absent, str(answer.reason)]
            else:
                problems[str(number)] = answer.head.get("problem", "")
                blobs[f"out-{number}"] = answer.blobs.get("out", b"")

        head = {"confirmed": confirmed, "failures": failures, "problems": problems}
        write_whole(path, b"".join(to_frame(Envelope(head, blobs))))

    @classmethod
    def read(cls, path: Path, entries: int) -> ClosedSum:
        """Read what :meth:`write` wrote of a sum of so many entries.

        Raises:
            DataError: the file is damaged.
        """
        raw = read_file(path, limit=LARGEST_FRAME + 2 * LARGEST_HEAD, within=path.parent)
        answers: dict[int, Envelope | Failure] = {}
        with content_of(path, ConnectionError, DataError):
            head, blobs = read_frame(BytesIO(raw).read)
            total = np.frombuffer(blobs["total"], dtype="<u8")
            signatures = head["confirmed"].items()
            confirmed = {int(number): bytes.fromhex(text) for number, text in signatures}
            for number, (is_absent, reason) in head["failures"].items():
                error = NoAnswer if is_absent else ProgramError
                answers[int(number)] = Failure(error(reason))
            for number, problem in head["problems"].items():
                out = {"out": blobs[f"out-{number}"]}
                answers[int(number)] = Envelope({"problem": problem}, out)

        if len(total) != entries:
            raise damaged(path, f"it has a sum of {len(total)} numbers, not of {entries}")
        return cls(total, confirmed, answers)
