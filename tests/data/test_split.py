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
    with pytest.raises(DataError, match=record["split_sha256"]) as caught:
        read_split(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("content", [b"", b"\xff", b"1" * 5000, b"[]", b"[" * 100_000, None])
def test_what_is_no_split_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "split.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_split(path)
    assert caught.value.path == str(path)
