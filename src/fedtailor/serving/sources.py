"""Files to predict, read in batches of bounded memory: pictures, folders, arrays and tables."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.core.reading import read_file
from fedtailor.core.text import escaped
from fedtailor.data.input_specification import InputSpecification
from fedtailor.data.own.archives import ENDINGS, read_arrays
from fedtailor.data.own.findings import Findings, Unusable
from fedtailor.data.own.images import SUFFIXES
from fedtailor.data.own.like import read_table_like
from fedtailor.data.own.table import TABLES
from fedtailor.serving.inputs import features_of, read_picture, to_stored

BATCH = 500
"""Pictures that are in memory at the same time."""
_OTHERS: Mapping[str, str] = {
    "images": "pictures",
    "series": "arrays of series",
    "table": "arrays without names of columns",
}
"""What a model without columns takes, by the kind of its inputs."""
_MISLEADING = ("unit_differs", "no_values")
"""Kinds of problems of a table that make predictions wrong without a sign of it."""
_LARGEST = 2**32
"""Bytes of a file of arrays."""


class NamedExamples(NamedTuple):
    """Some examples, each with a name."""

    names: list[str]
    stored: np.ndarray
    kept: Sequence[tuple[str, ...]] = ()
    """The cells of the columns to keep, row by row; empty if there are none."""


class Unreadable(NamedTuple):
    """A file that was left out."""

    name: str
    reason: str


class Sources:
    """What is to be predicted, in order."""

    def __init__(
        self, paths: Sequence[str], inputs: InputSpecification, keep: Sequence[str] = ()
    ) -> None:
        """Find the files.

        Args:
            paths: pictures, folders, CSV or Parquet tables, ``.npz`` files with an array ``x``.
            inputs: of the model.
            keep: columns of the tables to return beside the examples.

        Raises:
            DataError: a path does not exist, or is of another kind than the model takes.
        """
        self.unreadable: list[Unreadable] = []
        """Files that were left out so far."""
        self.notes: list[str] = []
        """Sentences about the tables read so far: empty cells, unknown categories."""
        self.warnings: list[str] = []
        """Those of the notes on what makes predictions wrong: another unit than in training, rows
        without any value."""
        self.missing: Counter[str] = Counter()
        """Empty cells of the tables read so far, by column."""
        self.unseen: Counter[str] = Counter()
        """Cells with a category that no training example had, by column."""
        self._keep = list(keep)
        self._inputs = inputs
        self._pictures: list[tuple[Path, str]] = []
        self._arrays: list[Path] = []
        self._tables: list[Path] = []
        for path in paths:
            self._add(Path(os.path.expanduser(path)))

        if keep and (self._pictures or self._arrays):
            first = self._pictures[0][0] if self._pictures else self._arrays[0]
            message = f"--keep names columns of a table, and '{first}' is none."
            raise DataError(message, key="keep", allowed="tables", got=str(first))

    @property
    def count(self) -> int:
        """The number of files."""
        return len(self._pictures) + len(self._arrays) + len(self._tables)

    def batches(self, done: Callable[[int], None] = lambda count: None) -> Iterator[NamedExamples]:
        """Yield the examples in batches, arrays and tables first.

        Unreadable pictures are left out and listed.

        Args:
            done: is called with the number of files read so far.

        Raises:
            DataError: an array does not fit the model.
        """
        for path in self._arrays:
            yield from self._of_arrays(path)
        for path in self._tables:
            yield from self._of_table(path)
        if self._pictures:
            yield from self._of_pictures(done)

    def _add(self, path: Path) -> None:
        suffix = path.suffix.lower()
        if path.is_dir():
            self._add_folder(path)
        elif not path.exists():
            raise DataError(f"'{path}' does not exist.", key="path", path=path)
        elif suffix in ENDINGS:
            self._arrays.append(path)
        elif suffix in TABLES:
            self._tables.append(path)
        elif suffix in SUFFIXES:
            self._refuse_pictures(path)
            self._pictures.append((path, escaped(str(path))))
        else:
            allowed = "a picture, a folder of pictures, a CSV or Parquet table, or .npz or .h5"
            message = f"'{path}' must be {allowed}."
            raise DataError(message, key="path", path=path, allowed=allowed, got=suffix)

    def _add_folder(self, folder: Path) -> None:
        """Add all pictures of a folder, in the order of their names."""
        from fedtailor.data.own.walk import walk

        self._refuse_pictures(folder)
        try:
            tree = walk(folder, Findings())
        except Unusable as reason:
            raise DataError(f"'{folder}': {reason.message}", key="path", path=folder) from reason

        files = [file for file in tree.files if file.suffix in SUFFIXES]
        if not files:
            message = f"'{folder}' holds no pictures."
            raise DataError(message, key="path", path=folder, allowed="pictures", got=0)

        for file in files:
            name = f"{escaped(str(folder))}/{file.escaped}"
            self._pictures.append((tree.path(file), name))

    def _refuse_pictures(self, path: Path) -> None:
        if self._inputs.kind != "images":
            allowed = "tables of features" if self._inputs.kind == "table" else _OTHERS["series"]
            message = f"the model takes {allowed}, not folders or pictures ('{path}')."
            raise DataError(message, key="path", allowed=allowed)

    def _of_pictures(self, done: Callable[[int], None]) -> Iterator[NamedExamples]:
        from fedtailor.data.own.decode import reading_images

        names: list[str] = []
        rows: list[np.ndarray] = []
        for number, (path, name) in enumerate(self._pictures, start=1):
            try:
                with reading_images():
                    rows.append(read_picture(path, self._inputs))

                names.append(name)
            except DataError as reason:
                self.unreadable.append(Unreadable(name, reason.message))

            # Only one batch of pictures is in memory at a time.
            if len(rows) == BATCH:
                yield NamedExamples(names, np.stack(rows))
                names = []
                rows = []

            done(self.count - len(self._pictures) + number)

        if rows:
            yield NamedExamples(names, np.stack(rows))

    def _of_arrays(self, path: Path) -> Iterator[NamedExamples]:
        """Yield the examples of an archive; they are named by the file and their index."""
        raw = read_file(path, limit=_LARGEST)
        try:
            arrays, present = read_arrays(path, raw, ["x"], limit=_LARGEST)
            stored = to_stored(arrays["x"], self._inputs) if "x" in arrays else None
        except (Unusable, DataError) as reason:
            raise DataError(f"'{path}': {reason.message}", key="path", path=path) from reason

        if stored is None:
            got = ", ".join(present[:5]) or "none"
            message = f"'{path}' must hold an array x, got: {got}."
            raise DataError(message, key="path", path=path, allowed="x")

        file = escaped(path.name)
        yield from _in_batches([f"{file}[{row}]" for row in range(len(stored))], stored)

    def _of_table(self, path: Path) -> Iterator[NamedExamples]:
        """Yield the rows of a table; they are named by the file and their line."""
        training = self._inputs.training_tables
        if training is None:
            allowed = _OTHERS[self._inputs.kind]
            message = f"the model takes {allowed}, not tables ('{path}')."
            raise DataError(message, key="path", path=path, allowed=allowed)

        file = escaped(path.name)
        table = read_table_like(path, training, self._keep)
        features = features_of(table)
        for problem in table.problems:
            note = f"{problem.path}: {problem.message}"
            self.notes.append(note)
            if problem.kind in _MISLEADING:
                self.warnings.append(note)

        self.missing.update(table.missing)
        self.unseen.update(table.unseen)
        rows = list(zip(*table.keep.values(), strict=True))
        yield from _in_batches([f"{file}:{line}" for line in table.lines], features, rows)


def _in_batches(
    names: Sequence[str], stored: np.ndarray, kept: Sequence[tuple[str, ...]] = ()
) -> Iterator[NamedExamples]:
    for start in range(0, len(stored), BATCH):
        part = slice(start, start + BATCH)
        yield NamedExamples(list(names[part]), stored[part], kept[part])
