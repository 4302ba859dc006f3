"""Write a small federation of pictures: digits as five hospitals with other scanners see them.

    python examples/hospitals.py my_hospitals fifth_hospital

The first folder gets four hospitals, with a folder for each class. The second gets a fifth
hospital, which has few pictures and comes later. The digits are those of scikit-learn.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter, ImageOps
from sklearn.datasets import load_digits

HOSPITALS = ("Berlin", "Charité", "Mayo", "Oslo")
FIFTH = "Porto"
FIFTH_PICTURES = 100
SIDE = 16


def scan(pixels, hospital):
    """Return a digit (8, 8), 0 to 16, as the scanner of a hospital shows it."""
    picture = Image.fromarray((pixels * 255 / 16).astype(np.uint8)).resize(
        (SIDE, SIDE), Image.Resampling.BILINEAR
    )
    if hospital == "Berlin":
        return picture.filter(ImageFilter.GaussianBlur(1))
    if hospital == "Mayo":
        return ImageOps.invert(picture)
    if hospital == "Oslo":
        return picture.rotate(20)
    if hospital == FIFTH:
        return ImageOps.invert(picture.rotate(-15))
    return picture


def write(folder, images, labels, hospital):
    """Write pictures into a folder for each class."""
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / f"digit {label}"
        place.mkdir(parents=True, exist_ok=True)
        scan(pixels, hospital).save(place / f"{number:04d}.png")


def main(federation, fifth):
    """Divide the digits among the hospitals, and write their folders."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    parts = np.array_split(order[FIFTH_PICTURES:], len(HOSPITALS))
    for hospital, rows in zip(HOSPITALS, parts, strict=True):
        write(Path(federation) / hospital, digits.images[rows], digits.target[rows], hospital)
    rows = order[:FIFTH_PICTURES]
    write(Path(fifth), digits.images[rows], digits.target[rows], FIFTH)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
