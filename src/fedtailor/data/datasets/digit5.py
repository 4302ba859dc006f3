"""DIGIT-5: digits of five domains, 32x32 color pixels, composed of the five original data sets.

Gray pictures get three equal channels; other sizes are resized bilinearly to 32x32. Other releases
of DIGIT-5 are ten pickles with a reduced training part of every domain. Here pickles are not read
and nothing is left out, so that results on the two cannot be compared number by number. Domains as
in Zhou et al. 2020, "Learning to generate novel domains for domain generalization", ECCV, and Li et
al. 2021, "FedBN", ICLR.
"""

from __future__ import annotations

import string

import numpy as np
from PIL import Image

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset
from fedtailor.data.datasets import DATASETS
from fedtailor.data.files import Files, matching_files

_SIDE = 32
_DOMAINS = {
    "mnist": "MNIST",
    "svhn": "SVHN",
    "usps": "USPS",
    "syn_digits": "SynDigits",
    "mnist_m": "MNIST-M",
}
"""Names of the domains by data set."""


def load(files: Files) -> Dataset:
    """Load the domains in the data folder, at least two of the five; all take 4 GB of memory.

    If a domain is missing or is a subset, the result is ``partial`` and a note says so. If only
    some files of a domain exist, the missing ones are an error.

    Raises:
        DataError: fewer than two domains are found, or a file of a domain is missing or damaged.
    """
    present = [name for name in _DOMAINS if matching_files(files.folder, DATASETS[name].files)]
    absent = [name for name in _DOMAINS if name not in present]
    if len(present) < 2:
        raise _too_few(files, absent)

    # Each domain by the reader of its own data set.
    parts = []
    for name in present:
        part_files = Files(name, files.folder, files.report)
        parts.append(DATASETS[name].load(part_files))
        files.sources |= part_files.sources

    # Training examples of all domains come first.
    y = np.empty(sum(len(part.y) for part in parts), np.int64)
    domains = np.empty_like(y)
    rows_of = _rows_of_domains(parts)
    for domain, (part, rows) in enumerate(zip(parts, rows_of, strict=True)):
        y[rows] = part.y
        domains[rows] = domain

    incomplete = [part.name for part in parts if len(part.y) != DATASETS[part.name].examples]
    return Dataset(
        name="digit5",
        notes=_notes(parts, absent, incomplete),
        num_official_train=sum(part.num_official_train for part in parts),
        sources=files.sources,
        x=_compose(parts, rows_of),  # this empties parts
        y=y,
        num_classes=10,
        class_names=tuple(string.digits),
        domains=domains,
        domain_names=tuple(_DOMAINS[name] for name in present),
        tested_on="synthetic",
        partial=bool(absent or incomplete),
    )


def _too_few(files: Files, absent: list[str]) -> DataError:
    """Return the error that names the missing domains and their files."""
    missing = [f"{_DOMAINS[name]}: {' or '.join(DATASETS[name].files)}" for name in absent]
    return DataError(
        f"data set 'digit5': at least two of its five domains must be in {files.folder}. "
        f"Missing are {'; '.join(missing)}. {files.advice('them')}",
        key="data.dir",
        path=files.folder,
        allowed="at least two of the five domains",
        got="missing",
    )


def _notes(parts: list[Dataset], absent: list[str], incomplete: list[str]) -> tuple[str, ...]:
    """Return the notes, which a result is shown with."""
    sizes = ", ".join(f"{_DOMAINS[part.name]} {part.num_official_train}" for part in parts)
    notes = [
        "digit5 is composed of the original data sets, not of the ten pickles of other releases.",
        f"digit5 uses all training images of every domain ({sizes}); other releases use a reduced "
        "part.",
    ]
    if absent:
        names = ", ".join(_DOMAINS[name] for name in absent)
        notes.append(f"digit5 lacks {names}: none of their files was found.")
    if incomplete:
        names = ", ".join(_DOMAINS[name] for name in incomplete)
        notes.append(f"digit5 has only a part of {names}.")

    return tuple(notes)


def _rows_of_domains(parts: list[Dataset]) -> list[np.ndarray]:
    """Return the rows of every part: first all training examples, then all test examples."""
    is_test = [np.arange(len(part.y)) >= part.num_official_train for part in parts]

    # Sorting twice gives the row that each example has in the order.
    order = np.argsort(np.concatenate(is_test), kind="stable")
    ends = np.cumsum([len(part.y) for part in parts])
    return np.split(np.argsort(order), ends[:-1])


def _compose(parts: list[Dataset], rows_of: list[np.ndarray]) -> np.ndarray:
    """Return all images in their places, (rows, 32, 32, 3).

    This empties ``parts``, so that no images are held twice.
    """
    x = np.empty((sum(map(len, rows_of)), _SIDE, _SIDE, 3), np.uint8)
    for rows in rows_of:
        images = parts.pop(0).x
        if images.shape[1:3] == (_SIDE, _SIDE):
            x[rows] = images
            continue

        for row, image in zip(rows, images[..., 0], strict=True):  # images of other sizes are gray
            resized = Image.fromarray(image).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
            x[row] = np.asarray(resized)[..., None]

    return x
