"""Own data as arrays: ``SITE/train.npz`` and, if it exists, ``SITE/test.npz``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset
from fedtailor.data.files import read_bytes
from fedtailor.data.options import DataOptions
from fedtailor.data.own.assemble import combine_blocks, one_source
from fedtailor.data.own.blocks import Block
from fedtailor.data.own.findings import (
    MAX_CLASSES,
    MAX_TOTAL_BYTES,
    Findings,
    Place,
    Unusable,
    show,
)
from fedtailor.data.own.names import safe_name
from fedtailor.data.own.npz import read_archive

ARRAYS = ("x", "y", "class_names")


def read_npz_sites(
    folder: Path, sites: list[tuple[str, dict[str, Path]]], options: DataOptions, findings: Findings
) -> Dataset | None:
    """Read the arrays ``x`` and ``y`` of every site, and the text array ``class_names`` if a file
    has it.

    ``x`` is (rows, height, width), (rows, height, width, channels) or (rows, features), numbers;
    ``y`` is (rows,), whole numbers from 0. :mod:`fedtailor.data.own.blocks` and
    :mod:`fedtailor.data.own.scale` describe the accepted values.

    Args:
        folder: the data's folder; problems name files relative to it.
        sites: name of each site and its files: ``train``, ``test``, or both.
        options: none changes the result; options for image files give a warning.
        findings: problems, sites and notes are added to it.

    Returns:
        The data set, or None after an error.
    """
    digests: dict[str, str] = {}
    blocks: list[Block] = []
    names: dict[str, tuple[str, ...]] = {}  # class names by the file that has them
    left = MAX_TOTAL_BYTES
    for site, files in sites:
        for part in ("train", "test"):
            if part not in files:
                continue

            place = Place(findings, site, safe_name(files[part].relative_to(folder).as_posix()))
            arrays = _read_file(files[part], folder, place, digests, left)
            if arrays is None:
                continue

            left -= sum(array.nbytes for array in arrays.values())
            blocks.append(
                Block(place, "train" if part == "train" else "test", arrays["x"], arrays["y"])
            )
            if "class_names" in arrays:
                found = _check_names(arrays["class_names"], place)
                if found is not None:
                    names[place.path] = found

    class_names: tuple[str, ...] = ()
    if names and _check_names_alike(names, findings):
        class_names = next(iter(names.values()))

    named = [site for site, _ in sites]
    sources = one_source(folder.name, digests)
    return combine_blocks(
        folder.name, named, blocks, class_names, options, findings, sources=sources
    )


def _read_file(
    path: Path, folder: Path, place: Place, digests: dict[str, str], limit: int
) -> dict[str, np.ndarray] | None:
    """Return the arrays of a file, at most ``limit`` bytes; None, with the problem added, without
    ``x`` or ``y``.
    """
    try:
        arrays, present = read_archive(
            read_bytes(path, digests, folder=folder), ARRAYS, limit=limit
        )
    except DataError as error:
        place.error("unreadable_file", error.message)
        return None
    except Unusable as error:
        place.error(error.kind, error.message)
        return None

    shown = ", ".join(show(name) for name in present[:20]) or "none"
    missing = [name for name in ("x", "y") if name not in arrays]
    if missing:
        place.error(
            "missing_array", f"Array {' and '.join(missing)} is missing; the arrays are: {shown}."
        )
        return None

    if len(present) > len(arrays):
        message = f"Only x, y and class_names are used; the arrays are: {shown}."
        place.warning("unused_array", message)

    return arrays


def _check_names(array: np.ndarray, place: Place) -> tuple[str, ...] | None:
    """Return the class names, or None with the problem added."""
    names = tuple(str(name) for name in array.ravel()[: MAX_CLASSES + 1])
    fits = array.ndim == 1 and array.dtype.kind == "U" and 0 < len(names) <= MAX_CLASSES
    if not fits or len(set(names)) < len(names) or "" in names:
        message = f"class_names must be an array of 1 to {MAX_CLASSES} names, all different and none empty"
        place.error(
            "wrong_class_names", f"{message}; got type {array.dtype} of shape {array.shape}."
        )

        return None

    return names


def _check_names_alike(names: dict[str, tuple[str, ...]], findings: Findings) -> bool:
    """Return whether all files with class names have the same; add the first that differs."""
    first = next(iter(names), "")
    for path, found in names.items():
        if found != names[first]:
            message = f"class_names differ from those of {show(first)}."
            findings.add("error", "class_names_differ", "", path, message)
            return False
    return True
