"""What is known of data sets and what is there."""

import json
from pathlib import Path

import pytest

from fedtailor.core.errors import ConfigError
from fedtailor.data import inventory
from fedtailor.data.datasets import DATASETS
from fedtailor.data.files import matching_files


def records(folder: Path) -> dict[str, dict]:
    return {record["name"]: record for record in inventory.inventory(folder)}


def test_every_data_set_has_a_record(tmp_path: Path) -> None:
    found = records(tmp_path / "nowhere")
    assert list(found) == sorted(DATASETS)
    assert {name for name, record in found.items() if record["state"] == "included"} == {
        "digits",
        "synthetic",
    }
    assert {record["state"] for record in found.values()} == {"included", "absent"}
    for name, record in found.items():
        assert json.loads(json.dumps(record)) == record
        assert record["description"] and record["license"] and record["citation"]
        assert record["fetchable"] == bool(DATASETS[name].downloads) == bool(record["urls"])
        assert record["elsewhere"] == (DATASETS[name].elsewhere or None)
        assert (record["files"], record["bytes"]) == (0, 0)


def test_one_data_set_is_described_alone(tmp_path: Path) -> None:
    assert inventory.describe_dataset("mnist", tmp_path) == records(tmp_path)["mnist"]
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        inventory.describe_dataset("mnits", tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_files_are_counted_and_not_decoded(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    for part in ("train", "t10k"):
        for content in ("images-idx3", "labels-idx1"):
            (tmp_path / f"MNIST/raw/{part}-{content}-ubyte{suffix}").write_text("not decoded")
    found = records(tmp_path)
    size = sum(path.stat().st_size for path in (tmp_path / "MNIST/raw").iterdir())
    assert (found["mnist"]["state"], found["mnist"]["files"], found["mnist"]["bytes"]) == (
        "present",
        4,
        size,
    )
    assert found["digit5"]["state"] == "partial" and found["fashion_mnist"]["state"] == "absent"
    next((tmp_path / "MNIST/raw").glob("train-images*")).unlink()
    assert records(tmp_path)["mnist"]["state"] == "partial"


def test_unfinished_downloads_do_not_count(tmp_path: Path) -> None:
    for path in ("MNIST/raw/train-images-idx3-ubyte.gz.part", "EMNIST/raw/gzip.zip"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("1")
    (tmp_path / "MNIST/raw/link").symlink_to("nowhere")
    found = records(tmp_path)
    assert (
        found["mnist"]["state"] == found["emnist_letters"]["state"] == "absent"
        and found["mnist"]["bytes"] == 0
    )


def test_what_is_put_there_by_hand_is_present_if_anything_is(tmp_path: Path) -> None:
    (tmp_path / "MNIST-M").mkdir()
    (tmp_path / "MNIST-M/train_images.npy").write_text("1")
    assert records(tmp_path)["mnist_m"]["state"] == "present"


def test_what_is_fetched_only_in_part_is_partial(tmp_path: Path) -> None:
    (tmp_path / "SUN397").mkdir()
    for file in ("ClassName.txt", "sun_a.jpg"):
        (tmp_path / "SUN397" / file).write_text("1")
    assert records(tmp_path)["sun397"]["state"] == "partial"
    (tmp_path / "SUN397/three_levels.csv").write_text("1")
    assert records(tmp_path)["sun397"]["state"] == "present"


def test_files_behind_links_count(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "mnist_m_train"
    elsewhere.mkdir(parents=True)
    (elsewhere / "00000000.png").write_bytes(b"picture")
    folder = tmp_path / "data" / "MNIST-M"
    folder.mkdir(parents=True)
    (folder / "mnist_m_train").symlink_to(elsewhere, target_is_directory=True)

    patterns = DATASETS["mnist_m"].files
    assert [path.name for path in matching_files(tmp_path / "data", patterns)] == ["00000000.png"]


def test_the_folder_of_the_archive_of_emnist_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "EMNIST" / "gzip"
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        for what in ("images-idx3", "labels-idx1"):
            (folder / f"emnist-letters-{part}-{what}-ubyte.gz").write_bytes(b"x")

    assert records(tmp_path)["emnist_letters"]["state"] == "present"
