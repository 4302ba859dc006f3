"""The readers of the known data sets, on synthetic files."""

import bz2
import gzip
import io
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import special

from data import digit_files
from data.digit_files import TEST, TRAIN, idx_bytes, leaf, mat_bytes
from fedtailor.core.errors import DataError
from fedtailor.data import files, load_dataset
from fedtailor.data.datasets import mnist, sun397, svhn, synthetic
from fedtailor.data.pictures import square

CIFAR = "cifar-10-batches-py/data_batch_1"


# MNIST, Fashion-MNIST, EMNIST.


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")]
)
def test_idx_files(
    tmp_path: Path, generator: np.random.Generator, name: str, folder: str, suffix: str
) -> None:
    arrays = digit_files.write_idx(tmp_path, generator, f"{folder}/raw/{{}}-{{}}-ubyte{suffix}")
    dataset = load_dataset(name, tmp_path)
    np.testing.assert_array_equal(dataset.x[..., 0], np.concatenate(arrays[::2]))
    np.testing.assert_array_equal(dataset.y, np.concatenate(arrays[1::2]))
    assert dataset.num_official_train == TRAIN and dataset.subset and len(dataset.sources) == 4


@pytest.mark.parametrize(
    "place", ["raw/emnist-{}-{{}}-{{}}-ubyte", "gzip/emnist-{}-{{}}-{{}}-ubyte.gz"]
)
@pytest.mark.parametrize("split", mnist._EMNIST)
def test_splits_of_emnist_are_upright(
    tmp_path: Path, generator: np.random.Generator, split: str, place: str
) -> None:
    first = 1 if split == "letters" else 0
    arrays = digit_files.write_idx(
        tmp_path, generator, f"EMNIST/{place.format(split)}", first=first
    )
    dataset = load_dataset(f"emnist_{split}", tmp_path)
    np.testing.assert_array_equal(dataset.x[..., 0], np.concatenate(arrays[::2]).transpose(0, 2, 1))
    np.testing.assert_array_equal(dataset.y, np.concatenate(arrays[1::2]) - first)
    assert dataset.num_classes == len(set(dataset.class_names)) == len(mnist._EMNIST[split])


def test_ten_letters_are_transposed_and_standardized(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    pattern = "EMNIST/raw/emnist-letters-{}-{}-ubyte"
    images, labels, *_ = digit_files.write_idx(tmp_path, generator, pattern, classes=13, first=1)
    dataset = load_dataset("emnist_letters10", tmp_path)
    train = images[labels <= 10]
    np.testing.assert_array_equal(dataset.x[: len(train), ..., 0], train)
    mean, std, _ = dataset.normalize
    assert mean[0] == pytest.approx(train.mean(), rel=1e-12)
    assert std[0] == pytest.approx(train.std(), rel=1e-9) and dataset.white == 1
    assert dataset.num_classes == 10 and "transposed" in dataset.notes[0]


# CIFAR-10 and CIFAR-100.


@pytest.mark.parametrize("protocol", range(5))
def test_python_batches_of_every_protocol(
    tmp_path: Path, generator: np.random.Generator, protocol: int
) -> None:
    batches = digit_files.write_cifar10(tmp_path, generator, protocol=protocol)
    dataset = load_dataset("cifar10", tmp_path)
    planes = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(dataset.x, planes.transpose(0, 2, 3, 1))
    assert dataset.y.tolist() == [1, 9, 3] * 6 and dataset.num_official_train == 15
    assert dataset.tested_on == "original" and CIFAR in dataset.sources


def python2_pickle(batch: dict[str, Any]) -> bytes:
    """Return a pickle of a batch with the operations that Python 2 used for the original files."""
    raw = batch["data"].tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + b"(K%cM\x00\x0ct" % len(batch["data"])
        + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        + b"K\x00tb\x89T%btb" % (len(raw).to_bytes(4, "little") + raw)
    )
    labels = b"](" + b"".join(b"K%c" % label for label in batch["labels"]) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + labels + b"u."


def test_batches_as_python_2_wrote_them(tmp_path: Path, generator: np.random.Generator) -> None:
    batches = digit_files.write_cifar10(tmp_path, generator)
    expected = load_dataset("cifar10", tmp_path)
    place = tmp_path / "cifar-10-batches-py"
    for batch in batches:
        (place / batch["batch_label"]).write_bytes(python2_pickle(batch))
    assert load_dataset("cifar10", tmp_path).digest == expected.digest


def test_coarse_labels_with_fine_ones_as_subclasses(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    digit_files.write_cifar100(tmp_path, generator)
    coarse = load_dataset("cifar100_coarse", tmp_path)
    fine = load_dataset("cifar100", tmp_path)
    assert coarse.y.tolist() == [4, 1, 19] * 2 and coarse.num_classes == 20
    assert coarse.subclasses is not None and coarse.subclasses.tolist() == fine.y.tolist()
    assert fine.y.tolist() == [0, 1, 89] * 2 and fine.subclasses is None
    assert [coarse.class_names[label] for label in (1, 19)] == ["fish", "vehicles_2"]
    assert [fine.class_names[label] for label in (0, 89)] == ["apple", "tractor"]


# Hostile and damaged pickles: refused by name, nothing is run.


class Reduce:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def pickle_refusal(raw: bytes, folder: Path) -> str:
    path = folder / CIFAR
    path.parent.mkdir()
    path.write_bytes(raw)
    with pytest.raises(DataError) as caught:
        load_dataset("cifar10", folder)
    assert caught.value.path == str(path)
    return caught.value.message


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_call_is_refused_and_never_made(tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "created"
    raw = pickle.dumps({"data": Reduce(os.system, f"touch {victim}")}, protocol=protocol)
    assert f"'{os.name}.system'" in pickle_refusal(raw, tmp_path)
    assert not victim.exists()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (eval, "eval"),
        (Reduce(getattr, "text", "upper"), "getattr"),
        (Reduce(np.load, "x"), "numpy.load"),
        (np.float64(1), "scalar"),
        (Path(), "Path"),
    ],
)
def test_other_names_are_refused(tmp_path: Path, value: object, name: str) -> None:
    assert name in pickle_refusal(pickle.dumps({"data": value}), tmp_path)


# The parts of a pickle by hand: a dtype u1, and an array of it with another state.
START = b"\x80\x02}X\x04\x00\x00\x00data"
TYPE = b"cnumpy\ndtype\n(X\x02\x00\x00\x00u1I0\nI1\ntR"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntC\x01btR"


@pytest.mark.parametrize(
    "raw",
    [
        START + ARRAY + b"(I1\n(I9\nt" + TYPE + b"I00\nC\x01atbs.",  # 9 values, 1 byte
        START + ARRAY + b"(I1\n(I1\ntNI00\nC\x01atbs.",  # no type
        START + b"cnumpy\ndtype\n}X\x08\x00\x00\x00__init__Nsbs.",  # change of a class
        START + b"c_codecs\nencode\nN}X\x09\x00\x00\x00from_bytesNs\x86bs.",  # the same, by slots
        START + ARRAY + b"(I1\n(I1\nt" + ARRAY + b"I00\nC\x01atbs.",  # an array as a type
        START + ARRAY + b"(I1\n(L99999999999999999999L\nt" + TYPE + b"I00\nC\x01atbs.",
        b"\x80\x04B\xff\xff\xff\xffab.",  # bytes of 4 GB
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x00ab.",  # a bytearray of 64 PB
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",  # deep nesting
        b"\x80\x02Pabc\n.",  # persistent id
        b"\x80\x02\x82\x01.",  # extension code
        pickle.dumps([1, 2]),
        pickle.dumps({"data": np.arange(5)})[:-7],
        b"",
    ],
    ids=map(str, range(14)),
)
def test_damaged_pickles_are_refused(tmp_path: Path, raw: bytes) -> None:
    pickle_refusal(raw, tmp_path)


# SVHN, SynDigits, USPS, MNIST-M.


@pytest.mark.parametrize("name", ["svhn", "syn_digits"])
def test_matlab_files_compressed_or_not(
    tmp_path: Path, generator: np.random.Generator, name: str
) -> None:
    variables = getattr(digit_files, f"write_{name}")(tmp_path, generator)
    dataset = load_dataset(name, tmp_path)
    np.testing.assert_array_equal(dataset.x[:TRAIN], variables["X"].transpose(3, 0, 1, 2))
    assert dataset.y.tolist() == [0, 9, 8, 7, 6, 0, 9, 8] and dataset.x.flags.c_contiguous
    assert dataset.num_official_train == TRAIN and len(dataset.sources) == 2


def test_labels_in_floating_point_and_other_variables(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    variables = digit_files.write_svhn(tmp_path, generator)
    expected = load_dataset("svhn", tmp_path).digest
    variables["y"] = variables["y"].astype(float).T
    more = {"note": "text", "cells": np.array([1, "a"], object), **variables}
    (tmp_path / "SVHN/train_32x32.mat").write_bytes(mat_bytes(more))
    assert load_dataset("svhn", tmp_path).digest == expected


def test_usps_is_scaled_as_in_torchvision(tmp_path: Path, generator: np.random.Generator) -> None:
    lines = digit_files.write_usps(tmp_path, generator)
    dataset = load_dataset("usps", tmp_path)
    for line, image in zip(lines, dataset.x[:TRAIN], strict=True):
        values = [float(pair.split(":")[-1]) for pair in line.split()[1:]]
        pixels = ((np.array(values, np.float32) + 1) / 2 * 255).astype(np.uint8)
        np.testing.assert_array_equal(image.reshape(-1), pixels)
    assert dataset.y.tolist() == [0, 1, 2, 3, 4, 0, 1, 2] and dataset.num_official_train == TRAIN


def test_both_layouts_of_mnist_m(tmp_path: Path, generator: np.random.Generator) -> None:
    arrays = digit_files.write_mnist_m(tmp_path, generator)
    dataset = load_dataset("mnist_m", tmp_path)
    np.testing.assert_array_equal(dataset.x, np.concatenate(arrays[::2]))
    assert dataset.y.tolist() == [0, 1, 2, 3, 4, 0, 1, 2] and dataset.tested_on == "original"

    progress: list[tuple[str, int, int]] = []
    digit_files.write_mnist_m_pictures(tmp_path, arrays)
    release = load_dataset("mnist_m", tmp_path, lambda *values: progress.append(values))
    assert release.digest == dataset.digest and release.tested_on == "synthetic"
    assert progress[-1] == ("reading pictures", TEST, TEST)


# FEMNIST, Tiny ImageNet, SUN397.


def test_writers_are_domains_in_the_order_of_the_files(tmp_path: Path) -> None:
    digit_files.write_femnist(tmp_path)
    dataset = load_dataset("femnist", tmp_path)
    assert dataset.domain_names == ("b", "a", "late", "new")
    assert dataset.domains is not None and dataset.domains.tolist() == [0, 0, 1, 2, 1, 3]
    assert dataset.y.tolist() == [3, 36, 10, 61, 10, 0] and dataset.num_official_train == 4
    assert dataset.class_names[10] == "A" and dataset.class_names[36] == "a"
    # truncated, not rounded: 127.5 is 127, 254.7 is 254
    assert dataset.x[:, 0, 0, 0].tolist() == [0, 127, 64, 255, 255, 254]

    (tmp_path / "femnist").rename(tmp_path / "data")
    (tmp_path / "femnist").mkdir()
    (tmp_path / "data").rename(tmp_path / "femnist/data")
    assert load_dataset("femnist", tmp_path).digest == dataset.digest


def test_last_ten_characters_of_a_role_are_features(tmp_path: Path) -> None:
    digit_files.write_shakespeare(tmp_path)
    dataset = load_dataset("shakespeare", tmp_path)
    assert dataset.domain_names == ("JULIET", "ROMEO") and dataset.num_official_train == 3
    assert dataset.domains is not None and dataset.domains.tolist() == [0, 0, 1, 0]
    letters = dataset.class_names
    assert len(letters) == 80 and letters[:2] == ("\n", " ") and letters[-1] == "}"

    # Every character is one of 80; those that LEAF does not know are the last one.
    features = dataset.x.reshape(4, 10, 80)
    assert (features.sum(2) == 1).all()
    texts = ["".join(letters[place] for place in row) for row in features.argmax(2)]
    assert texts == ["ell as swe", "}" * 10, "as sweet[]", "ll as swee"]
    assert [letters[label] for label in dataset.y] == ["e", "\n", "}", "}"]


def test_rows_of_tiny_imagenet_follow_the_list_of_classes(tmp_path: Path) -> None:
    digit_files.write_tiny_imagenet(tmp_path)
    dataset = load_dataset("tiny_imagenet", tmp_path)
    assert dataset.class_names == ("Egyptian cat", "goldfish", "reel")
    assert dataset.y.tolist() == [0, 0, 1, 1, 2, 2, 2, 1] and dataset.num_official_train == 6
    np.testing.assert_allclose(dataset.x[:6:2, 0, 0, 0].astype(int), [0, 60, 120], atol=3)
    np.testing.assert_allclose(dataset.x[:6, 0, 0, 1].astype(int), [0, 10] * 3, atol=3)
    assert (dataset.x[6] == dataset.x[6, ..., :1]).all()  # gray becomes color
    assert len(dataset.sources) == 4


def test_superclasses_are_labels_and_categories_subclasses(tmp_path: Path) -> None:
    digit_files.write_sun397(tmp_path)
    dataset = load_dataset("sun397", tmp_path)
    assert dataset.subclass_names == ("airplane_cabin", "church/indoor", "badlands", "abbey")
    assert dataset.subclasses is not None and dataset.num_official_train == 16
    assert dataset.subclasses.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [0, 1, 2, 3]
    assert dataset.y.tolist() == [0] * 8 + [1] * 4 + [2] * 4 + [0, 0, 1, 2]
    np.testing.assert_allclose(dataset.x[:16:4, 0, 0, 0].astype(int), [40, 160, 80, 0], atol=4)
    np.testing.assert_allclose(dataset.x[16:, 0, 0, 1].astype(int), 40, atol=4)

    old = tmp_path / "SUN397/three_levels.csv"
    new = tmp_path / "SUN397/hierarchy_three_levels/three_levels.csv"
    new.parent.mkdir()
    rows = digit_files.HIERARCHY.split("category,")[1].replace(", ", "@").replace(",", ";")
    new.write_bytes(f"category;{rows.replace('@', ', ')}".encode("utf-8-sig"))
    old.unlink()
    assert load_dataset("sun397", tmp_path).digest == dataset.digest


def test_only_the_first_categories_and_pictures_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digit_files.write_sun397(tmp_path)
    monkeypatch.setattr(sun397, "_CATEGORIES", 1)
    monkeypatch.setattr(sun397, "_PICTURES", 2)
    dataset = load_dataset("sun397", tmp_path)
    assert dataset.subclass_names == ("airplane_cabin", "badlands", "abbey")
    assert len(dataset.y) == 6 and dataset.num_official_train == 3


def test_pictures_are_cropped_to_their_middle() -> None:
    image = np.zeros((64, 192, 3), np.uint8)
    image[:, 64:128] = (0, 200, 0)
    assert (square(image, 64) == (0, 200, 0)).all()


# MedMNIST, heart disease, UCI HAR.


def test_validation_images_of_medmnist_follow_the_training_images(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    for name, channels in (("bloodmnist", 3), ("breastmnist", 1)):
        arrays = getattr(digit_files, f"write_{name}")(tmp_path, generator)
        dataset = load_dataset(name, tmp_path)
        parts = [arrays[f"{part}_images"] for part in ("train", "val", "test")]
        expected = np.concatenate(parts).reshape(-1, 28, 28, channels)
        np.testing.assert_array_equal(dataset.x, expected)
        assert dataset.y.tolist() == [0, 1, 0, 1, 0, 0, 1, 0, 1, 0]
        assert dataset.num_official_train == TRAIN + 2 and dataset.subset


def test_hospitals_are_domains_and_cells_without_a_measurement_are_empty(tmp_path: Path) -> None:
    digit_files.write_heart(tmp_path)
    dataset = load_dataset("heart", tmp_path)
    assert dataset.domain_names == ("Cleveland", "Budapest", "Switzerland", "Long Beach")
    assert dataset.domains is not None and dataset.domains.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert dataset.y.tolist() == [0, 1] * 4
    expected = [63, 1, 1, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6]
    np.testing.assert_allclose(dataset.x[0], expected, rtol=1e-6)
    # pressure, cholesterol, sugar, ECG, slope, vessels and scan: 0, ? and -9
    assert np.flatnonzero(np.isnan(dataset.x[1])).tolist() == [3, 4, 5, 6, 10, 11, 12]


def test_a_cell_that_is_no_number_is_named(tmp_path: Path) -> None:
    digit_files.write_heart(tmp_path)
    path = tmp_path / HEART
    path.write_text(path.read_text().replace("145.0", "high"))
    with pytest.raises(DataError, match=r"a number or \? as trestbps in line 1, got 'high'"):
        load_dataset("heart", tmp_path)


def test_people_are_domains_and_overlapping_windows_stay_together(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    windows = digit_files.write_har(tmp_path, generator)
    dataset = load_dataset("har", tmp_path)
    order = [3, 4, 5, 6, 7, 0, 1, 2]
    np.testing.assert_array_equal(dataset.x, np.concatenate(list(windows.values()))[order])
    assert dataset.domain_names == ("person 1", "person 2", "person 3")
    assert dataset.domains is not None and dataset.domains.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    assert dataset.y.tolist() == [5, 5, 1, 1, 2, 4, 4, 0]
    assert dataset.groups is not None and dataset.groups.tolist() == [0, 0, 1, 1, 2, 3, 3, 4]
    assert dataset.num_official_train == 8 and dataset.kind == "table"


# DIGIT-5.


def test_five_domains_in_one(tmp_path: Path, generator: np.random.Generator) -> None:
    names = ("mnist", "svhn", "usps", "syn_digits", "mnist_m")
    for name in names:
        getattr(digit_files, f"write_{name}")(tmp_path, generator)
    dataset = load_dataset("digit5", tmp_path)
    assert dataset.domain_names == ("MNIST", "SVHN", "USPS", "SynDigits", "MNIST-M")
    assert dataset.num_official_train == 5 * TRAIN and dataset.x.shape == (40, 32, 32, 3)
    assert dataset.domains is not None and dataset.partial
    expected = np.repeat([*range(5), *range(5)], [TRAIN] * 5 + [TEST] * 5)
    assert dataset.domains.tolist() == expected.tolist()
    for domain, name in enumerate(names):
        part = load_dataset(name, tmp_path)
        rows = dataset.domains == domain
        assert dataset.y[rows].tolist() == part.y.tolist()
        if name in ("mnist", "usps"):
            resized = Image.fromarray(part.x[0, ..., 0]).resize((32, 32), Image.Resampling.BILINEAR)
            np.testing.assert_array_equal(dataset.x[rows][0, ..., 2], np.asarray(resized))
        else:
            np.testing.assert_array_equal(dataset.x[rows], part.x)


def test_some_domains_are_enough_and_one_is_not(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    digit_files.write_mnist(tmp_path, generator)
    with pytest.raises(DataError) as caught:
        load_dataset("digit5", tmp_path)
    assert "at least two of its five domains" in caught.value.message
    assert "USPS: USPS/" in caught.value.message and caught.value.key == "data.dir"

    digit_files.write_usps(tmp_path, generator)
    dataset = load_dataset("digit5", tmp_path)
    assert dataset.domain_names == ("MNIST", "USPS")
    assert any("SVHN" in note for note in dataset.notes)

    (tmp_path / "USPS/usps.bz2").unlink()  # of a domain that is there
    with pytest.raises(DataError, match=r"usps\.bz2"):
        load_dataset("digit5", tmp_path)


# Damaged and missing files of all of them.

WRITERS = {
    "mnist": digit_files.write_mnist,
    "cifar10": digit_files.write_cifar10,
    "svhn": digit_files.write_svhn,
    "usps": digit_files.write_usps,
    "mnist_m": digit_files.write_mnist_m,
    "femnist": digit_files.write_femnist,
    "shakespeare": digit_files.write_shakespeare,
    "tiny_imagenet": digit_files.write_tiny_imagenet,
    "sun397": digit_files.write_sun397,
    "bloodmnist": digit_files.write_bloodmnist,
    "breastmnist": digit_files.write_breastmnist,
    "heart": digit_files.write_heart,
    "har": digit_files.write_har,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_missing_or_broken_file_is_named(
    tmp_path: Path, generator: np.random.Generator, name: str
) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset(name, tmp_path)
    assert caught.value.key == "data.dir" and "FEDTAILOR_DATA" in caught.value.message

    WRITERS[name](tmp_path, generator)  # type: ignore[operator]
    load_dataset(name, tmp_path)
    everything = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for path in everything[:12]:
        raw = path.read_bytes()
        for broken in (b"", b"\xff\xfe broken", raw[: len(raw) // 2]):
            path.write_bytes(broken)
            try:
                load_dataset(name, tmp_path)
            except DataError as error:
                assert path.name in error.message or name == "tiny_imagenet"
            else:  # a shorter table of text is still a table
                assert path.suffix in (".txt", ".csv") and broken
        path.write_bytes(raw)


IMAGES = idx_bytes(np.zeros((TRAIN, 28, 28), np.uint8))


def usps_text(label: str = "1", first: str = "1:0.5", last: str = "256:1") -> bytes:
    pairs = " ".join(f"{index}:0" for index in range(2, 256))
    return bz2.compress(f"{label} {first} {pairs} {last}\n".encode())


def batch(**changes: Any) -> bytes:
    content = {"labels": [0, 1], "data": np.zeros((2, 3072), np.uint8), **changes}
    return pickle.dumps({key: value for key, value in content.items() if value is not None})


def mat(**changes: Any) -> bytes:
    images = np.zeros((32, 32, 3, 2), np.uint8)
    return mat_bytes({"X": images, "y": np.ones((2, 1), np.uint8), **changes})


def leaf_json(**changes: Any) -> bytes:
    return json.dumps({**leaf(w=([0.5, 1], [0, 1])), **changes}).encode()


def leaf_entry(x: Any, y: Any) -> bytes:
    return leaf_json(user_data={"w": {"x": x, "y": y}})


ROW = [0.5] * 784
PLAYS = "shakespeare/train/all_data_train_9.json"


def archive(**changes: Any) -> bytes:
    """Return an archive of a gray data set of MedMNIST with other arrays; None: without it."""
    arrays = digit_files.medmnist(np.random.default_rng(0), channels=1) | changes
    stream = io.BytesIO()
    present = {name: array for name, array in arrays.items() if array is not None}
    np.savez(stream, allow_pickle=True, **present)
    return stream.getvalue()


BREAST = "breastmnist.npz"
HEART = "heart/processed.va.data"
X_TEST = "UCI HAR Dataset/test/X_test.txt"
Y_TEST = "UCI HAR Dataset/test/y_test.txt"


def patient(old: str, new: str) -> bytes:
    return digit_files.PATIENT.replace(old, new).encode()


def window_lines(value: str, columns: int = 561) -> bytes:
    return (" ".join([value] * columns) + "\n").encode() * 3


@pytest.mark.parametrize(
    ("name", "place", "raw"),
    [
        ("mnist", "MNIST/raw/train-images-idx3-ubyte", IMAGES + b"\0"),
        ("mnist", "MNIST/raw/train-images-idx3-ubyte", b"\0\0\x0d\3" + IMAGES[4:]),
        ("mnist", "MNIST/raw/train-images-idx3-ubyte", b"\0\0\x08\3" + b"\xff" * 12),
        ("mnist", "MNIST/raw/train-images-idx3-ubyte", idx_bytes(np.zeros((TRAIN, 28, 27)))),
        ("mnist", "MNIST/raw/train-labels-idx1-ubyte", idx_bytes(np.full(TRAIN, 10))),
        ("mnist", "MNIST/raw/train-labels-idx1-ubyte", idx_bytes(np.zeros(TRAIN + 1))),
        ("cifar10", CIFAR, batch(labels=[0, 10])),
        ("cifar10", CIFAR, batch(labels=[0, -1])),
        ("cifar10", CIFAR, batch(labels=[0, 2**80])),
        ("cifar10", CIFAR, batch(labels=[0, "cat"])),
        ("cifar10", CIFAR, batch(labels=[0, [1, 2]])),
        ("cifar10", CIFAR, batch(labels=[0])),
        ("cifar10", CIFAR, batch(labels=np.zeros((2, 2), int))),
        ("cifar10", CIFAR, batch(labels=None)),
        ("cifar10", CIFAR, batch(data=np.zeros((2, 3071), np.uint8))),
        ("cifar10", CIFAR, batch(data=np.zeros((2, 3072), np.int64))),
        ("cifar10", CIFAR, batch(data=[1, 2])),
        ("svhn", "SVHN/train_32x32.mat", mat(y=np.full((2, 1), 11))),
        ("svhn", "SVHN/train_32x32.mat", mat(y=np.array([[1.5], [2]]))),
        ("svhn", "SVHN/train_32x32.mat", mat(y=np.ones((3, 1)))),
        ("svhn", "SVHN/train_32x32.mat", mat(y="ab")),
        ("svhn", "SVHN/train_32x32.mat", mat(X=np.zeros((32, 32, 3, 2)))),
        ("svhn", "SVHN/train_32x32.mat", mat(X=np.zeros((32, 32, 1, 2), np.uint8))),
        ("svhn", "SVHN/train_32x32.mat", mat(X=np.array([1, "a"], object))),
        ("svhn", "SVHN/train_32x32.mat", mat_bytes({"y": np.ones((2, 1))})),
        ("usps", "USPS/usps.bz2", usps_text(label="0")),
        ("usps", "USPS/usps.bz2", usps_text(label="11")),
        ("usps", "USPS/usps.bz2", usps_text(label="1.5")),
        ("usps", "USPS/usps.bz2", usps_text(first="1:1.5")),
        ("usps", "USPS/usps.bz2", usps_text(first="1:nan")),
        ("usps", "USPS/usps.bz2", usps_text(first="0:1")),
        ("usps", "USPS/usps.bz2", usps_text(last="257:1")),
        ("usps", "USPS/usps.bz2", usps_text(last="256:x")),
        ("femnist", "femnist/train/all_data_2.json", leaf_json(users=["v"])),
        ("femnist", "femnist/train/all_data_2.json", leaf_json(users=["w", "w"])),
        ("femnist", "femnist/train/all_data_2.json", leaf_entry([ROW], 7)),
        ("femnist", "femnist/train/all_data_2.json", leaf_entry([ROW], None)),
        ("femnist", "femnist/train/all_data_2.json", leaf_json(user_data=[])),
        ("femnist", "femnist/train/all_data_2.json", leaf_entry([ROW, ROW], [0, 62])),
        ("femnist", "femnist/train/all_data_2.json", leaf_entry([ROW, ROW], [0, 0.5])),
        ("femnist", "femnist/train/all_data_2.json", leaf_entry([ROW], [0, 1])),
        ("femnist", "femnist/train/all_data_2.json", leaf_entry([ROW, ROW[1:]], [0, 1])),
        ("femnist", "femnist/train/all_data_2.json", leaf_entry([ROW, [2] * 784], [0, 1])),
        ("femnist", "femnist/train/all_data_2.json", leaf_entry([ROW, ["1"] * 784], [0, 1])),
        (
            "femnist",
            "femnist/train/all_data_2.json",
            leaf_entry([[float("nan")] * 784] * 2, [0, 1]),
        ),
        ("femnist", "femnist/train/all_data_10.json", leaf_json(users=["b"])),
        ("femnist", "femnist/train/all_data_2.json", leaf_json(user_data={"w": ["x", "y"]})),
        ("shakespeare", PLAYS, leaf_entry(["a" * 80, "b" * 79], ["c", "d"])),
        ("shakespeare", PLAYS, leaf_entry(["a" * 80, "b" * 80], ["c", "de"])),
        ("shakespeare", PLAYS, leaf_entry(["a" * 80], ["c", "d"])),
        ("shakespeare", PLAYS, leaf_entry([ROW, ROW], ["c", "d"])),
        ("shakespeare", PLAYS, leaf_entry(7, ["c", "d"])),
        ("sun397", "SUN397/three_levels.csv", b"category,indoor\n/a/abbey,1\n"),
        ("tiny_imagenet", "tiny-imagenet-200/wnids.txt", b"../../etc\n"),
        ("tiny_imagenet", "tiny-imagenet-200/val/val_annotations.txt", b"val_1.JPEG\tn1\n"),
        ("breastmnist", BREAST, archive(val_labels=None)),
        ("breastmnist", BREAST, archive(val_images=np.zeros((2, 28, 28)))),
        ("breastmnist", BREAST, archive(val_images=np.zeros((2, 28, 28, 3), np.uint8))),
        ("breastmnist", BREAST, archive(val_images=np.zeros((0, 28, 28), np.uint8))),
        ("breastmnist", BREAST, archive(val_images=np.zeros((3, 28, 28), np.uint8))),
        ("breastmnist", BREAST, archive(test_labels=np.zeros(TEST, np.uint8))),
        ("breastmnist", BREAST, archive(test_labels=np.zeros((TEST, 14), np.uint8))),
        ("breastmnist", BREAST, archive(test_labels=np.full((TEST, 1), 2))),
        ("breastmnist", BREAST, archive(test_labels=np.full((TEST, 1), 0.5))),
        ("breastmnist", BREAST, archive(test_labels=np.array([[{}]] * TEST))),  # a pickle
        ("heart", HEART, patient(",0\n", "\n")),
        ("heart", HEART, patient(",0\n", ",0,0\n")),
        ("heart", HEART, patient(",0\n", ",5\n")),
        ("heart", HEART, patient(",0\n", ",0.5\n")),
        ("heart", HEART, patient(",0\n", ",?\n")),
        ("heart", HEART, patient("145.0", "high")),
        ("heart", HEART, b"age,sex\n" + patient("", "")),
        ("har", X_TEST, window_lines("0.5", 560)),
        ("har", X_TEST, window_lines("1.5")),
        ("har", X_TEST, window_lines("nan")),
        ("har", X_TEST, window_lines("x")),
        ("har", Y_TEST, b"1\n2\n7\n"),
        ("har", Y_TEST, b"0\n2\n3\n"),
        ("har", Y_TEST, b"1.5\n2\n3\n"),
        ("har", Y_TEST, b"1 1\n2 2\n3 3\n"),
        ("har", Y_TEST, b"1\n2\n"),
        ("har", "UCI HAR Dataset/test/subject_test.txt", b"2\n2\n31\n"),
    ],
    ids=map(str, range(75)),
)
def test_content_that_makes_no_sense_is_refused(
    tmp_path: Path, generator: np.random.Generator, name: str, place: str, raw: bytes
) -> None:
    WRITERS[name](tmp_path, generator)  # type: ignore[operator]
    path = tmp_path / place
    path.write_bytes(raw)
    with pytest.raises(DataError) as caught:
        load_dataset(name, tmp_path)
    assert path.name in caught.value.message


@pytest.mark.parametrize(
    ("file", "array"),
    [
        ("train_images.npy", np.zeros((TRAIN, 32, 32), np.uint8)),
        ("train_images.npy", np.zeros((TRAIN, 32, 32, 3))),
        ("train_images.npy", np.array([{}] * TRAIN)),  # a pickle
        ("train_labels.npy", np.full(TRAIN, 10)),
        ("train_labels.npy", np.zeros(TRAIN - 1, int)),
    ],
    ids=map(str, range(5)),
)
def test_arrays_of_mnist_m_that_make_no_sense_are_refused(
    tmp_path: Path, generator: np.random.Generator, file: str, array: np.ndarray
) -> None:
    digit_files.write_mnist_m(tmp_path, generator)
    np.save(tmp_path / "MNIST-M" / file, array, allow_pickle=True)
    with pytest.raises(DataError, match=file):
        load_dataset("mnist_m", tmp_path)


def test_pictures_of_other_sizes_and_endless_files_are_refused(
    tmp_path: Path, generator: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = digit_files.write_mnist_m(tmp_path, generator)
    digit_files.write_mnist_m_pictures(tmp_path, arrays)
    path = tmp_path / "MNIST-M/mnist_m_train/00000001.png"
    Image.new("RGB", (33, 32)).save(path)
    with pytest.raises(DataError, match=r"00000001\.png.*32x32"):
        load_dataset("mnist_m", tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(DataError, match="1024 pixels"):
        load_dataset("mnist_m", tmp_path)

    (tmp_path / "MNIST/raw").mkdir(parents=True)
    bomb = gzip.compress(IMAGES[:4] + b"\0\0\xff\xff" + IMAGES[8:16] + bytes(10**6))
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz").write_bytes(bomb)
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    monkeypatch.setattr(mnist, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match="1000"):
        load_dataset("mnist", tmp_path)


def test_a_wrong_label_is_the_number_in_the_file(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    digit_files.write_idx(
        tmp_path, generator, "EMNIST/raw/emnist-letters-{}-{}-ubyte", classes=13, first=0
    )
    with pytest.raises(DataError, match="from 1 to 26, got 0 at row 0"):
        load_dataset("emnist_letters", tmp_path)

    digit_files.write_har(tmp_path, generator)
    (tmp_path / Y_TEST).write_bytes(b"1\n2\n7\n")
    with pytest.raises(DataError, match="from 1 to 6, got 7 at row 2"):
        load_dataset("har", tmp_path)


@pytest.mark.parametrize(
    ("reason", "raised", "words"),
    [
        (MemoryError("all in use"), MemoryError, "all in use"),
        (AssertionError("ours"), AssertionError, "ours"),
        (NotImplementedError("matlab v7.3"), DataError, r"train_32x32\.mat.*5 to 7\.2"),
        (TypeError("no array"), DataError, r"train_32x32\.mat.*an intact file"),
    ],
)
def test_only_what_damaged_content_raises_is_said_of_the_file(
    tmp_path: Path,
    generator: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    reason: Exception,
    raised: type[Exception],
    words: str,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise reason

    digit_files.write_svhn(tmp_path, generator)
    monkeypatch.setattr(svhn, "loadmat", fail)
    with pytest.raises(raised, match=words):
        load_dataset("svhn", tmp_path)


@pytest.mark.parametrize("header", [b"{'descr': '|u1', (", b"{'descr': '|u1'}", b"'"])
def test_a_damaged_header_of_an_array_is_refused(
    tmp_path: Path, generator: np.random.Generator, header: bytes
) -> None:
    digit_files.write_mnist_m(tmp_path, generator)
    raw = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    for content in (raw, b"PK\x03\x04" + bytes(9), b""):
        (tmp_path / "MNIST-M/train_images.npy").write_bytes(content)
        with pytest.raises(DataError, match=r"train_images\.npy"):
            load_dataset("mnist_m", tmp_path)


# The data set whose best accuracy is known.


def test_the_synthetic_examples_are_the_same_on_every_machine() -> None:
    dataset = load_dataset("synthetic", Path("nowhere"))
    assert dataset.digest == "eaa8519ceef03fe6656afbd5c98758a154d633ad71d688c874317434513410fa"
    assert not dataset.subset and dataset.num_official_train == 4800
    assert dataset.domains is not None
    table = np.zeros((20, 10), int)
    np.add.at(table, (dataset.domains[:4800], dataset.y[:4800]), 1)
    assert (table == 24).all()


def test_the_best_accuracy_is_that_of_the_nearest_true_mean() -> None:
    # It is right if DISTANCE + Z, with the noise Z along the right direction, exceeds the noise along
    # the nine others: E[Phi(DISTANCE + Z)^9], integrated by the Gauss-Hermite rule.
    points, weights = np.polynomial.hermite_e.hermegauss(64)
    right = special.ndtr(synthetic.DISTANCE + points) ** (synthetic.CLASSES - 1)
    best = float(weights @ right / weights.sum())
    assert round(best, 4) == 0.9025
    dataset = load_dataset("synthetic")
    means = synthetic.class_means()[dataset.domains]
    distances = np.square(dataset.x[:, np.newaxis] - means).sum(axis=2)
    accuracy = (distances.argmin(axis=1) == dataset.y).mean()
    assert abs(accuracy - best) < 4 * np.sqrt(best * (1 - best) / 6000)
