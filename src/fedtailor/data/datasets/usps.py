"""USPS: gray digits of 16x16 pixels, as libsvm text compressed by bzip2, in torchvision's folder.

A line is a label from 1 (digit 0) to 10 (digit 9) and 256 pairs ``index:value``, indices 1 to 256,
values -1 to 1. Hull 1994, "A database for handwritten text recognition research", IEEE TPAMI.
"""

from __future__ import annotations

import bz2
import io
import re
from pathlib import Path

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset
from fedtailor.data.readers import files

_PIXELS = 16 * 16
_MAX_TEXT = 64 * 2**20  # bytes; the training part has 17 MB
_PAIR = rb"(\d{1,3}):(-?\d(?:\.\d{1,17})?(?:e-\d\d)?)"
_LINE = re.compile(rb"\d{1,2}(?: %b){256} ?" % _PAIR)


def load_usps(folder: Path) -> Dataset:
    """Load USPS from ``folder``/USPS/usps.bz2 and usps.t.bz2.

    A value v becomes the whole part of ``(v + 1) / 2 * 255``, in float32, as in torchvision.

    Raises:
        DataError: a file is missing or damaged; the message names the line.
    """
    sources: dict[str, str] = {}
    images = []
    labels = []
    for file in ("usps.bz2", "usps.t.bz2"):
        path = folder / "USPS" / file
        if not path.is_file():
            raise files.missing("usps", folder, [path])

        lines = _decompress(files.read_bytes(path, sources, folder=folder), path).splitlines()
        pixels, numbers = _parse(lines, path)
        images.append(pixels)
        labels.append(numbers)

    return Dataset(
        name="usps",
        x=np.concatenate(images),
        y=np.concatenate(labels),
        num_classes=10,
        class_names=tuple(str(digit) for digit in range(10)),
        num_official_train=len(labels[0]),
        sources=sources,
    )


def _decompress(raw: bytes, path: Path) -> bytes:
    """Return the text of a file; at most ``_MAX_TEXT`` bytes are decompressed."""
    try:
        text = bz2.BZ2File(io.BytesIO(raw)).read(_MAX_TEXT + 1)
    except (OSError, EOFError, ValueError) as error:
        raise files.damaged(
            path, "intact bzip2 data", f"{type(error).__name__}: {error}"
        ) from error

    if len(text) > _MAX_TEXT:
        raise files.damaged(path, f"at most {_MAX_TEXT} bytes of text", "more")
    return text


def _parse(lines: list[bytes], path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows, 16, 16, 1) and digits (rows,)."""
    if not lines:
        raise files.damaged(path, "a line for every image", "no line")

    for number, line in enumerate(lines, 1):
        if not _LINE.fullmatch(line):
            raise _bad_line(path, number, line)

    # every line has 513 numbers here; numpy reads them many times faster than float()
    numbers = np.fromstring(b" ".join(lines).replace(b":", b" "), np.float32, sep=" ").reshape(
        len(lines), -1
    )
    labels = numbers[:, 0]
    indices = numbers[:, 1::2]
    values = numbers[:, 2::2]
    good_labels = (labels >= 1) & (labels <= 10)
    good_indices = (indices == np.arange(1, _PIXELS + 1)).all(axis=1)
    good_values = (np.abs(values) <= 1).all(axis=1)
    wrong = np.flatnonzero(~(good_labels & good_indices & good_values))
    if len(wrong):
        raise _bad_line(path, int(wrong[0]) + 1, lines[wrong[0]])

    images = ((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, 16, 16, 1)
    return images, labels.astype(np.int64) - 1


def _bad_line(path: Path, number: int, line: bytes) -> DataError:
    """Return the error for a line, which names its first problem."""
    allowed = f"in line {number} a label from 1 to 10 and {_PIXELS} pairs index:value, values from -1 to 1"
    words = line[: 100 * _PIXELS].split()
    label = words[0] if words else b""
    pairs = words[1:]
    if not re.fullmatch(rb"0?[1-9]|10", label):
        return files.damaged(path, allowed, f"the label {label[:40]!r}")

    for index, pair in enumerate(pairs[:_PIXELS], 1):
        match = re.fullmatch(_PAIR, pair)
        if match is None or int(match[1]) != index or abs(float(match[2])) > 1:
            return files.damaged(path, allowed, f"{pair[:40]!r} in place of index {index}")

    if len(pairs) != _PIXELS:
        return files.damaged(path, allowed, f"{len(pairs)} pairs")

    return files.damaged(path, allowed, "white space other than single spaces")
