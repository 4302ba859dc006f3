"""The record of a split."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedtailor.core.errors import DataError
from fedtailor.data.build import DataOptions, split_record
from fedtailor.data.division import divide
from fedtailor.data.split import SplitRecord, read_split, split_digest


@pytest.fixture(scope="module")
def record() -> SplitRecord:
    options = DataOptions(
        partition="dirichlet(alpha=0.5)", clients=8, new_clients=2, seed="run", dir="secret"
    )
    return split_record(divide(options, run_seed=5))


def write(path: Path, record: Any) -> Path:
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


def test_the_record_is_json_and_is_read_back(tmp_path: Path, record: SplitRecord) -> None:
    assert read_split(write(tmp_path / "split.json", record)) == record
    assert record["options"]["seed"] == 5
    assert record["options"]["partition"] == "dirichlet(alpha=0.5, min_size=10)"
    assert "secret" not in json.dumps(record)
    assert len(record["clients"]) == 8 and record["new_clients"] == 2
    assert sum(len(rows) for client in record["clients"] for rows in client.values()) == 1797  # type: ignore[misc, arg-type]


def test_the_digest_is_the_same_in_every_process(record: SplitRecord) -> None:
    assert split_digest([{"train": [3, 1], "val": [], "test": [2]}], 0)[:12] == "72ec8bebdc9f"
    assert record["split_sha256"][:12] == "fb8f7bdec160"
    assert record["data_sha256"][:12] == "dde310edb682"


def test_the_digest_follows_the_split_alone(record: SplitRecord) -> None:
    options = DataOptions(clients=8, new_clients=2, seed=5, dir="another")
    same = split_record(divide(options, run_seed=0))
    assert same["split_sha256"] == record["split_sha256"]
    options = DataOptions(clients=8, new_clients=1, seed=5)
    assert split_record(divide(options, run_seed=0))["split_sha256"] != record["split_sha256"]


def test_a_changed_split_is_refused(tmp_path: Path, record: SplitRecord) -> None:
    changed = json.loads(json.dumps(record))
    changed["clients"][0]["train"][0] += 1
    path = write(tmp_path / "split.json", changed)
    with pytest.raises(
        DataError, match=f"expected positions with the digest {record['split_sha256']}"
    ) as caught:
        read_split(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "invalid JSON (line 1, column 1)"),
        (b'{"clients":\n x}', "invalid JSON (line 2, column 2)"),
        (b"\xff", "invalid JSON"),
        (b"\xef\xbb\xbf{", "invalid JSON (line 1, column 1)"),
        (b"1" * 5000, "invalid JSON"),
        (b"[]", "a value that is not an object"),
        (b"1", "a value that is not an object"),
        (b"[" * 100_000, "brackets nested too deeply"),
    ],
    ids=range(8),
)
def test_what_is_no_split_is_refused_in_plain_words(
    tmp_path: Path, content: bytes, got: str
) -> None:
    path = tmp_path / "split.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_split(path)
    assert caught.value.message == f"{path}: expected a split in JSON, got {got}."


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clients", 1),
        ("new_clients", True),
        ("client_names", {}),
        ("conditions", None),
        ("options", []),
        ("dataset", 1),
    ],
)
def test_entries_of_another_type_are_named(
    tmp_path: Path, record: SplitRecord, name: str, value: object
) -> None:
    with pytest.raises(DataError, match=f"got an entry of the wrong type: {name}.$"):
        read_split(write(tmp_path / "split.json", {**record, name: value}))


def test_missing_entries_and_files_are_named(tmp_path: Path, record: SplitRecord) -> None:
    shorter = {name: value for name, value in record.items() if name != "options"}
    with pytest.raises(DataError, match="got no options"):
        read_split(write(tmp_path / "split.json", shorter))
    with pytest.raises(DataError, match="No such file"):
        read_split(tmp_path / "nowhere.json")
