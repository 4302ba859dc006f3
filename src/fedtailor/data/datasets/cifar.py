"""CIFAR-10 and CIFAR-100: python batches (pickles) or the binary version, in torchvision's folders.

An image is 3,072 bytes: the red, green and blue planes of 32x32. Krizhevsky 2009, "Learning
multiple layers of features from tiny images", technical report, University of Toronto.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset, check_labels
from fedtailor.data.readers import files
from fedtailor.data.readers.restricted_pickle import read_pickle

_PIXELS = 3 * 32 * 32


class _Layout(NamedTuple):
    """The files of one version of a data set, training files first."""

    folder: str
    train: tuple[str, ...]
    test: str
    label_bytes: int = 0  # labels before the pixels of a record; 0: a pickle


class _Labels(NamedTuple):
    """One of the labels of every image."""

    key: str  # within a pickle
    byte: int  # within a binary record
    names: tuple[str, ...]


class _Cifar(NamedTuple):
    """The differences between the data sets."""

    name: str
    labels: _Labels
    python: _Layout
    binary: _Layout
    subclasses: _Labels | None = None


_CIFAR10 = _Cifar(
    "cifar10",
    _Labels(
        "labels",
        0,
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    _Layout(
        "cifar-10-batches-py", tuple(f"data_batch_{part}" for part in range(1, 6)), "test_batch"
    ),
    _Layout(
        "cifar-10-batches-bin",
        tuple(f"data_batch_{part}.bin" for part in range(1, 6)),
        "test_batch.bin",
        1,
    ),
)

_FINE = _Labels(
    "fine_labels",
    1,
    tuple(
        """
        apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
        castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
        elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
        man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
        pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
        skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
        tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
        """.split()
    ),
)

_COARSE = _Labels(
    "coarse_labels",
    0,
    tuple(
        """
        aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
        household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
        large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
        vehicles_1 vehicles_2
        """.split()
    ),
)

_CIFAR100 = _Cifar(
    "cifar100",
    _FINE,
    _Layout("cifar-100-python", ("train",), "test"),
    _Layout("cifar-100-binary", ("train.bin",), "test.bin", 2),
)


def load_cifar10(folder: Path) -> Dataset:
    """Load CIFAR-10 from ``folder``/cifar-10-batches-py, else from ``folder``/cifar-10-batches-bin.

    Raises:
        DataError: a file is missing or damaged, or a pickle asks for more than arrays.
    """
    return _load(_CIFAR10, folder)


def load_cifar100(folder: Path) -> Dataset:
    """Load CIFAR-100 with its fine labels from ``folder``/cifar-100-python, else
    ``folder``/cifar-100-binary.

    Raises:
        DataError: a file is missing or damaged, or a pickle asks for more than arrays.
    """
    return _load(_CIFAR100, folder)


def load_cifar100_coarse(folder: Path) -> Dataset:
    """Load CIFAR-100 with its 20 coarse labels; the 100 fine labels become subclasses.

    Raises:
        DataError: as :func:`load_cifar100`, or a fine label goes with two coarse ones.
    """
    dataset = _load(
        _CIFAR100._replace(name="cifar100_coarse", labels=_COARSE, subclasses=_FINE), folder
    )
    _check_nested(dataset)
    return dataset


def _load(cifar: _Cifar, folder: Path) -> Dataset:
    layout = cifar.python
    if not (folder / cifar.python.folder).is_dir() and (folder / cifar.binary.folder).is_dir():
        layout = cifar.binary

    kinds = [each for each in (cifar.labels, cifar.subclasses) if each is not None]
    sources: dict[str, str] = {}
    images: list[np.ndarray] = []
    labels: list[list[np.ndarray]] = []  # of every file, one array for each kind of label
    for file in (*layout.train, layout.test):
        path = folder / layout.folder / file
        if not path.is_file():
            others = (
                [folder / cifar.binary.folder / cifar.binary.train[0]]
                if layout is cifar.python
                else []
            )
            raise files.missing(cifar.name, folder, [path, *others])

        raw = files.read_bytes(path, sources, folder=folder)
        if layout.label_bytes:
            pixels, numbers = _read_binary(raw, path, layout, kinds)
        else:
            pixels, numbers = _read_python(raw, path, kinds)

        images.append(_channels_last(pixels))
        labels.append(
            [
                check_labels(each, len(kind.names), where=str(path))
                for kind, each in zip(kinds, numbers, strict=True)
            ]
        )

    joined = [np.concatenate(each) for each in zip(*labels, strict=True)]
    y = joined[0]
    subclasses = joined[1:]
    tested_on: Literal["original", "synthetic"] = (
        "original" if layout is cifar.python else "synthetic"
    )

    return Dataset(
        name=cifar.name,
        x=np.concatenate(images),
        y=y,
        num_classes=len(cifar.labels.names),
        class_names=cifar.labels.names,
        subclasses=subclasses[0] if subclasses else None,
        subclass_names=cifar.subclasses.names if cifar.subclasses else (),
        num_official_train=len(y) - len(images[-1]),
        sources=sources,
        tested_on=tested_on,
    )


def _check_nested(dataset: Dataset) -> None:
    """Check that all images of a subclass have the same label."""
    assert dataset.subclasses is not None  # for the type checker
    pairs = np.unique(
        np.column_stack([dataset.subclasses, dataset.y]), axis=0
    )  # sorted by subclass
    repeated = np.flatnonzero(pairs[1:, 0] == pairs[:-1, 0])

    if len(repeated):
        first = pairs[repeated[0]]
        second = pairs[repeated[0] + 1]
        subclass = dataset.subclass_names[first[0]]
        got = f"{dataset.class_names[first[1]]} and {dataset.class_names[second[1]]}"
        allowed = "each fine label within one coarse label"
        raise DataError(
            f"data set '{dataset.name}': expected {allowed}, got '{subclass}' in {got}.",
            allowed=allowed,
            got=got,
        )


def _channels_last(pixels: np.ndarray) -> np.ndarray:
    """Turn rows of planes (rows, 3072) into images (rows, 32, 32, 3)."""
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _read_binary(
    raw: bytes, path: Path, layout: _Layout, kinds: list[_Labels]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return pixels (rows, 3072) and labels (rows,) of every kind from a file of records without a
    header.
    """
    record = layout.label_bytes + _PIXELS
    if not raw or len(raw) % record:
        raise files.damaged(path, f"a multiple of {record} bytes", f"{len(raw)} bytes")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, record)
    return rows[:, layout.label_bytes :], [rows[:, kind.byte] for kind in kinds]


def _read_python(
    raw: bytes, path: Path, kinds: list[_Labels]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return pixels (rows, 3072) and labels (rows,) of every kind from a pickled batch."""
    batch = read_pickle(raw, path)
    pixels = _entry(batch, "data", path)
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.shape[1:] != (_PIXELS,)
    ):
        got = (
            f"{pixels.dtype} of shape {pixels.shape}"
            if isinstance(pixels, np.ndarray)
            else type(pixels).__name__
        )
        raise files.damaged(path, f"'data' as an array of bytes (rows, {_PIXELS})", got)

    columns = []
    for kind in kinds:
        labels = _entry(batch, kind.key, path)
        numbers = (
            labels if isinstance(labels, np.ndarray) else _from_list(labels, path, len(kind.names))
        )
        if numbers.shape != pixels.shape[:1]:
            got = (
                f"{len(numbers)} labels"
                if numbers.ndim == 1
                else f"labels of shape {numbers.shape}"
            )
            raise files.damaged(path, f"{len(pixels)} labels, one for each image", got)

        columns.append(numbers)

    return pixels, columns


def _entry(batch: Mapping[str, Any], key: str, path: Path) -> Any:
    if key not in batch:
        raise files.damaged(path, f"an entry '{key}'", f"the entries {', '.join(sorted(batch))}")
    return batch[key]


def _from_list(labels: object, path: Path, num_classes: int) -> np.ndarray:
    """Return a list of labels as an array.

    Raises:
        DataError: an entry is not a whole number in range.
    """
    allowed = f"labels as whole numbers from 0 to {num_classes - 1}"
    if not isinstance(labels, list):
        raise files.damaged(path, allowed, type(labels).__name__)

    for row, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < num_classes:
            shown = (
                f"{label!r:.40}"
                if isinstance(label, (int, float, str, bytes))
                else type(label).__name__
            )
            raise files.damaged(path, allowed, f"{shown} at row {row}")

    return np.array(labels, dtype=np.int64)
