"""What server and sites say to each other about masks.

Requests about a sum (:mod:`fedtailor.deployment.mask_kinds`) name everything that it is made under,
and a site makes the context by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.limits import LARGEST_ROUND, MOST_ATTEMPTS, MOST_SITES
from fedtailor.deployment.mask_kinds import CLASSES, SUMS
from fedtailor.deployment.plan import DeploymentPlan
from fedtailor.deployment.wire import whole, wrong
from fedtailor.privacy.masks.keys import SEALED_BYTES, Channel
from fedtailor.privacy.masks.primitives import (
    DIGEST_BYTES,
    RefusedError,
    digest_of,
    join_texts,
    pack,
    split_texts,
)
from fedtailor.privacy.masks.session import (
    LONGEST_SIGNATURE,
    Session,
    SumMember,
    SumRequest,
    digest_of_download,
    read_cohort,
)
from fedtailor.privacy.masks.shares import SHARE_BYTES

MOST_KEYS = 64
"""Keys that a site makes for one request."""
_ENTRY = np.dtype("<u8")
NO_SHARE = b"\xff" * SHARE_BYTES
"""In place of a share whose seal is broken: no share is so large."""


class AboutSum(NamedTuple):
    """What the requests ``agree`` and ``unmask`` say."""

    request: SumRequest
    cohort: tuple[SumMember, ...]
    survivors: frozenset[int]


def sum_head(request: SumRequest, survivors: frozenset[int]) -> dict[str, Any]:
    """Return what the head of ``agree`` and ``unmask`` says of a sum."""
    return {
        "of": request.kind,
        "round": request.round,
        "attempt": request.attempt,
        "layout": request.layout.hex(),
        "shared": request.shared.hex(),
        "survivors": sorted(survivors),
    }


def read_sum(message: Envelope, plan: DeploymentPlan, session: Session) -> AboutSum:
    """Return what a request ``agree`` or ``unmask`` says.

    Args:
        message: the request.
        plan: that came with it.
        session: the run.

    Raises:
        DataError: it says something else.
    """
    head = message.head
    kind = head.get("of")
    if kind not in SUMS:
        raise wrong("of", " or ".join(SUMS), kind)

    survivors = head.get("survivors")
    if not isinstance(survivors, list):
        raise wrong("survivors", "numbers of sites", survivors)
    numbers = frozenset(whole("survivors", number, MOST_SITES) for number in survivors)
    request = SumRequest(
        kind,
        whole("round", head.get("round"), LARGEST_ROUND),
        whole("attempt", head.get("attempt"), MOST_ATTEMPTS),
        bytes.fromhex(plan.digest),
        read_digest(head, "layout"),
        read_digest(head, "shared"),
    )
    cohort = read_cohort(message.blobs.get("cohort", b""), session)
    return AboutSum(request, cohort, numbers)


def read_digest(head: Mapping[str, Any], name: str) -> bytes:
    """Return a digest that a head has in hexadecimal.

    Raises:
        DataError: it has none.
    """
    digest = _from_hex(head.get(name))
    if len(digest) != DIGEST_BYTES:
        raise wrong(name, "a SHA-256 in hexadecimal", head.get(name))
    return digest


def read_signature(head: Mapping[str, Any]) -> bytes:
    """Return a signature that a head has in hexadecimal.

    Raises:
        DataError: it has none.
    """
    signature = _from_hex(head.get("signature"))
    if not 0 < len(signature) <= LONGEST_SIGNATURE:
        raise wrong("signature", "a signature in hexadecimal", head.get("signature"))
    return signature


def _from_hex(value: Any) -> bytes:
    """Return the bytes of a hexadecimal text; none if it is something else."""
    try:
        return bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        return b""


def request_of_classes(plan: DeploymentPlan, attempt: int, num_classes: int) -> SumRequest:
    """Return what a sum is of that says which classes there are."""
    layout = digest_of(CLASSES, pack(num_classes))
    received = digest_of_download(b"")
    return SumRequest(CLASSES, 0, attempt, bytes.fromhex(plan.digest), layout, received)


def write_channels(channels: Sequence[Channel]) -> bytes:
    """Return the channel keys of all sites, by number, as bytes."""
    return join_texts(text for channel in channels for text in channel)


def read_channels(raw: bytes, session: Session) -> list[Channel]:
    """Return the channel keys that :func:`write_channels` wrote.

    Raises:
        RefusedError: the bytes are something else.
    """
    return [Channel(key, signature) for key, signature in _read_pairs(raw, session)]


def write_signatures(signatures: Mapping[int, bytes]) -> bytes:
    """Return signatures by the number of the site as bytes."""
    return join_texts(
        text for number in sorted(signatures) for text in (pack(number), signatures[number])
    )


def read_signatures(raw: bytes, session: Session) -> dict[int, bytes]:
    """Return the signatures that :func:`write_signatures` wrote.

    Raises:
        RefusedError: the bytes are something else.
    """
    pairs = _read_pairs(raw, session)
    return {int.from_bytes(number, "little"): signature for number, signature in pairs}


def _read_pairs(raw: bytes, session: Session) -> list[tuple[bytes, bytes]]:
    """Return what is there of each site: two texts, the second a signature."""
    texts = split_texts(raw, most=2 * len(session.roster))
    if len(texts) % 2:
        raise RefusedError("a site has no signature.")
    return list(zip(texts[::2], texts[1::2], strict=True))


def read_masked(raw: bytes, entries: int) -> tuple[np.ndarray, bytes]:
    """Return a masked vector, (entries,), and the signature of its site that it is for a sum.

    Raises:
        DataError: the bytes have another length.
    """
    size = _ENTRY.itemsize * entries
    if not size < len(raw) <= size + LONGEST_SIGNATURE:
        raise wrong("masked", f"{size} bytes and a signature", f"{len(raw)} bytes")
    return np.frombuffer(raw, _ENTRY, entries), raw[size:]


def write_sealed(sealed: Mapping[int, bytes], cohort: Sequence[SumMember]) -> bytes:
    """Return the sealed shares of one holder as bytes; of itself there are none."""
    return _write_cohort_texts(sealed, cohort, bytes(SEALED_BYTES))


def read_sealed(raw: bytes, cohort: Sequence[SumMember]) -> dict[int, bytes]:
    """Return the sealed shares that :func:`write_sealed` wrote.

    Raises:
        RefusedError: the bytes are something else.
    """
    return _read_cohort_texts(raw, cohort, SEALED_BYTES)


def write_shares(shares: Mapping[int, bytes | None], cohort: Sequence[SumMember]) -> bytes:
    """Return the shares of one holder as bytes."""
    return _write_cohort_texts(shares, cohort, NO_SHARE)


def read_shares(raw: bytes, cohort: Sequence[SumMember]) -> dict[int, bytes | None]:
    """Return the shares that :func:`write_shares` wrote.

    Raises:
        RefusedError: the bytes are something else.
    """
    texts = _read_cohort_texts(raw, cohort, SHARE_BYTES)
    return {number: None if text == NO_SHARE else text for number, text in texts.items()}


def _write_cohort_texts(
    texts: Mapping[int, bytes | None], cohort: Sequence[SumMember], missing: bytes
) -> bytes:
    """Return texts of one length by member as bytes, one after the other."""
    return b"".join(texts.get(member.number) or missing for member in cohort)


def _read_cohort_texts(raw: bytes, cohort: Sequence[SumMember], size: int) -> dict[int, bytes]:
    if len(raw) != size * len(cohort):
        raise RefusedError("there must be one entry for every site of a sum.")
    return {
        member.number: raw[size * place : size * (place + 1)] for place, member in enumerate(cohort)
    }
