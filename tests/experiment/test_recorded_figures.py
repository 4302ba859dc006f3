"""What a run records of a round is enough to compute its figures again."""

import json
import shutil

import pytest

from fedtailor.core.errors import DataError
from fedtailor.experiment.config import load_config, make_config
from fedtailor.experiment.records import read_run
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


def test_the_auroc_over_clients_follows_from_what_is_recorded(folder):
    """Histograms of the last round add up to the pooled figure, and bound the exact one of every
    client."""
    found = read_run(folder)
    lines = [line for line in found.clients if "score_bins" in line]
    assert (
        {line["round"] for line in lines}
        == {2}
        == {line["round"] for line in found.clients if "auroc" in line}
    )
    assert not any("auroc" in each["metrics"] for each in found.rounds[0]["evaluations"])
    for line in lines:
        for label, exact in line["auroc_by_class"].items():
            estimate, error = _auroc([line["score_bins"][label]])
            assert (estimate is None) == (exact is None)
            assert exact is None or abs(estimate - exact) <= error + 1e-12
    evaluations = [
        each for each in found.rounds[1]["evaluations"] if each["test_set"] != "complete"
    ]
    for evaluation in evaluations:
        labels = ("point", "test_set", "group")
        of_clients = [
            line for line in lines if all(line[name] == evaluation[name] for name in labels)
        ]
        pooled = [
            _auroc([line["score_bins"][str(label)] for line in of_clients]) for label in range(10)
        ]
        defined = [pair for pair in pooled if pair[0] is not None]
        figures = evaluation["metrics"]["auroc"]
        assert figures["pooled"] == pytest.approx(
            sum(value for value, _ in defined) / len(defined), abs=1e-12
        )
        assert figures["pooled_error"] == pytest.approx(
            sum(error for _, error in defined) / len(defined), abs=1e-12
        )


def _auroc(histograms):
    """Return the AUROC of some histograms together, and the bound of its error."""
    bins = {}
    for place, positives, negatives in (row for rows in histograms for row in rows):
        ours, others = bins.get(place, (0, 0))
        bins[place] = (ours + positives, others + negatives)
    pairs = sum(ours for ours, _ in bins.values()) * sum(others for _, others in bins.values())
    if not pairs:
        return None, None
    won = sum(bins[p][0] * bins[n][1] * (1 if p > n else 0.5) for p in bins for n in bins if p >= n)
    return won / pairs, sum(ours * others for ours, others in bins.values()) / 2 / pairs


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
