"""The readers on the original data, where it is."""

import csv
from pathlib import Path

import numpy as np
import pytest

from fedtailor.data import load_dataset


def load(data_dir: Path, name: str, folder: str) -> tuple[np.ndarray, np.ndarray]:
    if not (data_dir / folder).is_dir():
        pytest.skip(f"no {folder} in {data_dir}")
    dataset = load_dataset(name, data_dir)
    assert not dataset.subset and dataset.tested_on == "original"
    assert dataset.num_official_train == dataset.official_size - 10_000
    assert len(set(np.bincount(dataset.y, minlength=dataset.num_classes))) == 1 or name == "mnist"
    train = dataset.x[: dataset.num_official_train]
    return train.reshape(-1, train.shape[3]), dataset.y


@pytest.mark.parametrize(
    ("name", "folder", "mean", "std"),
    [
        ("mnist", "MNIST", 0.1307, 0.3081),
        ("fashion_mnist", "FashionMNIST", 0.2860, 0.3530),
    ],
)
@pytest.mark.slow
def test_grey_data_have_the_published_statistics(
    data_dir: Path, name: str, folder: str, mean: float, std: float
) -> None:
    pixels, labels = load(data_dir, name, folder)
    assert abs(pixels.mean() / 255 - mean) < 1e-4 and abs(pixels.std() / 255 - std) < 1e-4
    expected = [5, 0, 4, 1, 9] if name == "mnist" else [9, 0, 0, 3, 0]
    assert labels[:5].tolist() == expected


@pytest.mark.parametrize(
    ("name", "folder", "mean", "label"),
    [
        ("cifar10", "cifar-10-batches-py", (0.4914, 0.4822, 0.4465), 6),
        ("cifar100", "cifar-100-python", (0.5071, 0.4865, 0.4409), 19),
    ],
)
def test_cifar_has_the_published_statistics(
    data_dir: Path, name: str, folder: str, mean: tuple[float, ...], label: int
) -> None:
    pixels, labels = load(data_dir, name, folder)
    np.testing.assert_allclose(pixels.mean(axis=0) / 255, mean, atol=1e-4)
    assert labels[0] == label


def test_the_four_hospitals_have_the_published_patients(data_dir: Path, tmp_path: Path) -> None:
    """The real measurements, in the form of the published files."""
    if not (data_dir / "heart/Cleveland.csv").is_file():
        pytest.skip(f"no heart in {data_dir}")

    sites = {
        "Cleveland": "cleveland",
        "Budapest": "hungarian",
        "Switzerland": "switzerland",
        "Long-Beach": "va",
    }
    (tmp_path / "heart").mkdir()
    for table, part in sites.items():
        with (data_dir / f"heart/{table}.csv").open() as file:
            rows = list(csv.reader(file))[1:]

        lines = []
        for *cells, disease in rows:
            measured = [cell or "?" for cell in cells]
            lines.append(",".join([*measured, "2" if disease == "yes" else "0"]) + "\n")
        (tmp_path / f"heart/processed.{part}.data").write_text("".join(lines))

    dataset = load_dataset("heart", tmp_path)
    assert not dataset.subset and dataset.domains is not None
    assert np.bincount(dataset.domains).tolist() == [303, 294, 123, 200]
    assert np.bincount(dataset.domains[dataset.y == 1]).tolist() == [139, 106, 115, 149]
    # cholesterol of 0: all of Switzerland, and others of Budapest and Long Beach
    empty = np.isnan(dataset.x[:, 4])
    assert np.bincount(dataset.domains[empty], minlength=4).tolist() == [0, 23, 123, 56]
