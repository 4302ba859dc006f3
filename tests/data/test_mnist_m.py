"""The reader of MNIST-M in both layouts."""

import io
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.digit_files import write_mnist_m_arrays, write_mnist_m_pictures
from fedtailor.core.errors import DataError
from fedtailor.data import load_dataset

PICTURE = "mnist_m_train/00000001.png"


@pytest.fixture
def pictures(tmp_path: Path, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Write the original release; return its arrays by the names that they have in the other
    layout."""
    arrays = write_mnist_m_arrays(tmp_path, generator)
    for file in (tmp_path / "MNIST-M").iterdir():
        file.unlink()
    write_mnist_m_pictures(tmp_path, arrays)
    return arrays


def test_arrays(tmp_path: Path, generator: np.random.Generator) -> None:
    arrays = write_mnist_m_arrays(tmp_path, generator)
    dataset = load_dataset("mnist_m", tmp_path)
    np.testing.assert_array_equal(
        dataset.x, np.concatenate([arrays["train_images.npy"], arrays["test_images.npy"]])
    )
    np.testing.assert_array_equal(
        dataset.y, np.concatenate([arrays["train_labels.npy"], arrays["test_labels.npy"]])
    )
    assert dataset.num_official_train == 4 and dataset.subset and dataset.tested_on == "original"
    assert len(dataset.sources) == 4


def test_the_original_release_gives_the_same_and_goes_first(
    tmp_path: Path, generator: np.random.Generator, pictures: dict[str, np.ndarray]
) -> None:
    first = load_dataset("mnist_m", tmp_path)
    np.testing.assert_array_equal(first.x[:4], pictures["train_images.npy"])
    np.testing.assert_array_equal(first.y[4:], pictures["test_labels.npy"])
    assert first.tested_on == "synthetic" and first.num_official_train == 4
    assert list(first.sources) == [
        "MNIST-M/mnist_m_train_labels.txt",
        "MNIST-M/mnist_m_train/*.png",
        "MNIST-M/mnist_m_test_labels.txt",
        "MNIST-M/mnist_m_test/*.png",
    ]
    write_mnist_m_arrays(tmp_path, generator)
    assert load_dataset("mnist_m", tmp_path).digest == first.digest


def test_the_digest_of_the_pictures_follows_their_content(
    tmp_path: Path, pictures: dict[str, np.ndarray]
) -> None:
    before = load_dataset("mnist_m", tmp_path).sources
    Image.new("RGB", (32, 32)).save(tmp_path / "MNIST-M" / PICTURE)
    after = load_dataset("mnist_m", tmp_path).sources
    assert {file for file in before if before[file] != after[file]} == {
        "MNIST-M/mnist_m_train/*.png"
    }


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("../../outside.png 5", "got b'../../outside.png 5'"),
        ("/etc/hostname 5", "got b'/etc/hostname 5'"),
        ("folder/0.png 5", "got b'folder/0.png 5'"),
        ("..\\0.png 5", "in line 2"),
        ("00000001.png 10", "in line 2"),
        ("00000001.png -1", "in line 2"),
        ("00000001.png nan", "in line 2"),
        ("00000001.png", "in line 2"),
        ("", "in line 2"),
        ("\0.png 3", "in line 2"),
        ("x" * 10**6, "in line 2"),
        ("00000000.png 4", "got '00000000.png' a second time"),
        (
            "99999999.png 4",
            "99999999.png: expected a PNG picture of 32x32 pixels in RGB, got FileNotFoundError",
        ),
    ],
)
def test_hostile_lines_are_refused(
    tmp_path: Path, pictures: dict[str, np.ndarray], line: str, sentence: str
) -> None:
    path = tmp_path / "MNIST-M/mnist_m_train_labels.txt"
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], line, *lines[2:]]))
    with pytest.raises(DataError) as caught:
        load_dataset("mnist_m", tmp_path)
    assert sentence in caught.value.message and len(caught.value.message) < 500


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """Return a PNG that announces a size, whatever its data is."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


def saved(picture: Image.Image, format: str = "PNG") -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (png(2**31 - 1, 2**31 - 1), "DecompressionBombError"),
        (png(10_000, 10_000), "DecompressionBombWarning"),
        (png(33, 32), "got 33x32 pixels in RGB"),
        (png(32, 32, zlib.compress(bytes(10))), "expected a PNG picture"),
        (png(32, 32, b"no zlib"), "expected a PNG picture"),
        (saved(Image.new("L", (32, 32))), "got 32x32 pixels in L"),
        (saved(Image.new("RGB", (32, 32)), "BMP"), "UnidentifiedImageError"),
        (b"", "UnidentifiedImageError"),
        (bytes(2**16 + 1), "expected at most 65536 bytes, got more"),
    ],
)
def test_hostile_pictures_are_refused(
    tmp_path: Path, pictures: dict[str, np.ndarray], content: bytes, sentence: str
) -> None:
    path = tmp_path / "MNIST-M" / PICTURE
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_dataset("mnist_m", tmp_path)
    assert sentence in caught.value.message and str(path) in caught.value.message


def objects() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([object, 1], object), allow_pickle=True)
    return stream.getvalue()


def lying(shape: str, kind: str = "|u1") -> bytes:
    """Return an array file whose header announces far more than there is."""
    header = (
        f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode()
        + b"\n"
    )
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(100)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (objects(), "Object arrays cannot be loaded"),
        (
            pickle.dumps([1, 2]),
            "expected a NumPy array file (.npy), got a file that begins with b'\\x80",
        ),
        (b"PK\x03\x04", "expected a NumPy array file"),
        (lying("(1000000000000, 32, 32, 3)"), "expected an intact array of numbers"),
        (lying("(10, 32, 32, 3)"), "expected an intact array of numbers"),
        (lying("(-1, 32, 32, 3)"), "expected"),
        (lying("(9, __import__('os'))"), "expected an intact array of numbers"),
        (lying("(" * 90), "expected an intact array of numbers"),
        (b"\x93NUMPY\x01\x00", "expected an intact array of numbers"),
        (lying("(10, 10)"), "expected bytes (rows, 32, 32, 3), got uint8 (10, 10)"),
        (lying("(0, 32, 32, 3)"), "expected bytes (rows, 32, 32, 3)"),
    ],
)
def test_hostile_arrays_are_refused(
    tmp_path: Path, generator: np.random.Generator, content: bytes, sentence: str
) -> None:
    write_mnist_m_arrays(tmp_path, generator)
    path = tmp_path / "MNIST-M/train_images.npy"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_dataset("mnist_m", tmp_path)
    assert sentence in caught.value.message and str(path) in caught.value.message


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (np.array([0, 1, 2, 10]), "must be whole numbers from 0 to 9, got 10 at row 3"),
        (np.array([0.0, 1, 2, 3]), "got type float64"),
        (np.array([0, 1, 2]), "expected 4 labels, one for each image, got 3 labels"),
    ],
)
def test_labels_that_make_no_sense_are_refused(
    tmp_path: Path, generator: np.random.Generator, labels: np.ndarray, sentence: str
) -> None:
    write_mnist_m_arrays(tmp_path, generator)
    np.save(tmp_path / "MNIST-M/train_labels.npy", labels)
    with pytest.raises(DataError) as caught:
        load_dataset("mnist_m", tmp_path)
    assert sentence in caught.value.message


@pytest.mark.parametrize("file", ["processed/mnist_m_train.pt", "keras_mnistm.pkl.gz"])
def test_pickles_of_other_releases_are_refused_in_words(tmp_path: Path, file: str) -> None:
    path = tmp_path / "MNIST-M" / file
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(
        DataError, match=r"mnist_m_train_labels\.txt.*got a pickle, which is not read"
    ) as caught:
        load_dataset("mnist_m", tmp_path)
    assert caught.value.path == str(path)


def test_missing_files_are_named(tmp_path: Path, generator: np.random.Generator) -> None:
    with pytest.raises(
        DataError,
        match=r"train_images\.npy' was not found .* or 'MNIST-M/mnist_m_train_labels\.txt'",
    ):
        load_dataset("mnist_m", tmp_path)
    write_mnist_m_arrays(tmp_path, generator)
    (tmp_path / "MNIST-M/test_labels.npy").unlink()
    with pytest.raises(DataError, match=r"test_labels\.npy' was not found"):
        load_dataset("mnist_m", tmp_path)


def test_the_subset_of_the_original(data_dir: Path) -> None:
    if not (data_dir / "MNIST-M/train_images.npy").is_file():
        pytest.skip(f"no MNIST-M in {data_dir}")
    dataset = load_dataset("mnist_m", data_dir)
    assert dataset.subset and dataset.tested_on == "original" and dataset.input_shape == (3, 32, 32)
    assert np.bincount(dataset.y).tolist() == [500] * 10 and dataset.num_official_train == 4000
