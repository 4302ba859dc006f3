"""A safe reader of NumPy archives (``.npz``) from untrusted sources."""

from __future__ import annotations

import io
from collections.abc import Collection

import numpy as np

from fedtailor.data.own.findings import Unusable, limit_size


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
        with np.load(io.BytesIO(raw), allow_pickle=False) as archive:
            sizes = {
                info.filename.removesuffix(".npy"): info.file_size
                for info in archive.zip.infolist()
            }
            chosen = [name for name in names if name in sizes]
            limit_size("The arrays", sum(sizes[name] for name in chosen), limit)
            return {name: np.asarray(archive[name]) for name in chosen}, sorted(sizes)
    except Unusable:
        raise
    except Exception as error:  # a damaged archive raises one of a dozen exceptions of five modules
        message = f"The NumPy archive cannot be read: {type(error).__name__}: {error}."
        if "Object arrays" in str(error):  # of NumPy
            message += " Store numbers, or text for class names."
            raise Unusable("object_array", message) from error

        raise Unusable("damaged_archive", message) from error
