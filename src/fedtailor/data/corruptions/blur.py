"""Motion blur and defocus blur."""

from __future__ import annotations

import numpy as np

from fedtailor.data.corruptions.batch import Batch, to_bytes

MOTION_NOTE = (
    "motion blur is a weighted sum of shifted images, as ImageMagick defines it, but computed without ImageMagick, "
    "which the release of CIFAR-S calls: a gray level can differ by rounding."
)

_NEGLIGIBLE = 1e-8  # a weight that changes white by far less than a gray level


def motion_blur(batch: Batch, radius: float, sigma: float) -> np.ndarray:
    """Blur along a line: image (n, height, width, channels) -> the same shape, uint8, rounded to
    nearest.

    The angle is uniform in [-45, 45) degrees for each image. The i-th of ``2 radius + 1`` weights
    is proportional to ``exp(-i^2 / (2 sigma^2))`` and belongs to the image shifted by ``i`` pixels
    along the line, in whole pixels; edges are continued. The release of CIFAR-S calls ImageMagick
    for the same sum.
    """
    images = batch.images
    count, height, width, channels = images.shape
    angle = np.deg2rad(90.0 * batch.draws.uniform(1)[:, 0] - 45.0)
    weights = np.exp(-0.5 * (np.arange(int(2 * radius) + 1) / sigma) ** 2)
    weights /= weights.sum()
    pixels = images.reshape(count * height * width, channels).astype(np.float64)
    first = (np.arange(count) * height * width)[:, None, None]
    total = np.zeros_like(pixels)

    for i, weight in enumerate(weights):
        if weight < _NEGLIGIBLE:
            break

        down = np.ceil(i * np.sin(angle) - 0.5).astype(np.int64)[:, None]
        right = np.ceil(i * np.cos(angle) - 0.5).astype(np.int64)[:, None]
        y = np.clip(
            np.arange(height) + down, 0, height - 1
        )  # (n, height): the row that is shifted to each row
        x = np.clip(np.arange(width) + right, 0, width - 1)
        total += weight * pixels[(first + y[:, :, None] * width + x[:, None, :]).ravel()]

    return to_bytes(total.reshape(images.shape) + 0.5)


def defocus_blur(batch: Batch, radius: float, sigma: float) -> np.ndarray:
    """Blur with a small disk: image (n, height, width, channels) -> the same shape, uint8.

    Every channel is filtered with :func:`disk`; at the border the image is mirrored without
    repeating the edge.
    """
    from scipy import ndimage

    kernel = disk(radius, sigma)[None, :, :, None]
    return to_bytes(ndimage.correlate(batch.images.astype(np.float64), kernel, mode="mirror"))


def disk(radius: float, sigma: float) -> np.ndarray:
    """Return a disk (side, side) that sums to 1: the pixels within ``radius``, smoothed by 3 x 3
    Gaussian weights.
    """
    from scipy import ndimage

    reach = int(radius) + 1  # all is 0 beyond it
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    inside = (x**2 + y**2 <= radius**2).astype(np.float64)
    side = np.exp(-0.5 / sigma**2)
    weights = np.array([side, 1.0, side]) / (1.0 + 2.0 * side)
    smooth = ndimage.correlate(inside / inside.sum(), np.outer(weights, weights), mode="constant")

    return np.asarray(smooth)
