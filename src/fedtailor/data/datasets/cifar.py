"""CIFAR-10 and CIFAR-100: python batches (pickles) or the binary version, in torchvision's folders.

An image is 3,072 bytes: the red, green and blue planes of 32x32. The version in pickles is read if
its folder exists. Krizhevsky 2009, "Learning multiple layers of features from tiny images",
technical report, University of Toronto.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset, check_labels
from fedtailor.data.datasets.cifar_pickle import read_pickle
from fedtailor.data.files import Files, check_count, damaged

_PIXELS = 3 * 32 * 32
_NAMES = {
    "labels": "airplane automobile bird cat deer dog frog horse ship truck",
    "coarse_labels": """
        aquatic_mammals fish flowers food_containers fruit_and_vegetables
        household_electrical_devices household_furniture insects large_carnivores
        large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
        medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1
        vehicles_2
        """,
    "fine_labels": """
        apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
        butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
        crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
        keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
        mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
        plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
        skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
        television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
        """,
}
"""Names of classes by the kind of labels, which is its key in a pickle."""


class _Layout(NamedTuple):
    """The files of CIFAR-10 or CIFAR-100."""

    python: str
    """Folder of the version in pickles."""
    binary: str
    """Folder of the binary version, whose files have the suffix .bin."""
    files: tuple[str, ...]
    """The training files, then the test file."""
    labels: tuple[str, ...]
    """Kinds of labels, in the order in which a binary record has them."""


_CIFAR10 = _Layout(
    "cifar-10-batches-py",
    "cifar-10-batches-bin",
    (*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"),
    ("labels",),
)
_CIFAR100 = _Layout(
    "cifar-100-python", "cifar-100-binary", ("train", "test"), ("coarse_labels", "fine_labels")
)


def load(files: Files) -> Dataset:
    """Load CIFAR-10, CIFAR-100, or CIFAR-100 with its coarse labels and fine ones as subclasses.

    Raises:
        DataError: a file is missing or damaged, a pickle asks for more than arrays, or a fine label
            goes with two coarse ones.
    """
    layout = _CIFAR10 if files.dataset == "cifar10" else _CIFAR100
    has_pickles = (files.folder / layout.python).is_dir()
    is_binary = not has_pickles and (files.folder / layout.binary).is_dir()
    # Every file has pixels and one column for each kind of labels.
    images = []
    columns: dict[str, list[np.ndarray]] = {kind: [] for kind in layout.labels}
    for name in layout.files:
        if is_binary:
            path = files.find(f"{layout.binary}/{name}.bin")
            pixels, labels = _read_binary(files.read(path), path, layout.labels)
        else:
            path = files.find(f"{layout.python}/{name}")
            pixels, labels = _read_python(files.read(path), path, layout.labels)

        # From planes to channels that come last.
        planes = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        images.append(np.ascontiguousarray(planes))
        for kind, column in columns.items():
            column.append(check_labels(labels[kind], len(_names(kind)), where=str(path)))
            check_count(path, column[-1], pixels)

    # The last kind is the finest; coarse labels make it a subclass.
    joined = {kind: np.concatenate(column) for kind, column in columns.items()}
    is_coarse = files.dataset == "cifar100_coarse"
    kind = "coarse_labels" if is_coarse else layout.labels[-1]
    dataset = Dataset(
        name=files.dataset,
        x=np.concatenate(images),
        y=joined[kind],
        num_classes=len(_names(kind)),
        class_names=_names(kind),
        subclasses=joined["fine_labels"] if is_coarse else None,
        subclass_names=_names("fine_labels") if is_coarse else (),
        num_official_train=sum(map(len, images[:-1])),
        sources=files.sources,
        tested_on="synthetic" if is_binary else "original",
    )
    _check_nested(dataset)
    return dataset


def _names(kind: str) -> tuple[str, ...]:
    return tuple(_NAMES[kind].split())


def _check_nested(dataset: Dataset) -> None:
    """Check that all images of a subclass have the same label."""
    if dataset.subclasses is None:
        return

    pairs = np.unique(np.column_stack([dataset.subclasses, dataset.y]), axis=0)
    subclasses, counts = np.unique(pairs[:, 0], return_counts=True)
    if counts.max() > 1:
        name = dataset.subclass_names[subclasses[counts.argmax()]]
        allowed = "each fine label within one coarse label"
        raise DataError(
            f"data set '{dataset.name}': expected {allowed}, got '{name}' in several.",
            allowed=allowed,
            got=name,
        )


def _read_binary(
    raw: bytes, path: Path, kinds: tuple[str, ...]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return pixels (rows, 3072) and labels (rows,) of every kind from records without a header."""
    record = len(kinds) + _PIXELS
    if not raw or len(raw) % record:
        raise damaged(path, f"a multiple of {record} bytes", f"{len(raw)} bytes")

    rows = np.frombuffer(raw, np.uint8).reshape(-1, record)
    labels = {kind: rows[:, place] for place, kind in enumerate(kinds)}
    return rows[:, len(kinds) :], labels


def _read_python(
    raw: bytes, path: Path, kinds: tuple[str, ...]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return pixels (rows, 3072) and labels (rows,) of every kind from a pickled batch."""
    batch = read_pickle(raw, path)
    absent = {"data", *kinds} - set(batch)
    if absent:
        raise damaged(path, f"an entry '{min(absent)}'", f"the entries {', '.join(sorted(batch))}")

    pixels = batch["data"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8:
        raise damaged(path, "'data' as an array of bytes", type(pixels).__name__)
    if pixels.shape[1:] != (_PIXELS,):
        raise damaged(path, f"'data' of shape (rows, {_PIXELS})", pixels.shape)

    try:
        return pixels, {kind: np.asarray(batch[kind]) for kind in kinds}
    except ValueError as error:  # lists of different lengths
        raise damaged(path, "labels as whole numbers", error) from error
