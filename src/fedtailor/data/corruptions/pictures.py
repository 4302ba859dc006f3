"""Pictures of frost: photographs from a folder, or drawn textures if there are none."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.corruptions.batch import Draws
from fedtailor.data.corruptions.plasma import num_draws, plasma
from fedtailor.data.readers.files import damaged, read_bytes

NUM_PICTURES = 5
"""CIFAR-S uses the first five of six photographs."""

APPROXIMATE_NOTE = (
    "the corruption 'frost' is an approximation: the photographs frost1 to frost5 are not in the folder 'frost' beside "
    "the data sets, so drawn textures replace them."
)

_STEP = 5  # photographs are scaled by 0.2
_MAX_PIXELS = 16_000_000
_SUFFIXES = (".png", ".jpg", ".jpeg")
_SIDE = 128


def load_frost(folder: Path, sources: dict[str, str]) -> list[np.ndarray]:
    """Return the photographs ``frost1`` to ``frost5`` of a folder, each side scaled by 0.2.

    Bilinear interpolation at a fifth of the size, as in the release's OpenCV, takes the middle one
    of every five pixels and does not average. Transparency is ignored.

    Args:
        folder: folder with files .png, .jpg or .jpeg.
        sources: gets the SHA-256 of every file by its path, starting with the folder's name.

    Returns:
        Arrays (height, width, 3), uint8; an empty list if all photographs are missing.

    Raises:
        DataError: some photographs are missing, or one cannot be read.
    """
    names = [f"frost{number}" for number in range(1, NUM_PICTURES + 1)]
    places = [[folder / f"{name}{suffix}" for suffix in _SUFFIXES] for name in names]
    found = [next((path for path in paths if path.is_file()), None) for paths in places]
    if not any(found):
        return []

    absent = [name for name, path in zip(names, found, strict=True) if path is None]
    if absent:
        allowed = ", ".join(f"{absent[0]}{suffix}" for suffix in _SUFFIXES)
        raise DataError(
            f"{folder}: expected all photographs frost1 to frost{NUM_PICTURES} or none, but {', '.join(absent)} "
            f"({len(absent)} of {NUM_PICTURES}) is missing; possible names are {allowed}.",
            path=str(folder),
            allowed=allowed,
            got="missing",
        )

    return [_decode(path, sources) for path in found if path is not None]


def draw_frost() -> list[np.ndarray]:
    """Return five textures (128, 128, 3), uint8, of ridges like ice, always the same.

    They replace photographs: similar in brightness, color and unevenness, but without crystals.
    """
    uniform = Draws(0, "frost texture", np.arange(2 * NUM_PICTURES)).uniform(num_draws(_SIDE))
    coarse = plasma(uniform[:NUM_PICTURES], 1.6)
    fine = plasma(uniform[NUM_PICTURES:], 1.25)
    ridges = 1.0 - np.abs(2.0 * fine - 1.0)
    gray = 50.0 + 110.0 * coarse + 90.0 * ridges**2
    tint = np.array(
        [0.9, 1.02, 1.1]
    )  # red, green and blue of the photographs relative to their mean

    return list(np.clip(gray[..., None] * tint, 0.0, 255.0).astype(np.uint8))


def _decode(path: Path, sources: dict[str, str]) -> np.ndarray:
    """Return a photograph in RGB, scaled."""
    from PIL import Image

    raw = read_bytes(path, sources, folder=path.parent.parent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # Pillow warns of bad metadata; the size is checked here
            with Image.open(io.BytesIO(raw), formats=("PNG", "JPEG")) as image:
                if image.width * image.height > _MAX_PIXELS or min(image.size) < _STEP:
                    allowed = f"at most {_MAX_PIXELS} pixels and sides of at least {_STEP}"
                    raise damaged(path, allowed, f"{image.width}x{image.height}")

                pixels = np.asarray(image.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # Pillow raises almost any exception on damaged files
        raise damaged(
            path, "an intact PNG or JPEG", f"{type(error).__name__}: {error!s:.200}"
        ) from error

    return np.ascontiguousarray(pixels[_STEP // 2 :: _STEP, _STEP // 2 :: _STEP])
