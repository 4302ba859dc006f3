"""The cache of embedded features: the vectors of a data set's examples, row by row.

An entry is the folder ``embedded/NAME-KEY`` of the cache folder. ``features.bin`` has a place for
every example, and ``marks.bin`` the first bytes of the SHA-256 of the features that lie there; a
row without its mark is not there, or damaged, and is embedded again. A batch is on the disk before
its marks are, so a killed process loses the batches that it worked on. Several processes may fill
an entry at the same time: they write the same bits.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from fedtailor.core.atomic import to_json, writing
from fedtailor.core.folders import whole_folder
from fedtailor.core.reading import read_object

CACHE_VERSION = 1
"""Increased when the form of an entry changes."""

_FEATURES = "features.bin"
_MARKS = "marks.bin"
_META = "meta.json"
_MARK = 8
"""Bytes of a mark."""


class FeatureCache:
    """The features of some examples, in files; or in memory, where no file can be written."""

    def __init__(self, folder: Path | None, rows: int, dimension: int) -> None:
        """Use the files of an entry; :meth:`open` and :meth:`create` make such objects."""
        self.folder = folder
        self.dimension = dimension
        if folder is None:
            self.features = np.zeros((rows, dimension), np.float32)
            """Of all rows (rows, d); those that are not there are 0."""
            self._marks = np.zeros((rows, _MARK), np.uint8)
            return

        # Copy-on-write: the files change by `write` only, which errors of the disk cannot kill.
        shape = (rows, dimension)
        self.features = np.memmap(folder / _FEATURES, np.float32, mode="c", shape=shape)
        self._marks = np.memmap(folder / _MARKS, np.uint8, mode="c", shape=(rows, _MARK))

    @classmethod
    def open(cls, folder: Path, key: str, rows: int) -> FeatureCache | None:
        """Return an entry of the cache; None if there is none that fits.

        Args:
            folder: of the entry, see :func:`fedtailor.data.files.cache_entry`.
            key: says which features these are, see :func:`key_of`.
            rows: examples of the data set.
        """
        try:
            meta = read_object(folder / _META)
            if meta != _meta(key, rows, meta["dimension"]):
                return None

            return cls(folder, rows, meta["dimension"])
        except Exception:  # damaged files raise exceptions of half a dozen kinds
            return None

    @classmethod
    def create(cls, folder: Path, key: str, rows: int, dimension: int) -> FeatureCache:
        """Return a new entry, or the one that another process has made in the meantime.

        Raises:
            OSError: it cannot be written.
        """
        try:
            with whole_folder(folder) as unfinished:
                # The files have their full length at once, and take space as they are filled.
                for file, size in ((_FEATURES, 4 * dimension), (_MARKS, _MARK)):
                    with (unfinished / file).open("wb") as content:
                        content.truncate(rows * size)

                (unfinished / _META).write_text(to_json(_meta(key, rows, dimension)))
        except OSError:
            # It must stay if another process was faster, which has mapped its files already.
            if not (folder / _META).is_file():
                raise

        return cls(folder, rows, dimension)

    def missing(self, rows: np.ndarray) -> tuple[np.ndarray, int]:
        """Return those of some rows that are not there, and how many of them are damaged.

        Args:
            rows: numbers of examples.
        """
        missing = []
        damaged = 0
        for row in rows.tolist():
            mark = self._marks[row].tobytes()
            if mark != _mark_of(self.features[row]):
                missing.append(row)
                damaged += any(mark)

        return np.array(missing, dtype=np.int64), damaged

    def write(self, rows: np.ndarray, features: np.ndarray) -> None:
        """Keep the features (n, d), float32, of some rows (n,).

        Raises:
            RunError: the disk is full, or has another problem.
        """
        if self.folder is None:
            self.features[rows] = features
            return

        marks = np.stack([np.frombuffer(_mark_of(vector), np.uint8) for vector in features])
        for name, values in ((_FEATURES, features), (_MARKS, marks)):
            with writing(self.folder / name), (self.folder / name).open("r+b") as file:
                for row, value in zip(rows.tolist(), values, strict=True):
                    file.seek(row * value.nbytes)
                    file.write(value.tobytes())

                file.flush()
                os.fsync(file.fileno())


def key_of(*facts: str | float) -> str:
    """Return the SHA-256 of what decides the features: those of the encoder and of the data."""
    return hashlib.sha256(to_json([CACHE_VERSION, *facts]).encode()).hexdigest()


def _meta(key: str, rows: int, dimension: int) -> dict[str, object]:
    return {"key": key, "rows": rows, "dimension": dimension}


def _mark_of(vector: np.ndarray) -> bytes:
    return hashlib.sha256(vector.data).digest()[:_MARK]
