"""Records have a version: folders of every version are read, those of newer ones are refused,
nothing is lost."""

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
"""A finished run of every version: pFedFDA, three clients of whom one is new, two rounds,
validation examples.

That of a new version is made in this folder by

    fedtailor run version-2/experiment.toml --out version-NUMBER

and its ``checkpoints``, which are no records, are removed.
"""


def test_there_is_a_folder_of_every_version():
    assert {path.name for path in FOLDERS.iterdir()} == {
        f"version-{n}" for n in range(1, SCHEMA_VERSION + 1)
    }


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_folders_of_every_version_are_read(version):
    found = read_run(FOLDERS / f"version-{version}")
    assert found.schema == version
    assert found.status["state"] == "finished" and found.config["algorithm"]["name"] == "pfedfda"
    assert [record["round"] for record in found.rounds] == [1, 2]
    evaluations = [line for line in found.clients if line["point"] != "training"]
    assert {(line["point"], line["test_set"], line["group"]) for line in evaluations} == {
        ("local", "clients", "known"),
        ("global", "clients", "known"),
        ("global", "clients", "new"),
        ("personalized", "clients", "known"),
        ("personalized", "validation", "known"),
        ("personalized", "clients", "new"),
        ("personalized", "validation", "new"),
    }
    training = [line for line in found.clients if line["point"] == "training"]
    assert {(line["round"], line["client"]) for line in training} == {
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    }
    assert all(0 <= line["training_metrics"]["beta_means"] <= 1 for line in training)
    for client in range(3):
        tensors, card = found.model(client)
        assert card["tensors"].keys() == tensors.keys()
    assert set(found.result["metrics"]) >= {"global", "personalized", "validation"}
    assert set(found.split["clients"][0]) >= {"train", "val", "test"}
    load_config(FOLDERS / f"version-{version}" / "experiment.toml")


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_older_lines_get_the_present_names_and_nothing_else_changes(version):
    folder = FOLDERS / f"version-{version}"
    found = read_run(folder)
    new_names = {"metrics": "training_metrics", "clients": "group"} if version < 3 else {}
    for number, line in enumerate((folder / "rounds.jsonl").read_text().splitlines()):
        written = json.loads(line)
        if new_names:
            written["training_metrics"] = written.pop("metrics")
            for evaluation in written["evaluations"]:
                evaluation["group"] = evaluation.pop("clients")
        assert found.rounds[number] == written
    for number, line in enumerate((folder / "clients.jsonl").read_text().splitlines()):
        written = json.loads(line)
        old = "metrics" if written["point"] == "training" else "clients"
        if new_names:
            written[new_names[old]] = written.pop(old)
        assert found.clients[number] == written


def test_a_folder_that_an_older_version_began_holds_lines_of_both(tmp_path):
    """Such a run keeps the version of its first start in its provenance."""
    folder = tmp_path / "run"
    shutil.copytree(FOLDERS / "version-2", folder)
    for name in ("rounds.jsonl", "clients.jsonl"):
        first = (FOLDERS / "version-2" / name).read_text().splitlines()
        second = (FOLDERS / f"version-{SCHEMA_VERSION}" / name).read_text().splitlines()
        mixed = [line for line in first if json.loads(line)["round"] == 1]
        mixed += [line for line in second if json.loads(line)["round"] == 2]
        (folder / name).write_text("".join(f"{line}\n" for line in mixed))
    found = read_run(folder)
    assert [record.keys() >= {"training_metrics", "evaluations"} for record in found.rounds] == [
        True,
        True,
    ]
    assert {each["group"] for record in found.rounds for each in record["evaluations"]} == {
        "known",
        "new",
    }
    assert all(
        ("training_metrics" if each["point"] == "training" else "group") in each
        for each in found.clients
    )


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
            row = {
                predicted: count
                for each, predicted, count in line["confusion"]
                if each == int(label)
            }
            assert row.get(int(label), 0) / sum(row.values()) == pytest.approx(share, abs=1e-12)


def test_the_auroc_over_clients_follows_from_what_is_recorded():
    """Histograms of the last round add up to the pooled figure, and bound the exact one of every
    client."""
    found = read_run(FOLDERS / f"version-{SCHEMA_VERSION}")
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
