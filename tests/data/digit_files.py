"""Synthetic files of USPS, SVHN, SynDigits, MNIST and MNIST-M in the layouts of the originals."""

import bz2
import io
import struct
from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image


def usps_line(label: int, values: np.ndarray) -> str:
    """Return a line of libsvm's text; ``values`` are in thousandths."""
    pairs = " ".join(f"{index}:{value / 1000:g}" for index, value in enumerate(values, 1))
    return f"{label} {pairs} "


def write_usps(
    folder: Path, generator: np.random.Generator, *, train: int = 5, test: int = 3
) -> list[str]:
    """Write the two files and return the lines of the first."""
    (folder / "USPS").mkdir(exist_ok=True)
    lines: list[str] = []
    for file, rows in (("usps.t.bz2", test), ("usps.bz2", train)):
        lines = [
            usps_line(row % 10 + 1, generator.integers(-1000, 1001, 256)) for row in range(rows)
        ]
        (folder / "USPS" / file).write_bytes(bz2.compress("\n".join([*lines, ""]).encode()))
    return lines


def mat_bytes(variables: dict[str, object], **how: object) -> bytes:
    """Return a MATLAB file as SciPy writes it."""
    stream = io.BytesIO()
    scipy.io.savemat(stream, variables, **how)
    return stream.getvalue()


def write_mat(
    folder: Path,
    generator: np.random.Generator,
    name: str = "SVHN",
    *,
    train: int = 5,
    test: int = 3,
    **how: object,
) -> dict[str, np.ndarray]:
    """Write the two files of SVHN or SynthDigits and return images (32, 32, 3, rows) and labels of
    the first."""
    prefix, first = ("", 1) if name == "SVHN" else ("synth_", 0)
    (folder / name).mkdir(exist_ok=True)
    content: dict[str, np.ndarray] = {}
    for part, rows in (("test", test), ("train", train)):
        labels = (np.arange(rows, dtype=np.uint8) * 3 % 10 + first)[:, np.newaxis]
        content = {"X": generator.integers(0, 256, (32, 32, 3, rows), dtype=np.uint8), "y": labels}
        (folder / name / f"{prefix}{part}_32x32.mat").write_bytes(mat_bytes(dict(content), **how))
    return content


def write_mnist(
    folder: Path, generator: np.random.Generator, *, train: int = 6, test: int = 3
) -> None:
    """Write the four files of MNIST."""
    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True)
    for part, rows in (("train", train), ("t10k", test)):
        for file, shape in (
            (f"{part}-images-idx3-ubyte", (rows, 28, 28)),
            (f"{part}-labels-idx1-ubyte", (rows,)),
        ):
            high = 256 if len(shape) == 3 else 10
            array = generator.integers(0, high, shape, dtype=np.uint8)
            (raw / file).write_bytes(
                struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + array.tobytes()
            )


def write_mnist_m_arrays(
    folder: Path, generator: np.random.Generator, *, train: int = 4, test: int = 2
) -> dict[str, np.ndarray]:
    """Write the four arrays of MNIST-M and return them by the name of their file."""
    (folder / "MNIST-M").mkdir(exist_ok=True)
    arrays = {}
    for part, rows in (("train", train), ("test", test)):
        arrays[f"{part}_images.npy"] = generator.integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
        arrays[f"{part}_labels.npy"] = generator.integers(0, 10, rows, dtype=np.uint8)
    for file, array in arrays.items():
        np.save(folder / "MNIST-M" / file, array)
    return arrays


def write_mnist_m_pictures(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays of MNIST-M as the original release."""
    place = folder / "MNIST-M"
    place.mkdir(exist_ok=True)
    for part in ("train", "test"):
        (place / f"mnist_m_{part}").mkdir()
        lines = []
        images, labels = arrays[f"{part}_images.npy"], arrays[f"{part}_labels.npy"]
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            Image.fromarray(image).save(place / f"mnist_m_{part}" / f"{row:08}.png")
            lines.append(f"{row:08}.png {label}\n")
        (place / f"mnist_m_{part}_labels.txt").write_text("".join(lines))
