"""Images for corruptions, smooth as photographs are."""

import numpy as np
import pytest

from fedtailor.data.corruptions.kinds import num_draws, plasma


@pytest.fixture(scope="session")
def images() -> np.ndarray:
    """Return 60 images (60, 32, 32, 3), uint8."""
    uniform = np.random.default_rng(5).random((180, num_draws(32)))
    fields = plasma(uniform, 1.8).reshape(60, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(20 + 200 * fields).astype(np.uint8)


@pytest.fixture(scope="session")
def rows() -> np.ndarray:
    return 7 * np.arange(60) + 3


@pytest.fixture(scope="session")
def small(images: np.ndarray) -> np.ndarray:
    """Return two images (2, 9, 12, 3) for slow computations, with black, white and gray pixels
    among others."""
    cut = images[:2, 5:14, 8:20].copy()
    cut[0, 0, 0] = 0
    cut[0, 1, 1] = 255
    cut[0, 2, 2] = 90
    cut[1, 3, 3] = (255, 0, 128)
    return cut
