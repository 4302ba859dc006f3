"""The decoder of one image file: gray or RGB, 8 bits, upright."""

from __future__ import annotations

import hashlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedtailor.core.errors import DataError
from fedtailor.core.reading import read_file
from fedtailor.data.files import MAX_BYTES
from fedtailor.data.own.findings import Unusable
from fedtailor.data.own.walk import USE_INSTEAD_OF_DICOM, is_dicom

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""The supported formats, recognized by content, not by name; none of them runs another program."""

MAX_PIXELS = 50_000_000
"""Larger images are refused before they are decoded: a file of a few kilobytes can fill the
memory."""

_ORIENTATION = 0x0112  # the EXIF field
_WIDE = {"I", "I;16", "I;16L", "I;16B", "I;16N"}


class Decoded(NamedTuple):
    """A decoded image and properties of its file."""

    pixels: np.ndarray  # (height, width, 1 or 3), uint8
    traits: tuple[str, ...]
    """Conversions that were made, as the end of a sentence about images."""
    peak: int
    """The largest value, of a 16-bit image as it is stored."""
    white: float = 255.0
    """The value of white on the same scale."""
    file_digest: str = ""
    """SHA-256 of the file."""


@contextmanager
def reading_images() -> Iterator[None]:
    """Silence Pillow, except its warning of decompression bombs, which becomes an exception."""
    log = logging.getLogger("PIL")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)  # the exception reports a problem once
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    finally:
        log.setLevel(level)


def decode(path: Path) -> Decoded:
    """Read an image file; call it within :func:`reading_images`.

    * EXIF orientation is applied; only the first of several frames is read.
    * 16 bits are divided by 257 and rounded, so that 65535 becomes 255; 1 bit becomes 0 or 255.
    * Transparent pixels get a black background. Palettes, CMYK and others become RGB.
    * Three channels that are equal everywhere become one: gray.

    Raises:
        Unusable: the image cannot be read; the exception has the kind of the problem and a
            sentence.
    """
    try:
        raw = read_file(path, limit=MAX_BYTES)
    except DataError as error:
        raise Unusable("unreadable_file", error.message) from error

    if not raw:
        raise Unusable("empty_file", "The file has 0 bytes.")
    if is_dicom(raw):
        raise Unusable("dicom", f"The file is DICOM. {USE_INSTEAD_OF_DICOM}")
    with _decoding(), Image.open(io.BytesIO(raw), formats=FORMATS) as image:
        return _convert(image)._replace(file_digest=hashlib.sha256(raw).hexdigest())


def from_pillow(image: Image.Image) -> np.ndarray:
    """Return the pixels (height, width, 1 or 3), uint8, of a picture in memory.

    It is converted as a file is.

    Raises:
        Unusable: the picture cannot be read.
    """
    with _decoding():
        return _convert(image).pixels


@contextmanager
def _decoding() -> Iterator[None]:
    """Turn the exceptions of a decoder into :class:`Unusable`."""
    try:
        yield
    except Unusable:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _bomb("more") from error
    except UnidentifiedImageError as error:
        formats = ", ".join(FORMATS)
        message = (
            f"Not a supported image format ({formats}), or the beginning of the file is damaged."
        )
        raise Unusable("not_an_image", message) from error
    # A damaged image raises one of a dozen exceptions, depending on its format.
    except Exception as error:
        is_truncated = "truncated" in str(error).lower()
        kind = "truncated_image" if is_truncated else "damaged_image"
        message = f"The image cannot be decoded: {type(error).__name__}: {error}."
        raise Unusable(kind, message) from error


def _bomb(size: str) -> Unusable:
    return Unusable(
        "image_too_large", f"The image has {size} pixels; at most {MAX_PIXELS} are read."
    )


def _convert(image: Image.Image) -> Decoded:
    """Return an image as gray or RGB, 8 bits, upright."""
    width, height = image.size
    if width * height > MAX_PIXELS:  # before anything is decoded
        raise _bomb(f"{width} x {height}")

    traits = []
    if image.getexif().get(_ORIENTATION, 1) in range(2, 9):
        traits.append("turned upright by the EXIF orientation")

    # A file of format MPO has a preview beside the photograph.
    if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
        traits.append("with several frames, of which only the first was read")

    image.load()

    # Photographs of phones are stored as the sensor saw them.
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "F":
        message = "Pixels are floats without a known value of white; store 8 or 16 bits."
        raise Unusable("unsupported_image", message)

    if upright.mode in _WIDE:
        pixels, peak = _from_16_bits(upright)
        return Decoded(pixels, (*traits, "with 16 bits, divided by 257"), peak, 65535.0)

    if upright.mode not in ("L", "LA", "RGB", "RGBA"):
        traits.append(f"of Pillow's mode {upright.mode}, converted to gray or RGB")

    if upright.has_transparency_data:
        # A fully opaque layer changes nothing, so it is not told.
        layer = upright.convert("RGBA")
        if layer.getchannel("A").getextrema() != (255, 255):
            traits.append("with transparent pixels, on a black background")

        upright = Image.alpha_composite(
            Image.new("RGBA", layer.size, (0, 0, 0, 255)), layer
        ).convert("RGB")
    elif upright.mode not in ("L", "RGB"):
        upright = upright.convert("L" if upright.mode == "1" else "RGB")

    pixels = np.asarray(upright)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    elif (pixels[..., :1] == pixels[..., 1:]).all():  # gray, stored as color
        pixels = pixels[..., :1]

    return Decoded(pixels, tuple(traits), int(pixels.max()))


def _from_16_bits(image: Image.Image) -> tuple[np.ndarray, int]:
    """Return 8-bit pixels (height, width, 1) and the largest 16-bit value."""
    # Pillow reads some 16-bit files as 32 bits, so the values decide.
    values = np.asarray(image).astype(np.int64)
    low = int(values.min())
    high = int(values.max())
    if low < 0 or high > 65535:
        message = f"Pixels are from {low} to {high}; only unsigned 8 or 16 bits can be read."
        raise Unusable("unsupported_image", message)
    return ((values + 128) // 257).astype(np.uint8)[..., None], high
