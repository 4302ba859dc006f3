"""Tensors of a stored model as NumPy arrays, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from fedtailor.core.errors import DataError
from fedtailor.core.reading import damaged

_TYPES = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
_MOST_AXES = 64
"""Of an array of NumPy."""


def to_arrays(raw: bytes, path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file by name.

    NumPy has no bfloat16: such a tensor becomes float32 with the same values.

    Args:
        raw: the content of the file.
        path: the file, for messages.

    Raises:
        DataError: the content is damaged, or a tensor has a type that NumPy does not have.
    """
    try:
        tensors = deserialize(raw)  # type: ignore[no-untyped-call]  # of the library
    except (SafetensorError, ValueError, TypeError, RecursionError, OverflowError) as reason:
        raise damaged(path, str(reason)) from reason
    return {name: _to_array(name, tensor, path) for name, tensor in tensors}


def _to_array(name: str, tensor: dict[str, Any], path: Path) -> np.ndarray:
    shape = tuple(tensor["shape"])
    kind = tensor["dtype"]
    if len(shape) > _MOST_AXES:
        raise damaged(path, f"the tensor {name!r:.80} has {len(shape)} axes")

    try:
        if kind == "BF16":
            upper = np.frombuffer(tensor["data"], dtype="<u2").astype("<u4")
            return (upper << 16).view("<f4").reshape(shape)

        if kind in _TYPES:
            return np.frombuffer(tensor["data"], dtype=_TYPES[kind]).reshape(shape).copy()
    except (ValueError, OverflowError) as reason:
        raise damaged(path, f"the tensor {name!r:.80}: {reason}") from reason

    raise DataError(
        f"'{path}' holds the tensor {name!r:.80} of type {kind}, which NumPy does not have. Read "
        "the file with fedtailor.core.codec.decode.",
        path=str(path),
        allowed=[*_TYPES, "BF16"],
        got=kind,
    )
