"""Messages as Flower's records: the head as JSON text, every blob as one array of bytes.

Flower stores an array once, however many messages hold it, so a blob for all sites is stored once.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedtailor.core.errors import DataError
from fedtailor.deployment.envelope import Envelope, check_blob, head_from_text, head_to_text

MESSAGE_TYPE = "train"
_FORM = "fedtailor.1"


def pack(envelope: Envelope) -> RecordDict:
    """Return a message as records.

    Raises:
        DataError: it cannot be sent.
    """
    arrays = {}
    for name, blob in envelope.blobs.items():
        check_blob(name, len(blob))
        arrays[name] = Array(dtype="uint8", shape=(len(blob),), stype=_FORM, data=blob)
    head = ConfigRecord({"head": head_to_text(envelope.head)})
    return RecordDict({"head": head, "blobs": ArrayRecord(arrays)})


def unpack(content: RecordDict) -> Envelope:
    """Return the message that records hold.

    Raises:
        DataError: they hold something else.
    """
    head = content.get("head")
    arrays = content.get("blobs")
    is_ours = isinstance(head, ConfigRecord) and isinstance(arrays, ArrayRecord)
    if not is_ours or set(content) != {"head", "blobs"}:
        raise DataError("the records of a message must be a head and blobs")

    text = head.get("head")
    if not isinstance(text, str):
        raise DataError("the head of a message must be text", key="head")

    blobs = {}
    for name, array in arrays.items():
        if array.stype != _FORM or array.dtype != "uint8" or not isinstance(array.data, bytes):
            got = str(array.stype)[:60]
            raise DataError("a blob must be an array of bytes", key=name, allowed=_FORM, got=got)

        check_blob(name, len(array.data))
        blobs[name] = array.data

    return Envelope(head_from_text(text), blobs)
