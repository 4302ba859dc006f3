"""Noise, independent for every value of every pixel."""

from __future__ import annotations

import numpy as np

from fedtailor.data.corruptions.batch import WHITE, Batch, to_bytes


def gaussian_noise(batch: Batch, std: float) -> np.ndarray:
    """Add Gaussian noise with standard deviation ``std`` to values in [0, 1]: image -> the same
    shape, uint8.
    """
    shape = batch.images.shape[1:]
    noise = np.stack([generator.standard_normal(shape) for generator in batch.draws])
    noise *= std * WHITE
    noise += batch.images
    return to_bytes(noise)


def shot_noise(batch: Batch, photons: float) -> np.ndarray:
    """Draw a Poisson number of photons, with the mean ``photons`` for white: image -> the same
    shape, uint8.
    """
    means = batch.images * (photons / WHITE)
    counts = [generator.poisson(mean) for generator, mean in zip(batch.draws, means, strict=True)]
    return to_bytes(np.stack(counts) * (WHITE / photons))


def impulse_noise(batch: Batch, probability: float) -> np.ndarray:
    """Set a value to 0 or to white, each with half of ``probability``: image -> the same shape,
    uint8.
    """
    shape = batch.images.shape
    uniform = batch.draws.uniform(int(np.prod(shape[1:]))).reshape(shape)
    noisy = np.where(uniform < probability, np.uint8(0), batch.images)
    return np.where(uniform < probability / 2, np.uint8(WHITE), noisy)
