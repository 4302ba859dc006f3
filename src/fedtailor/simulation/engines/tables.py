"""The data of a federation as files, which every child process maps: they are in memory once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import RunError
from fedtailor.simulation.engines.wire import Layout, lay_flat


class Mapped(NamedTuple):
    """A tensor in a file."""

    path: str
    layout: Layout
    elements: int
    """Elements in the file, those before the first of the tensor included."""

    def open(self) -> Tensor:
        """Return the tensor; its memory is the file's, what is written to it is this process's own."""
        if self.elements == 0:
            return torch.empty(self.layout.shape, dtype=self.layout.dtype)
        values = torch.from_file(self.path, shared=False, size=self.elements, dtype=self.layout.dtype)
        return values.as_strided(self.layout.shape, self.layout.stride, self.layout.lead)


class Tables:
    """The tables of one federation at a time, in a private temporary folder."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.number = 0
        """How many federations there have been."""
        self._held: tuple[Tensor, ...] = ()
        self._files: tuple[Mapped, ...] = ()

    def put(self, *tables: Tensor) -> tuple[Mapped, ...]:
        """Return the files of tables; they are written unless they are those of the last call.

        Raises:
            RunError: the files cannot be written.
        """
        if len(tables) == len(self._held) and all(new is old for new, old in zip(tables, self._held, strict=True)):
            return self._files
        old = self._files
        try:
            if self.folder is None:
                self.folder = Path(tempfile.mkdtemp(prefix="fedtailor-"))
            self.number += 1
            self._files = tuple(
                _write(self.folder / f"{self.number}-{position}", table) for position, table in enumerate(tables)
            )
        except OSError as error:
            self.remove()
            raise RunError(
                f"engine 'processes' cannot write the data for its processes to {tempfile.gettempdir()}: {error}. Set "
                'TMPDIR to a folder with more room, or engine.name = "workers", which needs no files.',
                key="engine.name",
            ) from error
        self._held = tables  # kept: as long as they are, no other tensor can be mistaken for them
        for file in old:
            Path(file.path).unlink(missing_ok=True)  # who has it open keeps it
        return self._files

    def remove(self) -> None:
        """Remove the files."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder, self._held, self._files = None, (), ()


def _write(path: Path, table: Tensor) -> Mapped:
    layout, values = lay_flat(table)
    before = np.zeros(layout.lead * layout.dtype.itemsize, dtype=np.uint8)
    with path.open("xb") as file:
        before.tofile(file)
        values.tofile(file)
    elements = (len(before) + len(values)) // layout.dtype.itemsize if len(values) else 0
    return Mapped(str(path), layout, elements)
