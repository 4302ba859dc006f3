"""Reader of pickles that hold numbers, texts, lists, dicts and arrays of whole numbers, and nothing
else.

CIFAR's python batches are pickles, and a pickle can name any function to be called. The unpickler
is the standard library's; its ``find_class`` looks every name up in a short table of stand-ins.
numpy itself is never given to the unpickler, so that a file cannot reach its ways to rebuild an
object either: object arrays, structured types, and the flags of a type, with which bytes can be
passed off as pointers.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.readers import files

_WHOLE_NUMBERS: Final = frozenset(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8))


def read_pickle(raw: bytes, path: Path) -> dict[str, Any]:
    """Return the dict that a pickle holds; ``path`` names it in errors.

    Memory is bounded by a small multiple of ``raw``, because every length and memo number in it is
    checked first.

    Raises:
        DataError: the pickle names anything but numpy's arrays, holds an array of another type, or
            is damaged.
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
    except Exception as error:  # damaged or hostile content can raise any exception
        raise files.damaged(path, "an intact pickle", f"{type(error).__name__}: {error}") from error


class _Refused(Exception):
    """The pickle asks a stand-in for something that is not allowed."""


class _StandIn:
    """Base of the stand-ins. The unpickler sets a state on instances only: a class has no own
    ``__setstate__``.
    """

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise _Refused("a state of a function")


class _Type(_StandIn):
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


class _Array(_StandIn):
    """Stands in for ``numpy.ndarray`` and ``_reconstruct``, which makes an empty one that gets its
    content later.
    """

    __slots__ = ("value",)

    def __init__(self, *_: object) -> None:
        self.value = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, raw = state
        self._fill(raw, kind, shape, "F" if fortran else "C")

    def _fill(self, raw: Any, kind: Any, shape: Any, order: Any) -> None:
        """Set the content from bytes, after a check of the type."""
        if not isinstance(kind, _Type):
            raise _Refused(f"an array whose type is of {type(kind).__name__}")
        numbers = np.frombuffer(raw, kind.resolve())
        self.value = numbers.reshape(shape, order="F" if order == "F" else "C")


class _FilledArray(_Array):
    """Stands in for ``_frombuffer``, which makes an array with its content."""

    __slots__ = ()

    def __init__(self, raw: Any, kind: Any, shape: Any, order: Any, *_: object) -> None:
        self._fill(raw, kind, shape, order)


class _Encode(_StandIn):
    """Stands in for ``_codecs.encode``, which makes bytes in pickles of protocol 2 written by
    Python 3.
    """

    __slots__ = ()

    def __new__(cls, text: str, encoding: str) -> Any:
        """Return the bytes of a text.

        Raises:
            _Refused: the encoding is not latin1.
        """
        if encoding != "latin1":
            raise _Refused(f"the encoding '{encoding}'")
        return text.encode("latin1")


_NAMES: Final[dict[str, type[_StandIn]]] = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _Type,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.core.numeric._frombuffer": _FilledArray,
    "numpy._core.numeric._frombuffer": _FilledArray,
    "_codecs.encode": _Encode,
}


class _Unpickler(pickle.Unpickler):
    """The standard library's unpickler, which gets every name from ``_NAMES``."""

    def __init__(self, raw: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(raw), encoding="bytes")
        self._path = path

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return the stand-in of a name.

        Raises:
            DataError: the name has none.
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
    """Refuse a length or a memo number larger than the file: the unpickler would allocate that
    much.
    """
    for operation, argument, _ in pickletools.genops(
        raw
    ):  # which refuses lengths that reach beyond the end
        if (
            operation.name in ("PUT", "LONG_BINPUT")
            and isinstance(argument, int)
            and argument > len(raw)
        ):
            raise files.damaged(path, f"memo numbers up to {len(raw)}", str(argument))


def _text(value: object) -> str:
    """Return a text, which Python 2 writes as bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _unwrap(value: Any) -> Any:
    """Return an array in place of its stand-in."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, (_StandIn, type)):
        raise _Refused("a part of an array")
    return value
