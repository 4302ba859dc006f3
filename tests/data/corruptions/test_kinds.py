"""Each corruption against a slow computation written from its definition."""

import colorsys
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import fft, ndimage

from fedtailor.data.corruptions import corrupt
from fedtailor.data.corruptions.kinds import ImageDraws, num_draws, plasma, to_bytes

SEED, ROWS = 11, np.array([4, 90])
LEVELS = (1, 5)


def clip(value, low=0, high=255):
    return max(low, min(high, value))


def as_byte(value):
    """Truncate; whole numbers may be off by what float64 rounds."""
    return math.floor(clip(value) + 1e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_motion_blur(small, level):
    radius, sigma = [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)][level - 1]
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    expected = np.empty(small.shape)
    for n, generator in enumerate(ImageDraws(SEED, f"motion_blur-{level}", ROWS)):
        angle = math.radians(-45 + 90 * generator.random())
        for y, x in np.ndindex(small.shape[1:3]):
            total = np.zeros(3)
            for i, weight in enumerate(weights):
                dy, dx = (
                    -math.ceil(i * math.sin(angle) - 0.5),
                    -math.ceil(i * math.cos(angle) - 0.5),
                )
                total += weight * small[n, clip(y - dy, 0, 8), clip(x - dx, 0, 11)]
            expected[n, y, x] = total / sum(weights)
    actual = corrupt(small, "motion_blur", level, positions=ROWS, seed=SEED)
    assert np.abs(actual - expected).max() <= 0.5 + 1e-4  # rounded to nearest


@pytest.mark.parametrize("level", LEVELS)
def test_defocus_blur(small, level):
    radius, sigma = [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)][level - 1]
    y, x = np.mgrid[-8:9, -8:9]
    kernel = (x**2 + y**2 <= radius**2).astype(float)
    kernel = ndimage.gaussian_filter(kernel / kernel.sum(), sigma, radius=1, mode="constant")
    expected = np.zeros(small.shape)
    for (row, column), weight in np.ndenumerate(kernel):
        # numpy's "reflect" mirrors without repeating the edge
        padded = np.pad(small.astype(float), ((0, 0), (8, 8), (8, 8), (0, 0)), mode="reflect")
        expected += weight * padded[:, row : row + 9, column : column + 12]
    actual = corrupt(small, "defocus_blur", level, positions=ROWS, seed=SEED)
    np.testing.assert_array_equal(actual, np.floor(expected + 1e-6))


@pytest.mark.parametrize(("level", "std"), list(enumerate([0.04, 0.06, 0.08, 0.09, 0.10], 1))[::4])
def test_gaussian_noise(images, rows, level, std):
    gray = np.full_like(images, 127)
    noise = (
        corrupt(gray, "gaussian_noise", level, positions=rows, seed=SEED).astype(float) + 0.5 - 127
    )
    assert noise.std() == pytest.approx(255 * std, rel=0.01) and abs(noise.mean()) < 0.25
    assert (
        abs(np.corrcoef(noise[..., 0].ravel(), noise[..., 1].ravel())[0, 1]) < 0.02
    )  # per channel
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.08  # per image


@pytest.mark.parametrize(("level", "photons"), list(enumerate([500, 250, 100, 75, 50], 1))[::4])
@pytest.mark.parametrize("gray", [30, 127])
def test_shot_noise(images, rows, level, photons, gray):
    out = corrupt(
        np.full_like(images, gray), "shot_noise", level, positions=rows, seed=SEED
    ).astype(float)
    whole = {min(255 * count // photons, 255) for count in range(2 * photons)}
    assert set(out.ravel().tolist()) <= whole
    assert out.mean() == pytest.approx(
        gray - 0.45, abs=0.15
    )  # truncation takes a little less than a half
    # of a Poisson number with mean m = photons * gray / 255 the variance is m
    assert out.var() == pytest.approx(
        255 * gray / photons, rel=0.05
    )  # 250: floor(1.02 n) is n below 50


@pytest.mark.parametrize(
    ("level", "probability"), list(enumerate([0.01, 0.02, 0.03, 0.05, 0.07], 1))[::4]
)
def test_impulse_noise(images, rows, level, probability):
    clean = np.clip(images, 1, 254)
    out = corrupt(clean, "impulse_noise", level, positions=rows, seed=SEED)
    black, white = (out == 0).mean(), (out == 255).mean()
    error = 4 * math.sqrt(probability / 2 / out.size)
    assert abs(black - probability / 2) < error and abs(white - probability / 2) < error
    untouched = (out > 0) & (out < 255)
    assert (out[untouched] == clean[untouched]).all()
    changed = ~untouched
    both = (changed[..., 0] & changed[..., 1]).mean()  # channels are hit on their own
    assert both < 2 * probability**2 + 1e-4


@pytest.mark.parametrize("level", LEVELS)
def test_frost(small, level):
    image_share, frost_share = [
        ("1", "0.2"),
        ("1", "0.3"),
        ("0.9", "0.4"),
        ("0.85", "0.4"),
        ("0.75", "0.45"),
    ][level - 1]
    generator = np.random.default_rng(0)
    pictures = [generator.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8) for i in range(5)]
    expected = np.empty_like(small)
    for n, draws in enumerate(ImageDraws(SEED, f"frost-{level}", ROWS)):
        which, down, right = draws.random(3)
        picture = pictures[int(5 * which)]
        top, left = int(down * (len(picture) - 9)), int(right * (30 - 12))
        for place in np.ndindex(small.shape[1:]):
            y, x, channel = place
            ice = int(picture[top + y, left + x, channel])
            value = Fraction(image_share) * int(small[n][place]) + Fraction(frost_share) * ice
            expected[n][place] = math.floor(clip(value))
    actual = corrupt(small, "frost", level, positions=ROWS, seed=SEED, frost=pictures)
    np.testing.assert_array_equal(actual, expected)


def test_every_picture_of_frost_is_used_and_small_ones_are_continued(images, rows):
    pictures = [np.full((4, 50, 3), 50 * i, np.uint8) for i in range(5)]
    out = corrupt(np.zeros_like(images), "frost", 1, positions=rows, seed=SEED, frost=pictures)
    assert set(out[:, 0, 0, 0].tolist()) == {0, 10, 20, 30, 40}
    assert (out == out[:, :1, :1, :1]).all()


def test_frost_on_gray_images_is_gray(small):
    pictures = [np.full((40, 40, 3), (200, 100, 0), np.uint8)]
    out = corrupt(
        np.zeros_like(small[..., :1]), "frost", 1, positions=ROWS, seed=SEED, frost=pictures
    )
    assert (out == math.floor(0.2 * (0.299 * 200 + 0.587 * 100))).all()


def plasma_by_loops(uniform, side, decay):
    """Diamond-square on a torus, point after point."""
    grid, draws, wave, step = {(0, 0): 0.0}, iter(uniform), 100.0, side

    def fill(points, neighbors):
        for y, x in points:
            around = [grid[(y + dy) % side, (x + dx) % side] for dy, dx in neighbors]
            grid[y, x] = sum(around) / 4 + wave * (-wave + 2 * wave * next(draws))

    while step >= 2:
        half = step // 2
        diagonal = [(a, b) for a in (-half, half) for b in (-half, half)]
        straight = [(-half, 0), (half, 0), (0, -half), (0, half)]
        fill([(y, x) for y in range(half, side, step) for x in range(half, side, step)], diagonal)
        fill([(y, x) for y in range(0, side, step) for x in range(half, side, step)], straight)
        fill([(y, x) for y in range(half, side, step) for x in range(0, side, step)], straight)
        step, wave = half, wave / decay
    field = np.array([[grid[y, x] for x in range(side)] for y in range(side)])
    field -= field.min()
    return field / field.max()


@pytest.mark.parametrize(("side", "decay"), [(2, 3.0), (8, 1.75), (32, 2.5)])
def test_plasma(side, decay):
    uniform = np.random.default_rng(1).random((3, num_draws(side)))
    expected = [plasma_by_loops(each, side, decay) for each in uniform]
    np.testing.assert_allclose(plasma(uniform, decay), expected, atol=1e-12)


@pytest.mark.parametrize("level", LEVELS)
def test_fog(small, level):
    thickness, decay = [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)][level - 1]
    expected = np.empty_like(small)
    for n, generator in enumerate(ImageDraws(SEED, f"fog-{level}", ROWS)):
        field = plasma_by_loops(generator.random(16 * 16 - 1), 16, decay)
        brightest = small[n].max() / 255
        for place in np.ndindex(small.shape[1:]):
            value = small[n][place] / 255 + thickness * field[place[:2]]
            expected[n][place] = as_byte(255 * value * brightest / (brightest + thickness))
    np.testing.assert_array_equal(corrupt(small, "fog", level, positions=ROWS, seed=SEED), expected)


# Annex K of the JPEG standard (ITU-T T.81): quantization of luminance, which is the table of
# quality 50
QUANTIZATION = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)


@pytest.mark.parametrize(("level", "quality"), list(enumerate([80, 65, 58, 50, 40], 1))[::4])
def test_jpeg_of_a_gray_image(images, level, quality):
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    table = (QUANTIZATION * scale + 50) // 100
    gray = images[:1, :, :, :1]
    expected = np.empty((32, 32))
    for y, x in np.ndindex(4, 4):
        block = np.s_[8 * y : 8 * y + 8, 8 * x : 8 * x + 8]
        waves = fft.dctn(gray[0, :, :, 0][block] - 128.0, norm="ortho")
        expected[block] = fft.idctn(np.round(waves / table) * table, norm="ortho") + 128
    actual = corrupt(gray, "jpeg", level, positions=np.array([0]), seed=SEED)[0, :, :, 0]
    difference = np.abs(actual - np.clip(expected, 0, 255))
    assert (
        np.median(difference) < 0.5 and (difference < 1.5).mean() > 0.9
    )  # whole-number transforms round differently


@pytest.mark.parametrize(("level", "added"), list(enumerate([0.05, 0.1, 0.15, 0.2, 0.3], 1))[::4])
def test_brightness(small, level, added):
    expected = np.empty_like(small)
    for place in np.ndindex(small.shape[:3]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(small[place] / 255))
        brighter = colorsys.hsv_to_rgb(hue, saturation, clip(value + added, 0, 1))
        expected[place] = [as_byte(255 * each) for each in brighter]
    np.testing.assert_array_equal(
        corrupt(small, "brightness", level, positions=ROWS, seed=SEED), expected
    )


@pytest.mark.parametrize(
    ("level", "kept"), list(enumerate(["0.75", "0.5", "0.4", "0.3", "0.15"], 1))[::4]
)
def test_contrast(small, level, kept):
    expected = np.empty_like(small)
    for n, channel in np.ndindex(2, 3):
        mean = Fraction(int(small[n, :, :, channel].sum(dtype=int)), 9 * 12)
        for y, x in np.ndindex(9, 12):
            value = (int(small[n, y, x, channel]) - mean) * Fraction(kept) + mean
            expected[n, y, x, channel] = math.floor(value)
    np.testing.assert_array_equal(
        corrupt(small, "contrast", level, positions=ROWS, seed=SEED), expected
    )


def test_values_are_truncated_but_for_rounding_errors():
    values = np.array([-3.0, 0.99, 51.0 - 1e-12, 51.0 - 1e-3, 254.9, 300.0])
    assert to_bytes(values).tolist() == [0, 0, 51, 50, 254, 255]
