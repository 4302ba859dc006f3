"""Reader of image files: decoded to 8-bit RGB, limited in size, with errors that name the file."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedtailor.core.reading import read_file
from fedtailor.data.files import MAX_BYTES, READING, Files, wrong_content

_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Modes of at most 8 bits per channel."""


def read_pictures(
    files: Files,
    paths: Sequence[Path],
    *,
    side: int,
    formats: tuple[str, ...],
    crops: bool = False,
) -> tuple[np.ndarray, str]:
    """Read image files as RGB; gray is repeated, transparency is ignored.

    Only the first frame is read, and the orientation in EXIF data is not applied. JPEG decoders may
    differ by one gray level between versions of Pillow.

    Args:
        files: the data set's files.
        paths: files, in the order of the rows.
        side: height and width of the result.
        formats: names of formats that Pillow may try, for any name of the file.
        crops: whether images are cut and resized, see :func:`square`.

    Returns:
        Images (rows, side, side, 3) as bytes, and one SHA-256 over path and content of every file.

    Raises:
        DataError: a file cannot be read or decoded, or has another size; the first of them in order
            is named.
    """
    pixels = np.empty((len(paths), side, side, 3), np.uint8)
    digest = hashlib.sha256()
    for row, path in enumerate(paths):
        files.last = path
        raw = read_file(path, limit=MAX_BYTES)
        image = np.asarray(decode_picture(raw, path, formats))
        if crops:
            image = square(image, side)

        if image.shape[:2] != (side, side):
            got = f"{image.shape[1]}x{image.shape[0]}"
            raise wrong_content(path, f"a picture of {side}x{side} pixels", got)

        pixels[row] = image
        # Name and content both count, since the name decides label and order.
        name = path.relative_to(files.folder).as_posix()
        digest.update(f"{name}\0".encode() + hashlib.sha256(raw).digest())
        files.report(READING, row + 1, len(paths))

    return pixels, digest.hexdigest()


def square(pixels: np.ndarray, side: int) -> np.ndarray:
    """Return the central square of an image, resized bilinearly to ``side`` pixels.

    If the image shrinks, every pixel is a weighted mean of all pixels that it covers.
    """
    height, width = pixels.shape[:2]
    if height == width == side:
        return pixels

    # Cut first: Pillow's own box would mix in pixels outside.
    edge = min(height, width)
    left = (width - edge) // 2
    top = (height - edge) // 2
    middle = pixels[top : top + edge, left : left + edge]

    is_gray = pixels.shape[2] == 1
    image = Image.fromarray(np.ascontiguousarray(middle[..., 0] if is_gray else middle))
    resized = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR))
    return resized[..., None] if is_gray else resized


def decode_picture(raw: bytes, path: Path, formats: tuple[str, ...]) -> Image.Image:
    """Return an image in RGB.

    Raises:
        DataError: it is damaged, too large for Pillow, or has another format; the message names the
            path.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of bad metadata
            with Image.open(io.BytesIO(raw), formats=formats) as image:
                mode = image.mode
                picture = image.convert("RGB")
    except Exception as error:  # Pillow raises almost any exception on damaged files
        allowed = f"an intact picture ({', '.join(formats)})"
        raise wrong_content(path, allowed, error) from error

    if mode not in _MODES:
        raise wrong_content(path, "a picture of 8 bits per channel", mode)
    return picture
