"""The reader of LEAF's FEMNIST, on synthetic files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import DataError
from fedtailor.data import load_dataset
from fedtailor.data.datasets.femnist import load_femnist


def entry(values: list[float], labels: list[int]) -> dict[str, Any]:
    """Return a writer's entry with images of one value each."""
    return {"x": [[value] * 784 for value in values], "y": labels}


def content(**writers: dict[str, Any]) -> dict[str, Any]:
    return {
        "users": list(writers),
        "num_samples": [len(entry["y"]) for entry in writers.values()],
        "user_data": writers,
    }


def save(folder: Path, name: str, what: object) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(what if isinstance(what, str) else json.dumps(what))
    return path


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    """Write two training files and one of test, whose names sort otherwise than their numbers."""
    folder = tmp_path / "femnist"
    save(folder, "train/all_data_10_niid.json", content(late=entry([1.0], [61])))
    save(
        folder,
        "train/all_data_2_niid.json",
        content(b=entry([0, 0.5], [3, 36]), a=entry([64 / 255], [10])),
    )
    save(
        folder,
        "test/all_data_2_niid.json",
        content(a=entry([1], [10]), new=entry([0.999], [0]), b=entry([], [])),
    )
    return folder


def test_writers_are_domains_in_the_order_of_the_files(tmp_path: Path, leaf: Path) -> None:
    dataset = load_dataset("femnist", tmp_path)
    assert dataset.domain_names == ("b", "a", "late", "new")
    assert dataset.domains is not None and dataset.domains.tolist() == [0, 0, 1, 2, 1, 3]
    assert dataset.y.tolist() == [3, 36, 10, 61, 10, 0] and dataset.num_official_train == 4
    assert (
        dataset.class_names[10] == "A"
        and dataset.class_names[36] == "a"
        and dataset.num_classes == 62
    )
    assert dataset.x.shape == (6, 28, 28, 1) and not dataset.subset
    # truncated, not rounded: 127.5 is 127, 254.7 is 254
    assert dataset.x[:, 0, 0, 0].tolist() == [0, 127, 64, 255, 255, 254]
    assert len(dataset.sources) == 3 and "femnist/train/all_data_10_niid.json" in dataset.sources


def test_every_gray_level_comes_back(tmp_path: Path) -> None:
    levels = np.arange(784) % 256
    save(tmp_path, "femnist/train/a.json", content(w={"x": [(levels / 255).tolist()], "y": [0]}))
    save(tmp_path, "femnist/test/a.json", content())
    np.testing.assert_array_equal(load_femnist(tmp_path).x.reshape(-1), levels)


def test_the_folder_that_leaf_writes_is_read_too(tmp_path: Path, leaf: Path) -> None:
    before = load_femnist(tmp_path).digest
    leaf.rename(tmp_path / "moved")
    leaf.mkdir()
    (tmp_path / "moved").rename(leaf / "data")
    dataset = load_femnist(tmp_path)
    assert dataset.digest == before and "femnist/data/test/all_data_2_niid.json" in dataset.sources


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_missing_part_is_named(tmp_path: Path, leaf: Path, part: str) -> None:
    for path in (leaf / part).iterdir():
        path.unlink()
    with pytest.raises(DataError, match=rf"was not found in {leaf / part}\..*femnist/data/{part}/"):
        load_femnist(tmp_path)


GOOD = entry([0.5], [1])
ROW = [0.5] * 784


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("", "expected JSON as LEAF writes it"),
        ('{"users": ["w"', "expected JSON as LEAF writes it"),
        ("\ud83d".encode("utf-8", "surrogatepass").decode("latin-1"), "expected JSON"),
        ("[" * 100_000, "RecursionError"),
        ('{"a": 1, "a": 2}', "an object repeats a key"),
        ("[1, 2]", "expected an object with users, num_samples, user_data, got list"),
        ({"users": []}, "got the keys ['users']"),
        (
            {"users": "w", "num_samples": [1], "user_data": {"w": GOOD}},
            "expected 'users' to be different names",
        ),
        (
            {"users": ["w", "w"], "num_samples": [1, 1], "user_data": {"w": GOOD}},
            "expected 'users' to be different",
        ),
        (
            {"users": [["w"]], "num_samples": [1], "user_data": {"w": GOOD}},
            "expected 'users' to be different",
        ),
        (content(**{"w\x1b[2J": GOOD}), "expected 'users' to be different names of at most 80"),
        (content(**{"w" * 81: GOOD}), "names of at most 80"),
        (
            {"users": ["w"], "num_samples": [], "user_data": {"w": GOOD}},
            "'num_samples' to have 1 numbers",
        ),
        (
            {"users": ["w"], "num_samples": [2], "user_data": {"w": GOOD}},
            "1 images, 1 labels, 'num_samples' 2",
        ),
        (
            {"users": ["w"], "num_samples": ["1"], "user_data": {"w": GOOD}},
            "1 images, 1 labels, 'num_samples' '1'",
        ),
        (
            {"users": ["w", "v"], "num_samples": [1, 1], "user_data": {"w": GOOD}},
            "no other, got ['v']",
        ),
        ({"users": [], "num_samples": [], "user_data": {"w": GOOD}}, "no other, got ['w']"),
        ({"users": [], "num_samples": [], "user_data": []}, "no other, got list"),
        (
            content(w={"x": [ROW], "y": 3} | {"y": [3, 4]}),
            "of writer 'w' as many images and labels",
        ),
        (
            {"users": ["w"], "num_samples": [1], "user_data": {"w": [1]}},
            "of writer 'w' lists 'x' and 'y', got list",
        ),
        (
            {"users": ["w"], "num_samples": [1], "user_data": {"w": {"x": [ROW]}}},
            "lists 'x' and 'y', got ['x']",
        ),
        (content(w=entry([0.5], [62])), "of writer 'w' labels from 0 to 61, got 62 at row 0"),
        (content(w=entry([0.5], [-1])), "got -1 at row 0"),
        (content(w=entry([0.5], [1.0])), "got 1.0 at row 0"),  # type: ignore[list-item]
        (content(w=entry([0.5], [True])), "got True at row 0"),
        (
            content(w={"x": [ROW, ROW[1:]], "y": [1, 1]}),
            "images of 784 numbers from 0 to 1, got 783 numbers at row 1",
        ),
        (content(w={"x": [0.5], "y": [1]}), "got float at row 0"),
        (
            content(w={"x": [[*ROW[1:], "0.5"]], "y": [1]}),
            "got a value that is not a number at row 0",
        ),
        (
            content(w={"x": [[*ROW[1:], None]], "y": [1]}),
            "got a value that is not a number at row 0",
        ),
        (
            content(w={"x": [[*ROW[1:], [0.5]]], "y": [1]}),
            "got a value that is not a number at row 0",
        ),
        (content(w={"x": [[*ROW[1:], float("nan")]], "y": [1]}), "NaN is not a JSON number"),
        (
            json.dumps(content(w=entry([7], [1]))).replace("[7,", "[1e999,"),
            "got a pixel of inf at row 0",
        ),
        (content(w={"x": [[*ROW[1:], 10**400]], "y": [1]}), "got a pixel of 1000"),
        (content(w={"x": [[*ROW[1:], 255]], "y": [1]}), "got a pixel of 255 at row 0"),
        (content(w={"x": [[*ROW[1:], -0.1]], "y": [1]}), "got a pixel of -0.1 at row 0"),
    ],
)
def test_damage_is_refused(tmp_path: Path, what: object, sentence: str) -> None:
    path = save(tmp_path, "femnist/train/all_data_0.json", what)
    save(tmp_path, "femnist/test/all_data_0.json", content())
    with pytest.raises(DataError) as caught:
        load_femnist(tmp_path)
    assert sentence in caught.value.message and caught.value.path == str(path)
    assert len(caught.value.message) < 600 + len(str(path)) and caught.value.message.isprintable()


def test_a_writer_in_two_files_of_a_part_is_refused(tmp_path: Path, leaf: Path) -> None:
    path = save(leaf, "train/all_data_11_niid.json", content(a=GOOD))
    with pytest.raises(
        DataError, match=r"writer 'a' a second time \(first in all_data_2_niid.json\)"
    ) as caught:
        load_femnist(tmp_path)
    assert caught.value.path == str(path)


def test_no_example_at_all_is_refused(tmp_path: Path) -> None:
    for part in ("train", "test"):
        save(tmp_path, f"femnist/{part}/all_data_0.json", content(w=entry([], [])))
    with pytest.raises(DataError, match="expected an example of a writer, got none"):
        load_femnist(tmp_path)


def test_a_large_file_is_refused_unread(
    tmp_path: Path, leaf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtailor.data.readers.files.MAX_BYTES", 100)
    with pytest.raises(DataError, match="expected at most 100 bytes"):
        load_femnist(tmp_path)
