"""MNIST, Fashion-MNIST and EMNIST: IDX files, compressed by gzip or not, in torchvision's folders.

An IDX file is a magic number (two zero bytes, the type 0x08 for unsigned bytes, the number of
axes), the length of each axis as a big-endian 32-bit number, then the values. EMNIST's files may
also be in EMNIST/gzip, as in the archive of the release, which stores every image transposed.
LeCun, Cortes and Burges, "The MNIST database"; Cohen, Afshar, Tapson and van Schaik 2017, "EMNIST:
extending MNIST to handwritten letters", IJCNN.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import math
import string
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from fedtailor.data.dataset import Dataset, Normalization, check_labels
from fedtailor.data.datasets.parts import ImagePart, join_parts
from fedtailor.data.files import MAX_BYTES, Files, check_count, wrong_content

_CLOTHES = (
    "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
).split(", ")
_LETTERS10 = 10
# The other lowercase letters look like uppercase ones.
_MERGED = string.digits + string.ascii_uppercase + "abdefghnqrt"
_EMNIST = {
    "balanced": _MERGED,
    "byclass": string.digits + string.ascii_uppercase + string.ascii_lowercase,
    "bymerge": _MERGED,
    "digits": string.digits,
    "letters": string.ascii_uppercase,
    "mnist": string.digits,
}
"""Names of classes by split of EMNIST; in ``letters`` both cases have one label."""


def load(files: Files) -> Dataset:
    """Load MNIST or Fashion-MNIST.

    Raises:
        DataError: a file is missing or damaged.
    """
    is_mnist = files.dataset == "mnist"
    folder = "MNIST" if is_mnist else "FashionMNIST"
    names = string.digits if is_mnist else _CLOTHES
    parts = []
    for part in ("train", "t10k"):
        parts.append(_read_part(files, [f"{folder}/raw/{part}-{{}}-ubyte"], 10))

    return join_parts(files, parts, names)


def load_emnist(files: Files) -> Dataset:
    """Load one of the six splits of EMNIST, with upright images.

    The splits by class and by merge take 1.3 GB of memory.

    Raises:
        DataError: a file is missing or damaged.
    """
    split = files.dataset.removeprefix("emnist_")
    upright = []
    for part in _read_split(files, split):
        upright.append(part._replace(images=part.images.transpose(0, 2, 1, 3)))

    return join_parts(files, upright, _EMNIST[split])


def load_letters10(files: Files) -> Dataset:
    """Load the first ten letters of EMNIST as FedCR uses them: transposed, standardized.

    Mean and standard deviation are over all pixels of the training part, in raw values from 0 to
    255, and exact up to the last rounding. Zhang et al. 2023, "FedCR", ICML.

    Raises:
        DataError: a file is missing or damaged, or holds none of these letters.
    """
    parts = []
    for images, labels in _read_split(files, "letters"):
        is_first = labels < _LETTERS10
        if not is_first.any():
            raise wrong_content(files.folder / "EMNIST", "one of the letters A to J", "none")
        parts.append(ImagePart(images[is_first], labels[is_first]))

    # From the counts of the 256 values, so that sums are exact.
    counts = np.bincount(parts[0].images.reshape(-1), minlength=256)
    values = np.arange(256)
    total = int(counts.sum())
    mean = int(counts @ values) / total
    variance = int(counts @ values**2) / total - mean**2
    return dataclasses.replace(
        join_parts(files, parts, string.ascii_uppercase[:_LETTERS10]),
        normalize=Normalization((mean,), (max(variance, 0.0) ** 0.5,)),
        white=1.0,
        notes=("images are transposed, as in FedCR's experiments",),
    )


def _read_split(files: Files, split: str) -> list[ImagePart]:
    """Return both parts of a split of EMNIST, whose images are transposed."""
    parts = []
    for part in ("train", "test"):
        name = f"emnist-{split}-{part}-{{}}-ubyte"
        paths = [f"EMNIST/raw/{name}", f"EMNIST/gzip/{name}"]
        first = 1 if split == "letters" else 0
        parts.append(_read_part(files, paths, len(_EMNIST[split]), first=first))

    return parts


def _read_part(
    files: Files, paths: Sequence[str], num_classes: int, *, first: int = 0
) -> ImagePart:
    """Return images, and labels counted from the ``first`` of the file.

    Places have ``{}`` where the name of a file says what it holds.
    """
    images, path = _read_idx(files, [template.format("images-idx3") for template in paths], 3)
    if images.shape[1:] != (28, 28) or not len(images):
        raise wrong_content(path, "images of 28x28 pixels", f"an array {images.shape}")

    numbers, path = _read_idx(files, [template.format("labels-idx1") for template in paths], 1)
    check_count(path, numbers, images)
    labels = check_labels(numbers, num_classes, where=str(path), first=first)
    return ImagePart(images[..., None], labels)


def _read_idx(files: Files, paths: Sequence[str], axes: int) -> tuple[np.ndarray, Path]:
    """Return the array of unsigned bytes in an IDX file, compressed or not, and its path.

    At most as many bytes are decompressed as the header announces, and never more than a limit.
    """
    path = files.find(*paths, *(f"{template}.gz" for template in paths))
    stream: BinaryIO = io.BytesIO(files.read(path))
    if path.suffix == ".gz":
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=stream))

    magic = stream.read(4)
    if magic != bytes((0, 0, 8, axes)):
        got = f"the magic number 0x{magic.hex()}"
        raise wrong_content(path, f"an IDX file of {axes} axes", got)

    shape = struct.unpack(f">{axes}I", stream.read(4 * axes))
    size = math.prod(shape)
    if size > MAX_BYTES:
        raise wrong_content(path, f"at most {MAX_BYTES} values", size)

    # One byte more than it says, to notice a longer file.
    values = stream.read(size + 1)
    if len(values) != size:
        raise wrong_content(path, f"{size} values, as its header announces", "more or fewer")
    return np.frombuffer(values, np.uint8).reshape(shape), path
