"""Reader of image files: decoded to 8-bit RGB, limited in size, with errors that name the file."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedtailor.core.errors import DataError
from fedtailor.data.preparing import READING, Report, to_nobody
from fedtailor.data.readers import files

_MAX_BYTES = 64 * 2**20
_MAX_PIXELS = (
    80_000_000  # 240 MB in RGB; a file of a few kilobytes can announce more than any memory holds
)
_MODES = (
    "1",
    "L",
    "LA",
    "P",
    "PA",
    "RGB",
    "RGBA",
    "CMYK",
    "YCbCr",
)  # modes of at most 8 bits per channel


def list_pictures(place: Path, suffix: str) -> list[Path]:
    """Return the files of a folder whose names end in ``suffix``, sorted by name, without hidden
    files.
    """
    return sorted(place.glob(f"[!.]*{suffix}"))


def read_pictures(
    paths: Sequence[Path],
    *,
    folder: Path,
    side: int,
    formats: tuple[str, ...],
    fit: Callable[[Image.Image, Path], Image.Image],
    report: Report = to_nobody,
) -> tuple[np.ndarray, str]:
    """Read image files as RGB; gray is repeated, transparency is ignored, and only the first frame
    is read.

    The orientation in EXIF data is not applied. JPEG decoders may differ by one gray level between
    versions of Pillow.

    Args:
        paths: files, in the order of the rows.
        folder: the data folder.
        side: height and width of the result.
        formats: names of formats that Pillow may try, whatever the name of the file.
        fit: takes an image in RGB and its path, and returns an image of ``side`` x ``side`` pixels.
        report: is told how many files have been read.

    Returns:
        Images (rows, side, side, 3) as bytes, and a SHA-256 over the path within ``folder`` and
        content of every file.

    Raises:
        DataError: a file cannot be read or decoded, or is too large; the first of them in order is
            named.
    """
    pixels = np.empty((len(paths), side, side, 3), np.uint8)
    digest = hashlib.sha256()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of bad metadata; sizes are checked below
        for row, path in enumerate(
            paths
        ):  # threads are slower for small pictures and hardly faster for large ones
            raw = _read_bytes(path)
            pixels[row] = np.asarray(fit(_decode(raw, path, formats), path))
            report(READING, row + 1, len(paths))
            digest.update(
                path.relative_to(folder).as_posix().encode() + b"\0" + hashlib.sha256(raw).digest()
            )

    return pixels, digest.hexdigest()


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise files.damaged(
            path, "a file that can be read", error.strerror or str(error)
        ) from error

    if len(raw) > _MAX_BYTES:
        raise files.damaged(path, f"at most {_MAX_BYTES} bytes", "more")
    return raw


def _decode(raw: bytes, path: Path, formats: tuple[str, ...]) -> Image.Image:
    """Return an image in RGB."""
    allowed = f"an intact picture ({', '.join(formats)})"
    try:
        with Image.open(io.BytesIO(raw), formats=formats) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise files.damaged(
                    path, f"at most {_MAX_PIXELS} pixels", f"{image.width}x{image.height}"
                )

            if image.mode not in _MODES:
                raise files.damaged(
                    path, "a picture of 8 bits per channel", f"the mode {image.mode}"
                )

            return image.convert("RGB")
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise files.damaged(path, allowed, "another format, or a damaged beginning") from error
    except Exception as error:  # Pillow raises almost any exception on damaged files
        raise files.damaged(path, allowed, f"{type(error).__name__}: {error!s:.200}") from error
