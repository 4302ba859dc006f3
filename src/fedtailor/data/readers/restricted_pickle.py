"""Read a pickle that may hold numbers, texts, lists, dicts and arrays of whole numbers, and nothing else.

CIFAR's python batches are pickles, and a pickle can name any function to be called. Here every name is
looked up in a short table of stand-ins; numpy itself is never handed to the unpickler, so that not even
its own ways to rebuild an object (object arrays, structured types) can be reached from a file.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.readers import files

_WHOLE_NUMBERS: Final = frozenset(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8))


def read_pickle(raw: bytes, path: Path) -> dict[str, Any]:
    """Return the dict that a pickle holds; ``path`` names it in errors.

    Raises:
        DataError: another name than numpy's array parts, an array of another type, damaged content.
    """
    try:
        _check_memo(raw, path)
        content = _Unpickler(raw, path).load()
        if not isinstance(content, dict):
            raise files.damaged(path, "a dict", type(content).__name__)
        return {_text(key): _unwrap(value) for key, value in content.items()}
    except DataError:
        raise
    except _Refused as error:
        raise files.damaged(path, "arrays of whole numbers and plain values", str(error)) from error
    except Exception as error:  # damaged or hostile content can raise anything
        raise files.damaged(path, "an intact pickle", f"{type(error).__name__}: {error}") from error


class _Refused(Exception):
    """What a stand-in was asked to do is not allowed."""


class _Type:
    """Stands in for ``numpy.dtype``: a code such as u1, and a byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: str | bytes, align: object = False, copy: object = False) -> None:
        self.code = _text(code)
        self.order = "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, *details = state
        self.order = _text(order)
        if any(part is not None for part in details[:3]):
            self.code = "structured"

    def resolve(self) -> np.dtype[Any]:
        """Return the numpy type if it is one of the whole numbers."""
        if self.code not in _WHOLE_NUMBERS or self.order not in "<>|=":
            shown = "object" if self.code.startswith("O") else self.code
            raise _Refused(f"an array of type '{shown}'")
        return np.dtype(self.order + self.code)


class _Array:
    """Stands in for ``numpy.ndarray``: gets its content by ``__setstate__``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, raw = state
        self.fill(raw, kind, shape, "F" if fortran else "C")

    def fill(self, raw: Any, kind: Any, shape: Any, order: Any) -> None:
        """Set the content from bytes; the type is looked at before anything else."""
        if not isinstance(kind, _Type):
            raise _Refused(f"an array whose type is {kind!r}")
        numbers = np.frombuffer(raw, kind.resolve())
        self.value = numbers.reshape(shape, order="F" if order == "F" else "C")


class _Call:
    """A function as the unpickler sees it: it can be called, and nothing about it can be changed."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> object:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise _Refused("a change of a function")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _from_buffer(raw: object, kind: object, shape: object, order: object, *_: object) -> _Array:
    array = _Array()
    array.fill(raw, kind, shape, order)
    return array


def _encode(text: str, encoding: str) -> bytes:
    """Bytes in pickles of protocol 2 written by Python 3."""
    if encoding != "latin1":
        raise _Refused(f"the encoding '{encoding}'")
    return text.encode("latin1")


_NAMES: Final[dict[str, object]] = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _Type,
    "numpy.core.multiarray._reconstruct": _Call(_reconstruct),
    "numpy._core.multiarray._reconstruct": _Call(_reconstruct),
    "numpy.core.numeric._frombuffer": _Call(_from_buffer),
    "numpy._core.numeric._frombuffer": _Call(_from_buffer),
    "_codecs.encode": _Call(_encode),
}


class _Unpickler(pickle.Unpickler):
    """Looks every name up in ``_NAMES``."""

    def __init__(self, raw: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(raw), encoding="bytes")
        self._path = path

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return the stand-in of a name.

        Raises:
            DataError: the name is not in the table.
        """
        name = f"{module_name}.{global_name}"
        if name not in _NAMES:
            raise DataError(
                f"{self._path}: refused, because the pickle asks for '{name}'; only numpy arrays and plain values "
                "are read. Do not trust this file.",
                path=str(self._path),
                allowed="numpy arrays and plain values",
                got=name,
            )
        return _NAMES[name]


def _check_memo(raw: bytes, path: Path) -> None:
    """Refuse a memo number larger than the file: the unpickler would allocate that many slots."""
    for operation, argument, _ in pickletools.genops(raw):
        if operation.name in ("PUT", "LONG_BINPUT") and isinstance(argument, int) and argument > len(raw):
            raise files.damaged(path, f"memo numbers up to {len(raw)}", str(argument))


def _text(value: object) -> str:
    """Return a text that may have been written by Python 2."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _unwrap(value: Any) -> Any:
    return value.value if isinstance(value, _Array) else value
