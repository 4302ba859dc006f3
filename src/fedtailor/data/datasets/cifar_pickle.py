"""Reader of CIFAR's python batches, which are pickles: numbers, texts and arrays, nothing else.

A pickle can name any function to be called. The unpickler is the standard library's, and every name
that is not in a short list is refused. Even NumPy's own functions are replaced: a file could use
them to pass off bytes as pointers.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.data.files import damaged

_WHOLE_NUMBERS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")


def read_pickle(raw: bytes, path: Path) -> dict[str, Any]:
    """Return the dict that a pickle holds; ``path`` names it in errors.

    Raises:
        DataError: the pickle asks for anything but arrays of whole numbers, or is damaged.
    """
    try:
        content = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
        batch = {}
        for key, value in content.items():
            batch[_text(key)] = value.values if isinstance(value, _Array) else value
    except Exception as error:  # damaged or hostile content can raise any exception
        allowed = "a pickle of a dict with plain values and arrays of whole numbers"
        raise damaged(path, allowed, error) from error

    return batch


class _Type:
    """Stands in for ``numpy.dtype``, which a file names by a code such as u1."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code = _text(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if self.code not in _WHOLE_NUMBERS or _text(state[1]) not in "<|":
            raise pickle.UnpicklingError(f"an array of type {self.code}")


class _Array:
    """Stands in for ``numpy.ndarray``: made empty, it gets its content as its state."""

    values: np.ndarray | None = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, is_fortran, raw = state
        if not isinstance(kind, _Type) or kind.code not in _WHOLE_NUMBERS:
            raise pickle.UnpicklingError("an array that does not hold whole numbers")

        numbers = np.frombuffer(raw, f"<{kind.code}")
        self.values = numbers.reshape(shape, order="F" if is_fortran else "C")


class _FilledArray(_Array):
    """Stands in for NumPy's ``_frombuffer``, which makes an array with its content."""

    def __init__(self, raw: bytes, kind: _Type, shape: tuple[int, ...], order: str) -> None:
        self.__setstate__((1, shape, kind, order == "F", raw))


class _Bytes:
    """Stands in for ``codecs.encode``, with which Python 3 writes bytes for Python 2."""

    def __new__(cls, text: str, encoding: str) -> Any:
        return text.encode(encoding)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a function that is changed")


_STAND_INS: Mapping[str, Any] = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _Type,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.core.numeric._frombuffer": _FilledArray,
    "numpy._core.numeric._frombuffer": _FilledArray,
    "_codecs.encode": _Bytes,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        name = f"{module_name}.{global_name}"
        if name not in _STAND_INS:
            raise pickle.UnpicklingError(f"'{name}' is asked for. Do not trust this file")
        return _STAND_INS[name]


def _text(value: object) -> str:
    """Return a text, which Python 2 writes as bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
