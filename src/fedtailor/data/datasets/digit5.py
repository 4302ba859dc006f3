"""DIGIT-5: digits of five domains, 32x32 color pixels, composed of the five original data sets.

Gray pictures get three equal channels; other sizes are resized bilinearly to 32x32. Other releases
of DIGIT-5 are ten pickles with a reduced training part of every domain. Here pickles are not read
and nothing is left out, so that results on the two cannot be compared number by number. Domains as
in Zhou et al. 2020, "Learning to generate novel domains for domain generalization", ECCV, and Li et
al. 2021, "FedBN", ICLR.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset
from fedtailor.data.datasets.known import DATASETS
from fedtailor.data.datasets.mnist import load_mnist
from fedtailor.data.datasets.mnist_m import load_mnist_m
from fedtailor.data.datasets.svhn import load_svhn, load_syn_digits
from fedtailor.data.datasets.usps import load_usps

_SIDE = 32
_LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "mnist": load_mnist,
    "svhn": load_svhn,
    "usps": load_usps,
    "syn_digits": load_syn_digits,
    "mnist_m": load_mnist_m,
}
_NAMES = {
    "mnist": "MNIST",
    "svhn": "SVHN",
    "usps": "USPS",
    "syn_digits": "SynDigits",
    "mnist_m": "MNIST-M",
}


def load_digit5(folder: Path) -> Dataset:
    """Load the domains found in ``folder``, at least two of the five; all five take 4 GB of memory.

    If a domain is missing or is a subset, the result is ``partial`` and a note says so. If only
    some files of a domain exist, the missing ones are an error.

    Raises:
        DataError: fewer than two domains are found, or a file of a domain is missing or damaged.
    """
    present = [name for name in _LOADERS if _is_there(folder, name)]
    absent = [name for name in _LOADERS if name not in present]
    if len(present) < 2:
        raise _too_few(folder, absent)

    parts = [_LOADERS[name](folder) for name in present]
    incomplete = [
        name
        for name, part in zip(present, parts, strict=True)
        if len(part.y) != DATASETS[name].examples
    ]
    notes = _notes(parts, absent, incomplete)
    where = _places(parts)
    rows = sum(len(part.y) for part in parts)
    y = np.empty(rows, np.int64)
    domains = np.empty(rows, np.int64)
    sources: dict[str, str] = {}

    for number, (part, places) in enumerate(zip(parts, where, strict=True)):
        y[places] = part.y
        domains[places] = number
        sources |= part.sources

    return Dataset(
        name="digit5",
        num_official_train=sum(part.num_official_train for part in parts),
        sources=sources,
        x=_compose(parts, where),  # this empties parts
        y=y,
        num_classes=10,
        class_names=tuple(str(digit) for digit in range(10)),
        domains=domains,
        domain_names=tuple(_NAMES[name] for name in present),
        tested_on="synthetic",
        partial=bool(absent or incomplete),
        notes=notes,
    )


def _is_there(folder: Path, name: str) -> bool:
    """Return whether any file of a domain exists."""
    return any(path.is_file() for pattern in DATASETS[name].files for path in folder.glob(pattern))


def _too_few(folder: Path, absent: list[str]) -> DataError:
    """Return the error that names the missing domains and their files."""
    missing = "; ".join(f"{_NAMES[name]}: {' or '.join(DATASETS[name].files)}" for name in absent)
    return DataError(
        f"data set 'digit5': at least two of its five domains must be in {folder}. Missing are {missing}. "
        "Give the folder that holds them with --data-dir or in the environment variable FEDTAILOR_DATA.",
        key="data.dir",
        path=str(folder),
        allowed="at least two of the five domains",
        got="missing",
    )


def _notes(parts: list[Dataset], absent: list[str], incomplete: list[str]) -> tuple[str, ...]:
    """Return the notes for readers of results."""
    amounts = ", ".join(f"{_NAMES[part.name]} {part.num_official_train}" for part in parts)
    notes = [
        "digit5 is composed of the original data sets, not of the ten pickles of other releases.",
        f"digit5 uses all training images of every domain ({amounts}); other releases use a reduced part.",
    ]

    if absent:
        notes.append(
            f"digit5 lacks {', '.join(_NAMES[name] for name in absent)}: none of their files was found."
        )

    if incomplete:
        notes.append(f"digit5 has only a part of {', '.join(_NAMES[name] for name in incomplete)}.")

    for part in parts:
        notes += part.notes

    return tuple(notes)


def _places(parts: list[Dataset]) -> list[np.ndarray]:
    """Return the rows of every part: first all training examples, then all test examples."""
    train = np.cumsum([0, *(part.num_official_train for part in parts)])
    test = train[-1] + np.cumsum([0, *(len(part.y) - part.num_official_train for part in parts)])
    return [np.r_[train[i] : train[i + 1], test[i] : test[i + 1]] for i in range(len(parts))]


def _compose(parts: list[Dataset], where: list[np.ndarray]) -> np.ndarray:
    """Return all images in their places, (rows, 32, 32, 3).

    This empties ``parts``, so that no images are held twice.
    """
    x = np.empty((sum(len(rows) for rows in where), _SIDE, _SIDE, 3), np.uint8)
    for rows in where:
        images = parts.pop(0).x
        if images.shape[1:3] == (_SIDE, _SIDE):
            x[rows] = images
            continue

        for row, image in zip(rows, images[..., 0], strict=True):  # images of other sizes are gray
            resized = Image.fromarray(image).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
            x[row] = np.asarray(resized)[..., None]

    return x
