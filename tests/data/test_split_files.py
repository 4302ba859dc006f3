"""Splits from files: our own record, and the folders that the release of pFedFDA writes."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.data import split_files
from fedtailor.data.dataset import Dataset
from fedtailor.data.split import ClientRows, split_digest, to_records
from fedtailor.data.split_files import read_split_file, write_npz_split

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
def rows() -> list[ClientRows]:
    parts = np.random.default_rng(0).permutation(ROWS).reshape(6, 5)
    return [ClientRows(*parts[:3]), ClientRows(*parts[3:])]


def record_of(rows: list[ClientRows], data: Dataset, **changes: Any) -> dict[str, Any]:
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


def same(left: list[ClientRows], right: list[ClientRows]) -> bool:
    return to_records(left) == to_records(right) and all(
        each.dtype == np.int64 for part in left for each in part
    )


def test_our_own_split_is_read_back(
    tmp_path: Path, dataset: Dataset, rows: list[ClientRows]
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
        same(loaded.rows, rows)
        and loaded.num_new == 1
        and loaded.client_names == ("Charité", "<b>")
    )
    assert (loaded.test, loaded.conditions, loaded.notes) == ("own", ("clean", "frost-3"), [])


def test_a_split_of_other_data_names_both_digests(
    tmp_path: Path, dataset: Dataset, rows: list[ClientRows]
) -> None:
    path = write(
        tmp_path / "split.json",
        record_of(rows, dataset, data_sha256="ab" * 32, dataset="other\x1b"),
    )
    with pytest.raises(DataError, match="Its positions would select other examples") as caught:
        read_split_file(path, dataset)
    message = str(caught.value)
    assert (
        "ab" * 32 in message
        and dataset.digest in message
        and str(path) in message
        and "\x1b" not in message
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": []}, "at least one client"),
        ({"clients": {"0": []}}, "an entry of the wrong type: clients"),
        ({"clients": [[1, 2]]}, "client 0 to have train, val, test"),
        ({"clients": [{"train": [1], "test": [2]}]}, "client 0 to have train, val, test"),
        (
            {"clients": [{"train": [1.0], "val": [], "test": []}]},
            "train of client 0 to be a list of whole numbers",
        ),
        (
            {"clients": [{"train": [True], "val": [], "test": []}]},
            "train of client 0 to be a list of whole numbers",
        ),
        (
            {"clients": [{"train": "12", "val": [], "test": []}]},
            "train of client 0 to be a list of whole numbers",
        ),
        (
            {"clients": [{"train": [0], "val": [], "test": [1, 30]}]},
            "positions from 0 to 29, got 30 at index 1",
        ),
        (
            {"clients": [{"train": [-1], "val": [], "test": []}]},
            "positions from 0 to 29, got -1 at index 0",
        ),
        (
            {"clients": [{"train": [2**80], "val": [], "test": []}]},
            "got 1208925819614629174706176 at index 0",
        ),
        ({"new_clients": 2}, "new_clients from 0 to 1, got '2'"),
        ({"new_clients": -1}, "new_clients from 0 to 1, got '-1'"),
        ({"conditions": [1]}, "conditions to be texts"),
        ({"options": {}}, r"options\.test to be one of"),
        ({"client_names": ["a", "a"]}, "different client_names, got 'a' more than once"),
        ({"client_names": ["a", " "]}, "client_names that are not empty, got ' ' for client 1"),
        ({"client_names": ["one"]}, "client_names to be 2 texts or none"),
        ({"client_names": [1, 2]}, "client_names to be 2 texts or none"),
    ],
)
def test_what_a_split_must_not_hold(
    tmp_path: Path, dataset: Dataset, rows: list[ClientRows], changes: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "split.json", record_of(rows, dataset, **changes))
    with pytest.raises(DataError, match=message) as caught:
        read_split_file(path, dataset)
    assert caught.value.path == str(path)


def test_files_that_cannot_be_read(
    tmp_path: Path, dataset: Dataset, rows: list[ClientRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_split_file(tmp_path / "nowhere.json", dataset)
    with pytest.raises(DataError, match="embedded null"):
        read_split_file(tmp_path / "a\0b", dataset)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="expected a regular file"):
        read_split_file(tmp_path / "pipe", dataset)
    monkeypatch.setattr(split_files, "MAX_SPLIT_BYTES", 10)
    with pytest.raises(DataError, match="at most 10 bytes"):
        read_split_file(write(tmp_path / "split.json", record_of(rows, dataset)), dataset)


def test_a_folder_is_read_in_the_order_of_numbers(tmp_path: Path, dataset: Dataset) -> None:
    for client in range(12):  # as the release writes them; client_10 comes before client_2 by name
        np.savez(
            tmp_path / f"client_{client}.npz",
            train=np.array([client]),
            test=np.array([client + 12], np.int32),
        )
    (tmp_path / "config.json").write_text("{}")
    rows, num_new, names, _, conditions, [note] = read_split_file(tmp_path, dataset)
    assert conditions is None and note.endswith("nothing checks that they divide 'toy'.")
    expected = [
        ClientRows(np.array([c]), np.array([], np.int64), np.array([c + 12])) for c in range(12)
    ]
    assert same(rows, expected) and num_new == 0 and names == ()


def test_a_written_folder_is_read_back(
    tmp_path: Path, dataset: Dataset, rows: list[ClientRows]
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()  # empty: allowed
    rows = [each._replace(val=each.val[:0]) for each in rows]
    write_npz_split(folder, rows)
    read, *_ = read_split_file(folder, dataset)
    assert same(read, rows)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(DataError, match="a folder that does not exist, or is empty"):
        write_npz_split(folder, rows)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot write"):
        write_npz_split(tmp_path / "file" / "out", rows)


def test_what_a_folder_cannot_hold_is_refused_before_writing(
    tmp_path: Path, rows: list[ClientRows]
) -> None:
    plain = [each._replace(val=each.val[:0]) for each in rows]
    cases: list[tuple[list[ClientRows], dict[str, Any], str]] = [
        (rows, {}, "cannot hold validation examples; a file split.json can"),
        (plain, {"num_new": 2}, r"cannot hold new clients \(there are 2\)"),
        (
            plain,
            {"test": "by_label"},
            r"cannot hold test examples that clients share \(data.test = 'by_label'\)",
        ),
        (rows, {"num_new": 1}, "new clients .* and validation examples"),
    ]
    for clients, options, message in cases:
        with pytest.raises(ConfigError, match=message):
            write_npz_split(tmp_path / "out", clients, **options)
    assert not list(tmp_path.iterdir())


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
    ("damage", "message"),
    [
        (object_array, "Python objects, which are never read"),
        (truncated, "The NumPy archive is damaged"),
        (bomb, "at most 67456 can be read"),
        (lambda path: path.write_bytes(b""), "The NumPy archive is damaged"),
        (lambda path: path.write_bytes(bytes(10**6)), "expected at most 67456 bytes"),
        (lambda path: path.mkdir(), "expected a regular file"),
        (arrays(train=[1.0], test=[2]), "train: expected positions from 0 to 29, got type float64"),
        (arrays(train=[[1]], test=[2]), r"of shape \(1, 1\)"),
        (arrays(train=[1], test=[True]), "test: expected positions from 0 to 29, got type bool"),
        (arrays(train=[1], test=["2"]), "got type <U1"),
        (
            arrays(train=[1], test=[2, 30]),
            "test: expected positions from 0 to 29, got 30 at index 1",
        ),
        (arrays(train=[-1], test=[2]), "got -1 at index 0"),
        (
            arrays(train=np.array([2**63], np.uint64), test=[2]),
            "got 9223372036854775808 at index 0",
        ),
        (arrays(train=[1]), "expected the arrays 'train' and 'test', got 'train'"),
        (
            arrays(train=[1], test=[2], val=[3]),
            "expected the arrays 'train' and 'test', got 'test', 'train', 'val'",
        ),
    ],
)
def test_archives_that_are_refused(
    tmp_path: Path, dataset: Dataset, damage: Any, message: str
) -> None:
    np.savez(tmp_path / "client_0.npz", train=np.array([0]), test=np.array([], np.int64))
    damage(tmp_path / "client_1.npz")
    with pytest.raises(DataError, match=message) as caught:
        read_split_file(tmp_path, dataset)
    assert caught.value.path == str(tmp_path / "client_1.npz")


def test_folders_that_are_refused(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"client_0\.npz, client_1\.npz and so on, got none"):
        read_split_file(tmp_path, dataset)
    for number in (0, 3):
        np.savez(
            tmp_path / f"client_{number}.npz", train=np.array([number]), test=np.array([], np.int64)
        )
    with pytest.raises(DataError, match=r"expected client_1\.npz, as there is client_3\.npz"):
        read_split_file(tmp_path, dataset)
    (tmp_path / "client_03.npz").touch()
    with pytest.raises(DataError, match=r"expected a name such as client_0\.npz"):
        read_split_file(tmp_path, dataset)
    monkeypatch.setattr(split_files, "MAX_FILES", 2)
    with pytest.raises(DataError, match="at most 2 files"):
        read_split_file(tmp_path, dataset)


def test_a_folder_with_an_empty_client(tmp_path: Path, dataset: Dataset) -> None:
    np.savez(
        tmp_path / "client_0.npz", train=np.array([1]), test=np.array([])
    )  # float64, because it is empty
    [rows], *_ = read_split_file(tmp_path, dataset)
    assert rows.test.dtype == np.int64 and len(rows.test) == 0


DIGESTS = """
from fedtailor.data import load_dataset
from fedtailor.data.division import divide
from fedtailor.data.build import split_record
from fedtailor.data.options import DataOptions
record = split_record(divide(DataOptions(clients=8, partition="dirichlet(alpha=0.5)"), run_seed=1))
print(record["split_sha256"], record["data_sha256"])
"""


@pytest.mark.slow
def test_digests_are_the_same_in_every_process() -> None:
    def run(hash_seed: str) -> str:
        environment = os.environ | {
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        done = subprocess.run(
            [sys.executable, "-c", DIGESTS], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = run("1")
    assert first == run("2") and len(first.split()) == 2
