"""Reader of arrays of numbers in MATLAB files of version 5 to 7.2.

A file is a header of 128 bytes and elements: type, length, content. A variable is an element of
elements (flags, dimensions, name, values), usually compressed by zlib. MathWorks, "MAT-File
Format".

SciPy's reader is not used: up to version 1.17 it takes types from the file as indices without a
check, so that a single wrong byte can end the process or read foreign memory (13 of 400 files with
two random bytes ended it), and it allocates the length that a file announces. Only SVHN has a
published checksum that would exclude such files.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.readers import files

_INT8 = 1
_INT32 = 5
_UINT32 = 6
_MATRIX = 14
_COMPRESSED = 15
_TYPES = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
_NUMERIC_CLASSES = range(
    6, 16
)  # double to unsigned 64-bit; below are cells, structures, objects, text, sparse
_COMPLEX = 0x0800
_CHUNK = 2**20


def read_arrays(
    stream: BinaryIO, path: Path, names: Collection[str], *, max_bytes: int
) -> dict[str, np.ndarray]:
    """Return the arrays called ``names``, with the types of the file (MATLAB stores whole numbers
    in small types).

    Memory grows with the bytes that are read, not with what the file announces, up to ``max_bytes``
    per array.

    Raises:
        DataError: the file is damaged, of another version or too large, or lacks one of the arrays.
    """
    _check_version(stream.read(128), path)
    found: dict[str, np.ndarray] = {}
    try:
        while len(found) < len(names) and (tag := stream.read(8)):
            kind, size = struct.unpack("<II", tag)
            start = stream.tell()
            if kind not in (_MATRIX, _COMPRESSED):
                raise _broken(path, f"an element of type {kind}")

            element = _Element(stream, size, path, compressed=kind == _COMPRESSED)
            if kind == _COMPRESSED and element.tag()[0] != _MATRIX:
                raise _broken(path, "a compressed element that is not a variable")

            name, array = _read_variable(element, path, names, max_bytes)
            if name in found:
                raise _broken(path, f"'{name}' a second time")
            if array is not None:
                found[name] = array

            stream.seek(start + size)
    except (struct.error, zlib.error) as error:
        raise _broken(path, f"{type(error).__name__}: {error}") from error

    absent = [name for name in names if name not in found]
    if absent:
        raise files.damaged(
            path, f"arrays of numbers {' and '.join(names)}", f"no {' and no '.join(absent)}"
        )

    return found


def _check_version(header: bytes, path: Path) -> None:
    """Refuse every version but 5 to 7.2 in little-endian byte order."""
    version = header[124:]
    if version == b"\x00\x01IM":
        return
    got = "version 7.3 (HDF5): save it with '-v7'" if version == b"\x00\x02IM" else "something else"
    raise files.damaged(path, "a MATLAB file of version 5 to 7.2", got)


def _broken(path: Path, got: str) -> DataError:
    return files.damaged(path, "an intact MATLAB file", got)


class _Element:
    """The content of one element of a file, decompressed and read piece by piece."""

    def __init__(self, stream: BinaryIO, size: int, path: Path, *, compressed: bool) -> None:
        self._stream = stream
        self._left = size
        self._path = path
        self._inflate = zlib.decompressobj() if compressed else None
        self._pending = b""

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes.

        Raises:
            DataError: the element has fewer.
        """
        pieces = []
        while size:
            piece = self._some(size)
            if not piece:
                raise _broken(self._path, "the end within a variable (truncated)")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _some(self, size: int) -> bytes:
        """Return between one and ``size`` bytes, or none at the end."""
        if self._inflate is None:
            return self._raw(size)

        while True:
            piece = self._inflate.decompress(self._pending, size)
            self._pending = self._inflate.unconsumed_tail
            if piece or self._inflate.eof:
                return piece

            if not self._pending:
                self._pending = self._raw(2**16)
                if not self._pending:
                    return b""

    def _raw(self, size: int) -> bytes:
        piece = self._stream.read(min(size, self._left))
        self._left -= len(piece)
        return piece

    def tag(self) -> tuple[int, int, bytes | None]:
        """Return type and length of the next element, and its content if the tag itself holds
        it.
        """
        raw = self.read(8)
        kind, size = struct.unpack("<II", raw)
        if (
            kind >> 16
        ):  # a short element: its length is in the upper half, and up to four bytes follow
            size = kind >> 16
            if size > 4:
                raise _broken(self._path, f"a short element of {size} bytes")
            return kind & 0xFFFF, size, raw[4 : 4 + size]

        return kind, size, None

    def short(self, kind: int, most: int) -> bytes:
        """Return the content of the next element, which must have that type and at most ``most``
        bytes.
        """
        got, size, content = self.tag()
        if got != kind or size > most:
            raise _broken(self._path, f"type {got} with {size} bytes in place of type {kind}")
        if content is not None:
            return content
        padded = size + -size % 8
        return self.read(padded)[:size]

    def finish(self) -> None:
        """Check that only padding follows; on the way zlib compares its checksum."""
        rest = 0
        while rest < 8 and (piece := self._some(8)):
            rest += len(piece)
        if rest > 7 or (self._inflate is not None and not self._inflate.eof):
            raise _broken(self._path, "a variable that is longer than it says, or truncated")


def _read_variable(
    element: _Element, path: Path, names: Collection[str], max_bytes: int
) -> tuple[str, np.ndarray | None]:
    """Return name and array of a variable; no array if it does not hold numbers or is not among
    ``names``.
    """
    (flags,) = struct.unpack("<I4x", element.short(_UINT32, 8))
    if flags & 0xFF not in _NUMERIC_CLASSES:
        return "", None

    shape = tuple(length for (length,) in struct.iter_unpack("<i", element.short(_INT32, 128)))
    name = element.short(_INT8, 63).decode("latin-1")
    if name not in names:
        return name, None

    kind, size, content = element.tag()
    if kind not in _TYPES or flags & _COMPLEX:
        raise _broken(path, f"values of type {kind} in '{name}'")

    dtype = np.dtype(f"<{_TYPES[kind]}")
    if min(shape, default=-1) < 0 or size != math.prod(shape) * dtype.itemsize:
        raise _broken(path, f"{size} bytes for '{name}' of shape {shape}")
    if size > max_bytes:
        raise files.damaged(path, f"at most {max_bytes} bytes in '{name}'", f"{size} bytes")

    raw = np.empty(size, np.uint8)
    if content is not None:
        raw[:] = np.frombuffer(content, np.uint8)
    else:
        for start in range(0, size, _CHUNK):
            piece = element.read(min(_CHUNK, size - start))
            raw[start : start + len(piece)] = np.frombuffer(piece, np.uint8)

        element.finish()

    return name, raw.view(dtype).reshape(shape, order="F")
