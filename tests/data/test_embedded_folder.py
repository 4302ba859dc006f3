"""Folders of embedded features: written by ``data embed``, and read without the encoder."""

import json
import shutil

import numpy as np
import pytest

import tiny_encoders
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data.dataset import Dataset
from fedtailor.data.embedded_folder import write_embedded
from fedtailor.data.options import DataOptions
from fedtailor.data.own.read import load_own, read_own

TINY = "tiny_encoders:tiny"
OPTIONS = DataOptions(encoder=TINY)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))


def pictures(**others):
    """Return pictures of two hospitals, the second with test examples."""
    generator = np.random.default_rng(0)
    values = {
        "name": "pictures",
        "x": generator.integers(0, 256, (60, 8, 8, 1), np.uint8),
        "y": np.arange(60) % 2,
        "num_classes": 2,
        "class_names": ("ill", "well"),
        "domains": np.repeat([0, 1, 1], 20),
        "domain_names": ("Charité", "Mayo/2"),
        "num_official_train": 40,
    }
    return Dataset(**{**values, **others})


def test_features_are_read_without_the_encoder(tmp_path):
    dataset = pictures()
    written = write_embedded(dataset, OPTIONS, tmp_path / "out")
    assert written.examples == {"Charité": 20, "Mayo/2": 40}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "Charité",
        "Mayo%2F2",
        "encoder.json",
    ]

    own = read_own(str(tmp_path / "out"), DataOptions())
    assert [problem.kind for problem in own.findings.problems] == ["no_test"]
    features = own.dataset
    assert features.x.shape == (60, tiny_encoders.FEATURES)
    assert np.array_equal(features.y, dataset.y)
    assert features.num_official_train == 40
    assert features.class_names == ("ill", "well")
    assert features.encoder == written.encoder
    assert features.encoder.inputs["shape"] == [1, 8, 8]

    about = json.loads((tmp_path / "out" / "encoder.json").read_text())
    assert (about["target"], about["dimension"], about["license"]) == (TINY, 6, "CC0-1.0")


def test_data_without_sites_are_one_folder(tmp_path):
    write_embedded(pictures(domains=None, domain_names=()), OPTIONS, tmp_path / "out")
    dataset = load_own(str(tmp_path / "out"), DataOptions())
    assert dataset.domains is None
    assert len(dataset.y) == 60


def test_half_the_bytes(tmp_path):
    write_embedded(pictures(), OPTIONS, tmp_path / "out")
    write_embedded(pictures(), OPTIONS, tmp_path / "half", precision="float16")
    exact = load_own(str(tmp_path / "out"), DataOptions()).x
    rounded = load_own(str(tmp_path / "half"), DataOptions()).x
    assert rounded.dtype == np.float32
    assert np.array_equal(rounded, exact.astype(np.float16).astype(np.float32))


def test_groups_stay_together(tmp_path):
    groups = np.arange(60) // 4
    write_embedded(pictures(groups=groups), OPTIONS, tmp_path / "out")
    assert np.array_equal(load_own(str(tmp_path / "out"), DataOptions()).groups, groups)


def test_groups_of_some_sites_are_not_enough(tmp_path):
    write_embedded(pictures(groups=np.arange(60) // 4), OPTIONS, tmp_path / "out")
    write_embedded(pictures(), OPTIONS, tmp_path / "others")
    shutil.copy(tmp_path / "others" / "Charité" / "train.npz", tmp_path / "out" / "Charité")
    with pytest.raises(DataError, match="The groups are missing, which"):
        load_own(str(tmp_path / "out"), DataOptions())


def test_features_of_two_encoders_are_refused(tmp_path):
    write_embedded(pictures(), OPTIONS, tmp_path / "out")
    other = DataOptions(encoder="tiny_encoders:other")
    write_embedded(pictures(), other, tmp_path / "others")
    shutil.copy(tmp_path / "others" / "Charité" / "train.npz", tmp_path / "out" / "Charité")
    words = r"Digests of encoders differ: '.*' has '\w{64}', and this file has '\w{64}'"
    with pytest.raises(DataError, match=words):
        load_own(str(tmp_path / "out"), DataOptions())


def test_cells_of_tables_become_features_in_a_run_only(tmp_path):
    rows = [f"{row},{row % 2}" for row in range(30)]
    (tmp_path / "table.csv").write_text("\n".join(["age,label", *rows]))
    dataset = load_own(str(tmp_path / "table.csv"), DataOptions())
    with pytest.raises(DataError, match="use the option --encoder of the run"):
        write_embedded(dataset, OPTIONS, tmp_path / "out")


def test_a_record_that_is_none_is_refused(tmp_path):
    x = np.zeros((30, 3), np.float32) + np.arange(30)[:, None]
    for site in ("a", "b"):
        (tmp_path / site).mkdir()
        np.savez(tmp_path / site / "train.npz", x=x, y=np.arange(30) % 2, encoder=np.array("[]"))

    with pytest.raises(DataError, match="not the record"):
        load_own(str(tmp_path), DataOptions())


def test_features_too_large_for_half_the_bytes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_encoders.Tiny, "forward", lambda self, x: x.flatten(1) + 1e5)
    with pytest.raises(ConfigError, match="float16 holds numbers up to 65504, and the features"):
        write_embedded(pictures(), OPTIONS, tmp_path / "out", precision="float16")

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "record", ["{", "[1]", "{}", '{"target": 1, "digest": "", "license": "", "inputs": {}}']
)
def test_a_damaged_record_of_an_encoder_is_a_problem_of_its_file(tmp_path, record):
    arrays = {"x": np.zeros((4, 2), np.float32), "y": np.arange(4) % 2}
    (tmp_path / "site").mkdir()
    np.savez(tmp_path / "site" / "train.npz", encoder=np.array(record), **arrays)
    problems = read_own(str(tmp_path), DataOptions()).findings.problems
    assert "wrong_encoder" in [problem.kind for problem in problems]
