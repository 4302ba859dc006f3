"""The server's side of sums under masks.

A sum is made in steps: *draw* notes who is asked, with which keys; the members send masked vectors;
*close* notes who has sent one; if somebody is missing, enough sites *agree* on that; enough sites
*open* the masks of the sum. Every step is on disk before the next one begins, in the folder
``masks`` of the run, so a server that was killed asks for the same sum again and for no other.

The server waits for the answers that it needs, however long that takes. A sum that cannot be opened
is void for ever, and the round is attempted again with other keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedtailor.core.atomic import make_folder, to_json, write_whole
from fedtailor.core.errors import DataError, FedtailorError, one_line
from fedtailor.core.reading import content_of, is_missing, read_file, read_object
from fedtailor.deployment.conduct import Conduct
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import Exchange, SiteFailure
from fedtailor.deployment.limits import LARGEST_FRAME
from fedtailor.deployment.mask_kinds import AGREE, CHANNEL, CLASSES, KEYS, UNMASK, SumFailedError
from fedtailor.deployment.mask_messages import (
    classes_layout,
    cohort_blob,
    read_channels,
    read_digest,
    read_masked,
    read_shares,
    sum_head,
    write_channels,
    write_sealed,
    write_signatures,
)
from fedtailor.deployment.plan import DeploymentPlan
from fedtailor.deployment.roster import SiteRoster
from fedtailor.deployment.wire import refusal_in, repeated, wrong
from fedtailor.privacy.masks.keys import (
    Bundle,
    Channel,
    check_channel,
    check_channels,
    read_bundles,
)
from fedtailor.privacy.masks.primitives import is_signed
from fedtailor.privacy.masks.server import TooFewSharesError, unmask
from fedtailor.privacy.masks.session import (
    Member,
    Request,
    Session,
    context_of,
    digest_of_download,
    masked_digest,
    survivors_digest,
)

MASKS = "masks"
"""Folder of a run, in which the server keeps what it needs to open sums."""
_CHANNELS_FILE = "channels.bin"
_CLASSES_FILE = "holders"
_ATTEMPTS = 3
"""Attempts at the sum of which classes there are."""
_BATCH = 16
"""Keys that a site makes at a time."""

Value = TypeVar("Value")


class SecureSums:
    """Makes the sums of a run."""

    def __init__(
        self,
        folder: Path,
        plan: DeploymentPlan,
        roster: SiteRoster,
        exchange: Exchange,
        conduct: Conduct,
    ) -> None:
        """Begin, or continue with what lies in the folder.

        Args:
            folder: of the run.
            plan: of the run.
            roster: the sites that train, in the order of their numbers.
            exchange: with the sites.
            conduct: what sites have done wrong.

        Raises:
            DataError: a file of the folder is damaged.
        """
        self.session = Session(
            plan.run,
            tuple(site.key.point for site in roster.sites),
            roster.threshold,
            roster.colluding,
            roster.fewest,
        )
        self.exchange = exchange
        self.conduct = conduct
        self.folder = folder / MASKS
        self._names = [site.name for site in roster.sites]
        self._roster_digest = roster.digest
        self._plan = plan
        self._channels: list[Channel] = []
        self._bundles: dict[tuple[int, int], Bundle] = {}
        """By site and index, of the newest batch."""
        make_folder(self.folder, mode=0o700)

        # Keys are used in turn, each once.
        records = [read_object(path, within=self.folder) for path in self.folder.glob("*-*.json")]
        with content_of(self.folder):
            self._next_index = 1 + max((int(record["index"]) for record in records), default=-1)

    def connect(self) -> None:
        """Learn the channel keys of all sites; wait until every site has answered.

        Raises:
            SumFailedError: a site refuses, or its key is not signed by it.
        """
        path = self.folder / _CHANNELS_FILE
        if path.is_file():
            raw = read_file(path, limit=LARGEST_FRAME, within=self.folder)
            self._channels = read_channels(raw)
            return

        head = {"roster": self._roster_digest.hex()}
        requests = {number: self.message(CHANNEL, number, head) for number in self._numbers}
        answers = self.collect(CHANNEL, 0, requests, self._read_channel, needed=len(requests))
        channels = [answers[number] for number in self._numbers]
        check_channels(self.session, channels)
        write_whole(path, write_channels(channels))
        self._channels = channels

    def request(self, kind: str, round: int, attempt: int, layout: bytes, shared: bytes) -> Request:
        """Return what a sum of this run is of; see ``SiteMasks.request``."""
        plan = bytes.fromhex(self._plan.digest)
        return Request(kind, round, attempt, plan, layout, digest_of_download(shared))

    def draw(self, request: Request, cohort: Sequence[int], entries: int) -> MaskedSum:
        """Begin a sum, or continue one.

        Args:
            request: what it is of.
            cohort: the sites whose vectors count. Those without keys are left out.
            entries: length of a vector.

        Raises:
            SumFailedError: too few sites have keys, or the sum was void before.
        """
        path = self.folder / f"{request.kind}-{request.round:06d}-{request.attempt:02d}.json"
        try:
            record = read_object(path, within=self.folder)
        except DataError as error:
            if not is_missing(error):
                raise
            record = {"index": self._next_index, "cohort": list(cohort), "void": ""}

        if record["void"]:
            raise SumFailedError(str(record["void"]))

        index = int(record["index"])
        self._get_keys(index, request.round, [int(number) for number in record["cohort"]])
        members = tuple(
            self._bundles[number, index].member
            for number in record["cohort"]
            if (number, index) in self._bundles
        )
        masked = MaskedSum(self, request, members, path, record, entries)
        if len(members) < self.session.fewest:
            raise masked.void(
                f"{len(members)} sites have sent keys for the sum, and {self.session.fewest} are "
                "needed"
            )

        record["cohort"] = [member.number for member in members]
        masked.write()
        self._next_index = max(self._next_index, index + 1)
        return masked

    def count_classes(self, num_classes: int) -> list[int]:
        """Return how many sites have each class among their training examples.

        Raises:
            SumFailedError: no sum of it can be made.
        """
        path = self.folder / _CLASSES_FILE
        if path.is_file():
            with content_of(path):
                return [
                    int(holders) for holders in read_object(path, within=self.folder)["holders"]
                ]

        for attempt in range(_ATTEMPTS):
            try:
                total = self._sum_of_classes(attempt, num_classes)
            except SumFailedError as error:
                reason = error
                continue

            holders: list[int] = total.tolist()
            if not 0 <= min(holders) <= max(holders) <= len(self._names):
                raise SumFailedError("the sum of which classes there are cannot be right")
            write_whole(path, to_json({"holders": holders}) + "\n")
            return holders
        raise reason

    def _sum_of_classes(self, attempt: int, num_classes: int) -> np.ndarray:
        request = self.request(CLASSES, 0, attempt, classes_layout(num_classes), b"")
        masked = self.draw(request, self._numbers, num_classes)
        head = {"round": 0, "attempt": attempt}
        requests = {
            number: self.message(CLASSES, number, head, masked.blobs) for number in masked.asked
        }

        def belongs(number: int, answer: Envelope) -> bool:
            return repeated(requests[number].head).items() <= answer.head.items()

        answers = self.exchange.ask(requests, needed=masked.needed, accept=belongs)
        for number, answer in answers.items():
            if isinstance(answer, SiteFailure) or refusal_in(answer.head) is not None:
                continue
            try:
                masked.add(number, answer.blobs.get("masked", b""))
            except DataError as error:
                self.conduct.note(number, CLASSES, 0, error.message)

        total, _ = masked.open()
        return total

    def sealed_for(self, holder: int, members: Sequence[Member]) -> bytes:
        """Return the sealed shares of a holder as a blob."""
        sealed = {
            member.number: self._bundles[member.number, member.key_index].sealed[holder]
            for member in members
        }
        return write_sealed(sealed, members)

    def holders(self) -> list[int]:
        """Return the sites that can be asked for shares and signatures."""
        excluded = self.conduct.excluded()
        return [number for number in self._numbers if number not in excluded]

    def message(
        self,
        kind: str,
        number: int,
        head: Mapping[str, Any],
        blobs: Mapping[str, bytes] | None = None,
    ) -> Envelope:
        """Return a request about sums to a site."""
        head = {"kind": kind, "run": self._plan.run, "client": number, **head}
        return Envelope(head, {"plan": self._plan.raw, **(blobs or {})})

    def collect(
        self,
        kind: str,
        round: int,
        requests: Mapping[int, Envelope],
        read: Callable[[int, Envelope], Value],
        *,
        needed: int,
        known: Mapping[int, Value] | None = None,
    ) -> dict[int, Value]:
        """Ask sites until enough have given an answer that can be used.

        Args:
            kind: of the requests.
            round: of the sum, for the note of what a site has done wrong.
            requests: by site.
            read: returns what an answer says, or raises an error of fedtailor.
            needed: answers that are waited for.
            known: answers that are there already.

        Raises:
            SumFailedError: so many sites refuse that the others are too few.
        """
        usable = dict(known or {})
        reasons: dict[int, str] = {}

        def belongs(number: int, answer: Envelope) -> bool:
            return repeated(requests[number].head).items() <= answer.head.items()

        while len(usable) < needed:
            rest = {
                number: request
                for number, request in requests.items()
                if number not in usable and number not in reasons
            }
            missing = needed - len(usable)
            if len(rest) < missing:
                raise SumFailedError(self._too_few(kind, needed, len(usable), reasons))

            answers = self.exchange.ask(rest, needed=missing, enough=missing, accept=belongs)
            for number, answer in answers.items():
                if isinstance(answer, SiteFailure):
                    continue

                refusal = refusal_in(answer.head)
                if refusal is not None:
                    reasons[number] = refusal
                    continue
                try:
                    usable[number] = read(number, answer)
                except FedtailorError as error:
                    reasons[number] = one_line(error.message)
                    self.conduct.note(number, kind, round, error.message)

        return usable

    @property
    def _numbers(self) -> range:
        return range(len(self._names))

    def _too_few(self, kind: str, needed: int, usable: int, reasons: Mapping[int, str]) -> str:
        number, reason = next(iter(reasons.items()), (None, ""))
        example = "" if number is None else f"; site '{self._names[number]}' says: {reason}"
        return f"{usable} of {needed} needed sites have answered the request '{kind}'{example}"

    def _read_channel(self, number: int, answer: Envelope) -> Channel:
        signature = answer.head.get("signature")
        if not isinstance(signature, str) or not _is_hex(signature):
            raise wrong("signature", "a signature in hexadecimal", signature)
        channel = Channel(read_digest(answer.head, "channel"), bytes.fromhex(signature))
        check_channel(self.session, number, channel)
        return channel

    def _get_keys(self, index: int, round: int, cohort: Sequence[int]) -> None:
        """Have the keys of an index of all sites of a cohort that send them."""
        first = index - index % _BATCH
        indices = range(first, first + _BATCH)
        if (next(iter(self._bundles), (0, first)))[1] not in indices:
            self._bundles = {}

        for number in cohort:
            path = self._keys_file(number, first)
            if (number, index) not in self._bundles and path.is_file():
                raw = read_file(path, limit=LARGEST_FRAME, within=self.folder)
                self._keep(number, indices, raw)

        missing = [number for number in cohort if (number, index) not in self._bundles]
        if missing:
            self._ask_for_keys(indices, round, missing)

    def _ask_for_keys(self, indices: range, round: int, numbers: Sequence[int]) -> None:
        excluded = self.conduct.excluded()
        head = {"first": indices.start, "count": len(indices)}
        blobs = {"channels": write_channels(self._channels)}
        requests = {
            number: self.message(KEYS, number, head, blobs)
            for number in numbers
            if number not in excluded
        }

        def belongs(number: int, answer: Envelope) -> bool:
            return repeated(requests[number].head).items() <= answer.head.items()

        # Sites that do not answer are not in this sum; the exchange waits for as many as it needs.
        there = sum(index == indices.start for _, index in self._bundles)
        needed = max(min(self.session.fewest - there, len(requests)), 0)
        for number, answer in self.exchange.ask(requests, needed=needed, accept=belongs).items():
            if isinstance(answer, SiteFailure) or refusal_in(answer.head) is not None:
                continue

            raw = answer.blobs.get("bundles", b"")
            try:
                self._keep(number, indices, raw)
            except DataError as error:
                self.conduct.note(number, KEYS, round, error.message)
            else:
                write_whole(self._keys_file(number, indices.start), raw)

    def _keep(self, number: int, indices: range, raw: bytes) -> None:
        for bundle in read_bundles(raw, self.session, number, indices):
            self._bundles[number, bundle.member.key_index] = bundle

    def _keys_file(self, number: int, first: int) -> Path:
        return self.folder / f"keys-{number}-{first}.bin"


class MaskedSum:
    """One sum, from its members to its value."""

    def __init__(
        self,
        sums: SecureSums,
        request: Request,
        members: tuple[Member, ...],
        path: Path,
        record: dict[str, Any],
        entries: int,
    ) -> None:
        self._sums = sums
        self._request = request
        self.members = members
        self._path = path
        self._record = record
        self._total = np.zeros(entries, dtype="<u8")
        self._context = context_of(sums.session, request, members)
        self._confirmed: dict[int, bytes] = {}
        """The signatures of those whose vectors were added."""

    @property
    def asked(self) -> frozenset[int]:
        """The sites whose vectors are asked for: once a sum is closed, those that are in it."""
        closed = self._record.get("survivors")
        return frozenset(self._record["cohort"] if closed is None else closed)

    @property
    def needed(self) -> int:
        """How many of them must answer."""
        closed = self._record.get("survivors")
        return self._sums.session.fewest if closed is None else len(closed)

    @property
    def blobs(self) -> dict[str, bytes]:
        """What a request for a vector must say of the sum."""
        return cohort_blob(self.members)

    def add(self, number: int, raw: bytes) -> None:
        """Add the masked vector of a site.

        Raises:
            DataError: it has another length, or is not signed.
        """
        vector, signature = read_masked(raw, len(self._total))
        session = self._sums.session
        if not is_signed(session.roster[number], signature, masked_digest(session, self._context)):
            raise wrong(
                "masked", "a vector with the site's signature that it is for this sum", "none"
            )
        self._total += vector
        self._confirmed[number] = signature

    def open(self) -> tuple[np.ndarray, frozenset[int]]:
        """Return the sum, (entries,), int64, and the sites that are in it.

        Raises:
            SumFailedError: too few sites have sent a vector, or open it.
        """
        survivors = frozenset(self._confirmed)
        session = self._sums.session
        if len(survivors) < session.fewest:
            raise self.void(
                f"{len(survivors)} sites have sent a vector, and a sum is over {session.fewest} "
                "or more"
            )

        # From here on, no other sum of this attempt is asked for.
        self._record["survivors"] = sorted(survivors)
        self.write()
        try:
            agreed = {}
            if len(survivors) < len(self.members):
                agreed = self._agree(survivors)
            total = self._unmask(survivors, agreed)
        except SumFailedError as error:
            raise self.void(error.message) from error
        return total.view("<i8"), survivors

    def void(self, reason: str) -> SumFailedError:
        """Note that the sum will never be opened, and return the error that says why."""
        self._record["void"] = reason
        self.write()
        return SumFailedError(reason)

    def write(self) -> None:
        """Write the state of the sum."""
        write_whole(self._path, to_json(self._record) + "\n")

    def _agree(self, survivors: frozenset[int]) -> dict[int, bytes]:
        """Return signatures of enough sites that agree on who is in the sum."""
        sums = self._sums
        noted: Mapping[str, str] = self._record.get("agreed", {})
        if noted:
            return {int(number): bytes.fromhex(text) for number, text in noted.items()}

        digest = survivors_digest(sums.session, self._context, survivors)

        def read(number: int, answer: Envelope) -> bytes:
            text = answer.head.get("signature")
            signature = bytes.fromhex(text) if isinstance(text, str) and _is_hex(text) else b""
            if not is_signed(sums.session.roster[number], signature, digest):
                raise wrong("signature", "the site's signature of who is in the sum", text)
            return signature

        requests = {
            number: sums.message(AGREE, number, self._head(survivors), self.blobs)
            for number in sums.holders()
        }
        round = self._request.round
        needed = sums.session.threshold
        agreed = sums.collect(AGREE, round, requests, read, needed=needed)
        self._record["agreed"] = {str(number): text.hex() for number, text in agreed.items()}
        self.write()
        return agreed

    def _unmask(self, survivors: frozenset[int], agreed: Mapping[int, bytes]) -> np.ndarray:
        """Ask for shares until they open the sum."""
        sums = self._sums
        blobs = {
            **self.blobs,
            "confirmed": write_signatures(self._confirmed),
            "agreed": write_signatures(agreed),
        }
        requests = {
            number: sums.message(
                UNMASK,
                number,
                self._head(survivors),
                {**blobs, "sealed": sums.sealed_for(number, self.members)},
            )
            for number in sums.holders()
        }

        def read(number: int, answer: Envelope) -> dict[int, bytes | None]:
            return read_shares(answer.blobs.get("shares", b""), self.members)

        answers: dict[int, dict[int, bytes | None]] = {}
        needed = sums.session.threshold
        while True:
            answers = sums.collect(
                UNMASK, self._request.round, requests, read, needed=needed, known=answers
            )
            try:
                opened = unmask(
                    sums.session, self._request, self.members, survivors, self._total, answers
                )
            except TooFewSharesError:
                # A seal is broken, or a share is wrong: others make up for it.
                needed = len(answers) + 1
                continue

            for number in opened.liars:
                reason = "shares of masks that do not fit"
                sums.conduct.note(number, UNMASK, self._request.round, reason)
            return opened.total

    def _head(self, survivors: frozenset[int]) -> dict[str, Any]:
        return sum_head(self._request, survivors)


def _is_hex(text: str) -> bool:
    return len(text) % 2 == 0 and all(digit in "0123456789abcdef" for digit in text)
