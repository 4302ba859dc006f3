"""Pictures of frost: photographs from a folder, or drawn textures if there are none."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from fedtailor.data.corruptions.kinds import ImageDraws, num_draws, plasma
from fedtailor.data.files import read_bytes
from fedtailor.data.pictures import decode_picture

NUM_PICTURES = 5
"""CIFAR-S uses the first five of six photographs."""

APPROXIMATE_NOTE = "the corruption 'frost' is approximate: drawn, without photographs in 'frost'."

_STEP = 5  # photographs are scaled by 0.2
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
        Arrays (height, width, 3), uint8; an empty list if a photograph is missing.

    Raises:
        DataError: one cannot be read.
    """
    paths = []
    for number in range(1, NUM_PICTURES + 1):
        candidates = [folder / f"frost{number}{suffix}" for suffix in _SUFFIXES]
        paths += [path for path in candidates if path.is_file()][:1]

    if len(paths) < NUM_PICTURES:
        return []

    pictures = []
    for path in paths:
        raw = read_bytes(path, sources, folder=folder.parent)
        image = decode_picture(raw, path, ("PNG", "JPEG"))
        middle = np.asarray(image)[_STEP // 2 :: _STEP, _STEP // 2 :: _STEP]
        pictures.append(np.ascontiguousarray(middle))

    return pictures


@cache
def draw_frost() -> list[np.ndarray]:
    """Return five textures (128, 128, 3), uint8, of ridges like ice, always the same.

    They replace photographs: similar in brightness, color and unevenness, but without crystals.
    """
    uniform = ImageDraws(0, "frost texture", np.arange(2 * NUM_PICTURES)).uniform(num_draws(_SIDE))
    coarse = plasma(uniform[:NUM_PICTURES], 1.6)
    fine = plasma(uniform[NUM_PICTURES:], 1.25)
    ridges = 1.0 - np.abs(2.0 * fine - 1.0)
    gray = 50.0 + 110.0 * coarse + 90.0 * ridges**2
    # red, green and blue of the photographs relative to their mean
    tint = np.array([0.9, 1.02, 1.1])
    return list(np.clip(gray[..., None] * tint, 0.0, 255.0).astype(np.uint8))
