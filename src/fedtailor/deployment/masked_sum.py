"""One sum under masks, as the server makes it: from its members to its value.

What the server decides is on disk before the next step, so a server that was killed asks for the
same sum again and for no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedtailor.core.atomic import write_json
from fedtailor.core.engine import Failure
from fedtailor.core.errors import DataError
from fedtailor.core.reading import content_of, read_object
from fedtailor.deployment.closed_sum import CLOSED, ClosedSum
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.mask_kinds import AGREE, UNMASK, SumFailedError
from fedtailor.deployment.mask_messages import (
    read_masked,
    read_shares,
    read_signature,
    sum_head,
    write_sealed,
    write_signatures,
)
from fedtailor.deployment.sum_exchange import SumExchange
from fedtailor.deployment.wire import wrong
from fedtailor.privacy.masks.keys import Bundle
from fedtailor.privacy.masks.primitives import is_signed
from fedtailor.privacy.masks.server import TooFewSharesError, unmask
from fedtailor.privacy.masks.session import (
    SumRequest,
    context_of,
    masked_digest,
    survivors_digest,
    write_cohort,
)


@dataclass
class SumRecord:
    """What the server has decided of a sum; its file in the folder ``masks``."""

    index: int
    """Of the keys."""
    cohort: list[int]
    """The sites that are asked for a vector."""
    agreed: dict[int, bytes] = field(default_factory=dict)
    """Signatures of sites that agree on that, by number, if somebody is missing."""
    void: str = ""
    """Why it will never be opened."""

    @classmethod
    def read(cls, path: Path) -> SumRecord:
        """Read a record.

        Raises:
            DataError: the file is missing or damaged.
        """
        values = read_object(path, within=path.parent)
        with content_of(path):
            agreed = values.get("agreed", {}).items()
            return cls(
                index=int(values["index"]),
                cohort=[int(number) for number in values["cohort"]],
                agreed={int(number): bytes.fromhex(text) for number, text in agreed},
                void=str(values["void"]),
            )

    def write(self, path: Path) -> None:
        """Write the record.

        Raises:
            RunError: the file cannot be written.
        """
        agreed = {str(number): signature.hex() for number, signature in self.agreed.items()}
        write_json(path, {**vars(self), "agreed": agreed})


class MaskedSum:
    """One sum, from its members to its value."""

    def __init__(
        self,
        exchange: SumExchange,
        request: SumRequest,
        bundles: Sequence[Bundle],
        path: Path,
        record: SumRecord,
        entries: int,
    ) -> None:
        self._exchange = exchange
        self._session = exchange.session
        self._request = request
        self._bundles = bundles
        self._members = tuple(bundle.member for bundle in bundles)
        self.blobs = {"cohort": write_cohort(self._members)}
        """What a request for a vector must say of the sum."""
        self.needed = self._session.fewest
        """How many sites must answer it."""
        self._path = path
        self._record = record
        self._context = context_of(self._session, request, self._members)
        self._total = np.zeros(entries, dtype="<u8")
        self._confirmed: dict[int, bytes] = {}
        """The signatures of those whose vectors were added."""
        self.answers: dict[int, Envelope | Failure] = {}
        """What sites have answered beside their vectors; a sum that is closed has all of it."""

        # An earlier process may have closed the sum, and some of its sites may be gone.
        self._closed_path = path.with_suffix(CLOSED)
        self.is_closed = self._closed_path.is_file()
        if self.is_closed:
            closed = ClosedSum.read(self._closed_path, entries)
            self._total, self._confirmed, self.answers = closed

    @property
    def asked(self) -> frozenset[int]:
        """The sites whose vectors are asked for."""
        return frozenset(self._record.cohort)

    @property
    def senders(self) -> frozenset[int]:
        """The sites whose vectors were added."""
        return frozenset(self._confirmed)

    def add(self, number: int, raw: bytes) -> None:
        """Add the masked vector of a site.

        Raises:
            DataError: it has another length, or is not signed.
        """
        vector, signature = read_masked(raw, len(self._total))
        digest = masked_digest(self._session, self._context)
        if not is_signed(self._session.roster[number], signature, digest):
            raise wrong("masked", "the site's signature that its vector is for this sum", "another")
        self._total += vector
        self._confirmed[number] = signature

    def open(self) -> tuple[np.ndarray, frozenset[int]]:
        """Return the sum, (entries,), int64, and the sites that are in it.

        Raises:
            SumFailedError: too few sites have sent a vector, or open it.
        """
        if not self.is_closed:
            self._close()

        survivors = self.senders
        try:
            if len(survivors) < len(self._members) and not self._record.agreed:
                self._record.agreed = self._agree(survivors)
                self.write()

            total = self._unmask(survivors)
        except SumFailedError as error:
            raise self.void(error.message) from error
        return total.view("<i8"), survivors

    def void(self, reason: str) -> SumFailedError:
        """Note that the sum will never be opened, and return the error that says why."""
        self._record.void = reason
        self.write()
        return SumFailedError(reason)

    def write(self) -> None:
        """Write the state of the sum."""
        self._record.write(self._path)

    def _close(self) -> None:
        """Note what is in the sum; from here on, no other one of this attempt is asked for."""
        if len(self._confirmed) < self.needed:
            raise self.void(
                f"{len(self._confirmed)} sites have sent a vector, and a sum is over "
                f"{self.needed} or more"
            )

        try:
            ClosedSum(self._total, self._confirmed, self.answers).write(self._closed_path)
        except DataError as error:
            raise self.void(error.message) from error
        self.is_closed = True

    def _agree(self, survivors: frozenset[int]) -> dict[int, bytes]:
        """Return signatures of enough sites that agree on who is in the sum."""
        ask = self._exchange
        digest = survivors_digest(self._session, self._context, survivors)

        def read(number: int, answer: Envelope) -> bytes:
            signature = read_signature(answer.head)
            if not is_signed(self._session.roster[number], signature, digest):
                raise wrong("signature", "the site's signature of who is in the sum", "another")
            return signature

        head = sum_head(self._request, survivors)
        requests = {
            number: ask.message(AGREE, number, head, self.blobs) for number in ask.holders()
        }
        needed = self._session.threshold
        return ask.collect(AGREE, self._request.round, requests, read, needed=needed)

    def _unmask(self, survivors: frozenset[int]) -> np.ndarray:
        """Ask for shares until they open the sum."""
        round = self._request.round
        requests = self._requests_to_unmask(survivors)

        def read(number: int, answer: Envelope) -> dict[int, bytes | None]:
            return read_shares(answer.blobs.get("shares", b""), self._members)

        answers: Mapping[int, Mapping[int, bytes | None]] = {}
        needed = self._session.threshold
        while True:
            answers = self._exchange.collect(
                UNMASK, round, requests, read, needed=needed, known=answers
            )
            try:
                opened = unmask(
                    self._session, self._request, self._members, survivors, self._total, answers
                )
            except TooFewSharesError as error:
                # A seal is broken, or a share is wrong: others make up for it.
                needed = len(answers) + 1
                if needed > len(requests):
                    raise SumFailedError(error.message) from error
                continue

            for number in opened.liars:
                reason = "shares of masks that do not fit"
                self._exchange.conduct.note(number, UNMASK, round, reason)
            return opened.total

    def _requests_to_unmask(self, survivors: frozenset[int]) -> dict[int, Envelope]:
        head = sum_head(self._request, survivors)
        blobs = {
            **self.blobs,
            "confirmed": write_signatures(self._confirmed),
            "agreed": write_signatures(self._record.agreed),
        }
        requests = {}
        for number in self._exchange.holders():
            sealed = {bundle.member.number: bundle.sealed[number] for bundle in self._bundles}
            more = {**blobs, "sealed": write_sealed(sealed, self._members)}
            requests[number] = self._exchange.message(UNMASK, number, head, more)

        return requests
