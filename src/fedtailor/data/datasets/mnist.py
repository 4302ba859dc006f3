"""MNIST and Fashion-MNIST: IDX files, compressed by gzip or not, in torchvision's folders.

An IDX file is a magic number (two zero bytes, the type 0x08 for unsigned bytes, the number of
axes), the length of each axis as a big-endian 32-bit number, then the values. LeCun, Cortes and
Burges, "The MNIST database".
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from fedtailor.data.dataset import Dataset, check_labels
from fedtailor.data.readers import files

_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def load_mnist(folder: Path) -> Dataset:
    """Load MNIST from ``folder``/MNIST/raw.

    Raises:
        DataError: a file is missing or damaged.
    """
    return _load("mnist", folder / "MNIST" / "raw", tuple(str(digit) for digit in range(10)))


def load_fashion_mnist(folder: Path) -> Dataset:
    """Load Fashion-MNIST from ``folder``/FashionMNIST/raw.

    Raises:
        DataError: a file is missing or damaged.
    """
    return _load("fashion_mnist", folder / "FashionMNIST" / "raw", _CLOTHES)


def _load(name: str, raw: Path, class_names: tuple[str, ...]) -> Dataset:
    sources: dict[str, str] = {}
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for part in ("train", "t10k"):
        pictures = read_idx(
            _find(name, raw, f"{part}-images-idx3-ubyte"), 3, sources, folder=raw.parents[1]
        )
        path = _find(name, raw, f"{part}-labels-idx1-ubyte")
        numbers = check_labels(
            read_idx(path, 1, sources, folder=raw.parents[1]), 10, where=str(path)
        )

        if len(numbers) != len(pictures):
            raise files.damaged(
                path, f"{len(pictures)} labels, one for each image", f"{len(numbers)} labels"
            )

        if images and pictures.shape[1:] != images[0].shape[1:]:
            expected = f"images of {images[0].shape[1:]} pixels"
            raise files.damaged(
                raw / f"{part}-images-idx3-ubyte", expected, f"{pictures.shape[1:]}"
            )

        images.append(pictures)
        labels.append(numbers)

    return Dataset(
        name=name,
        x=np.concatenate(images)[..., np.newaxis],
        y=np.concatenate(labels),
        num_classes=10,
        class_names=class_names,
        num_official_train=len(labels[0]),
        sources=sources,
    )


def _find(name: str, raw: Path, file: str) -> Path:
    """Return the path of a file, compressed or not."""
    places = [raw / file, raw / f"{file}.gz"]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise files.missing(name, raw.parents[1], places)
    return found


def read_idx(path: Path, axes: int, sources: dict[str, str], *, folder: Path) -> np.ndarray:
    """Read an array of unsigned bytes with ``axes`` axes from an IDX file, compressed if its name
    ends in .gz.

    At most as many bytes are decompressed as the header announces, and never more than
    ``files.MAX_BYTES``.

    Raises:
        DataError: wrong magic number, fewer or more values than announced, damaged compression.
    """
    raw = files.read_bytes(path, sources, folder=folder)
    stream: BinaryIO = io.BytesIO(raw)
    if path.suffix == ".gz":
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=stream))

    try:
        header = stream.read(4 + 4 * axes)
        shape = _shape(path, header, axes)
        size = math.prod(shape)
        if size > files.MAX_BYTES:
            raise files.damaged(path, f"at most {files.MAX_BYTES} values", f"{size}")

        values = stream.read(size + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise files.damaged(path, "intact gzip data", f"{type(error).__name__}: {error}") from error

    if len(values) != size:
        got = f"only {len(values)} (truncated)" if len(values) < size else "more"
        raise files.damaged(path, f"{size} values, as its header announces", got)

    return np.frombuffer(values, np.uint8).reshape(shape)


def _shape(path: Path, header: bytes, axes: int) -> tuple[int, ...]:
    """Check the magic number and return the lengths of the axes."""
    magic = struct.pack(">HBB", 0, 8, axes)
    if header[:4] != magic:
        raise files.damaged(path, f"magic number 0x{magic.hex()}", f"0x{header[:4].hex()}")
    if len(header) < 4 + 4 * axes:
        raise files.damaged(
            path, f"a header of {4 + 4 * axes} bytes", f"{len(header)} bytes (truncated)"
        )
    return struct.unpack(f">{axes}I", header[4:])
