"""The server's side of sums under masks.

A sum is made in steps: *draw* notes who is asked, with which keys; the members send masked vectors;
*close* notes all that they have sent; if somebody is missing, enough sites *agree* on that; enough
sites *open* the masks of the sum. Every step is on disk before the next one begins, in the folder
``masks`` of the run, so a server that was killed asks for the same sum again and for no other.

The server waits for the answers that it needs, however long that takes. A sum that cannot be opened
is void for ever, and the round is attempted again with other keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedtailor.core.atomic import discard, make_folder, write_json, write_whole
from fedtailor.core.reading import content_of, damaged, read_file, read_object
from fedtailor.deployment.closed_sum import CLOSED
from fedtailor.deployment.conduct import Conduct
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import Exchange
from fedtailor.deployment.limits import LARGEST_FRAME
from fedtailor.deployment.mask_kinds import CHANNEL, CLASSES, KEYS, SumFailedError
from fedtailor.deployment.mask_messages import (
    read_channels,
    read_digest,
    read_signature,
    request_of_classes,
    write_channels,
)
from fedtailor.deployment.masked_sum import MaskedSum, SumRecord
from fedtailor.deployment.plan import DeploymentPlan
from fedtailor.deployment.roster import SiteRoster
from fedtailor.deployment.sum_exchange import SumExchange
from fedtailor.privacy.masks.keys import (
    Bundle,
    Channel,
    check_channel,
    check_channels,
    read_bundles,
)
from fedtailor.privacy.masks.primitives import RefusedError
from fedtailor.privacy.masks.session import SumRequest
from fedtailor.simulation.programs import TrainRequest

MASKS = "masks"
"""Folder of a run, in which the server keeps what it needs to open sums."""
_CHANNELS_FILE = "channels.bin"
_CLASSES_FILE = "holders"
_ATTEMPTS = 3
"""Attempts at the sum of which classes there are."""
_BATCH = 16
"""Keys that a site makes at a time."""


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
        self.session = roster.session(plan.run)
        self.folder = folder / MASKS
        names = [site.name for site in roster.sites]
        self._exchange = SumExchange(self.session, plan, names, exchange, conduct)
        self._numbers = range(len(names))
        self._roster_digest = roster.digest
        self._plan = plan
        self._channels: list[Channel] = []
        self._batch = range(0)
        self._bundles: dict[tuple[int, int], Bundle] = {}
        """By site and index, of one batch."""
        make_folder(self.folder, mode=0o700)

        # Keys are used in turn, each once.
        records = map(SumRecord.read, self.folder.glob("*-*.json"))
        self._next_index = 1 + max((record.index for record in records), default=-1)

    def connect(self) -> None:
        """Learn the channel keys of all sites; wait until every site has answered.

        Raises:
            SumFailedError: a site refuses, or its key is not signed by it.
        """
        path = self.folder / _CHANNELS_FILE
        if path.is_file():
            raw = read_file(path, limit=LARGEST_FRAME, within=self.folder)
            with content_of(path, RefusedError):
                self._channels = read_channels(raw, self.session)
                check_channels(self.session, self._channels)
            return

        head = {"roster": self._roster_digest.hex()}
        ask = self._exchange
        requests = {number: ask.message(CHANNEL, number, head) for number in self._numbers}
        answers = ask.collect(CHANNEL, 0, requests, self._read_channel, needed=len(requests))
        channels = [answers[number] for number in self._numbers]
        check_channels(self.session, channels)
        write_whole(path, write_channels(channels))
        self._channels = channels

    def draw(self, request: SumRequest, cohort: Sequence[int], entries: int) -> MaskedSum:
        """Begin a sum, or continue one.

        Args:
            request: what it is of.
            cohort: the sites whose vectors count. Those without keys are left out.
            entries: length of a vector.

        Raises:
            SumFailedError: too few sites have keys, or the sum was void before.
        """
        if request.kind == TrainRequest.name:
            self._forget_closed(request.round)

        path = self.folder / f"{request.kind}-{request.round:06d}-{request.attempt:02d}.json"
        record = SumRecord(self._next_index, list(cohort))
        if path.is_file():
            record = SumRecord.read(path)
        if record.void:
            raise SumFailedError(record.void)

        self._get_keys(record.index, request.round, record.cohort)
        bundles = [
            self._bundles[number, record.index]
            for number in record.cohort
            if (number, record.index) in self._bundles
        ]
        masked = MaskedSum(self._exchange, request, bundles, path, record, entries)
        if len(bundles) < self.session.fewest:
            raise masked.void(
                f"{len(bundles)} sites have sent keys for the sum, and {self.session.fewest} are "
                "needed"
            )

        record.cohort = [bundle.member.number for bundle in bundles]
        masked.write()
        self._next_index = max(self._next_index, record.index + 1)
        return masked

    def _forget_closed(self, round: int) -> None:
        """Remove what sites have sent before a round: its result is in a checkpoint."""
        for path in self.folder.glob(f"*{CLOSED}"):
            if int(path.stem.split("-")[-2]) < round:
                discard(path)

    def count_classes(self, num_classes: int) -> list[int]:
        """Return how many sites have each class among their training examples.

        Raises:
            SumFailedError: no sum of it can be made.
        """
        path = self.folder / _CLASSES_FILE
        if path.is_file():
            record = read_object(path, within=self.folder)
            with content_of(path):
                holders = [int(count) for count in record["holders"]]
            if not self._are_holders(holders, num_classes):
                raise damaged(path, f"it has no numbers of sites for {num_classes} classes")
            return holders

        for attempt in range(_ATTEMPTS):
            try:
                total = self._sum_of_classes(attempt, num_classes)
            except SumFailedError as error:
                reason = error
                continue

            holders = [int(count) for count in total]
            if not self._are_holders(holders, num_classes):
                raise SumFailedError("the sum of which classes there are cannot be right")
            write_json(path, {"holders": holders})
            return holders
        raise reason

    def _are_holders(self, counts: Sequence[int], num_classes: int) -> bool:
        """Return whether counts can be how many sites have each class."""
        return len(counts) == num_classes and set(counts) <= set(range(len(self._numbers) + 1))

    def _sum_of_classes(self, attempt: int, num_classes: int) -> np.ndarray:
        request = request_of_classes(self._plan, attempt, num_classes)
        masked = self.draw(request, self._numbers, num_classes)
        head = {"round": 0, "attempt": attempt}
        requests = {
            number: self._exchange.message(CLASSES, number, head, masked.blobs)
            for number in masked.asked
        }

        def read(number: int, answer: Envelope) -> None:
            masked.add(number, answer.blobs.get("masked", b""))

        if not masked.is_closed:
            self._exchange.ask(CLASSES, 0, requests, read, needed=masked.needed)
        total, _ = masked.open()
        return total

    def _read_channel(self, number: int, answer: Envelope) -> Channel:
        channel = Channel(read_digest(answer.head, "channel"), read_signature(answer.head))
        check_channel(self.session, number, channel)
        return channel

    def _get_keys(self, index: int, round: int, cohort: Sequence[int]) -> None:
        """Have the keys of an index of all sites of a cohort that send them."""
        first = index - index % _BATCH
        indices = range(first, first + _BATCH)
        if indices != self._batch:
            self._batch = indices
            self._bundles = {}

        for number in cohort:
            path = self._keys_file(number, first)
            if (number, index) not in self._bundles and path.is_file():
                raw = read_file(path, limit=LARGEST_FRAME, within=self.folder)
                with content_of(path, RefusedError):
                    self._keep(number, indices, raw)

        missing = [number for number in cohort if (number, index) not in self._bundles]
        if missing:
            self._ask_for_keys(indices, round, missing)

    def _ask_for_keys(self, indices: range, round: int, numbers: Sequence[int]) -> None:
        able = self._exchange.holders()
        head = {"first": indices.start, "count": len(indices)}
        blobs = {"channels": write_channels(self._channels)}
        requests = {
            number: self._exchange.message(KEYS, number, head, blobs)
            for number in numbers
            if number in able
        }

        def read(number: int, answer: Envelope) -> bytes:
            raw = answer.blobs.get("bundles", b"")
            self._keep(number, indices, raw)
            return raw

        # Sites that do not answer are not in this sum; the exchange waits for as many as it needs.
        there = sum(index == indices.start for _, index in self._bundles)
        needed = max(min(self.session.fewest - there, len(requests)), 0)
        answers = self._exchange.ask(KEYS, round, requests, read, needed=needed)
        for number, raw in answers.usable.items():
            write_whole(self._keys_file(number, indices.start), raw)

    def _keep(self, number: int, indices: range, raw: bytes) -> None:
        bundles = read_bundles(raw, self.session, number, indices)

        # Sites refuse a sum in which two have the same key.
        others = {bundle.member.pair_key for bundle in self._bundles.values()}
        if any(bundle.member.pair_key in others for bundle in bundles):
            raise RefusedError(f"site {number} has sent a key of another site.")
        self._bundles.update({(number, bundle.member.key_index): bundle for bundle in bundles})

    def _keys_file(self, number: int, first: int) -> Path:
        return self.folder / f"keys-{number}-{first}.bin"
