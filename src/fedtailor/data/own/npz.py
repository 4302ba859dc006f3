"""A safe reader of NumPy archives (``.npz``) from untrusted sources."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Collection
from typing import IO

import numpy as np

from fedtailor.data.own.findings import Unusable
from fedtailor.data.own.names import show


def read_archive(
    raw: bytes, names: Collection[str], *, limit: int
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return those of the arrays ``names`` that are there, and the names of all arrays.

    Sizes are checked before anything is decompressed: the wanted arrays together may have at most
    ``limit`` bytes. Nothing is unpickled.

    Raises:
        Unusable: the file is not an archive, damaged or too large, or has an array of Python
            objects.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            chosen = {name: members[name] for name in names if name in members}
            # Sizes as announced: nothing is decompressed yet.
            size = sum(info.file_size for info in chosen.values())
            if size > limit:
                message = f"The arrays would take {size} bytes; at most {limit} can be read."
                raise Unusable("too_large", message)

            return {name: _read_member(archive, info) for name, info in chosen.items()}, sorted(
                members
            )
    except Unusable:
        raise
    except Exception as error:  # a damaged archive raises one of a dozen exceptions of five modules
        message = f"The NumPy archive is damaged: {type(error).__name__}: {error}."
        raise Unusable("damaged_archive", message) from error


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Return one array; its header is checked before memory is allocated for its values."""
    with archive.open(info) as member:
        _check_header(member, info)

    # Decompressed into the array itself, a piece at a time.
    with archive.open(info) as member:
        return np.asarray(np.lib.format.read_array(member, allow_pickle=False))


def _check_header(member: IO[bytes], info: zipfile.ZipInfo) -> None:
    """Check that an array has values without Python objects, as many bytes as were announced."""
    name = show(info.filename)
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, _, kind = np.lib.format.read_array_header_1_0(member)
    elif version == (2, 0):
        shape, _, kind = np.lib.format.read_array_header_2_0(member)
    else:  # 3.0 is for structured types with names beyond Latin-1
        raise Unusable(
            "wrong_type",
            f"Array {name} is in version {version} of the format; only 1.0 and 2.0 are read.",
        )

    if kind.hasobject:
        message = (
            f"Array {name} holds Python objects, which are never read; store numbers, or text for "
            "class names."
        )
        raise Unusable("object_array", message)

    size = info.file_size - member.tell()
    announced = math.prod(shape) * kind.itemsize
    if size != announced:
        raise Unusable(
            "damaged_archive",
            f"Array {name} should have {announced} bytes of values, but has {size}.",
        )
