"""Synthetic data sets in the layouts of the originals."""

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

WritePickle = Callable[..., None]


def idx_bytes(array: np.ndarray) -> bytes:
    """Return the bytes of an IDX file of unsigned bytes."""
    return (
        struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        + array.astype(np.uint8).tobytes()
    )


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def write_idx(
    tmp_path: Path, generator: np.random.Generator
) -> Callable[..., dict[str, np.ndarray]]:
    """Return a function that writes the four files of MNIST or Fashion-MNIST and returns their
    arrays."""

    def write(
        name: str = "MNIST", *, compress: bool = False, train: int = 6, test: int = 3
    ) -> dict[str, np.ndarray]:
        raw = tmp_path / name / "raw"
        raw.mkdir(parents=True)
        arrays = {}
        for part, rows in (("train", train), ("t10k", test)):
            arrays[f"{part}-images-idx3-ubyte"] = generator.integers(
                0, 256, (rows, 28, 28), dtype=np.uint8
            )
            arrays[f"{part}-labels-idx1-ubyte"] = generator.integers(0, 10, rows, dtype=np.uint8)
        for file, array in arrays.items():
            content = idx_bytes(array)
            if compress:
                (raw / f"{file}.gz").write_bytes(gzip.compress(content))
            else:
                (raw / file).write_bytes(content)
        return arrays

    return write


@pytest.fixture
def cifar_batch(generator: np.random.Generator) -> Callable[..., dict[str, Any]]:
    """Return a function that makes the content of a CIFAR python batch."""

    def make(rows: int = 4, *, classes: int = 10, key: str = "labels") -> dict[str, Any]:
        data = generator.integers(0, 256, (rows, 3072), dtype=np.uint8)
        return {
            key: generator.integers(0, classes, rows).tolist(),
            "data": data,
            "batch_label": "synthetic",
        }

    return make


@pytest.fixture
def write_cifar10(
    tmp_path: Path, cifar_batch: Callable[..., dict[str, Any]]
) -> Callable[..., list[dict[str, Any]]]:
    """Return a function that writes the six python batches of CIFAR-10 and returns their
    contents."""

    def write(protocol: int = 2) -> list[dict[str, Any]]:
        folder = tmp_path / "cifar-10-batches-py"
        folder.mkdir()
        batches = [cifar_batch() for _ in range(6)]
        names = [*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"]
        for name, batch in zip(names, batches, strict=True):
            (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))
        return batches

    return write
