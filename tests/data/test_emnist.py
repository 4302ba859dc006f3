"""The reader of EMNIST, on synthetic files."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedtailor.core.errors import DataError
from fedtailor.data.datasets import emnist
from fedtailor.data.datasets.known import DATASETS

Write = Callable[..., dict[str, np.ndarray]]


def idx_bytes(array: np.ndarray) -> bytes:
    """Return the bytes of an IDX file of unsigned bytes."""
    return (
        struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        + array.astype(np.uint8).tobytes()
    )


@pytest.fixture
def write(tmp_path: Path, generator: np.random.Generator) -> Write:
    """Return a function that writes the four files of a split and returns their arrays."""

    def write(
        split: str, *, first: int = 0, classes: int = 10, place: str = "raw", compress: bool = False
    ) -> dict:
        folder = tmp_path / "EMNIST" / place
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {}
        for part, rows in (("train", 60), ("test", 30)):
            arrays[f"{part}-images-idx3"] = generator.integers(
                0, 256, (rows, 28, 28), dtype=np.uint8
            )
            arrays[f"{part}-labels-idx1"] = (np.arange(rows) % classes + first).astype(np.uint8)
        for name, array in arrays.items():
            file = folder / f"emnist-{split}-{name}-ubyte{'.gz' if compress else ''}"
            file.write_bytes(gzip.compress(idx_bytes(array)) if compress else idx_bytes(array))
        return arrays

    return write


@pytest.mark.parametrize(
    ("split", "classes", "names"),
    [
        ("balanced", 47, {0: "0", 10: "A", 35: "Z", 36: "a", 37: "b", 38: "d", 46: "t"}),
        ("byclass", 62, {0: "0", 10: "A", 36: "a", 61: "z"}),
        ("bymerge", 47, {9: "9", 36: "a", 46: "t"}),
        ("digits", 10, {0: "0", 9: "9"}),
        ("mnist", 10, {3: "3"}),
    ],
)
def test_images_are_turned_upright_and_parts_pooled(
    tmp_path: Path, write: Write, split: str, classes: int, names: dict[int, str]
) -> None:
    arrays = write(split, classes=classes)
    dataset = getattr(emnist, f"load_{split}")(tmp_path)
    assert (
        dataset.name == f"emnist_{split}"
        and dataset.num_classes == classes
        and dataset.num_official_train == 60
    )
    assert (
        dataset.x.dtype == np.uint8
        and dataset.x.flags.c_contiguous
        and dataset.input_shape == (1, 28, 28)
    )
    assert dataset.x[3, 5, 20, 0] == arrays["train-images-idx3"][3, 20, 5]
    np.testing.assert_array_equal(
        dataset.x[60:, ..., 0], arrays["test-images-idx3"].transpose(0, 2, 1)
    )
    np.testing.assert_array_equal(dataset.y[60:], arrays["test-labels-idx1"])
    assert {label: dataset.class_names[label] for label in names} == names
    assert (
        len(dataset.sources) == 4
        and f"EMNIST/raw/emnist-{split}-test-labels-idx1-ubyte" in dataset.sources
    )


def test_letters_start_at_zero(tmp_path: Path, write: Write) -> None:
    arrays = write("letters", first=1, classes=26)
    dataset = emnist.load_letters(tmp_path)
    np.testing.assert_array_equal(dataset.y[:60], arrays["train-labels-idx1"].astype(int) - 1)
    assert dataset.class_names[0] == "A" and dataset.class_names[25] == "Z"


def test_ten_letters_are_as_stored_and_standardized_by_the_training_part(
    tmp_path: Path, write: Write
) -> None:
    arrays = write("letters", first=1, classes=26)
    dataset = emnist.load_letters10(tmp_path)
    few = {
        part: arrays[f"{part}-images-idx3"][arrays[f"{part}-labels-idx1"] <= 10]
        for part in ("train", "test")
    }
    np.testing.assert_array_equal(dataset.x[..., 0], np.concatenate([few["train"], few["test"]]))
    assert dataset.num_classes == 10 and dataset.class_names[-1] == "J" and dataset.y.max() == 9
    assert dataset.num_official_train == len(few["train"]) and dataset.white == 1.0
    standardized = (few["train"].astype(float) - dataset.normalize.mean[0]) / dataset.normalize.std[
        0
    ]
    assert abs(standardized.mean()) < 1e-12 and abs(standardized.std() - 1) < 1e-12


@pytest.mark.parametrize("place", ["raw", "gzip"])
def test_compressed_files_are_found_where_the_archive_has_them(
    tmp_path: Path, write: Write, place: str
) -> None:
    write("digits", place=place, compress=True)
    dataset = emnist.load_digits(tmp_path)
    assert set(dataset.sources) == {
        path.relative_to(tmp_path).as_posix() for pattern in DATASETS["emnist_digits"].files
        for path in tmp_path.glob(pattern)
    }  # fmt: skip


def test_a_missing_file_is_named(tmp_path: Path, write: Write) -> None:
    write("digits")
    (tmp_path / "EMNIST/raw/emnist-digits-test-labels-idx1-ubyte").unlink()
    with pytest.raises(
        DataError,
        match=r"data set 'emnist_digits': file 'emnist-digits-test-labels-idx1-ubyte' was",
    ):
        emnist.load_digits(tmp_path)


LABELS, IMAGES = "emnist-letters-train-labels-idx1-ubyte", "emnist-letters-train-images-idx3-ubyte"


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        (LABELS, idx_bytes(np.zeros(60)), "expected labels from 1 to 26, got 0 at row 0"),
        (LABELS, idx_bytes(np.full(60, 27)), "expected labels from 1 to 26, got 27 at row 0"),
        (LABELS, idx_bytes(np.ones(59)), "expected 60 labels, one for each image, got 59 labels"),
        (LABELS, idx_bytes(np.ones(60))[:-1], "got only 59 (truncated)"),
        (LABELS, idx_bytes(np.ones((60, 1, 1))), "expected magic number 0x00000801"),
        (
            IMAGES,
            idx_bytes(np.zeros((60, 28, 27))),
            "expected images of 28x28 pixels, got an array (60, 28, 27)",
        ),
        (IMAGES, idx_bytes(np.zeros((0, 28, 28))), "got an array (0, 28, 28)"),
    ],
)
@pytest.mark.parametrize("load", [emnist.load_letters, emnist.load_letters10])
def test_damage_is_refused(
    tmp_path: Path, write: Write, load: Callable, file: str, content: bytes, sentence: str
) -> None:
    write("letters", first=1, classes=26)
    path = tmp_path / "EMNIST/raw" / file
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert sentence in caught.value.message and caught.value.path == str(path)


def test_ten_letters_need_one_of_them(tmp_path: Path, write: Write) -> None:
    write("letters", first=20, classes=5)
    with pytest.raises(DataError, match="expected one of the letters A to J, got none"):
        emnist.load_letters10(tmp_path)


def test_every_entry_of_the_table_has_its_function() -> None:
    targets = {entry.target for name, entry in DATASETS.items() if name.startswith("emnist")}
    assert (
        all(
            callable(getattr(emnist, target.removeprefix("datasets.emnist:"))) for target in targets
        )
        and len(targets) == 7
    )
