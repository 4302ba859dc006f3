"""The papers' figures from records, and what records keep for them."""

import json
from pathlib import Path

import pytest

from fedtailor.experiment.config import make_config
from fedtailor.experiment.records import read_run
from fedtailor.experiment.run import run
from fedtailor.papers.figures import FIGURES, MISSING, draw
from fedtailor.papers.runs import scores_by_client
from fedtailor.papers.tables import expand, load_paper, paper_names
from fedtailor.papers.training import training_metrics

FOLDER = Path(__file__).resolve().parents[2] / "experiments"


def figure(paper, name):
    return next(each for each in FIGURES[paper] if each.name == name)


def record(paper, table, column, method, seed=0, **entries):
    cell = expand(load_paper(paper, FOLDER), table, column, method, seed)
    return {"column": column, "method": method, "seed": seed, "config": cell.values, **entries}


def rows_of(picture):
    """Return the marks of the panels; panels with the same marks share them."""
    return list(picture.to_dict()["datasets"].values())


def test_every_figure_belongs_to_a_paper():
    assert set(FIGURES) == set(paper_names(FOLDER)) and set(MISSING) <= set(FIGURES)
    for figures in FIGURES.values():
        assert len({each.name for each in figures}) == len(figures)


def test_nothing_is_drawn_without_records_that_have_it():
    for paper, figures in FIGURES.items():
        (table, *_) = load_paper(paper, FOLDER).tables
        entry = load_paper(paper, FOLDER).tables[table]
        bare = record(paper, table, entry.columns[0], next(iter(entry.reference)))
        for each in figures:
            assert draw(load_paper(paper, FOLDER), each, []) is None
            assert draw(load_paper(paper, FOLDER), each, [bare]) is None


def test_beta_by_corruption_and_size():
    by_client = {
        "num_train": [10, 20, 30],
        "condition": ["gaussian_noise-3", "clean", "clean"],
        "diagnostics": {"beta_means": [0.75, 0.25, None]},
    }
    own = record("pfedfda", "1", "cifar10_s_25", "pfedfda", seed=2, by_client=by_client)
    local = record("pfedfda", "5", "cifar100_s_dir01", "pfedfda_nb", by_client=by_client)  # beta is 1: nothing to see
    picture = draw(load_paper("pfedfda", FOLDER), figure("pfedfda", "beta"), [own, local])
    (rows,) = rows_of(picture)
    assert [(row["corruption"], row["value"]) for row in rows] == [("gaussian_noise", 0.75), ("clean", 0.25)]
    assert [(row["client"], row["num_train"]) for row in rows] == [(0, 10), (1, 20)]
    strips, points = picture.to_dict()["vconcat"]
    assert strips["layer"][0]["encoding"]["y"]["scale"]["domain"] == ["clean", "gaussian_noise"]
    assert points["encoding"]["x"]["field"] == "num_train"
    text = " ".join(picture.to_dict()["title"]["subtitle"])
    assert text.startswith("Seed 2. The paper's Figure 2: clients with clean data have a smaller beta")


def test_clean_clients_have_no_strips():
    by_client = {"num_train": [10, 20], "diagnostics": {"beta_means": [0.75, 0.25]}}
    own = record("pfedfda", "2", "cifar10_dir05", "pfedfda", by_client=by_client)
    picture = draw(load_paper("pfedfda", FOLDER), figure("pfedfda", "beta"), [own])
    assert len(picture.to_dict()["vconcat"]) == 1


def test_shares_of_the_confidence():
    last = {"client": [0, 2, 5], "confidence": [1.0, 2.0, None], "model_deviation": [0.1, 0.2, 0.3]}
    own = record("pfedvem", "6", "cifar10_100_5000", "pfedvem", training={"last_round": last})
    paper = load_paper("pfedvem", FOLDER)
    (rows,) = rows_of(draw(paper, figure("pfedvem", "confidence"), [own]))
    assert [(row["client"], row["value"]) for row in rows] == [(0, 1 / 3), (2, 2 / 3)]
    (rows,) = rows_of(draw(paper, figure("pfedvem", "deviation"), [own]))
    assert [row["value"] for row in rows] == [0.1, 0.2, 0.3]


def test_accuracy_at_the_point_of_the_method():
    by_client = {"num_train": [5, 9], "num_test": [4, 10], "correct": {"local": [1, 5], "personalized": [4, 10]}}
    own = record("pfedvem", "6", "cifar10_100_5000", "pfedvem", by_client=by_client)
    (rows,) = rows_of(draw(load_paper("pfedvem", FOLDER), figure("pfedvem", "accuracy-by-size"), [own]))
    assert [row["value"] for row in rows] == [0.25, 0.5]


def test_curves_of_methods_with_a_global_model_are_of_that_model():
    curve = [{"round": 5, "point": "local", "clients": "known", "mean": 0.9}]
    curve.append({"round": 5, "point": "global_complete", "clients": "known", "mean": 0.6})
    own = record("pfedvem", "1", "fmnist_100", "fedavg", curve=curve)
    (rows,) = rows_of(draw(load_paper("pfedvem", FOLDER), figure("pfedvem", "curves"), [own]))
    assert [row["value"] for row in rows] == [0.6]


def test_curves_are_of_local_models_of_known_clients():
    curve = [
        {"round": 10, "point": "local", "clients": "known", "mean": 0.5},
        {"round": 10, "point": "local", "clients": "new", "mean": 0.1},
        {"round": 10, "point": "global", "clients": "known", "mean": 0.2},
    ]
    records = [record("fedcr", "2", "fmnist_1", method, curve=curve) for method in ("fedcr", "fedper")]
    (rows,) = rows_of(draw(load_paper("fedcr", FOLDER), figure("fedcr", "curves"), records))
    assert [(row["method"], row["value"]) for row in rows] == [("FedCR", 0.5), ("FedPer", 0.5)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a run of pFedFDA with 25 rounds of almost nothing."""
    values = {
        "data": {"clients": 3, "fraction": 0.1},
        "model": {"options": {"hidden": 4}},
        "training": {"epochs": 1},
        "federation": {"rounds": 25, "participation": "fixed(2)", "full_last_round": False},
        "evaluation": {"every": 0},
        "engine": {"name": "reference"},
    }
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(make_config(values), out=folder)
    return read_run(folder)


def test_training_metrics_of_a_run(finished):
    found = training_metrics(finished)
    assert found["curve"]["round"] == [1, *range(2, 25, 2), 25]
    surprise = [
        finished.rounds[number - 1]["training_metrics"]["feature_surprise"] for number in found["curve"]["round"]
    ]
    assert found["curve"]["feature_surprise"] == pytest.approx(surprise, rel=1e-5)
    lines = [line for line in finished.clients if line["round"] == 25 and line["point"] == "training"]
    assert found["last_round"]["client"] == [line["client"] for line in lines] and len(lines) == 2
    assert found["last_round"]["loss"] == pytest.approx([line["training_metrics"]["loss"] for line in lines], rel=1e-5)


def test_scores_by_client_of_a_run(finished):
    found = scores_by_client(finished)
    lines = [line for line in finished.clients if line["point"] == "personalized"]
    assert [line["client"] for line in lines] == [0, 1, 2]
    accuracies = [correct / size for correct, size in zip(found["correct"]["personalized"], found["num_test"])]
    assert accuracies == pytest.approx([line["accuracy"] for line in lines])
    betas = [line["diagnostics"]["beta_means"] for line in lines]
    assert found["diagnostics"]["beta_means"] == pytest.approx(betas, abs=1e-6)
    assert sum(correct is not None for correct in found["correct"]["local"]) == 2


def test_the_command_draws_what_there_is(tmp_path, monkeypatch, capsys):
    from fedtailor.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedtailor.papers.tables.experiments_folder", lambda: FOLDER)
    curve = {"round": [1, 2], "feature_surprise": [3.0, 2.0]}
    cell = expand(load_paper("fedlda", FOLDER), "small", "cifar10_cnn_500", "fedlda")
    entry = record("fedlda", "small", "cifar10_cnn_500", "fedlda", digest=cell.digest, result={})
    place = tmp_path / "results" / "fedlda"
    place.mkdir(parents=True)
    (place / "one.json").write_text(json.dumps(entry | {"training": {"curve": curve}}))
    command = ["experiments", "figures", "fedlda", "--results", "results", "--ending", "svg"]
    assert main([*command, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["figures"]
    assert first["path"] == "figures-fedlda/gaussianity.svg" and second["path"] is None
    assert "<svg" in Path(first["path"]).read_text()
    assert main(command) == 3 and "already exists and is never overwritten" in capsys.readouterr().err
    assert main([*command, "--out", "other"]) == 0
    text = capsys.readouterr().err
    assert "Figure 1a" in text and "Figure 1b (FedLDA: accuracy by round): no record has what it needs yet" in text
