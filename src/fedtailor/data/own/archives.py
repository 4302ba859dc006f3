"""Safe readers of files of arrays from untrusted sources: ``.npz``, and by an extra ``.h5``."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.extras import install_command
from fedtailor.data.own.findings import Unusable, limit_size

HDF5 = (".h5", ".hdf5")
"""Endings of HDF5 files."""
ENDINGS = (".npz", *HDF5)
"""Endings of files of arrays."""


def read_arrays(
    path: Path, raw: bytes, names: Collection[str], *, limit: int
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return some arrays of a file, as :func:`read_archive` or :func:`read_hdf5`, by its name."""
    read = read_hdf5 if path.suffix.lower() in HDF5 else read_archive
    return read(raw, names, limit=limit)


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
    with _reading("NumPy archive"), np.load(io.BytesIO(raw), allow_pickle=False) as archive:
        files = archive.zip.infolist()
        sizes = {info.filename.removesuffix(".npy"): info.file_size for info in files}
        chosen = [name for name in names if name in sizes]
        limit_size("The arrays", sum(sizes[name] for name in chosen), limit)
        return {name: np.asarray(archive[name]) for name in chosen}, sorted(sizes)


def read_hdf5(
    raw: bytes, names: Collection[str], *, limit: int
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return those of the data sets ``names`` at the top of a file, and the names of all there.

    Only what lies in the file itself is read: no links, no parts in other files, no references.
    Sizes are checked before anything is decompressed: the wanted data sets together may have at
    most ``limit`` bytes.

    Raises:
        Unusable: h5py is missing, or the file is damaged, too large or holds something else.
    """
    if importlib.util.find_spec("h5py") is None:
        message = f"HDF5 files need h5py: {install_command('hdf5')}, or use .npz."
        raise Unusable("h5py_missing", message)

    import h5py

    with _reading("HDF5 file"), h5py.File(io.BytesIO(raw), "r") as file:
        present = sorted(file)
        chosen = {name: _own_dataset(file, name) for name in names if name in present}
        size = sum(dataset.size * dataset.dtype.itemsize for dataset in chosen.values())
        limit_size("The arrays", size, limit)
        return {name: _values_of(dataset) for name, dataset in chosen.items()}, present


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turn the exceptions of a damaged file into :class:`Unusable`."""
    try:
        yield
    except Unusable:
        raise
    except Exception as error:  # one of a dozen exceptions of five modules
        message = f"The {what} cannot be read: {type(error).__name__}: {error}."
        if "Object arrays" in str(error):  # of NumPy
            message += " Store numbers, or text for class names."
            raise Unusable("object_array", message) from error

        raise Unusable("damaged_archive", message) from error


def _own_dataset(file: Any, name: str) -> Any:
    """Return a data set whose values lie in the file."""
    import h5py

    is_link = not isinstance(file.get(name, getlink=True), h5py.HardLink)
    dataset: Any = None if is_link else file[name]
    is_elsewhere = is_link or not isinstance(dataset, h5py.Dataset)
    if is_elsewhere or dataset.is_virtual or dataset.external:
        message = f"'{name}' is a link, a group, or lies in another file; store the values here."
        raise Unusable("object_array", message)

    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    if dataset.dtype.kind not in "biufSU" and not is_text:
        message = f"'{name}' is of type {dataset.dtype}. Store numbers, or text for class names."
        raise Unusable("object_array", message)

    return dataset


def _values_of(dataset: Any) -> np.ndarray:
    """Return the values of a data set; texts as NumPy's, a single one as an array of no axes."""
    import h5py

    if h5py.check_string_dtype(dataset.dtype) is None:
        return np.asarray(dataset[()])

    return np.array(dataset.asstr()[()], dtype=str)
