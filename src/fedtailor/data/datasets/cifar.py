"""CIFAR-10 and CIFAR-100: python batches, which are pickles, in torchvision's folders.

An image is 3,072 bytes: the red, green and blue planes of 32x32. Krizhevsky 2009, "Learning
multiple layers of features from tiny images", technical report, University of Toronto.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.data.dataset import Dataset, check_labels
from fedtailor.data.datasets.parts import ImagePart, join_parts
from fedtailor.data.files import Files, check_count, wrong_content

_PIXELS = 3 * 32 * 32
_NAMES = {
    "labels": "airplane automobile bird cat deer dog frog horse ship truck".split(),
    "coarse_labels": """
        aquatic_mammals fish flowers food_containers fruit_and_vegetables
        household_electrical_devices household_furniture insects large_carnivores
        large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
        medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1
        vehicles_2
        """.split(),
    "fine_labels": """
        apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
        butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
        crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
        keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
        mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
        plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
        skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
        television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
        """.split(),
}
"""Names of classes by the kind of labels, which is its key in a pickle."""


_FILES = {
    "cifar-10-batches-py": (*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"),
    "cifar-100-python": ("train", "test"),
}
"""The training files, then the test file, by folder."""
_KINDS = {
    "cifar10": ("cifar-10-batches-py", ["labels"]),
    "cifar100": ("cifar-100-python", ["fine_labels"]),
    "cifar100_coarse": ("cifar-100-python", ["coarse_labels", "fine_labels"]),
}
"""Folder and kinds of labels by data set; coarse labels make the fine ones subclasses."""

_CALLED = (
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "_codecs.encode",
)
"""What a pickle may call: it makes arrays, and bytes that Python 3 wrote for Python 2."""


def load(files: Files) -> Dataset:
    """Load CIFAR-10, CIFAR-100, or CIFAR-100 with its coarse labels and fine ones as subclasses.

    Raises:
        DataError: a file is missing or damaged, or a pickle asks for more than arrays.
    """
    folder, kinds = _KINDS[files.dataset]

    # Every file has pixels and one column for each kind of labels.
    images = []
    columns: dict[str, list[np.ndarray]] = {kind: [] for kind in kinds}
    for name in _FILES[folder]:
        path = files.find(f"{folder}/{name}")
        pixels, labels = _read(files.read(path), path, kinds)

        # From planes to channels that come last.
        planes = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        images.append(planes)
        for kind, column in columns.items():
            column.append(check_labels(labels[kind], len(_NAMES[kind]), where=str(path)))
            check_count(path, column[-1], pixels)

    parts = list(map(ImagePart, images, columns[kinds[0]]))
    dataset = join_parts(files, parts, _NAMES[kinds[0]])
    if len(kinds) == 1:
        return dataset

    subclasses = np.concatenate(columns["fine_labels"])
    names = tuple(_NAMES["fine_labels"])
    return dataclasses.replace(dataset, subclasses=subclasses, subclass_names=names)


def _read(raw: bytes, path: Path, kinds: Sequence[str]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return pixels (rows, 3072) and labels (rows,) of every kind from a pickled batch."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what Python 2 wrote in another way
            batch = _Unpickler(io.BytesIO(raw), encoding="latin1").load()
    except Exception as error:  # hostile content can raise any, such as of memory that it asks for
        raise wrong_content(path, "a pickle of arrays and lists", error) from error

    pixels = np.asarray(batch["data"])
    labels = {kind: np.asarray(batch[kind]) for kind in kinds}
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        got = f"{pixels.dtype} {pixels.shape}"
        raise wrong_content(path, f"'data' as bytes of shape (rows, {_PIXELS})", got)

    return pixels, labels


class _Unpickler(pickle.Unpickler):
    """Reads plain values and arrays. A pickle can name any function to be called: not here."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        name = f"{module_name}.{global_name}"
        if name not in _CALLED:
            raise pickle.UnpicklingError(f"'{name}' is asked for. Do not trust this file")

        return super().find_class(module_name, global_name)
