"""The data set itself, the table of data sets, and the default one."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data import DATASETS, PARTITIONS, data_folder, load_dataset
from fedtailor.data.dataset import Dataset, Normalization


def small(**changes: Any) -> Dataset:
    x = np.arange(2 * 3 * 4 * 1, dtype=np.uint8).reshape(2, 3, 4, 1)
    return Dataset(**{"name": "small", "x": x, "y": np.array([0, 1]), "num_classes": 2, **changes})


@pytest.mark.parametrize("table", [DATASETS, PARTITIONS])
def test_every_entry_of_a_table_resolves(table: Any) -> None:
    assert list(table) == sorted(table)
    for entry in table.values():
        if table is PARTITIONS:
            assert entry.load().name in table
        else:
            module, function = entry.reader.split(":")
            reader = importlib.import_module(f"fedtailor.data.datasets.{module}")
            assert callable(getattr(reader, function))


def test_digits_need_no_files(tmp_path: Path) -> None:
    digits = load_dataset("digits", tmp_path / "nowhere")
    assert digits.x.shape == (1797, 8, 8, 1) and digits.x.max() == digits.white == 16
    assert np.bincount(digits.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert not digits.subset and len(digits.sources) == 1


def test_digest_is_the_same_in_every_process() -> None:
    assert small().digest[:12] == "dea1703b72ee"
    assert small(y=np.array([1, 0])).digest != small().digest
    assert small(y=np.array([0, 1], dtype=">u2")).digest == small().digest


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        load_dataset("cifar-10")


def test_data_folder_is_argument_then_variable_then_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folder() == Path.home() / ".cache/fedtailor"
    monkeypatch.setenv("FEDTAILOR_DATA", "~/there")
    assert data_folder() == Path.home() / "there"
    assert data_folder("here") == Path("here")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"y": np.array([0, 2])}, "2 at row 1"),
        ({"y": np.array([-1, 0])}, "-1 at row 0"),
        ({"y": np.array([0.0, 1.0])}, "float64"),
        ({"y": np.array([[0], [1]])}, "(2, 1)"),
        ({"y": np.array([0])}, "labels"),
        ({"x": np.zeros((2, 3, 4), np.uint8)}, "examples"),
        ({"x": np.zeros((2, 3, 4, 1))}, "float64"),
        ({"x": np.full((2, 3, 4, 1), np.nan, np.float32)}, "NaN"),
        ({"class_names": ("one",)}, "class names"),
        ({"normalize": Normalization((0.5, 0.5), (0.5, 0.5))}, "normalization"),
        ({"normalize": Normalization((0.5,), (0.0,))}, "normalization"),
    ],
)
def test_wrong_content_is_refused(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(DataError) as caught:
        small(**changes)
    assert part in caught.value.message and "'small'" in caught.value.message
