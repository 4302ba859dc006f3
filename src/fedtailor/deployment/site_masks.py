"""The masks of a site in one run: its secret, its journal, and its answers to requests about sums.

``masks.key`` is 32 random bytes, from which all keys of the site in the run follow, and
``masks.jsonl`` is the journal (:mod:`fedtailor.privacy.masks.journal`). Both lie beside the states
of the run. A site that loses one of them takes part in sums again in the next run: keys without
their journal could be used twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.atomic import write_private, writing
from fedtailor.core.errors import DataError
from fedtailor.core.reading import damaged, read_file
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.init import SITE_KEY
from fedtailor.deployment.keys import read_private_key
from fedtailor.deployment.limits import LARGEST_ROUND, MOST_ATTEMPTS
from fedtailor.deployment.mask_kinds import AGREE, CHANNEL, CLASSES, KEYS, UNMASK
from fedtailor.deployment.mask_messages import (
    MOST_KEYS,
    read_channels,
    read_digest,
    read_sealed,
    read_signatures,
    read_sum,
    request_of_classes,
    write_shares,
)
from fedtailor.deployment.options import SiteOptions
from fedtailor.deployment.plan import DeploymentPlan
from fedtailor.deployment.roster import spell
from fedtailor.deployment.trust import pinned_roster
from fedtailor.deployment.wire import whole
from fedtailor.privacy.masks.journal import Journal
from fedtailor.privacy.masks.keys import SiteKeys, write_bundles
from fedtailor.privacy.masks.primitives import RefusedError, digest_of
from fedtailor.privacy.masks.session import SumMember, SumRequest, read_cohort
from fedtailor.privacy.masks.site import MaskingSite

_MASTER_FILE = "masks.key"
_JOURNAL_FILE = "masks.jsonl"
_MASTER_BYTES = 32

Answer = tuple[dict[str, Any], dict[str, bytes], str]
"""Head and blobs of an answer, and what the log of the site says of it."""


class SiteMasks:
    """The masks of a site in one run."""

    def __init__(
        self,
        folder: Path,
        states: Path,
        options: SiteOptions,
        plan: DeploymentPlan,
        client: int,
    ) -> None:
        """Continue with what lies in the folder of the run, or begin.

        Args:
            folder: of the site.
            states: of the run.
            options: of the site.
            plan: of the run.
            client: the number of the site.

        Raises:
            ConfigError: ``site.toml`` asks for more than its roster.
            DataError: the roster has other sites than the plan, the site is a new one, or a file is
                damaged.
            RunError: the key of the site cannot be read, or a file cannot be written.
        """
        if client >= plan.population:
            raise RefusedError("a site that was added as new takes part in no sum.")

        roster = pinned_roster(folder, options)
        assert roster is not None, "without one, the plan was refused"
        self._pin = roster.pin
        names = [site.name for site in roster.sites]
        if len(names) != plan.population or names[client : client + 1] != [options.name]:
            raise RefusedError(
                f"the roster that this site trusts has {len(names)} sites, and the run has "
                f"{plan.population}, or in another order: 'fedtailor deploy roster' again, and "
                "'fedtailor site trust' at all sites."
            )

        self.session = roster.session(plan.run, options.privacy.smallest_sum)
        self._plan = plan
        self._journal = Journal(states / _JOURNAL_FILE)
        self._keys = SiteKeys(
            self.session,
            client,
            read_private_key(folder / SITE_KEY),
            _master(states / _MASTER_FILE, self._journal),
        )
        self._site = MaskingSite(self.session, client, self._keys, self._journal)

    def answer(self, message: Envelope, classes: np.ndarray) -> Answer:
        """Return the answer to a request about sums.

        Args:
            message: the request.
            classes: whether the site has training examples of each class.

        Raises:
            DataError: the request is refused.
            RunError: the journal cannot be written; then nothing may leave.
        """
        kind = message.head["kind"]
        if kind == CHANNEL:
            return self._channel(message)
        if kind == KEYS:
            return self._make_keys(message)
        if kind == CLASSES:
            return self._count_classes(message, classes)

        about = read_sum(message, self._plan, self.session)
        if kind == AGREE:
            signature = self._site.agree(*about)
            return {"signature": signature.hex()}, {}, "agreement on who is in a sum"

        assert kind == UNMASK
        blobs = message.blobs
        sealed = read_sealed(blobs.get("sealed", b""), about.cohort)
        confirmed = read_signatures(blobs.get("confirmed", b""), self.session)
        agreed = read_signatures(blobs.get("agreed", b""), self.session)
        shares = self._site.open(*about, sealed, confirmed, agreed)
        return {}, {"shares": write_shares(shares, about.cohort)}, "shares of masks"

    def allow(self, request: SumRequest, blobs: Mapping[str, bytes]) -> None:
        """Check a request before any work is done for it.

        Raises:
            DataError: it is refused.
            RunError: the journal cannot be written.
        """
        self._site.allow(request, self._cohort(blobs))

    def mask(self, request: SumRequest, blobs: Mapping[str, bytes], vector: np.ndarray) -> bytes:
        """Return a vector under masks, and after it the signature that it is for this sum.

        Args:
            request: what the sum is of.
            blobs: of the message, which names the members.
            vector: (entries,), int64.

        Raises:
            DataError: the request is refused.
            RunError: the journal cannot be written.
        """
        cohort = self._cohort(blobs)
        masked = self._site.mask(request, cohort, vector.view("<u8"))
        return masked.tobytes() + self._site.confirm(request, cohort)

    def _cohort(self, blobs: Mapping[str, bytes]) -> tuple[SumMember, ...]:
        return read_cohort(blobs.get("cohort", b""), self.session)

    def _channel(self, message: Envelope) -> Answer:
        """Say the channel key, if server and site mean the same roster."""
        pin = "sha256:" + read_digest(message.head, "roster").hex()
        if pin != self._pin:
            raise RefusedError(
                f"this site trusts the roster {spell(self._pin, short=True)}, and the server has "
                f"{spell(pin, short=True)}: compare both, then 'fedtailor site trust'."
            )

        channel = self._keys.channel()
        head = {"channel": channel.key.hex(), "signature": channel.signature.hex()}
        return head, {}, "a key for shares of masks"

    def _make_keys(self, message: Envelope) -> Answer:
        first = whole("first", message.head.get("first"), LARGEST_ROUND)
        count = whole("count", message.head.get("count"), MOST_KEYS)
        channels = message.blobs.get("channels", b"")
        self._site.learn_channels(read_channels(channels, self.session))
        bundles = write_bundles(self._site.bundles(range(first, first + count)))
        return {"first": first, "count": count}, {"bundles": bundles}, "keys of masks"

    def _count_classes(self, message: Envelope, classes: np.ndarray) -> Answer:
        """Say under masks which classes there are."""
        attempt = whole("attempt", message.head.get("attempt"), MOST_ATTEMPTS)
        asked = request_of_classes(self._plan, attempt, len(classes))
        masked = self.mask(asked, message.blobs, classes.astype(np.int64))
        return {}, {"masked": masked}, "which classes there are, under masks"


def _master(path: Path, journal: Journal) -> bytes:
    """Return the secret of a run, which is made once.

    Without its journal, the site would not know what it has masked under a secret.

    Raises:
        DataError: the journal is that of another secret.
        RunError: a file cannot be written.
    """
    if not journal.secret:
        secret = secrets.token_bytes(_MASTER_BYTES)
        with writing(path):
            write_private(path, secret)
        journal.note_secret(_digest(secret))
        return secret

    try:
        secret = read_file(path, limit=_MASTER_BYTES, within=path.parent)
    except DataError as error:
        raise _lost(path) from error
    if _digest(secret) != journal.secret:
        raise _lost(path)
    return secret


def _digest(secret: bytes) -> str:
    return digest_of("secret", secret).hex()


def _lost(path: Path) -> DataError:
    return damaged(path, "the site takes part in sums again in the next run")
