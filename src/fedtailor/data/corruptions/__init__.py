"""The ten image corruptions of CIFAR-S at five severities, in the order of its release.

Hendrycks and Dietterich 2019 (ICLR) define them; the parameters are those for images of 32 x 32
pixels, which pFedFDA (McLaughlin and Su 2024, NeurIPS) uses. Every random draw depends only on
seed, corruption, severity and the image's row in the data set, so that an image is corrupted the
same way for every client and in every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.data.corruptions import kinds
from fedtailor.data.corruptions.kinds import ImageBatch, ImageDraws

SEVERITIES = range(1, 6)

_CHUNK_VALUES = 2**18  # float64 values, 2 MB, which fit into the processor's cache


class Corruption(NamedTuple):
    """A corruption and its parameters at every severity."""

    apply: Callable[..., np.ndarray]
    """Called with a :class:`ImageBatch` and the parameters; returns images of the same shape."""
    levels: tuple[tuple[float, ...], ...]


CORRUPTIONS: Mapping[str, Corruption] = {
    "motion_blur": Corruption(kinds.motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "defocus_blur": Corruption(
        kinds.defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))
    ),
    "gaussian_noise": Corruption(
        kinds.gaussian_noise, ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,))
    ),
    "shot_noise": Corruption(kinds.shot_noise, ((500,), (250,), (100,), (75,), (50,))),
    "impulse_noise": Corruption(kinds.impulse_noise, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,))),
    "frost": Corruption(kinds.frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": Corruption(kinds.fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "jpeg": Corruption(kinds.jpeg, ((80,), (65,), (58,), (50,), (40,))),
    "brightness": Corruption(kinds.brightness, ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,))),
    "contrast": Corruption(kinds.contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))),
}
"""Corruptions by name, in the order in which the release numbers them."""


def corrupt(
    images: np.ndarray,
    kind: str,
    severity: int,
    *,
    positions: np.ndarray,
    seed: int,
    frost: Sequence[np.ndarray] = (),
) -> np.ndarray:
    """Return corrupted images.

    Args:
        images: (n, height, width, 1 or 3), uint8, see :func:`.shift.check_images`.
        kind: a name in :data:`CORRUPTIONS`.
        severity: 1 to 5.
        positions: (n,), of each image in the data set: its random numbers depend on it.
        seed: seed of all random numbers.
        frost: pictures of frost, (height, width, 3), uint8, from :func:`.pictures.load_frost`;
            empty: drawn ones.

    Returns:
        An array like ``images``.

    Example:
        >>> gray = np.full((1, 32, 32, 3), 100, np.uint8)
        >>> int(corrupt(gray, "brightness", 4, positions=np.array([0]), seed=0)[0, 0, 0, 0])
        151
    """
    if kind == "frost" and not frost:
        from fedtailor.data.corruptions.pictures import draw_frost

        frost = draw_frost()

    # In parts that fit into the processor's cache.
    corruption = CORRUPTIONS[kind]
    out = np.empty_like(images, order="C")
    chunk = max(1, _CHUNK_VALUES // int(np.prod(images.shape[1:])))
    for start in range(0, len(images), chunk):
        part = slice(start, start + chunk)
        draws = ImageDraws(seed, f"{kind}-{severity}", positions[part])
        batch = ImageBatch(images[part], draws, frost)
        out[part] = corruption.apply(batch, *corruption.levels[severity - 1])

    return out
