"""The figures of the papers: what is measured on trained models, and what is drawn of records."""

import shutil

import numpy as np
import pytest

from experiments import calibration, features, search
from experiments.__main__ import main
from experiments.curve import figure
from experiments.paper import FOLDER, load_paper
from experiments.records import read_records
from experiments.search import read_trials
from experiments.sizes import SETTINGS, draw_sizes, table
from fedtailor.core.atomic import to_json

PAPER = """
[paper]
title = "Small"
authors = "Nobody"
venue = "Nowhere"
year = 2024

[base]
data = {partition = "iid", clients = 4}
model = {name = "mlp", options = {hidden = 8}}
training = {lr = 0.1, epochs = 1}
federation = {rounds = 1}
evaluation = {every = 0}

[columns.plain]
label = "Digits"

[methods.drawn]
label = "Drawn"
point = "personalized"
algorithm = {name = "experiments.features:TrainedOnceMore", latent_dim = 2}

[methods.fedcr]
label = "FedCR"
point = "personalized"
algorithm = {name = "fedcr", latent_dim = 4, beta = 0.001}

[methods.fedcr_free]
label = "FedCR, beta 0"
point = "personalized"
based_on = "fedcr"
algorithm = {beta = 0.0}

[searches.fedcr]
table = "beta"
column = "plain"
values = {"training.lr" = [0.1, 0.00001]}

[tables.features]
title = "Features"
columns = ["plain"]
measure = "features"
reference = {drawn = [nan]}

[tables.beta]
title = "By beta"
columns = ["plain"]
unit = "percent"
over = "algorithm.beta"
measure = "calibration"
reference = {fedcr = [60.0], fedcr_free = [nan]}

[tables.plain]
title = "Without a figure, with a cell of the other table"
columns = ["plain"]
reference = {fedcr = [0.6]}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with a small paper, which is also the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "paper.toml").write_text(PAPER)
    return tmp_path


def test_features_of_a_client_are_in_its_record_and_drawn(folder, capsys):
    assert main(["run", "small", "features"], folder) == 0
    (record,) = read_records("small", folder)
    measured = record["features"]
    assert np.array(measured["points"]).shape == (len(measured["labels"]), 2)

    assert main(["figure", "small", "features", "features.svg"], folder) == 0
    assert "Digits" in capsys.readouterr().out
    assert (folder / "features.svg").read_text().startswith("<svg")


def test_the_share_of_variance_within_classes():
    points = np.array([[0.0, 0.0], [0.0, 2.0], [4.0, 0.0], [4.0, 2.0]])
    assert features.within_classes(points, np.array([0, 0, 1, 1])) == pytest.approx(0.2)
    assert features.within_classes(points, np.arange(4)) == 0.0


def test_calibration_with_all_samples_is_that_of_the_run(folder, capsys):
    """The run averages logits over 18 samples, so this is the same prediction."""
    # One of the cells is run for another table, which wants no calibration.
    assert main(["run", "small", "plain"], folder) == 0
    assert main(["run", "small", "beta"], folder) == 0
    assert len(read_records("small", folder)) == 2
    for record in read_records("small", folder):
        whole = record["calibration"]["mean_logits"]["18"]
        accuracy = record["result"]["metrics"]["personalized"]["accuracy"]
        assert whole["accuracy"] == pytest.approx(accuracy["pooled"], abs=1e-5)
        assert record["calibration"]["mean_probabilities"].keys() == {"1", "4", "18"}

    paper = load_paper("small", folder)
    rows = calibration.table(paper, "beta", read_records("small", folder)).rows
    assert len(rows) == 12


def test_the_figure_of_a_table_has_ours_and_printed_numbers(folder):
    assert main(["run", "small", "beta"], folder) == 0
    drawn = figure(load_paper("small", folder), "beta", read_records("small", folder))
    assert [panel.title for panel in drawn.panels] == ["Digits"]
    betas = {row[2]: row[-1] for row in drawn.table.rows}
    assert betas == {0.001: 60.0, 0.0: None}
    assert '"value": 0.001' in to_json(drawn.panels[0].chart.to_dict())


def test_a_table_without_a_figure_or_a_record_is_refused(folder, capsys):
    assert main(["figure", "small", "beta"], folder) == 2
    assert "run small beta" in capsys.readouterr().err
    assert main(["figure", "small", "plain"], folder) == 2
    assert "features, beta" in capsys.readouterr().err


def test_calibration_without_records_and_a_paper_without_grids_are_refused(tmp_path, capsys):
    for name in ("fedcr", "pfedvem"):
        (tmp_path / name).mkdir()
        shutil.copy(FOLDER / name / "paper.toml", tmp_path / name)

    assert main(["calibration"], tmp_path) == 2
    assert "run fedcr figure_3d" in capsys.readouterr().err
    assert main(["search", "fedcr"], tmp_path) == 3
    assert "these have some: pfedvem" in capsys.readouterr().err


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_sizes_follow_the_law_of_the_text(setting):
    sizes = draw_sizes(setting, 100, divisions=20)
    total = setting.labels * setting.subclasses * setting.size
    assert sizes.shared.sum() == sizes.separate.sum() == 20 * total

    # The median of 2,000 clients; a client gets one example or more of each of its types.
    (row,) = table([sizes]).rows
    ours, law = row[6], row[9]
    assert ours == pytest.approx(law, rel=0.1)
    assert sizes.shared.min() >= setting.types_of_a_client


def test_fifty_clients_of_sun397_are_equal():
    assert set(draw_sizes(SETTINGS[2], 50, divisions=2).shared) == {240}


def test_a_search_writes_its_trials_once_and_chooses_by_validation_examples(folder, capsys):
    assert main(["search", "small", "--list"], folder) == 0
    assert "fedcr: 2 of 2 combinations" in capsys.readouterr().out

    assert main(["search", "small"], folder) == 0
    trials = read_trials(load_paper("small", folder), folder)
    assert [trial.values for trial in trials] == ["training.lr=0.1", "training.lr=1e-05"]
    best = max(trials, key=lambda trial: trial.validation_percent)

    capsys.readouterr()
    assert main(["search", "small", "FedCR"], folder) == 0
    assert capsys.readouterr().out.endswith(f"1 rounds, {best.values}\n")
    assert main(["search", "small", "fedper"], folder) == 3


def test_a_search_tries_a_part_of_a_large_grid(folder, capsys, monkeypatch):
    monkeypatch.setattr(search, "MOST_TRIALS", 1)
    assert main(["search", "small", "--list"], folder) == 0
    assert "fedcr: 1 of 2 combinations" in capsys.readouterr().out

    assert main(["search", "small"], folder) == 0
    assert len(read_trials(load_paper("small", folder), folder)) == 1
