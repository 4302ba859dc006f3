"""Splits from files: our own record, and the folders that the release of pFedFDA writes."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset
from fedtailor.data.split import ClientPositions, split_digest, to_records
from fedtailor.data.split_files import read_split_file

ROWS = 30


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return Dataset(
        name="toy",
        x=np.arange(ROWS, dtype=np.float32)[:, None],
        y=np.arange(ROWS) % 3,
        num_classes=3,
    )


@pytest.fixture
def rows() -> list[ClientPositions]:
    parts = np.random.default_rng(0).permutation(ROWS).reshape(6, 5)
    return [ClientPositions(*parts[:3]), ClientPositions(*parts[3:])]


def record_of(rows: list[ClientPositions], data: Dataset, **changes: Any) -> dict[str, Any]:
    record = {
        "dataset": data.name,
        "data_sha256": data.digest,
        "options": {"test": "own"},
        "new_clients": 0,
        "client_names": [],
        "conditions": [],
        "clients": to_records(rows),
    } | changes
    digest = split_digest(record["clients"], record["new_clients"], record["conditions"])  # type: ignore[arg-type]
    return {"split_sha256": digest} | record


def write(path: Path, record: Any) -> Path:
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


def same(left: list[ClientPositions], right: list[ClientPositions]) -> bool:
    return to_records(left) == to_records(right) and all(
        each.dtype == np.int64 for part in left for each in part
    )


def test_our_own_split_is_read_back(
    tmp_path: Path, dataset: Dataset, rows: list[ClientPositions]
) -> None:
    changes: dict[str, Any] = {
        "new_clients": 1,
        "client_names": ["Charité", "<b>"],
        "conditions": ["clean", "frost-3"],
    }
    loaded = read_split_file(
        write(tmp_path / "split.json", record_of(rows, dataset, **changes)), dataset
    )
    assert (
        same(loaded.positions, rows)
        and loaded.num_new == 1
        and loaded.client_names == ("Charité", "<b>")
    )
    assert (loaded.test, loaded.conditions, loaded.notes) == ("own", ("clean", "frost-3"), [])


def test_a_split_of_other_data_names_both_digests(
    tmp_path: Path, dataset: Dataset, rows: list[ClientPositions]
) -> None:
    path = write(
        tmp_path / "split.json",
        record_of(rows, dataset, data_sha256="ab" * 32, dataset="other\x1b"),
    )
    with pytest.raises(DataError) as caught:
        read_split_file(path, dataset)
    message = str(caught.value)
    assert (
        "ab" * 32 in message
        and dataset.digest in message
        and str(path) in message
        and "\x1b" not in message
    )


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"clients": []}, "new_clients"),
        ({"clients": {"0": []}}, "clients"),
        ({"clients": [[1, 2]]}, "train, val, test"),
        ({"clients": [{"train": [1], "test": [2]}]}, "train, val, test"),
        ({"clients": [{"train": [1.0], "val": [], "test": []}]}, "train"),
        ({"clients": [{"train": [True], "val": [], "test": []}]}, "train"),
        ({"clients": [{"train": "12", "val": [], "test": []}]}, "train"),
        ({"clients": [{"train": [0], "val": [], "test": [1, 30]}]}, "got 30"),
        ({"clients": [{"train": [-1], "val": [], "test": []}]}, "got -1"),
        ({"clients": [{"train": [2**80], "val": [], "test": []}]}, "train"),
        ({"new_clients": 2}, "new_clients"),
        ({"new_clients": -1}, "new_clients"),
        ({"conditions": [1]}, "conditions"),
        ({"options": {}}, "options.test"),
        ({"client_names": ["a", "a"]}, "client_names"),
        ({"client_names": ["a", " "]}, "client_names"),
        ({"client_names": ["one"]}, "client_names"),
        ({"client_names": [1, 2]}, "client_names"),
    ],
)
def test_what_a_split_must_not_hold(
    tmp_path: Path,
    dataset: Dataset,
    rows: list[ClientPositions],
    changes: dict[str, Any],
    part: str,
) -> None:
    path = write(tmp_path / "split.json", record_of(rows, dataset, **changes))
    with pytest.raises(DataError) as caught:
        read_split_file(path, dataset)
    assert part in caught.value.message and caught.value.path == str(path)


def test_files_that_cannot_be_read(tmp_path: Path, dataset: Dataset) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("nowhere.json", "a\0b", "pipe"):
        with pytest.raises(DataError):
            read_split_file(tmp_path / name, dataset)


def test_a_folder_is_read_in_the_order_of_numbers(tmp_path: Path, dataset: Dataset) -> None:
    for client in range(12):  # as the release writes them; client_10 comes before client_2 by name
        np.savez(
            tmp_path / f"client_{client}.npz",
            train=np.array([client]),
            test=np.array([client + 12], np.int32),
        )
    (tmp_path / "config.json").write_text("{}")
    rows, num_new, names, _, conditions, [note] = read_split_file(tmp_path, dataset)
    assert conditions is None and note.endswith("files divide 'toy'.")
    expected = [
        ClientPositions(np.array([c]), np.array([], np.int64), np.array([c + 12]))
        for c in range(12)
    ]
    assert same(rows, expected) and num_new == 0 and names == ()


def object_array(path: Path) -> None:
    np.savez(path, train=np.array([{}], dtype=object), test=np.array([1]), allow_pickle=True)


def truncated(path: Path) -> None:
    np.savez(path, train=np.array([1]), test=np.array([1]))
    path.write_bytes(path.read_bytes()[:-30])


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.npy", bytes(10**6))
        archive.writestr("test.npy", b"")


def arrays(**values: Any) -> Any:
    return lambda path: np.savez(path, **values)


@pytest.mark.parametrize(
    "damage",
    [
        object_array,
        truncated,
        bomb,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(bytes(10**6)),
        lambda path: path.mkdir(),
        arrays(train=[1.0], test=[2]),
        arrays(train=[[1]], test=[2]),
        arrays(train=[1], test=[True]),
        arrays(train=[1], test=["2"]),
        arrays(train=[1], test=[2, 30]),
        arrays(train=[-1], test=[2]),
        arrays(train=np.array([2**63], np.uint64), test=[2]),
        arrays(train=[1]),
        arrays(train=[1], test=[2], val=[3]),
    ],
    ids=range(15),
)
def test_archives_that_are_refused(tmp_path: Path, dataset: Dataset, damage: Any) -> None:
    np.savez(tmp_path / "client_0.npz", train=np.array([0]), test=np.array([], np.int64))
    damage(tmp_path / "client_1.npz")
    with pytest.raises(DataError) as caught:
        read_split_file(tmp_path, dataset)
    assert caught.value.path == str(tmp_path / "client_1.npz")


@pytest.mark.parametrize("names", [[], ["client_0", "client_3"], ["client_0", "client_01"]])
def test_folders_that_are_refused(tmp_path: Path, dataset: Dataset, names: list[str]) -> None:
    for name in names:
        np.savez(tmp_path / name, train=np.array([1]), test=np.array([], np.int64))
    with pytest.raises(DataError, match=r"client_0\.npz"):
        read_split_file(tmp_path, dataset)


def test_a_folder_with_an_empty_client(tmp_path: Path, dataset: Dataset) -> None:
    np.savez(
        tmp_path / "client_0.npz", train=np.array([1]), test=np.array([])
    )  # float64, because it is empty
    [rows], *_ = read_split_file(tmp_path, dataset)
    assert rows.test.dtype == np.int64 and len(rows.test) == 0
