"""The IDX reader, on synthetic files."""

import gzip
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedtailor.core.errors import DataError
from fedtailor.data import load_dataset
from fedtailor.data.datasets.known import DATASETS
from fedtailor.data.readers import files

Write = Callable[..., dict[str, np.ndarray]]
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")]
)
def test_train_and_test_are_pooled_in_order(
    tmp_path: Path, write_idx: Write, name: str, folder: str, compress: bool
) -> None:
    arrays = write_idx(folder, compress=compress)
    dataset = load_dataset(name, tmp_path)
    assert dataset.x.dtype == np.uint8 and dataset.y.dtype == np.int64
    assert dataset.input_shape == (1, 28, 28)
    np.testing.assert_array_equal(dataset.x[:6, ..., 0], arrays[IMAGES])
    np.testing.assert_array_equal(dataset.x[6:, ..., 0], arrays["t10k-images-idx3-ubyte"])
    np.testing.assert_array_equal(dataset.y[6:], arrays["t10k-labels-idx1-ubyte"])
    assert dataset.num_official_train == 6
    assert dataset.subset and dataset.tested_on == "original"


def test_sources_hold_the_digest_of_every_file(tmp_path: Path, write_idx: Write) -> None:
    write_idx(compress=True)
    sources = load_dataset("mnist", tmp_path).sources
    assert len(sources) == 4
    for file, digest in sources.items():
        assert digest == hashlib.sha256((tmp_path / file).read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_terms_and_published_size_come_from_the_table(
    tmp_path: Path, write_idx: Write, name: str
) -> None:
    write_idx("MNIST" if name == "mnist" else "FashionMNIST")
    dataset, known = load_dataset(name, tmp_path), DATASETS[name]
    assert known.license and known.citation
    assert (dataset.license, dataset.citation, dataset.official_size) == (
        known.license,
        known.citation,
        70_000,
    )


def test_a_plain_file_goes_before_its_compressed_form(tmp_path: Path, write_idx: Write) -> None:
    write_idx()
    (tmp_path / "MNIST/raw" / f"{IMAGES}.gz").write_bytes(b"never read")
    assert f"MNIST/raw/{IMAGES}" in load_dataset("mnist", tmp_path).sources


def test_a_missing_file_is_named_with_the_way_to_point_at_it(
    tmp_path: Path, write_idx: Write
) -> None:
    write_idx()
    (tmp_path / "MNIST/raw" / LABELS).unlink()
    with pytest.raises(DataError) as caught:
        load_dataset("mnist", tmp_path)
    message = caught.value.message
    assert LABELS in message and str(tmp_path / "MNIST/raw") in message
    assert "--data-dir" in message and "FEDTAILOR_DATA" in message
    assert (
        caught.value.path == str(tmp_path / "MNIST/raw" / LABELS) and caught.value.got == "missing"
    )


def damage(tmp_path: Path, file: str, change: Callable[[bytes], bytes]) -> str:
    path = tmp_path / "MNIST/raw" / file
    path.write_bytes(change(path.read_bytes()))
    return str(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda raw: raw[:-1],
            "expected 4704 values, as its header announces, got only 4703 (truncated)",
        ),
        (lambda raw: raw + b"\0", "expected 4704 values, as its header announces, got more"),
        (lambda raw: b"\0\0\x08\x01" + raw[4:], "expected magic number 0x00000803, got 0x00000801"),
        (lambda raw: raw[:9], "expected a header of 16 bytes, got 9 bytes (truncated)"),
        (lambda raw: b"", "expected magic number 0x00000803, got 0x."),
        (
            lambda raw: raw[:4] + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 28) + raw[16:],
            "expected at most",
        ),
    ],
)
def test_damaged_images_are_refused(
    tmp_path: Path, write_idx: Write, change: Callable[[bytes], bytes], sentence: str
) -> None:
    write_idx()
    path = damage(tmp_path, IMAGES, change)
    with pytest.raises(DataError) as caught:
        load_dataset("mnist", tmp_path)
    assert path in caught.value.message and sentence in caught.value.message
    assert caught.value.path == path


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw[:-20],
        lambda raw: raw[:-8] + bytes(4) + raw[-4:],  # checksum
        lambda raw: b"no gzip at all" + raw,
        lambda raw: raw[:100] + bytes(50) + raw[150:],
    ],
)
def test_damaged_compression_is_refused(
    tmp_path: Path, write_idx: Write, change: Callable[[bytes], bytes]
) -> None:
    write_idx(compress=True)
    path = damage(tmp_path, f"{IMAGES}.gz", change)
    with pytest.raises(DataError, match="expected") as caught:
        load_dataset("mnist", tmp_path)
    assert caught.value.path == path


def test_no_more_is_decompressed_than_announced(
    tmp_path: Path, write_idx: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(compress=True)
    monkeypatch.setattr(files, "MAX_BYTES", 2**16)
    bomb = gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 100, 28, 28) + bytes(2**20))
    assert len(bomb) < 2**16
    damage(tmp_path, f"{IMAGES}.gz", lambda _: bomb)
    with pytest.raises(DataError, match="expected at most 65536 values, got 78400"):
        load_dataset("mnist", tmp_path)


def test_a_label_out_of_range_is_named(tmp_path: Path, write_idx: Write) -> None:
    write_idx()
    path = damage(tmp_path, LABELS, lambda raw: raw[:-1] + b"\x0b")
    with pytest.raises(DataError) as caught:
        load_dataset("mnist", tmp_path)
    assert (
        caught.value.message
        == f"labels of {path} must be whole numbers from 0 to 9, got 11 at row 5."
    )
    assert caught.value.path == path and caught.value.got == 11


def test_counts_of_images_and_labels_must_agree(tmp_path: Path, write_idx: Write) -> None:
    write_idx()
    damage(tmp_path, LABELS, lambda raw: struct.pack(">HBBI", 0, 8, 1, 2) + b"\x01\x02")
    with pytest.raises(DataError, match="expected 6 labels, one for each image, got 2 labels"):
        load_dataset("mnist", tmp_path)
