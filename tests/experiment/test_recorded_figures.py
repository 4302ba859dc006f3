"""What a run records of a round is enough to compute its figures again."""

import json
import shutil

import pytest

from fedtailor.core.errors import DataError
from fedtailor.experiment.config import load_config, make_config
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.run import run

SETTINGS = {
    "data": {"clients": 3, "new_clients": 1, "fraction": 0.1, "val_fraction": 0.2},
    "model": {"options": {"hidden": 2}},
    "training": {"epochs": 1},
    "federation": {"rounds": 2},
    "evaluation": {"every": 1, "personalized_every": 1, "select": "best"},
}
"""pFedFDA, three clients of whom one is new, two rounds, validation examples."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded") / "run"
    run(make_config(SETTINGS), out=path)
    return path


def test_figures_follow_from_what_is_recorded(folder):
    """Bins and confusion hold all that the figures of a client are made of."""
    for line in read_run(folder).clients:
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
            row = {
                predicted: count
                for each, predicted, count in line["confusion"]
                if each == int(label)
            }
            assert row.get(int(label), 0) / sum(row.values()) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("version", [2, 4, None])
def test_records_of_another_version_are_refused(version, folder, tmp_path):
    other = tmp_path / "run"
    shutil.copytree(folder, other)
    path = other / "provenance.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": version}))
    with pytest.raises(DataError, match=f"version {version}"):
        read_run(other)
    before = {file.name: file.read_bytes() for file in other.iterdir() if file.is_file()}
    with pytest.raises(DataError, match=f"version {version}"):
        run(load_config(other / "experiment.toml"), out=other)
    assert {file.name: file.read_bytes() for file in other.iterdir() if file.is_file()} == before


def test_the_lines_of_clients_are_read_when_they_are_used(folder, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    found = read_run(copy)
    (copy / "clients.jsonl").write_text("no json\n")
    assert len(found.rounds) == 2
    with pytest.raises(DataError, match=r"clients\.jsonl"):
        print(found.clients)
