"""MNIST-M: MNIST's digits blended with photographs, 32x32 color pixels, in the folder MNIST-M.

Two layouts are read. The original release: ``mnist_m_train/*.png`` and ``mnist_m_train_labels.txt``
with lines such as ``00000000.png 5``, and the same for ``test``. Or NumPy arrays:
``train_images.npy`` (rows, 32, 32, 3), ``train_labels.npy``, and the same for ``test``. Ganin et
al. 2016, "Domain-adversarial training of neural networks", JMLR.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset, check_labels
from fedtailor.data.preparing import READING, Report, to_nobody
from fedtailor.data.readers import files

_SHAPE = (32, 32, 3)
_MAX_PICTURE = 2**16  # bytes of a file; an uncompressed one has about 3,200
_LINE = re.compile(r"([0-9A-Za-z_-]{1,64}\.png) ([0-9])")
_PICKLES = ("*.pt", "*.pth", "*.pkl", "*.pkl.gz", "*.pickle")


def load_mnist_m(folder: Path, report: Report = to_nobody) -> Dataset:
    """Load MNIST-M from ``folder``/MNIST-M: the original release if it exists, else NumPy arrays.

    ``sources`` has one entry for all pictures of a part: a SHA-256 over name and content of every
    file in order.

    Raises:
        DataError: a file is missing or damaged, or only pickles exist.
    """
    place = folder / "MNIST-M"
    sources: dict[str, str] = {}
    tested_on: Literal["original", "synthetic"]
    if (place / "mnist_m_train_labels.txt").is_file():
        tested_on = "synthetic"
        parts = [_read_pictures(place, part, sources, report) for part in ("train", "test")]
    else:
        _refuse_pickles(place)
        tested_on = "original"
        parts = [_read_arrays(place, part, sources) for part in ("train", "test")]

    return Dataset(
        name="mnist_m",
        x=np.concatenate([images for images, _ in parts]),
        y=np.concatenate([labels for _, labels in parts]),
        num_classes=10,
        class_names=tuple(str(digit) for digit in range(10)),
        num_official_train=len(parts[0][1]),
        sources=sources,
        tested_on=tested_on,
    )


def _refuse_pickles(place: Path) -> None:
    """Refuse a folder that holds only the pickles of other releases."""
    if (place / "train_images.npy").is_file():
        return
    pickle = next((path for pattern in _PICKLES for path in sorted(place.rglob(pattern))), None)
    if pickle is not None:
        allowed = "the original release (mnist_m_train_labels.txt and mnist_m_train/*.png) or arrays (train_images.npy)"
        raise files.damaged(
            pickle, allowed, "a pickle, which is not read because reading it can run any code"
        )


def _existing(place: Path, file: str) -> Path:
    """Return the path of a file that must exist."""
    path = place / file
    if not path.is_file():
        raise files.missing("mnist_m", place.parent, [path, place / "mnist_m_train_labels.txt"])
    return path


def _read_arrays(place: Path, part: str, sources: dict[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows, 32, 32, 3) and labels (rows,) from two NumPy files."""
    path = _existing(place, f"{part}_images.npy")
    images = _read_npy(path, sources, place.parent)
    if (
        images.dtype != np.uint8
        or images.ndim != 4
        or images.shape[1:] != _SHAPE
        or not len(images)
    ):
        raise files.damaged(path, "bytes (rows, 32, 32, 3)", f"{images.dtype} {images.shape}")

    path = _existing(place, f"{part}_labels.npy")
    labels = check_labels(_read_npy(path, sources, place.parent), 10, where=str(path))
    if len(labels) != len(images):
        raise files.damaged(
            path, f"{len(images)} labels, one for each image", f"{len(labels)} labels"
        )

    return images, labels


def _read_npy(path: Path, sources: dict[str, str], folder: Path) -> np.ndarray:
    """Return the array of a file. An array of Python objects is refused, since it is stored as a
    pickle.
    """
    raw = files.read_bytes(path, sources, folder=folder)
    if not raw.startswith(b"\x93NUMPY"):
        raise files.damaged(
            path, "a NumPy array file (.npy)", f"a file that begins with {raw[:6]!r}"
        )

    try:
        array = np.load(io.BytesIO(raw), allow_pickle=False)
    except Exception as error:  # damaged headers raise many kinds of exceptions
        raise files.damaged(
            path, "an intact array of numbers", f"{type(error).__name__}: {error!s:.200}"
        ) from error

    assert isinstance(array, np.ndarray)  # an archive, for which it would not be, begins otherwise
    return array


def _read_pictures(
    place: Path, part: str, sources: dict[str, str], report: Report
) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows, 32, 32, 3) and labels (rows,) of the original release."""
    folder = place / f"mnist_m_{part}"
    path = _existing(place, f"mnist_m_{part}_labels.txt")
    names, labels = _parse_labels(files.read_bytes(path, sources, folder=place.parent), path)
    digest = hashlib.sha256()
    images = []

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Pillow only warns of a picture with too many pixels
        for name in names:
            images.append(_read_picture(folder / name, digest))
            report(READING, len(images), len(names))

    sources[f"{folder.relative_to(place.parent).as_posix()}/*.png"] = digest.hexdigest()
    return np.stack(images), labels


def _parse_labels(raw: bytes, path: Path) -> tuple[list[str], np.ndarray]:
    """Return names without any folder, and labels (rows,)."""
    names: dict[str, int] = {}
    for number, line in enumerate(raw.splitlines(), 1):
        match = _LINE.fullmatch(line[:100].decode("latin-1"))
        if match is None or match[1] in names:
            got = f"{line[:40]!r}" if match is None else f"'{match[1]}' a second time"
            raise files.damaged(
                path, f"a name and a digit such as '00000000.png 5' in line {number}", got
            )

        names[match[1]] = int(match[2])

    if not names:
        raise files.damaged(path, "a line for every image", "no line")

    return list(names), np.fromiter(names.values(), np.int64, len(names))


def _read_picture(path: Path, digest: hashlib._Hash) -> np.ndarray:
    """Return one picture (32, 32, 3) and add its name and content to ``digest``."""
    allowed = "a PNG picture of 32x32 pixels in RGB"
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_PICTURE + 1)

        if len(raw) > _MAX_PICTURE:
            raise files.damaged(path, f"at most {_MAX_PICTURE} bytes", "more")

        with Image.open(io.BytesIO(raw), formats=("PNG",)) as picture:
            if picture.size != _SHAPE[:2] or picture.mode != "RGB":
                raise files.damaged(
                    path, allowed, f"{picture.width}x{picture.height} pixels in {picture.mode:.10}"
                )

            pixels = np.asarray(picture)
    except DataError:
        raise
    except Exception as error:  # Pillow raises almost any exception on damaged files
        raise files.damaged(path, allowed, f"{type(error).__name__}: {error!s:.200}") from error

    digest.update(path.name.encode() + b"\0" + hashlib.sha256(raw).digest())
    return pixels
