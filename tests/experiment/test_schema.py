"""Records have a version: folders of every version are read, those of newer ones are refused, nothing is lost."""

import json
import shutil
from pathlib import Path

import pytest

from fedtailor.core.errors import DataError
from fedtailor.experiment.config import load_config
from fedtailor.experiment.records import read_run
from fedtailor.experiment.run import run
from fedtailor.experiment.schema import SCHEMA_VERSION

FOLDERS = Path(__file__).parent / "folders"
"""A finished run of every version: pFedFDA, three clients of whom one is new, two rounds, validation examples."""


def test_there_is_a_folder_of_every_version():
    assert {path.name for path in FOLDERS.iterdir()} == {f"version-{n}" for n in range(1, SCHEMA_VERSION + 1)}


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_folders_of_every_version_are_read(version):
    found = read_run(FOLDERS / f"version-{version}")
    assert found.schema == version
    assert found.status["state"] == "finished" and found.config["algorithm"]["name"] == "pfedfda"
    assert [record["round"] for record in found.rounds] == [1, 2]
    evaluations = [line for line in found.clients if line["point"] != "training"]
    assert {(line["point"], line["test_set"], line["clients"]) for line in evaluations} == {
        ("local", "clients", "known"),
        ("global", "clients", "known"),
        ("global", "clients", "new"),
        ("personalized", "clients", "known"),
        ("personalized", "validation", "known"),
        ("personalized", "clients", "new"),
        ("personalized", "validation", "new"),
    }
    training = [line for line in found.clients if line["point"] == "training"]
    assert {(line["round"], line["client"]) for line in training} == {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert all(0 <= line["metrics"]["beta_means"] <= 1 for line in training)
    for client in range(3):
        tensors, card = found.model(client)
        assert card["tensors"].keys() == tensors.keys()
    assert set(found.result["metrics"]) >= {"global", "personalized", "validation"}
    assert set(found.split["clients"][0]) >= {"train", "val", "test"}
    load_config(FOLDERS / f"version-{version}" / "experiment.toml")


def test_figures_follow_from_what_is_recorded():
    """Bins and confusion hold all that the figures of a client are made of."""
    for line in read_run(FOLDERS / f"version-{SCHEMA_VERSION}").clients:
        if line["point"] == "training":
            continue
        examples = sum(count for *_, count in line["confusion"])
        assert examples == sum(count for _, count, _, _ in line["bins"])
        assert line["test_set"] == "validation" or examples == line["num_test"]
        right = sum(count for label, predicted, count in line["confusion"] if label == predicted)
        assert right == sum(correct for *_, correct in line["bins"])
        assert right / examples == pytest.approx(line["accuracy"], abs=1e-12)
        gaps = sum(abs(correct - confidence) for _, _, confidence, correct in line["bins"])
        assert gaps / examples == pytest.approx(line["ece"], abs=1e-6)
        for label, share in line["recall"].items():
            row = {predicted: count for each, predicted, count in line["confusion"] if each == int(label)}
            assert row.get(int(label), 0) / sum(row.values()) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0, "two", True, None])
def test_newer_folders_and_nonsense_are_refused(version, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(FOLDERS / f"version-{SCHEMA_VERSION}", folder)
    path = folder / "provenance.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": version}))
    reason = "is damaged: the version of its records"
    if version == SCHEMA_VERSION + 1:
        reason = f"made by a newer fedtailor, version {version} of the records; this one reads up to {SCHEMA_VERSION}"
    with pytest.raises(DataError, match=reason):
        read_run(folder)
    before = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    with pytest.raises(DataError, match=reason):
        run(load_config(folder / "experiment.toml"), out=folder)
    after = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    assert after == before


def test_the_lines_of_clients_are_read_when_they_are_used(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(FOLDERS / f"version-{SCHEMA_VERSION}", folder)
    found = read_run(folder)
    (folder / "clients.jsonl").write_text("no json\n")
    assert len(found.rounds) == 2
    with pytest.raises(DataError, match=r"clients\.jsonl"):
        print(found.clients)
