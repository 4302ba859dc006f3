"""The readers of CIFAR-10 and CIFAR-100, on synthetic files."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import DataError
from fedtailor.data import load_dataset
from fedtailor.data.readers import files

Batch = dict[str, Any]
Write = Callable[..., list[Batch]]
PYTHON = "cifar-10-batches-py"


def images_of(batches: list[Batch]) -> np.ndarray:
    """Return the images (rows, 32, 32, 3) of python batches, pixel by pixel."""
    planes = np.concatenate([batch["data"] for batch in batches])
    return np.stack([plane.reshape(-1, 32, 32) for plane in np.split(planes, 3, axis=1)], axis=3)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_python_batches_of_every_protocol(
    tmp_path: Path, write_cifar10: Write, protocol: int
) -> None:
    batches = write_cifar10(protocol)
    dataset = load_dataset("cifar10", tmp_path)
    np.testing.assert_array_equal(dataset.x, images_of(batches))
    np.testing.assert_array_equal(dataset.y, np.concatenate([batch["labels"] for batch in batches]))
    assert dataset.input_shape == (3, 32, 32) and dataset.num_official_train == 20
    assert (
        dataset.tested_on == "original" and next(iter(dataset.sources)) == f"{PYTHON}/data_batch_1"
    )


def python2_pickle(batch: Batch) -> bytes:
    """Return a pickle of a batch with the operations that Python 2 used for the original files."""
    raw = batch["data"].tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + b"(K%cM\x00\x0ct" % len(batch["data"])
        + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T%btb" % (len(raw).to_bytes(4, "little") + raw)
    )
    labels = b"](" + b"".join(b"K%c" % label for label in batch["labels"]) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + labels + b"u."


def test_python_batches_as_python_2_wrote_them(tmp_path: Path, write_cifar10: Write) -> None:
    batches = write_cifar10()
    for file, batch in zip(sorted((tmp_path / PYTHON).iterdir()), batches, strict=True):
        file.write_bytes(python2_pickle(batch))
    dataset = load_dataset("cifar10", tmp_path)
    np.testing.assert_array_equal(dataset.x, images_of(batches))
    np.testing.assert_array_equal(dataset.y, np.concatenate([batch["labels"] for batch in batches]))


def test_labels_may_be_an_array_and_keys_bytes(
    tmp_path: Path, cifar_batch: Callable[..., Batch]
) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    batches = [cifar_batch(classes=100, key="fine_labels") for _ in range(2)]
    for name, batch in zip(("train", "test"), batches, strict=True):
        as_written = {
            key.encode(): np.array(value) if key == "fine_labels" else value
            for key, value in batch.items()
        }
        (folder / name).write_bytes(pickle.dumps(as_written))
    dataset = load_dataset("cifar100", tmp_path)
    assert dataset.num_classes == 100 and len(set(dataset.class_names)) == 100
    assert list(dataset.class_names) == sorted(dataset.class_names)
    np.testing.assert_array_equal(dataset.y, batches[0]["fine_labels"] + batches[1]["fine_labels"])


def test_binary_version_gives_the_same_as_the_python_version(
    tmp_path: Path, write_cifar10: Write
) -> None:
    batches = write_cifar10()
    expected = load_dataset("cifar10", tmp_path)
    (tmp_path / PYTHON).rename(tmp_path / "elsewhere")
    binary = tmp_path / "cifar-10-batches-bin"
    binary.mkdir()
    for name, batch in zip(
        [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"], batches, strict=True
    ):
        (binary / name).write_bytes(
            np.column_stack([batch["labels"], batch["data"]]).astype(np.uint8).tobytes()
        )
    dataset = load_dataset("cifar10", tmp_path)
    assert dataset.digest == expected.digest
    assert (
        dataset.tested_on == "synthetic"
        and dataset.num_official_train == expected.num_official_train
    )


def test_binary_cifar100_takes_the_fine_label(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    rows = np.column_stack([[7, 8], [99, 3], generator.integers(0, 256, (2, 3072))]).astype(
        np.uint8
    )
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(rows.tobytes())
    assert load_dataset("cifar100", tmp_path).y.tolist() == [99, 3, 99, 3]


def coarse_batch(cifar_batch: Callable[..., Batch], coarse: list[int], fine: list[int]) -> Batch:
    return {
        **cifar_batch(len(fine), key="fine_labels"),
        "fine_labels": fine,
        "coarse_labels": coarse,
    }


def write_cifar100(folder: Path, batches: list[Batch]) -> None:
    """Write CIFAR-100 as pickles and as binary files."""
    for place, suffix in (("cifar-100-python", ""), ("cifar-100-binary", ".bin")):
        (folder / place).mkdir(exist_ok=True)
        for name, batch in zip(("train", "test"), batches, strict=True):
            columns = [batch["coarse_labels"], batch["fine_labels"], batch["data"]]
            raw = (
                np.column_stack(columns).astype(np.uint8).tobytes()
                if suffix
                else pickle.dumps(batch)
            )
            (folder / place / (name + suffix)).write_bytes(raw)


def test_coarse_labels_with_fine_ones_as_subclasses(
    tmp_path: Path, cifar_batch: Callable[..., Batch]
) -> None:
    batches = [
        coarse_batch(cifar_batch, [4, 1, 19], [0, 1, 89]),
        coarse_batch(cifar_batch, [1, 4], [1, 0]),
    ]
    write_cifar100(tmp_path, batches)
    dataset = load_dataset("cifar100_coarse", tmp_path)
    assert (
        dataset.y.tolist() == [4, 1, 19, 1, 4]
        and dataset.num_official_train == 3
        and dataset.num_classes == 20
    )
    assert dataset.subclasses is not None and dataset.subclasses.tolist() == [0, 1, 89, 1, 0]
    assert [dataset.class_names[label] for label in (4, 1, 19)] == [
        "fruit_and_vegetables",
        "fish",
        "vehicles_2",
    ]
    assert [dataset.subclass_names[each] for each in (0, 1, 89)] == [
        "apple",
        "aquarium_fish",
        "tractor",
    ]
    fine = load_dataset("cifar100", tmp_path)
    np.testing.assert_array_equal(fine.y, dataset.subclasses)
    np.testing.assert_array_equal(fine.x, dataset.x)
    assert fine.subclasses is None
    (tmp_path / "cifar-100-python").rename(tmp_path / "elsewhere")
    binary = load_dataset("cifar100_coarse", tmp_path)
    assert binary.digest == dataset.digest and binary.tested_on == "synthetic"


def test_a_fine_class_in_two_coarse_ones_is_refused(
    tmp_path: Path, cifar_batch: Callable[..., Batch]
) -> None:
    batches = [coarse_batch(cifar_batch, [4, 1], [0, 1]), coarse_batch(cifar_batch, [1, 2], [1, 0])]
    write_cifar100(tmp_path, batches)
    with pytest.raises(DataError, match="got 'apple' in flowers and fruit_and_vegetables"):
        load_dataset("cifar100_coarse", tmp_path)


def test_coarse_labels_out_of_range_are_refused(
    tmp_path: Path, cifar_batch: Callable[..., Batch]
) -> None:
    write_cifar100(tmp_path, [coarse_batch(cifar_batch, [4, 20], [0, 1])] * 2)
    with pytest.raises(DataError, match="whole numbers from 0 to 19, got 20 at row 1"):
        load_dataset("cifar100_coarse", tmp_path)


def test_the_original_has_five_fine_classes_in_every_coarse_one(data_dir: Path) -> None:
    if not (data_dir / "cifar-100-python").is_dir():
        pytest.skip(f"no cifar-100-python in {data_dir}")
    dataset = load_dataset("cifar100_coarse", data_dir)
    assert not dataset.subset and np.bincount(dataset.y).tolist() == [3000] * 20
    assert dataset.subclasses is not None
    people = np.unique(dataset.subclasses[dataset.y == dataset.class_names.index("people")])
    assert [dataset.subclass_names[each] for each in people] == [
        "baby",
        "boy",
        "girl",
        "man",
        "woman",
    ]


def test_binary_files_of_a_wrong_length_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(bytes(3073 + 5))
    with pytest.raises(
        DataError, match=r"data_batch_1\.bin: expected a multiple of 3073 bytes, got 3078 bytes"
    ):
        load_dataset("cifar10", tmp_path)


def test_missing_batches_are_named(tmp_path: Path, write_cifar10: Write) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset("cifar10", tmp_path)
    for part in (
        f"{PYTHON}/data_batch_1",
        "cifar-10-batches-bin/data_batch_1.bin",
        "--data-dir",
        "FEDTAILOR_DATA",
    ):
        assert part in caught.value.message
    write_cifar10()
    (tmp_path / PYTHON / "data_batch_3").unlink()
    with pytest.raises(DataError, match="data_batch_3"):
        load_dataset("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"labels": [0, 1, 2, 10]},
            "expected labels as whole numbers from 0 to 9, got 10 at row 3",
        ),
        ({"labels": [0, 1, 2, -1]}, "got -1 at row 3"),
        ({"labels": [0, 1, 2, 2**80]}, "got 1208925819614629174706176 at row 3"),
        ({"labels": [0, 1, 2, "cat"]}, "got 'cat' at row 3"),
        ({"labels": [0, 1, True, 2]}, "got True at row 2"),
        ({"labels": [0, 1]}, "expected 4 labels, one for each image, got 2 labels"),
        ({"labels": "0123"}, "expected labels as whole numbers from 0 to 9, got str"),
        ({"labels": np.array([0, 1, 2, 77])}, "must be whole numbers from 0 to 9, got 77 at row 3"),
        ({"data": np.zeros((4, 3071), np.uint8)}, "got uint8 of shape (4, 3071)"),
        ({"data": np.zeros((4, 3072), np.int64)}, "got int64 of shape (4, 3072)"),
        (
            {"labels": np.zeros((4, 2), int)},
            "expected 4 labels, one for each image, got labels of shape (4, 2)",
        ),
        ({"data": [1, 2]}, "expected 'data' as an array of bytes (rows, 3072), got list"),
    ],
)
def test_batches_that_make_no_sense_are_refused(
    tmp_path: Path, cifar_batch: Callable[..., Batch], change: Batch, sentence: str
) -> None:
    path = tmp_path / PYTHON / "data_batch_1"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps({**cifar_batch(), **change}))
    with pytest.raises(DataError) as caught:
        load_dataset("cifar10", tmp_path)
    assert sentence in caught.value.message and str(path) in caught.value.message


def test_a_batch_without_labels_lists_what_it_has(
    tmp_path: Path, cifar_batch: Callable[..., Batch]
) -> None:
    path = tmp_path / PYTHON / "data_batch_1"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps(cifar_batch(key="fine_labels")))
    with pytest.raises(
        DataError,
        match="expected an entry 'labels', got the entries batch_label, data, fine_labels",
    ):
        load_dataset("cifar10", tmp_path)


def test_a_file_over_the_cap_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / PYTHON / "data_batch_1"
    path.parent.mkdir()
    path.touch()
    os.truncate(path, files.MAX_BYTES + 1)  # sparse: takes no room
    with pytest.raises(
        DataError,
        match=f"expected at most {files.MAX_BYTES} bytes, got {files.MAX_BYTES + 1} bytes",
    ):
        load_dataset("cifar10", tmp_path)
