"""The reader of image files: one array of the images that can be used."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedtailor.core.errors import joined
from fedtailor.core.text import counted, quoted
from fedtailor.data.files import READING, Report, to_nobody
from fedtailor.data.options import DataOptions
from fedtailor.data.own.arrays import warn_if_dark
from fedtailor.data.own.decode import decode, reading_images
from fedtailor.data.own.duplicates import Occurrence, report_duplicate_files
from fedtailor.data.own.findings import FindingPlace, Findings, Unusable, limit_size
from fedtailor.data.pictures import square

SUFFIXES = frozenset(".png .jpg .jpeg .jpe .jfif .bmp .gif .tif .tiff .webp .pgm .ppm .pbm".split())
"""Endings of the names of image files, in upper or lower case."""

MAX_STACK_BYTES = 32 * 2**30
"""Most bytes of all decoded images together."""


class Picture(NamedTuple):
    """An image file to read."""

    path: Path
    where: Occurrence
    """Site, part and label, and the path within the data's folder, safe to print."""


class Pictures(NamedTuple):
    """The images that could be read."""

    x: np.ndarray  # (rows, height, width, 1 or 3), uint8
    rows: list[int]
    """Indices of the pictures that were read."""
    digests: dict[str, str]
    """SHA-256 of every file that was read, by its path within the data's folder."""


@dataclass
class _Stack:
    """One array for all images; it gets three channels once an image has colors."""

    capacity: int
    side: int
    color: str
    x: np.ndarray | None = None
    rows: list[int] = field(default_factory=list)
    sizes: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    """The files of each size (width, height) as stored, upright."""
    enlarged: int = 0

    def add(self, row: int, pixels: np.ndarray, path: str) -> None:
        """Add an image (height, width, 1 or 3); one of another size is only counted.

        Raises:
            Unusable: ``too_large``, all images together would take too much memory.
        """
        size = (pixels.shape[1], pixels.shape[0])
        self.sizes.setdefault(size, []).append(path)
        self.enlarged += min(size) < self.side
        image = square(pixels, self.side) if self.side else pixels
        if self.color != "auto":
            image = with_channels(image, 1 if self.color == "gray" else 3)

        if self.x is None:
            self.x = self._allocate(image.shape)

        # Another size: the error about sizes names it at the end, with all others.
        if image.shape[:2] != self.x.shape[1:3]:
            return

        # The first image with colors: the gray ones before it get three channels.
        if image.shape[2] == 3 and self.x.shape[3] == 1:
            self.x = np.repeat(self.x, 3, axis=3)

        self.x[len(self.rows)] = image  # one channel fills three
        self.rows.append(row)

    def _allocate(self, shape: tuple[int, ...]) -> np.ndarray:
        # Colors may come later, so they count already.
        channels = 1 if self.color == "gray" else 3
        needed = self.capacity * shape[0] * shape[1] * channels
        hint = "Set a smaller data.image_size."
        limit_size("The images", needed, MAX_STACK_BYTES, hint)
        return np.empty((self.capacity, *shape), dtype=np.uint8)


def read_pictures(
    pictures: Sequence[Picture],
    options: DataOptions,
    findings: Findings,
    report: Report = to_nobody,
) -> Pictures | None:
    """Read image files in the given order; unusable files are added to the problems and left out.

    Args:
        pictures: the files.
        options: only image_size and color are used.
        findings: gets the problems.
        report: is told how many files have been read.

    Returns:
        The images, or None if no image can be read, sizes differ, or there are too many.
    """
    stack = _Stack(len(pictures), options.image_size, options.color)
    traits: Counter[str] = Counter()
    digests: dict[str, str] = {}
    contents: list[bytes] = []
    decoded_files: list[Occurrence] = []
    peaks: dict[float, int] = {}  # the largest value of all images, by the value of white

    with reading_images():
        for row, (path, where) in enumerate(pictures):
            place = FindingPlace(findings, where.site, where.path)
            try:
                decoded = decode(path)
            except Unusable as error:
                place.add(error.kind, error.message)
                continue
            finally:
                report(READING, row + 1, len(pictures))

            traits.update(decoded.traits)
            # Nearly black images are judged over all files, not one by one.
            peaks[decoded.white] = max(peaks.get(decoded.white, 0), decoded.peak)
            digests[where.path] = decoded.file_digest
            # Duplicates are found by their pixels, in all file formats.
            contents.append(_digest(decoded.pixels))
            decoded_files.append(where)
            try:
                stack.add(row, decoded.pixels, where.path)
            except Unusable as error:
                place.add(error.kind, error.message)
                return None

    # What concerns all images together, also if they cannot be used.
    report_duplicate_files(contents, decoded_files, findings)
    for note in _notes(stack, traits):
        findings.note(note)

    for white, peak in sorted(peaks.items()):
        warn_if_dark(peak, white, findings)

    if not _have_one_size(stack, findings) or stack.x is None:
        return None

    return Pictures(stack.x[: len(stack.rows)], stack.rows, digests)


def with_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Return an image (height, width, 1 or 3) as gray (ITU-R 601 luma) or RGB."""
    if channels == 1 and pixels.shape[2] == 3:
        return np.asarray(Image.fromarray(pixels).convert("L"))[..., None]

    if channels == 3 and pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=2)

    return pixels


def _digest(pixels: np.ndarray) -> bytes:
    digest = hashlib.sha256(str(pixels.shape).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def _have_one_size(stack: _Stack, findings: Findings) -> bool:
    """Return whether all images get one size; the error names the sizes and files."""
    if stack.side or len(stack.sizes) <= 1:
        return True

    named = []
    by_frequency = sorted(stack.sizes.items(), key=lambda item: -len(item[1]))
    for (width, height), files in by_frequency:
        named.append(f"{width} x {height}: {len(files)} (such as {quoted(files[0])})")

    # Most are as they should be; a single thumbnail must not decide.
    usual, _ = by_frequency[0]
    side = min(1024, *usual)
    message = (
        f"Images have {len(named)} sizes: {joined(named)}. Set data.image_size, such as {side}, to "
        "resize all to squares of that side, or remove the images of other sizes."
    )
    # The rarest size is most likely the wrong one.
    _, rarest = by_frequency[-1]
    findings.add("image_sizes", message, path=rarest[0])
    return False


def _notes(stack: _Stack, traits: Mapping[str, int]) -> list[str]:
    """Return notes on the conversion of the images."""
    notes = [f"{counted(count, 'image')} {trait}." for trait, count in sorted(traits.items())]
    if stack.side and stack.sizes:
        named = [f"{width} x {height}" for width, height in sorted(stack.sizes)]
        sizes = named[0]
        if len(named) > 1:
            sizes = f"{len(named)} sizes from {named[0]} to {named[-1]}"

        square_size = f"{stack.side} x {stack.side}"
        notes.append(
            f"The central squares of images of {sizes} were resized bilinearly to {square_size}."
        )
        if stack.enlarged:
            images = counted(stack.enlarged, "image was", "images were")
            notes.append(f"{images} smaller and had to be enlarged.")

    if stack.x is not None and (stack.side or len(stack.sizes) == 1):
        colors = {1: "gray", 3: "RGB"}[stack.x.shape[3]]
        notes.append(f"Images are {stack.x.shape[2]} x {stack.x.shape[1]}, {colors}.")

    return notes
