"""Image files to one array: brought to one size and to gray or RGB; files that cannot be used are left out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedtailor.data.options import DataOptions
from fedtailor.data.own.decode import Decoded, decode, reading_images
from fedtailor.data.own.duplicates import Occurrence, report_duplicates
from fedtailor.data.own.place import Unusable, show
from fedtailor.data.own.report import Findings
from fedtailor.data.own.scale import warn_if_dark

SUFFIXES = {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pbm"}
"""Files whose names end so are taken for images, in upper or lower case."""

MAX_STACK_BYTES = 32 * 2**30
"""Most bytes that all images together may have once they are read."""

_DARK = 2**14
"""Images of 16 bits none of whose values reaches this keep fewer than 64 gray levels."""

_MAX_SIZES = 5
"""Sizes named in a message; more are counted."""


class Picture(NamedTuple):
    """An image file to read."""

    path: Path
    where: Occurrence
    """Its site, part and label, and its path within the data's folder, safe to print."""


class Pictures(NamedTuple):
    """The images that could be read."""

    x: np.ndarray  # (rows, height, width, 1 or 3), uint8
    rows: list[int]
    """Which of the pictures they are."""
    digests: dict[str, str]
    """SHA-256 of every file read, by its path within the data's folder."""


@dataclass
class _Stack:
    """One array for all images, made when the first is known, and given three channels when one has colors."""

    room: int
    side: int
    color: str
    x: np.ndarray | None = None
    rows: list[int] = field(default_factory=list)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(width, height) as stored, upright."""
    first: dict[tuple[int, int], str] = field(default_factory=dict)
    """A file of each size."""
    enlarged: int = 0

    def add(self, row: int, pixels: np.ndarray, path: str) -> None:
        """Add an image (height, width, 1 or 3); one of another size than the first is only counted.

        Raises:
            Unusable: ``too_large``, all images together would take too much memory.
        """
        size = (pixels.shape[1], pixels.shape[0])
        self.sizes[size] += 1
        self.first.setdefault(size, path)
        self.enlarged += min(size) < self.side
        image = self._to_color(square(pixels, self.side) if self.side else pixels)
        if self.x is None:
            self.x = self._make(image.shape)
        if image.shape[:2] != self.x.shape[1:3]:
            return
        if image.shape[2] == 3 and self.x.shape[3] == 1:
            self.x = np.repeat(self.x, 3, axis=3)
        self.x[len(self.rows)] = image  # one channel fills three
        self.rows.append(row)

    def _to_color(self, pixels: np.ndarray) -> np.ndarray:
        if self.color == "gray" and pixels.shape[2] == 3:
            return np.asarray(Image.fromarray(pixels).convert("L"))[..., None]
        return np.repeat(pixels, 3, axis=2) if self.color == "rgb" and pixels.shape[2] == 1 else pixels

    def _make(self, shape: tuple[int, ...]) -> np.ndarray:
        needed = self.room * shape[0] * shape[1] * (1 if self.color == "gray" else 3)
        if needed > MAX_STACK_BYTES:
            message = (
                f"{self.room} images of {shape[1]} x {shape[0]} would take {needed} bytes; at most {MAX_STACK_BYTES} "
                "are read. Set data.image_size to the side of smaller squares."
            )
            raise Unusable("too_large", message)
        return np.empty((self.room, *shape), dtype=np.uint8)


def read_pictures(pictures: Sequence[Picture], options: DataOptions, findings: Findings) -> Pictures | None:
    """Read image files in the given order; those that cannot be used are problems and left out.

    Returns:
        The images, or None where none can be read, sizes differ, or they are too many: these are errors.
    """
    stack = _Stack(len(pictures), options.image_size, options.color)
    traits: Counter[str] = Counter()
    digests: dict[str, str] = {}
    contents: list[bytes] = []
    kept: list[Occurrence] = []
    peak_of_8 = peak_of_16 = -1
    with reading_images():
        for row, (path, where) in enumerate(pictures):
            decoded = _decode(path, where, findings)
            if decoded is None:
                continue
            traits.update(decoded.traits)
            peak_of_16 = max(peak_of_16, decoded.peak)
            if decoded.peak < 0:
                peak_of_8 = max(peak_of_8, int(decoded.pixels.max()))
            digests[where.path] = decoded.file_digest
            contents.append(_digest(decoded.pixels))
            kept.append(where)
            try:
                stack.add(row, decoded.pixels, where.path)
            except Unusable as error:
                findings.add("error", error.kind, where.site, where.path, error.message)
                return None
    report_duplicates(contents, kept, findings)
    findings.notes.extend(_notes(stack, traits))
    _check_peaks(peak_of_8, peak_of_16, findings)
    if not _check_sizes(stack, findings) or stack.x is None:
        return None
    return Pictures(stack.x[: len(stack.rows)], stack.rows, digests)


def square(pixels: np.ndarray, side: int) -> np.ndarray:
    """Return the central square of an image (height, width, 1 or 3), brought to ``side`` pixels, bilinear.

    Where the image shrinks, every pixel is a weighted mean of all that it covers.
    """
    height, width = pixels.shape[:2]
    if height == width == side:
        return pixels
    edge = min(height, width)
    left, top = (width - edge) // 2, (height - edge) // 2
    middle = pixels[top : top + edge, left : left + edge]  # Pillow's own box would mix in pixels beyond it
    gray = pixels.shape[2] == 1
    image = Image.fromarray(np.ascontiguousarray(middle[..., 0] if gray else middle))
    smaller = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR))
    return smaller[..., None] if gray else smaller


def _decode(path: Path, where: Occurrence, findings: Findings) -> Decoded | None:
    try:
        return decode(path)
    except Unusable as error:
        findings.add("skipped", error.kind, where.site, where.path, error.message)
        return None


def _digest(pixels: np.ndarray) -> bytes:
    digest = hashlib.sha256(str(pixels.shape).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def _check_sizes(stack: _Stack, findings: Findings) -> bool:
    """Return whether all images have one size or are brought to one; the error names the sizes and a file of each."""
    if stack.side or len(stack.sizes) <= 1:
        return True
    common = stack.sizes.most_common()
    named = [f"{w} x {h}: {count} (such as {show(stack.first[w, h])})" for (w, h), count in common[:_MAX_SIZES]]
    more = f"; {len(common) - _MAX_SIZES} more sizes" if len(common) > _MAX_SIZES else ""
    side = min(1024, *(min(size) for size in stack.sizes))
    message = (
        f"Images have {len(common)} sizes: {'; '.join(named)}{more}. Set data.image_size, such as {side}, "
        "to bring all to squares of that side, or leave out the odd ones."
    )
    rarest = stack.first[common[-1][0]]
    findings.add("error", "image_sizes", "", rarest, message)
    return False


def _check_peaks(peak_of_8: int, peak_of_16: int, findings: Findings) -> None:
    """Warn of images that are nearly black, told by the largest values of those with 8 and with 16 bits; -1: none."""
    if peak_of_8 >= 0:
        warn_if_dark(peak_of_8, 255.0, findings)
    if 0 <= peak_of_16 < _DARK:
        message = (
            f"The largest value of all images with 16 bits is {peak_of_16} of 65535: {(peak_of_16 + 128) // 257 + 1} "
            "gray levels are left once they are brought to 8 bits. Scale the files so that white is 65535."
        )
        findings.add("warning", "dark_16_bit", "", "", message)


_MEANING: Mapping[str, str] = {
    "turned": "were turned upright as their EXIF orientation says",
    "several frames": "have several frames, of which the first was taken",
    "1-bit": "have 1 bit, which became 0 or 255",
    "16-bit": "have 16 bits, which were divided by 257",
    "palette": "have a palette, whose colors were taken",
    "transparent": "have transparent pixels, which were put on black",
    "CMYK": "are CMYK and became RGB",
    "YCbCr": "are YCbCr and became RGB",
    "LAB": "are LAB and became RGB",
    "HSV": "are HSV and became RGB",
}


def _notes(stack: _Stack, traits: Mapping[str, int]) -> list[str]:
    """Return how images were read, in sentences."""
    notes = [f"{traits[trait]} images {meaning}." for trait, meaning in _MEANING.items() if traits.get(trait)]
    if stack.side and stack.sizes:
        largest, smallest = max(stack.sizes), min(stack.sizes)
        sizes = f"{smallest[0]} x {smallest[1]}"
        if len(stack.sizes) > 1:
            sizes = f"{len(stack.sizes)} sizes from {sizes} to {largest[0]} x {largest[1]}"
        notes.append(f"Of images of {sizes} the central square was brought to {stack.side} x {stack.side}, bilinear.")
        if stack.enlarged:
            notes.append(f"{stack.enlarged} images are smaller than that and were enlarged.")
    if stack.x is not None:
        colors = {1: "gray", 3: "RGB"}[stack.x.shape[3]]
        notes.append(f"Images are {stack.x.shape[2]} x {stack.x.shape[1]}, {colors}.")
    return notes
