"""Runs on the examples that a split file names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset
from fedtailor.data.division import Division, divide
from fedtailor.data.options import DataOptions
from fedtailor.data.split import ClientPositions, split_digest, to_records

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


def division_of(path: Path, dataset: Dataset) -> Division:
    return divide(DataOptions(split=str(path)), run_seed=0, dataset=dataset)


def test_corruptions_follow_from_the_seed_of_the_file(
    tmp_path: Path, dataset: Dataset, rows: list[ClientPositions]
) -> None:
    record = record_of(rows, dataset, options={"test": "own", "seed": 7})
    path = str(write(tmp_path / "split.json", record))
    shifted = DataOptions(split=path, shift="cifar_s(clients=1)")
    assert divide(shifted, run_seed=0, dataset=dataset).seed == 7
    assert divide(DataOptions(split=path), run_seed=0, dataset=dataset).seed == 42


def test_our_own_split_is_read_back(
    tmp_path: Path, dataset: Dataset, rows: list[ClientPositions]
) -> None:
    changes: dict[str, Any] = {
        "new_clients": 1,
        "client_names": ["Charité", "<b>"],
        "conditions": ["clean", "frost-3"],
    }
    record = record_of(rows, dataset, **changes)
    division = division_of(write(tmp_path / "split.json", record), dataset)
    assert to_records(division.positions) == record["clients"] and division.num_new == 1
    assert division.client_names == ("Charité", "<b>") and division.test == "own"
    assert division.conditions == ("clean", "frost-3")


def test_a_split_of_other_data_names_both_digests(
    tmp_path: Path, dataset: Dataset, rows: list[ClientPositions]
) -> None:
    record = record_of(rows, dataset, data_sha256="ab" * 32, dataset="other\x1b")
    path = write(tmp_path / "split.json", record)
    with pytest.raises(DataError) as caught:
        division_of(path, dataset)
    message = caught.value.message
    assert "ab" * 32 in message and dataset.digest in message and "\x1b" not in message


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"clients": []}, "new_clients"),
        ({"clients": {"0": []}}, "clients"),
        ({"clients": [[1, 2]]}, "damaged"),
        ({"clients": [{"train": [1], "test": [2]}]}, "val"),
        ({"clients": [{"train": "12", "val": [], "test": []}]}, "whole numbers"),
        ({"clients": [{"train": ["12"], "val": [], "test": []}]}, "whole numbers"),
        ({"clients": [{"train": [12.5], "val": [], "test": []}]}, "whole numbers"),
        ({"clients": [{"train": [True], "val": [], "test": []}]}, "whole numbers"),
        ({"clients": [{"train": [0], "val": [], "test": [1, 30]}]}, "got 30"),
        ({"clients": [{"train": [-1], "val": [], "test": []}]}, "got -1"),
        ({"clients": [{"train": [2**80], "val": [], "test": []}]}, "whole numbers"),
        ({"new_clients": 2}, "new_clients"),
        ({"new_clients": -1}, "new_clients"),
        ({"new_clients": True}, "new_clients"),
        ({"new_clients": "1"}, "new_clients"),
        ({"conditions": [5]}, "conditions"),
        ({"conditions": "clean"}, "conditions"),
        ({"options": {}}, "options.test"),
        ({"options": {"test": "Own"}}, "options.test"),
        ({"options": {"test": ["own"]}}, "options.test"),
        ({"client_names": ["a", "a"]}, "client_names"),
        ({"client_names": ["a", " "]}, "client_names"),
        ({"client_names": ["one"]}, "client_names"),
        ({"client_names": [1, 2]}, "client_names"),
        ({"client_names": "ab"}, "client_names"),
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
        division_of(path, dataset)
    assert part in caught.value.message and caught.value.path == str(path)


def test_an_unknown_policy_does_not_let_clients_share_test_examples(
    tmp_path: Path, dataset: Dataset, rows: list[ClientPositions]
) -> None:
    shared = [rows[0], rows[1]._replace(test=rows[0].test)]
    for policy, key in (("own", "data.partition"), ("Own", "data.split")):
        record = record_of(shared, dataset, options={"test": policy})
        with pytest.raises(DataError) as caught:
            division_of(write(tmp_path / "split.json", record), dataset)
        assert caught.value.key == key
