"""One image file to pixels: gray or RGB, 8 bits, upright."""

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

from fedtailor.data.own.place import Unusable
from fedtailor.data.readers.files import MAX_BYTES

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""The formats that are read, whatever the name of the file; none of them runs another program."""

MAX_PIXELS = 50_000_000
"""Larger images are refused before they are unpacked: a file of a few kilobytes can fill the memory."""

_ORIENTATION = 0x0112  # the EXIF field
_WIDE = {"I", "I;16", "I;16L", "I;16B", "I;16N"}
_CONVERTED = {
    "1": "1-bit",
    "P": "palette",
    "PA": "palette",
    "CMYK": "CMYK",
    "YCbCr": "YCbCr",
    "LAB": "LAB",
    "HSV": "HSV",
}


class Decoded(NamedTuple):
    """An image and how it was stored."""

    pixels: np.ndarray  # (height, width, 1 or 3), uint8
    traits: tuple[str, ...]
    """What had to be converted, such as ``CMYK`` or ``turned``."""
    peak: int
    """The largest value of an image with 16 bits; -1 for others."""
    file_digest: str
    """SHA-256 of the file."""


@contextmanager
def reading_images() -> Iterator[None]:
    """Silence Pillow while many files are read, but for the warning of a bomb, which becomes an exception."""
    log = logging.getLogger("PIL")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)  # what is wrong with a file is told once, by the exception
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    finally:
        log.setLevel(level)


def decode(path: Path) -> Decoded:
    """Read an image file; to be called within :func:`reading_images`.

    * EXIF orientation is applied; of several frames the first is taken.
    * 16 bits are divided by 257 and rounded, so that 65535 becomes 255; 1 bit becomes 0 or 255.
    * Transparent pixels are put on black. Palettes, CMYK and others become RGB.
    * Three channels that are equal everywhere become one: gray.

    Raises:
        Unusable: with the kind of the problem and a sentence.
    """
    raw = _read(path)
    try:
        with Image.open(io.BytesIO(raw), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise _bomb(f"{width} x {height}")
            pixels, traits, peak = _convert(image)
    except Unusable:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _bomb("more") from error
    except UnidentifiedImageError as error:
        message = f"This is no image of a format that is read ({', '.join(FORMATS)}), or its beginning is damaged."
        raise Unusable("not_an_image", message) from error
    except Exception as error:  # a damaged image raises one of a dozen exceptions, depending on its format
        kind = "truncated_image" if "truncated" in str(error).lower() else "damaged_image"
        raise Unusable(kind, f"The image cannot be decoded: {type(error).__name__}: {error}.") from error
    return Decoded(pixels, traits, peak, hashlib.sha256(raw).hexdigest())


def _read(path: Path) -> bytes:
    """Return the bytes of a file."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise Unusable("image_too_large", f"The file has {size} bytes; at most {MAX_BYTES} are read.")
        raw = path.read_bytes()
    except OSError as error:
        raise Unusable("unreadable_file", f"The file cannot be read: {error.strerror or error}.") from error
    if not raw:
        raise Unusable("empty_file", "The file has 0 bytes.")
    return raw


def _bomb(size: str) -> Unusable:
    return Unusable("image_too_large", f"The image has {size} pixels; at most {MAX_PIXELS} are unpacked.")


def _convert(image: Image.Image) -> tuple[np.ndarray, tuple[str, ...], int]:
    """Return pixels (height, width, 1 or 3), what was converted, and the largest value of 16 bits or -1."""
    turned = image.getexif().get(_ORIENTATION, 1) in range(2, 9)
    several = getattr(image, "n_frames", 1) > 1 and image.format != "MPO"  # MPO: a preview beside the photograph
    image.load()
    traits = [trait for trait, there in (("turned", turned), ("several frames", several)) if there]
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "F":
        raise Unusable("unsupported_image", "Pixels are floats, for which white is not known; store 8 or 16 bits.")
    if upright.mode in _WIDE:
        pixels, peak = _from_16_bits(upright)
        return pixels, (*traits, "16-bit"), peak
    if upright.mode in _CONVERTED:
        traits.append(_CONVERTED[upright.mode])
    if upright.has_transparency_data:
        layer = upright.convert("RGBA")
        if layer.getchannel("A").getextrema() != (255, 255):
            traits.append("transparent")
        upright = Image.alpha_composite(Image.new("RGBA", layer.size, (0, 0, 0, 255)), layer).convert("RGB")
    elif upright.mode not in ("L", "RGB"):
        upright = upright.convert("L" if upright.mode == "1" else "RGB")
    pixels = np.asarray(upright)
    if pixels.ndim == 2:
        return pixels[..., None], tuple(traits), -1
    colored = (pixels[..., :1] != pixels[..., 1:]).any()
    return (pixels if colored else pixels[..., :1]), tuple(traits), -1


def _from_16_bits(image: Image.Image) -> tuple[np.ndarray, int]:
    """Return pixels (height, width, 1) of 8 bits and the largest value found."""
    values = np.asarray(image).astype(np.int64)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        message = f"Pixels are from {low} to {high}; 8 or 16 bits without sign can be read."
        raise Unusable("unsupported_image", message)
    return ((values + 128) // 257).astype(np.uint8)[..., None], high
