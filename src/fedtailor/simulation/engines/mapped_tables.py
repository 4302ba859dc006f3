"""The data of a federation as files, which all child processes map: it is in memory once."""

from __future__ import annotations

import math
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import RunError
from fedtailor.simulation.engines.serialization import TensorLayout, aligned_bytes


class MappedTensor(NamedTuple):
    """A tensor in a file."""

    path: str
    layout: TensorLayout

    def open(self) -> Tensor:
        """Return the tensor, backed by the file, which is read-only.

        A program that writes to it ends its process.
        """
        if math.prod(self.layout.shape) == 0:
            return torch.empty(self.layout.shape, dtype=self.layout.dtype)
        # PyTorch warns that writing to it is undefined; here it ends the process.
        memory = np.memmap(self.path, dtype=np.uint8, mode="r")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            values = torch.from_numpy(memory).view(self.layout.dtype)
        return values.as_strided(self.layout.shape, self.layout.stride, self.layout.offset)


class MappedTables:
    """The tables of one federation at a time, in a private temporary folder."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.version = 0
        """How many federations were written."""
        self._tables: tuple[Tensor, ...] = ()
        self._files: tuple[MappedTensor, ...] = ()

    def put(self, *tables: Tensor) -> tuple[MappedTensor, ...]:
        """Return the files of the tables.

        Nothing is written if the tables are those of the last call.

        Raises:
            RunError: the files cannot be written.
        """
        if [id(table) for table in tables] == [id(table) for table in self._tables]:
            return self._files

        # Another federation replaces the last one.
        old_files = self._files
        try:
            self._write(tables)
        except OSError as error:
            self.remove()
            raise RunError(
                "engine 'processes' cannot write the data for its processes to "
                f"{tempfile.gettempdir()}: {error}. Set TMPDIR to a folder with more space, or "
                'use engine.name = "workers", which needs no files.',
                key="engine.name",
            ) from error

        for file in old_files:
            Path(file.path).unlink(missing_ok=True)  # a process that has it open keeps it

        return self._files

    def _write(self, tables: tuple[Tensor, ...]) -> None:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="fedtailor-"))

        self.version += 1
        files = []
        for position, table in enumerate(tables):
            files.append(_write_tensor(self.folder / f"{self.version}-{position}", table))

        self._files = tuple(files)

        # A reference: while it exists, no other tensor can have the same identity.
        self._tables = tables

    def remove(self) -> None:
        """Remove the files."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = None
        self._tables = ()
        self._files = ()


def _write_tensor(path: Path, table: Tensor) -> MappedTensor:
    layout, memory = aligned_bytes(table)
    with path.open("xb") as file:
        memory.tofile(file)
    return MappedTensor(str(path), layout)
