"""What a run records of a round is enough to compute its figures again."""

import json
import shutil

import pytest

import fedtailor
from fedtailor.core.errors import DataError
from fedtailor.experiment.config import load_config, make_config
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.run import run
from fedtailor.experiment.tracking import RunProgress
from fedtailor.report.comparison import compare
from fedtailor.report.methods import read_methods
from fedtailor.report.records import read_records

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


class StopAtTheEnd(RunProgress):
    """Interrupts a run when its last round is on disk, before its models are."""

    def round(self, record):
        if record["round"] == 4:
            raise KeyboardInterrupt


def chosen(algorithm, **evaluation):
    """Return a run whose best round is not the last, and of which the global model was tested
    after the last round only."""
    return make_config(
        {
            **SETTINGS,
            "algorithm": {"name": algorithm},
            "training": {"epochs": 1, "lr": 1.5},
            "federation": {"rounds": 4},
            "engine": {"name": "reference"},
            "evaluation": {"every": 0, "personalized_every": 1, "select": "best", **evaluation},
        }
    )


def test_scores_of_the_chosen_models_are_recorded(tmp_path):
    config = chosen("fedavg_ft")
    result = run(config, out=tmp_path / "one")
    found = read_run(tmp_path / "one")
    best = result["selected"]["round"]
    assert best < 4, "the test needs a best round before the last"

    # The lines of the final models are as many as clients and points, and have all figures.
    final = [line for line in found.clients if line.get("final")]
    assert {line["round"] for line in final} == {best}
    assert all(line["point"] != "training" for line in final)
    own = [line for line in final if line["test_set"] == "clients"]
    assert len(own) == 2 * 3 and all("auroc" in line for line in own)

    # Every client counts once, with the scores of the result.
    (method,) = read_methods([tmp_path / "one"])
    (seed,) = read_records(method).seeds.values()
    client = fedtailor.load(tmp_path / "one").clients[0]
    for point in ("global", "personalized"):
        for metric in ("accuracy", "auroc"):
            expected = result["metrics"][point][metric]["mean"]
            values = seed.metric(metric, point).values
            assert sum(values.values()) / len(values) == pytest.approx(expected, abs=1e-12)
            assert values[0] == getattr(client.scores[point], metric)

    run(chosen("fedavg"), out=tmp_path / "other")
    methods = read_methods([tmp_path / "one", tmp_path / "other"])
    (known, _) = compare(methods, point="global").groups
    assert all("auroc" in each.figures for each in known.methods)


def test_a_killed_end_leaves_no_line_of_the_chosen_models_twice(tmp_path):
    config = chosen("fedavg_ft")
    run(config, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "killed", progress=StopAtTheEnd())

    # Until it has finished, the scores of its latest models count.
    (seed,) = read_records(read_methods([tmp_path / "killed"])[0]).seeds.values()
    assert set(seed.rounds.values()) == {4}

    run(config, out=tmp_path / "killed")
    lines = (tmp_path / "killed" / "clients.jsonl").read_bytes()
    assert lines == (tmp_path / "whole" / "clients.jsonl").read_bytes()


def test_with_patience_the_lines_of_the_last_evaluation_count(tmp_path):
    config = chosen("fedavg_ft", every=1, select="last", patience=1)
    assert run(config, out=tmp_path / "run")["rounds"] < 4, "the test needs a run that stops early"
    (seed,) = read_records(read_methods([tmp_path / "run"])[0]).seeds.values()
    for point in ("global", "personalized"):
        assert seed.metric("auroc", point) is not None
