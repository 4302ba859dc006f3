"""The ten corruptions of images, each with the random numbers that it needs.

An image is (n, height, width, 1 or 3) bytes, and so is the result. Parameters are for values in
[0, 1].
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

WHITE = 255.0
"""The largest value of a pixel."""

MOTION_NOTE = (
    "motion blur is a weighted sum of shifted images, as ImageMagick defines it, but computed "
    "without ImageMagick, which the release of CIFAR-S calls: a gray level can differ by rounding."
)

_ROUNDING = 1e-6  # of a gray level: far above the rounding errors of float64, and invisible
_NEGLIGIBLE = 1e-8  # a weight that changes white by far less than a gray level
_LUMINANCE = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue in gray (ITU-R BT.601)."""
_FIRST_AMPLITUDE = 100.0  # of a fractal


class ImageDraws:
    """The random numbers of some images: one stream for each, from seed, purpose and position.

    The generator is Philox (Salmon et al. 2011, SC), keyed by seed and purpose; the position is a
    part of its counter.

    Args:
        seed: any whole number.
        purpose: the use of the numbers, such as ``frost-3``.
        positions: (n,), in the data set, not negative.
    """

    def __init__(self, seed: int, purpose: str, positions: np.ndarray) -> None:
        digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()
        self._key = int.from_bytes(digest, "little")
        self._positions = positions

    def __iter__(self) -> Iterator[np.random.Generator]:
        """Yield the generator of each image in turn; it is valid until the next one is yielded."""
        philox = np.random.Philox(key=self._key)
        generator = np.random.Generator(philox)
        state = philox.state
        for position in self._positions:
            # To set the counter is about ten times as fast as a new generator.
            state["state"]["counter"][:] = (0, 0, position, 0)
            philox.state = state
            yield generator

    def uniform(self, count: int) -> np.ndarray:
        """Return ``count`` numbers in [0, 1) for each image, (n, count), float64."""
        return np.stack([generator.random(count) for generator in self])


class ImageBatch(NamedTuple):
    """Images that are corrupted together and do not influence each other."""

    images: np.ndarray  # (n, height, width, 1 or 3), uint8
    draws: ImageDraws
    frost: Sequence[np.ndarray] = ()
    """Pictures of frost: (height, width, 3) of their own sizes, uint8."""


def to_bytes(values: np.ndarray) -> np.ndarray:
    """Clip gray levels (any shape, float64, overwritten) to 0..255, and truncate as CIFAR-S does.

    A level less than 1e-6 below a whole number counts as whole, so that the result does not depend
    on a machine's rounding or order of summation.
    """
    np.clip(values, 0.0, WHITE, out=values)
    values += _ROUNDING
    return values.astype(np.uint8)


def motion_blur(batch: ImageBatch, radius: float, sigma: float) -> np.ndarray:
    """Blur along a line, rounded to nearest.

    The angle is uniform in [-45, 45) degrees for each image. The i-th of ``2 radius + 1`` weights
    is proportional to ``exp(-i^2 / (2 sigma^2))`` and belongs to the image shifted by ``i`` pixels
    along the line, in whole pixels; edges are continued. The release of CIFAR-S calls ImageMagick
    for the same sum.
    """
    angles = np.deg2rad(90.0 * batch.draws.uniform(1)[:, 0] - 45.0)  # (n,)

    # One-sided Gaussian weights along the line.
    distances = np.arange(int(2 * radius) + 1)
    weights = np.exp(-0.5 * (distances / sigma) ** 2)
    weights /= weights.sum()

    # The pixels of all images as one list, from which each weight takes a shifted copy.
    channels = batch.images.shape[3]
    pixels = batch.images.reshape(-1, channels).astype(np.float64)
    total = np.zeros_like(pixels)
    for distance, weight in enumerate(weights):
        if weight < _NEGLIGIBLE:
            break

        pixel_numbers = _shifted_pixels(batch.images.shape, angles, distance)
        total += weight * pixels[pixel_numbers]

    return to_bytes(total.reshape(batch.images.shape) + 0.5)


def _shifted_pixels(shape: tuple[int, ...], angles: np.ndarray, distance: int) -> np.ndarray:
    """Return for every pixel of all images the number of the one that is shifted onto it.

    Args:
        shape: (n, height, width, channels), of the images.
        angles: (n,), of the line in each image.
        distance: along the line.

    Returns:
        (n * height * width,), numbers in the list of all pixels.
    """
    count, height, width, _ = shape
    down = np.ceil(distance * np.sin(angles) - 0.5).astype(np.int64)[:, None]
    right = np.ceil(distance * np.cos(angles) - 0.5).astype(np.int64)[:, None]

    # Outside the image, its edge continues.
    y = np.clip(np.arange(height) + down, 0, height - 1)  # (n, height)
    x = np.clip(np.arange(width) + right, 0, width - 1)  # (n, width)

    first = np.arange(count) * height * width
    pixel_numbers = first[:, None, None] + y[:, :, None] * width + x[:, None, :]
    return np.asarray(pixel_numbers.ravel())


def defocus_blur(batch: ImageBatch, radius: float, sigma: float) -> np.ndarray:
    """Blur every channel with :func:`disk`; the image is mirrored without repeating its edge."""
    from scipy import ndimage

    # The same kernel for every image and channel.
    kernel = disk(radius, sigma)[None, :, :, None]
    images = batch.images.astype(np.float64)
    return to_bytes(ndimage.correlate(images, kernel, mode="mirror"))


def disk(radius: float, sigma: float) -> np.ndarray:
    """Return a disk (side, side) that sums to 1, smoothed by 3 x 3 Gaussian weights."""
    from scipy import ndimage

    reach = int(radius) + 1  # all is 0 beyond it
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    inside = (x**2 + y**2 <= radius**2).astype(np.float64)
    sharp = inside / inside.sum()

    # A Gaussian at distance 1, relative to its center.
    side = np.exp(-0.5 / sigma**2)
    weights = np.array([side, 1.0, side]) / (1.0 + 2.0 * side)
    smoothing = np.outer(weights, weights)  # (3, 3)
    return np.asarray(ndimage.correlate(sharp, smoothing, mode="constant"))


def gaussian_noise(batch: ImageBatch, std: float) -> np.ndarray:
    """Add Gaussian noise with standard deviation ``std``."""
    shape = batch.images.shape[1:]
    noise = np.stack([generator.standard_normal(shape) for generator in batch.draws])
    noise *= std * WHITE
    noise += batch.images
    return to_bytes(noise)


def shot_noise(batch: ImageBatch, photons: float) -> np.ndarray:
    """Draw a Poisson number of photons, with the mean ``photons`` for white."""
    means = batch.images * (photons / WHITE)
    counts = []
    for generator, mean in zip(batch.draws, means, strict=True):
        counts.append(generator.poisson(mean))

    return to_bytes(np.stack(counts) * (WHITE / photons))


def impulse_noise(batch: ImageBatch, probability: float) -> np.ndarray:
    """Set a value to 0 or to white, each with half of ``probability``."""
    shape = batch.images.shape
    numbers_per_image = int(np.prod(shape[1:]))
    uniform = batch.draws.uniform(numbers_per_image).reshape(shape)

    # Black below the probability, and white below half of it.
    noisy = np.where(uniform < probability, np.uint8(0), batch.images)
    return np.where(uniform < probability / 2, np.uint8(WHITE), noisy)


def frost(batch: ImageBatch, image_share: float, frost_share: float) -> np.ndarray:
    """Add part of a random picture of frost.

    Picture and position are random for each image; as in the release of CIFAR-S a crop never
    reaches the last row or column of the picture. A picture smaller than the image is extended by
    reflection; for gray images it is gray.
    """
    height, width, channels = batch.images.shape[1:]
    pictures = [_fit(picture, height, width, channels) for picture in batch.frost]

    # Every image gets a random picture, and a random crop of it.
    crops = np.empty(batch.images.shape)
    uniform = batch.draws.uniform(3)  # (n, 3)
    for crop, (which, down, right) in zip(crops, uniform, strict=True):
        picture = pictures[int(which * len(pictures))]
        top = int(down * max(picture.shape[0] - height, 1))
        left = int(right * max(picture.shape[1] - width, 1))
        crop[:] = picture[top : top + height, left : left + width]

    # The mixture, in place: all images in float64 are large.
    crops *= frost_share
    crops += image_share * batch.images
    return to_bytes(crops)


def _fit(picture: np.ndarray, height: int, width: int, channels: int) -> np.ndarray:
    """Return a picture at least as large as an image, and gray for a gray image."""
    down = max(height - picture.shape[0], 0)
    right = max(width - picture.shape[1], 0)
    if down or right:
        picture = np.pad(picture, ((0, down), (0, right), (0, 0)), mode="symmetric")

    if channels == 1:
        return np.asarray((picture * _LUMINANCE).sum(axis=2, keepdims=True))
    return picture


def fog(batch: ImageBatch, thickness: float, decay: float) -> np.ndarray:
    """Mix a plasma fractal into the image.

    The sum is scaled so that the highest possible value is the highest value of the original image.
    The fractal's side is the smallest power of two that covers the image (32 for CIFAR); smaller
    images get its corner.
    """
    # The smallest fractal that covers the image.
    height, width = batch.images.shape[1:3]
    levels = max(1, (max(height, width) - 1).bit_length())
    side = 2**levels
    fractals = plasma(batch.draws.uniform(num_draws(side)), decay)  # (n, side, side)

    # The same fog for all channels.
    waves = fractals[:, :height, :width, None]
    values = batch.images + (thickness * WHITE) * waves

    brightest = batch.images.max(axis=(1, 2, 3), keepdims=True) / WHITE
    values *= brightest / (brightest + thickness)
    return to_bytes(values)


def num_draws(side: int) -> int:
    """Return how many random numbers a fractal takes: one per point but the first."""
    return side * side - 1


def plasma(uniform: np.ndarray, decay: float) -> np.ndarray:
    """Return fractals on a torus, one for each row of random numbers, by the diamond-square method.

    Starting from one corner of height 0, points halfway between known ones get the mean of their
    four neighbors plus noise in [-w^2, w^2); ``w`` starts at 100 and is divided by ``decay`` after
    each level. Squares come first, then the points between columns, then those between rows
    (Fournier et al. 1982, Communications of the ACM).

    Args:
        uniform: (n, side^2 - 1), float64 in [0, 1); ``side`` is a power of two, at least 2.
        decay: larger values give smoother fractals.

    Returns:
        (n, side, side), float64: the lowest point of each is 0, the highest 1.
    """
    count = len(uniform)
    side = int(np.sqrt(uniform.shape[1] + 1))
    noise = 2.0 * uniform - 1.0
    used = 0  # random numbers of each fractal

    grid = np.zeros((count, side, side))
    step = side
    amplitude = _FIRST_AMPLITUDE
    while step >= 2:
        cells = side // step
        end = used + 3 * cells**2
        waves = amplitude**2 * noise[:, used:end].reshape(count, 3, cells, cells)
        _halve_cells(grid, step, waves.transpose(1, 0, 2, 3))

        used = end
        step //= 2
        amplitude /= decay

    # From 0 to 1.
    grid -= grid.min(axis=(1, 2), keepdims=True)
    grid /= grid.max(axis=(1, 2), keepdims=True)
    return grid


def _halve_cells(grid: np.ndarray, step: int, waves: np.ndarray) -> None:
    """Give the points halfway between the known ones their heights: one level of a fractal.

    Args:
        grid: (n, side, side), changed.
        step: from one known point to the next.
        waves: (3, n, cells, cells), the noise in the centers of cells, between columns and between
            rows.
    """
    half = step // 2
    in_centers, between_columns, between_rows = waves

    # Sums of two neighboring corners along each axis; a cell at the border has one on the far side.
    corners = grid[:, ::step, ::step]  # (n, cells, cells)
    columns = corners + np.roll(corners, -1, axis=2)
    rows = corners + np.roll(corners, -1, axis=1)

    # Squares: the center of a cell has four corners around it.
    centers = (columns + np.roll(columns, -1, axis=1)) / 4 + in_centers
    grid[:, half::step, half::step] = centers

    # Diamonds: a point between two corners has two centers beside it.
    centers_above = np.roll(centers, 1, axis=1)
    centers_beside = np.roll(centers, 1, axis=2)
    grid[:, ::step, half::step] = (columns + centers + centers_above) / 4 + between_columns
    grid[:, half::step, ::step] = (rows + centers + centers_beside) / 4 + between_rows


def jpeg(batch: ImageBatch, quality: float) -> np.ndarray:
    """Encode as JPEG and decode.

    Pillow does both; decoders of other versions can differ by one gray level.
    """
    from PIL import Image

    decoded = np.empty_like(batch.images)
    for image, out in zip(batch.images, decoded, strict=True):
        # Pillow wants gray images without an axis for channels.
        pixels = image if image.shape[2] == 3 else image[..., 0]
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=int(quality))

        pixels = np.asarray(Image.open(stream))
        out[:] = pixels.reshape(out.shape)

    return decoded


def brightness(batch: ImageBatch, added: float) -> np.ndarray:
    """Increase the value in HSV color space, up to 1.

    Since hue and saturation stay, red, green and blue grow by the same factor as their maximum, the
    value; black becomes gray.
    """
    # The value in HSV is the largest of red, green and blue.
    images = batch.images.astype(np.float64)
    value = images.max(axis=3, keepdims=True)
    brighter = np.minimum(value + added * WHITE, WHITE)

    # A value of 0 has no factor.
    factor = brighter / np.maximum(value, 1.0)
    return to_bytes(np.where(value > 0, images * factor, brighter))


def contrast(batch: ImageBatch, share: float) -> np.ndarray:
    """Move every value towards the mean of its channel over the image."""
    height, width = batch.images.shape[1:3]

    # A sum of whole numbers does not depend on the order.
    total = batch.images.sum(axis=(1, 2), keepdims=True, dtype=np.int64)
    mean = total / (height * width)  # (n, 1, 1, channels)
    return to_bytes((batch.images - mean) * share + mean)
