"""Weather: frost on the lens, and fog."""

from __future__ import annotations

import numpy as np

from fedtailor.data.corruptions.batch import WHITE, Batch, to_bytes
from fedtailor.data.corruptions.plasma import num_draws, plasma

_LUMINANCE = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue in gray (ITU-R BT.601)."""


def frost(batch: Batch, image_share: float, frost_share: float) -> np.ndarray:
    """Add part of a random picture of frost: image (n, height, width, channels) -> the same shape,
    uint8.

    Picture and position are random for each image; as in the release of CIFAR-S a crop never
    reaches the last row or column of the picture. A picture smaller than the image is extended by
    reflection; for gray images it is gray.
    """
    height, width, channels = batch.images.shape[1:]
    pictures = [_fit(picture, height, width, channels) for picture in batch.frost]
    crops = np.empty(batch.images.shape)
    for crop, (which, down, right) in zip(crops, batch.draws.uniform(3), strict=True):
        picture = pictures[int(which * len(pictures))]
        top = int(down * max(picture.shape[0] - height, 1))
        left = int(right * max(picture.shape[1] - width, 1))
        crop[:] = picture[top : top + height, left : left + width]

    crops *= frost_share
    crops += image_share * batch.images
    return to_bytes(crops)


def fog(batch: Batch, thickness: float, decay: float) -> np.ndarray:
    """Mix a plasma fractal into the image: (n, height, width, channels) -> the same shape, uint8.

    The sum is scaled so that the highest possible value is the highest value of the original image.
    The fractal's side is the smallest power of two that covers the image (32 for CIFAR); smaller
    images get its corner.
    """
    height, width = batch.images.shape[1:3]
    side = 2 ** max(1, (max(height, width) - 1).bit_length())
    waves = plasma(batch.draws.uniform(num_draws(side)), decay)[:, :height, :width, None]
    brightest = batch.images.max(axis=(1, 2, 3), keepdims=True) / WHITE
    values = batch.images + (thickness * WHITE) * waves
    values *= brightest / (brightest + thickness)
    return to_bytes(values)


def _fit(picture: np.ndarray, height: int, width: int, channels: int) -> np.ndarray:
    """Return a picture of frost that is at least as large as an image, and gray for a gray
    image.
    """
    down = max(height - picture.shape[0], 0)
    right = max(width - picture.shape[1], 0)
    if down or right:
        picture = np.pad(picture, ((0, down), (0, right), (0, 0)), mode="symmetric")
    if channels == 1:
        return np.asarray((picture * _LUMINANCE).sum(axis=2, keepdims=True))
    return picture
