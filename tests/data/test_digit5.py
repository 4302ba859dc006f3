"""DIGIT-5, composed of synthetic files of its five domains."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.digit_files import write_mat, write_mnist, write_mnist_m_arrays, write_usps
from fedtailor.core.errors import DataError
from fedtailor.data import load_dataset
from fedtailor.data.datasets import digit5
from fedtailor.data.datasets.known import DATASETS

DOMAINS = ["mnist", "svhn", "usps", "syn_digits", "mnist_m"]
ROWS = [9, 8, 8, 8, 6]
TRAIN = [6, 5, 5, 5, 4]


@pytest.fixture
def all_five(tmp_path: Path, generator: np.random.Generator) -> Path:
    write_mnist(tmp_path, generator)
    write_mat(tmp_path, generator)
    write_usps(tmp_path, generator)
    write_mat(tmp_path, generator, "SynthDigits")
    write_mnist_m_arrays(tmp_path, generator)
    return tmp_path


def test_training_rows_of_all_domains_come_first(all_five: Path) -> None:
    dataset = load_dataset("digit5", all_five)
    assert dataset.domain_names == ("MNIST", "SVHN", "USPS", "SynDigits", "MNIST-M")
    assert (
        dataset.x.shape == (39, 32, 32, 3)
        and dataset.x.dtype == np.uint8
        and dataset.num_official_train == 25
    )
    assert dataset.domains is not None
    assert (
        dataset.domains.tolist()
        == np.r_[np.repeat(range(5), TRAIN), np.repeat(range(5), np.subtract(ROWS, TRAIN))].tolist()
    )
    assert (
        dataset.num_classes == 10
        and dataset.class_names[7] == "7"
        and dataset.tested_on == "synthetic"
    )


def test_every_image_stays_with_its_label_and_domain(all_five: Path) -> None:
    dataset = load_dataset("digit5", all_five)
    assert dataset.domains is not None
    for number, name in enumerate(DOMAINS):
        part = load_dataset(name, all_five)
        own = dataset.domains == number
        np.testing.assert_array_equal(dataset.y[own], part.y)
        assert own[: dataset.num_official_train].sum() == part.num_official_train
        for image, original in zip(dataset.x[own], part.x, strict=True):
            if original.shape[2] == 1:
                gray = Image.fromarray(original[..., 0]).resize((32, 32), Image.Resampling.BILINEAR)
                original = np.repeat(np.asarray(gray)[..., np.newaxis], 3, axis=2)
            np.testing.assert_array_equal(image, original)


def test_sources_and_notes(all_five: Path) -> None:
    dataset = load_dataset("digit5", all_five)
    assert len(dataset.sources) == 4 + 2 + 2 + 2 + 4
    assert (
        dataset.sources["USPS/usps.bz2"] == load_dataset("usps", all_five).sources["USPS/usps.bz2"]
    )
    composed, amounts, part = dataset.notes
    assert "composed of the original data sets, not of the ten pickles" in composed
    assert "(MNIST 6, SVHN 5, USPS 5, SynDigits 5, MNIST-M 4)" in amounts and "reduced" in amounts
    assert part == "digit5 has only a part of MNIST, SVHN, USPS, SynDigits, MNIST-M."
    assert dataset.partial and dataset.subset


def test_all_of_five_complete_domains_is_not_a_subset(
    all_five: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = {
        name: DATASETS[name]._replace(examples=rows)
        for name, rows in zip(DOMAINS, ROWS, strict=True)
    }
    monkeypatch.setattr(digit5, "DATASETS", complete)
    dataset = digit5.load_digit5(all_five)
    assert not dataset.partial and not dataset.subset and len(dataset.notes) == 2


def test_absent_domains_are_noted(tmp_path: Path, generator: np.random.Generator) -> None:
    write_usps(tmp_path, generator)
    write_mnist_m_arrays(tmp_path, generator)
    dataset = load_dataset("digit5", tmp_path)
    assert dataset.domain_names == ("USPS", "MNIST-M") and len(dataset.y) == 14 and dataset.subset
    assert "digit5 lacks MNIST, SVHN, SynDigits: none of their files was found." in dataset.notes


def test_fewer_than_two_domains_are_refused(tmp_path: Path, generator: np.random.Generator) -> None:
    write_usps(tmp_path, generator)
    with pytest.raises(DataError, match="at least two of its five domains") as caught:
        load_dataset("digit5", tmp_path)
    for part in (
        "MNIST: MNIST/raw/*",
        "SVHN: SVHN/train_32x32.mat",
        "SynDigits: ",
        "MNIST-M: ",
        "--data-dir",
    ):
        assert part in caught.value.message
    assert "USPS" not in caught.value.message and caught.value.got == "missing"


def test_a_domain_of_which_a_file_is_missing_is_not_left_out(all_five: Path) -> None:
    (all_five / "USPS/usps.t.bz2").unlink()
    with pytest.raises(DataError, match=r"usps\.t\.bz2' was not found"):
        load_dataset("digit5", all_five)


@pytest.mark.slow
def test_the_originals_that_are_there(data_dir: Path) -> None:
    if not all((data_dir / folder).is_dir() for folder in ("MNIST/raw", "USPS")):
        pytest.skip(f"no MNIST and USPS in {data_dir}")
    dataset = load_dataset("digit5", data_dir)
    assert dataset.domains is not None and dataset.subset
    counts = dict(zip(dataset.domain_names, np.bincount(dataset.domains), strict=True))
    assert counts["MNIST"] == 70_000 and counts["USPS"] == 9298
    mnist = load_dataset("mnist", data_dir)
    assert dataset.y[:60_000].tolist() == mnist.y[:60_000].tolist()
    means = [image.mean() for image in (dataset.x[:60_000], mnist.x[:60_000])]
    assert abs(means[0] - means[1]) < 0.5  # a change of size keeps the mean
