"""Sites with masks in one process, and a server that asks them."""

import hashlib
from contextlib import suppress

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedtailor.privacy.masks.journal import Journal
from fedtailor.privacy.masks.keys import SiteKeys, check_bundle
from fedtailor.privacy.masks.primitives import RefusedError, digest_of
from fedtailor.privacy.masks.server import unmask
from fedtailor.privacy.masks.session import (
    Session,
    SumRequest,
    context_of,
    digest_of_download,
)
from fedtailor.privacy.masks.site import MaskingSite
from fedtailor.privacy.options import colluding_of, threshold_of

RUN = "0123456789abcdef" * 2
PLAN = digest_of("plan")
LAYOUT = digest_of("layout")
DOWNLOAD = digest_of_download(b"download")
IDENTITIES = [ec.derive_private_key(1000 + number, ec.SECP384R1()) for number in range(100)]
COMPRESSED = (serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint)
POINTS = tuple(identity.public_key().public_bytes(*COMPRESSED) for identity in IDENTITIES)


def request(round=1, attempt=0, kind="train", **values):
    """Return a request."""
    fields = {"plan": PLAN, "layout": LAYOUT, "shared": DOWNLOAD, **values}
    return SumRequest(kind, round, attempt, **fields)


def vectors(count, length=8, seed=0):
    """Return vectors of whole numbers, one for each site."""
    rng = np.random.default_rng(seed)
    return [
        np.rint(rng.normal(size=length) * 2**29).astype(np.int64).astype("<u8")
        for _ in range(count)
    ]


def add(parts):
    """Return a sum that wraps around."""
    return np.sum(list(parts), axis=0, dtype="<u8")


class World:
    """Sites of one run, their keys, and the bundles that the server keeps."""

    def __init__(self, count, *, folder=None, site=MaskingSite, smallest=3, colluding="third"):
        """Make the sites; with a folder, their journals are files."""
        colluding = colluding_of(count, colluding)
        roster = POINTS[:count]
        self.session = Session(RUN, roster, threshold_of(count, colluding), colluding, smallest)
        self.count = count
        self.folder = folder
        self.site_class = site
        self.keys = [
            SiteKeys(self.session, number, IDENTITIES[number], bytes([number + 1]) * 32)
            for number in range(count)
        ]
        self.channels = [keys.channel() for keys in self.keys]
        self.sites = [None] * count
        for number in range(count):
            self.restart(number)
            self.sites[number].learn_channels(self.channels)
        self.bundles = {}
        self.signatures = {}

    def restart(self, number):
        """Start a site again: it knows what is in its journal."""
        path = None if self.folder is None else self.folder / f"{number}.jsonl"
        journal = Journal(path)
        self.sites[number] = self.site_class(self.session, number, self.keys[number], journal)

    def cohort(self, numbers=None, index=0):
        """Return the members of a sum, with bundles of this index."""
        members = []
        for number in range(self.count) if numbers is None else numbers:
            if (number, index) not in self.bundles:
                (bundle,) = self.sites[number].bundles([index])
                check_bundle(self.session, bundle)
                self.bundles[number, index] = bundle
            members.append(self.bundles[number, index].member)
        return members

    def sealed_for(self, holder, cohort):
        """Return the sealed shares of a holder, by member."""
        return {
            member.number: self.bundles[member.number, member.key_index].sealed[holder]
            for member in cohort
        }

    def context(self, asked, cohort):
        """Return the context of a request."""
        return context_of(self.session, asked, cohort)

    def mask(self, asked, cohort, inputs, silent=()):
        """Return the masked vectors of the members that answer."""
        return {
            member.number: self.sites[member.number].mask(asked, cohort, inputs[member.number])
            for member in cohort
            if member.number not in silent
        }

    def agree(self, asked, cohort, survivors, silent=()):
        """Return the signatures of the sites that answer."""
        return {
            number: site.agree(asked, cohort, survivors)
            for number, site in enumerate(self.sites)
            if number not in silent
        }

    def confirmed(self, asked, cohort):
        """Return the signatures of the members that have masked."""
        context = self.context(asked, cohort)
        for member in cohort:
            if (member.number, context) not in self.signatures:
                with suppress(RefusedError):
                    signature = self.sites[member.number].confirm(asked, cohort)
                    self.signatures[member.number, context] = signature
        return {
            number: signature
            for (number, about), signature in self.signatures.items()
            if about == context
        }

    def open(self, asked, cohort, survivors, agreed=None, silent=()):
        """Return the shares of the sites that answer."""
        return {
            number: site.open(
                asked,
                cohort,
                survivors,
                self.sealed_for(number, cohort),
                self.confirmed(asked, cohort),
                agreed or {},
            )
            for number, site in enumerate(self.sites)
            if number not in silent
        }

    def play(self, inputs, *, asked=None, cohort=None, lost=(), silent_agree=(), silent_open=()):
        """Return the sum of a request, and what it must be."""
        asked = asked or request()
        cohort = cohort or self.cohort()
        masked = self.mask(asked, cohort, inputs, lost)
        survivors = frozenset(masked)
        agreed = {}
        if len(masked) < len(cohort):
            agreed = self.agree(asked, cohort, survivors, silent_agree)
        answers = self.open(asked, cohort, survivors, agreed, silent_open)
        opened = unmask(self.session, asked, cohort, survivors, add(masked.values()), answers)
        return opened, add(inputs[number] for number in survivors)


def sha256(numbers):
    """Return the SHA-256 of numbers."""
    return hashlib.sha256(numbers.astype("<u8").tobytes()).hexdigest()
