"""Digital corruptions: compression, brightness, contrast."""

from __future__ import annotations

import io

import numpy as np

from fedtailor.data.corruptions.batch import WHITE, Batch, to_bytes


def jpeg(batch: Batch, quality: float) -> np.ndarray:
    """Encode as JPEG and decode: image (n, height, width, channels) -> the same shape, uint8.

    Pillow does both; decoders of other versions can differ by one gray level.
    """
    from PIL import Image

    channels = batch.images.shape[3]
    decoded = np.empty_like(batch.images)
    for image, out in zip(batch.images, decoded, strict=True):
        stream = io.BytesIO()
        Image.fromarray(image if channels == 3 else image[..., 0]).save(
            stream, "JPEG", quality=int(quality)
        )
        out[:] = np.asarray(Image.open(stream)).reshape(out.shape)

    return decoded


def brightness(batch: Batch, added: float) -> np.ndarray:
    """Increase the value in HSV color space, up to 1: image -> the same shape, uint8.

    Since hue and saturation stay, red, green and blue grow by the same factor as their maximum, the
    value; black becomes gray.
    """
    images = batch.images.astype(np.float64)
    value = images.max(axis=3, keepdims=True)
    brighter = np.minimum(value + added * WHITE, WHITE)
    return to_bytes(np.where(value > 0, images * (brighter / np.maximum(value, 1.0)), brighter))


def contrast(batch: Batch, kept: float) -> np.ndarray:
    """Move every value towards the mean of its channel over the image: image -> the same shape,
    uint8.
    """
    height, width = batch.images.shape[1:3]
    # a sum of whole numbers does not depend on the order
    mean = batch.images.sum(axis=(1, 2), keepdims=True, dtype=np.int64) / (height * width)
    return to_bytes((batch.images - mean) * kept + mean)
