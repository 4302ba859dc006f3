"""The data set itself, the table of data sets, and the default one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data import DATASETS, PARTITIONS, data_folder, find, load_dataset
from fedtailor.data.dataset import Dataset, Normalization

SOURCE = Path(__file__).resolve().parents[2] / "src"


def small(**changes: Any) -> Dataset:
    x = np.arange(2 * 3 * 4 * 1, dtype=np.uint8).reshape(2, 3, 4, 1)
    return Dataset(**{"name": "small", "x": x, "y": np.array([0, 1]), "num_classes": 2, **changes})


def test_the_tables_are_listed_without_heavy_imports() -> None:
    heavy = "{'torch', 'numpy', 'scipy', 'sklearn', 'pickle'}"
    code = (
        f"import sys, fedtailor.data as d; assert all(e.description for e in d.DATASETS.values()); \
        found = {heavy} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(SOURCE)})


@pytest.mark.parametrize("table", [DATASETS, PARTITIONS])
def test_every_entry_of_a_table_resolves(table: Any) -> None:
    assert list(table) == sorted(table)
    assert all(callable(find(entry.target)) for entry in table.values())


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
    ("changes", "sentence"),
    [
        (
            {"y": np.array([0, 2])},
            "labels of data set 'small' must be whole numbers from 0 to 1, got 2 at row 1.",
        ),
        ({"y": np.array([-1, 0])}, "got -1 at row 0"),
        ({"y": np.array([0.0, 1.0])}, "got type float64 of shape (2,)"),
        ({"y": np.array([[0], [1]])}, "got type int64 of shape (2, 1)"),
        ({"y": np.array([0])}, "labels must be 2, one for each example, got 1."),
        (
            {"x": np.zeros((2, 3, 4), np.uint8)},
            "examples must be an array (rows, height, width, channels) or",
        ),
        ({"x": np.zeros((2, 3, 4, 1))}, "examples must be of type uint8 or float32, got float64."),
        ({"x": np.full((2, 3, 4, 1), np.nan, np.float32)}, "examples must be finite"),
        ({"class_names": ("one",)}, "class names must be 2 names, got 1."),
        (
            {"normalize": Normalization((0.5, 0.5), (0.5, 0.5))},
            "normalization must be 1 or 1 means",
        ),
        ({"normalize": Normalization((0.5,), (0.0,))}, "deviations > 0"),
    ],
)
def test_wrong_content_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        small(**changes)
    assert sentence in caught.value.message
