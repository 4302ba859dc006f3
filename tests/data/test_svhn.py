"""The readers of SVHN and SynDigits, and of MATLAB files, on synthetic files."""

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data.digit_files import mat_bytes, write_mat
from fedtailor.core.errors import DataError
from fedtailor.data import load_dataset
from fedtailor.data.datasets import svhn

TRAIN = "SVHN/train_32x32.mat"
Change = Callable[[bytes], bytes]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(("name", "folder"), [("svhn", "SVHN"), ("syn_digits", "SynthDigits")])
def test_images_and_labels(
    tmp_path: Path, generator: np.random.Generator, name: str, folder: str, compressed: bool
) -> None:
    content = write_mat(tmp_path, generator, folder, do_compression=compressed)
    dataset = load_dataset(name, tmp_path)
    assert (
        dataset.x.dtype == np.uint8
        and dataset.x.shape == (8, 32, 32, 3)
        and dataset.x.flags.c_contiguous
    )
    for row in range(5):
        np.testing.assert_array_equal(dataset.x[row], content["X"][:, :, :, row])
    expected = content["y"].ravel().tolist()
    assert dataset.y[:5].tolist() == [0 if label == 10 else label for label in expected]
    assert dataset.num_official_train == 5 and dataset.subset and dataset.tested_on == "synthetic"
    assert len(dataset.sources) == 2 and all(file.startswith(folder) for file in dataset.sources)


def test_ten_is_digit_zero_in_any_type(tmp_path: Path, generator: np.random.Generator) -> None:
    content = write_mat(tmp_path, generator)
    for labels in (np.array([[10.0, 1, 2, 3, 9]]), np.array([[10], [1], [2], [3], [9]], np.int32)):
        (tmp_path / TRAIN).write_bytes(
            mat_bytes({"other": {"a": 1}, "y": labels, "X": content["X"], "z": "text"})
        )
        assert load_dataset("svhn", tmp_path).y[:5].tolist() == [0, 1, 2, 3, 9]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"X": np.zeros((32, 32, 3, 5))},
            "expected 'X' as bytes (32, 32, 3, rows), got float64 (32, 32, 3, 5)",
        ),
        ({"X": np.zeros((5, 32, 32, 3), np.uint8)}, "got uint8 (5, 32, 32, 3)"),
        ({"X": np.zeros((32, 32, 3, 0), np.uint8)}, "got uint8 (32, 32, 3, 0)"),
        ({"X": np.zeros((32, 32, 3), np.uint8)}, "expected 'X' as bytes"),
        ({"X": np.full((32, 32, 3, 5), 1, object)}, "expected arrays of numbers X and y, got no X"),
        ({"X": {"a": 1}}, "expected arrays of numbers X and y, got no X"),
        ({"X": "text"}, "expected arrays of numbers X and y, got no X"),
        ({"X": np.zeros((32, 32, 3, 5), complex)}, "got values of type 9 in 'X'"),
        (
            {"y": np.ones((4, 1), np.uint8)},
            "expected 'y' with 5 numbers, one for each image, got the shape (4, 1)",
        ),
        ({"y": np.ones((5, 2), np.uint8)}, "got the shape (5, 2)"),
        ({"y": np.full((5, 1), 11)}, "must be whole numbers from 0 to 10, got 11 at row 0"),
        ({"y": np.full((5, 1), -1)}, "got -1 at row 0"),
        (
            {"y": np.array([[1, 2, 3, 4, np.nan]])},
            "expected labels as whole numbers from 0 to 10, got nan at row 4",
        ),
        ({"y": np.array([[1, 2, 3.5, 4, 5]])}, "got 3.5 at row 2"),
        ({"y": np.full((5, 1), np.inf)}, "got inf at row 0"),
    ],
)
def test_variables_that_make_no_sense_are_refused(
    tmp_path: Path, generator: np.random.Generator, change: dict[str, object], sentence: str
) -> None:
    content = write_mat(tmp_path, generator)
    (tmp_path / TRAIN).write_bytes(mat_bytes({**content, **change}))
    with pytest.raises(DataError) as caught:
        load_dataset("svhn", tmp_path)
    assert sentence in caught.value.message and str(tmp_path / TRAIN) in caught.value.message


def test_other_versions_are_refused_in_words(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    write_mat(tmp_path, generator)
    path = tmp_path / TRAIN
    path.write_bytes(
        b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + bytes(384) + b"\x89HDF\r\n\x1a\n"
    )
    with pytest.raises(
        DataError,
        match=r"expected a MATLAB file of version 5 to 7.2, got version 7.3 \(HDF5\).*-v7",
    ):
        load_dataset("svhn", tmp_path)
    for raw in (mat_bytes({"X": np.zeros((3, 2))}, format="4"), b"", b"\x89PNG", bytes(200)):
        path.write_bytes(raw)
        with pytest.raises(DataError, match=r"version 5 to 7\.2, got something else"):
            load_dataset("svhn", tmp_path)


def test_a_missing_file_and_one_over_the_cap(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    write_mat(tmp_path, generator)
    os.truncate(tmp_path / TRAIN, svhn._MAX_BYTES + 1)  # sparse: takes no room
    with pytest.raises(
        DataError,
        match=f"expected at most {svhn._MAX_BYTES} bytes, got {svhn._MAX_BYTES + 1} bytes",
    ):
        load_dataset("svhn", tmp_path)
    (tmp_path / TRAIN).unlink()
    with pytest.raises(DataError, match=r"train_32x32\.mat' was not found"):
        load_dataset("svhn", tmp_path)


X_TAG = struct.pack("<II", 2, 15360)  # bytes, of the five images


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda raw: raw.replace(X_TAG, struct.pack("<II", 2, 2**32 - 16)),
            "4294967280 bytes for 'X' of shape",
        ),
        (
            lambda raw: raw.replace(X_TAG, struct.pack("<II", 200, 15360)),
            "got values of type 200 in 'X'",
        ),
        (
            lambda raw: raw.replace(X_TAG, struct.pack("<II", 9, 15360)),
            "15360 bytes for 'X' of shape",
        ),
        (
            lambda raw: raw.replace(
                struct.pack("<4i", 32, 32, 3, 5), struct.pack("<4i", 32, 32, -3, -5)
            ),
            "(32, 32, -3",
        ),
        (lambda raw: raw[:128] + raw[128:] * 2, "expected"),
        (lambda raw: raw[:9000], "truncated"),
        (lambda raw: raw[:131], "unpack requires a buffer of 8 bytes"),
        (lambda raw: raw[:128], "got no X and no y"),
        (
            lambda raw: raw[:128] + struct.pack("<II", 77, 8) + raw[128:],
            "got an element of type 77",
        ),
    ],
)
def test_hostile_elements_are_refused(
    tmp_path: Path, generator: np.random.Generator, change: Change, sentence: str
) -> None:
    content = write_mat(tmp_path, generator)
    raw = mat_bytes({"X": content["X"]})
    (tmp_path / TRAIN).write_bytes(change(raw))
    with pytest.raises(DataError) as caught:
        load_dataset("svhn", tmp_path)
    assert sentence in caught.value.message and str(tmp_path / TRAIN) in caught.value.message


def compressed(body: bytes, head: bytes) -> bytes:
    raw = zlib.compress(body)
    return head + struct.pack("<II", 15, len(raw)) + raw


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda body: body + bytes(2**22), "longer than it says"),
        (lambda body: body[:-20], "truncated"),
        (
            lambda body: body.replace(X_TAG, struct.pack("<II", 2, 2**32 - 16)) + bytes(2**22),
            "4294967280 bytes",
        ),
        (lambda body: b"\x01" + body[1:], "a compressed element that is not a variable"),
    ],
)
def test_hostile_compression_is_refused(
    tmp_path: Path, generator: np.random.Generator, change: Change, sentence: str
) -> None:
    content = write_mat(tmp_path, generator)
    raw = mat_bytes({"X": content["X"]})
    (tmp_path / TRAIN).write_bytes(compressed(change(raw[128:]), raw[:128]))
    with pytest.raises(DataError) as caught:
        load_dataset("svhn", tmp_path)
    assert sentence in caught.value.message


def test_a_damaged_checksum_is_refused(tmp_path: Path, generator: np.random.Generator) -> None:
    write_mat(tmp_path, generator, do_compression=True)
    raw = bytearray((tmp_path / TRAIN).read_bytes())
    raw[128 + 8 + struct.unpack("<I", raw[132:136])[0] - 1] ^= 1
    (tmp_path / TRAIN).write_bytes(raw)
    with pytest.raises(DataError, match="incorrect data check"):
        load_dataset("svhn", tmp_path)


def test_a_variable_that_comes_twice_is_refused(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    content = write_mat(tmp_path, generator)
    raw = mat_bytes({"X": content["X"]})
    (tmp_path / TRAIN).write_bytes(raw + raw[128:] + mat_bytes({"y": content["y"]})[128:])
    with pytest.raises(DataError, match="'X' a second time"):
        load_dataset("svhn", tmp_path)


def test_no_single_wrong_byte_ends_the_process(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    write_mat(tmp_path, generator, train=1, test=1)
    path = tmp_path / TRAIN
    raw = path.read_bytes()
    refused = 0
    for _ in range(400):
        changed = bytearray(raw)
        for place in generator.integers(120, 260, 2):
            changed[place] = generator.integers(0, 256)
        path.write_bytes(changed)
        try:
            svhn.load_svhn(tmp_path)
        except DataError as error:
            refused += str(path) in error.message
    assert 100 < refused <= 400
