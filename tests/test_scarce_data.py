"""benchmarks/scarce_data.py: what a setting is selected on, what a record holds, and what the
tables say."""

import importlib
import json
import sys

import pytest

from fedtailor.algorithms.pfedfda import PFedFDA
from fedtailor.core.errors import RunError


@pytest.fixture
def scarce_data(monkeypatch, tmp_path):
    """The benchmark, with an empty folder for its records."""
    monkeypatch.setattr("sys.path", [*sys.path, "benchmarks"])
    module = importlib.import_module("scarce_data")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def record(module, setting, stage, scores, world="digits-25"):
    """Write the records of a setting with these accuracies, in the order of the seeds."""
    for seed, score in zip(module.SEEDS[stage], scores, strict=True):
        points = ["validation"] if stage == "select" else ["global", "personalized"]
        accuracy = {point: dict.fromkeys(("pooled", "mean", "worst10"), score) for point in points}
        run = module.Run(world, setting, stage, seed)
        run.path.write_text(json.dumps({"accuracy": accuracy}))


def write_searches(module, best):
    """Write validation scores of all settings to select from: those given, and 0.5 for the
    others."""
    for _ in range(2):  # the second search for a ridge follows from the selected prior
        for setting in {
            setting for search in module.searches("digits-25").values() for setting in search
        }:
            score = best.get(setting, 0.5)
            record(module, setting, "select", [score - 0.01, score, score + 0.01])


@pytest.mark.parametrize(
    ("stage", "points"), [("select", {"validation"}), ("test", {"global", "personalized"})]
)
def test_a_record_of_a_run_that_selects_holds_no_test_scores(
    scarce_data, monkeypatch, stage, points
):
    small = {**scarce_data.DEMO, "federation": {"rounds": 1}}
    monkeypatch.setitem(scarce_data.WORLDS, "digits-25", small)
    run = scarce_data.Run("digits-25", "pfedfda-floor0.1-ridge0.3", stage, 1)
    made = scarce_data.make_record(run, "")
    assert set(made["accuracy"]) == set(made["examples"]) == points
    assert made["seed"] == 1
    assert made["algorithm"] == {"name": "pfedfda", "prior_smoothing": 0.1, "cov_ridge": 0.3}
    assert 0 < made["diagnostics"]["beta_means"] < 1


def test_runs_that_select_keep_a_fifth_of_the_training_examples_for_validation(scarce_data):
    run = scarce_data.Run("cifar10-5", "fedavg_ft-epochs2", "select", 0)
    assert scarce_data.configuration(run, "")["data"]["val_fraction"] == 0.2
    assert scarce_data.configuration(run._replace(stage="test"), "")["data"]["val_fraction"] == 0.0


def test_the_seed_drives_the_run_and_the_division(scarce_data):
    values = scarce_data.configuration(
        scarce_data.Run("cifar10-5", "fedavg_ft-epochs2", "select", 4), ""
    )
    assert values["seed"] == 4
    assert values["data"]["seed"] == "run"


def test_one_command_makes_every_record(scarce_data, monkeypatch):
    """The last tests follow from selections in all federations."""
    monkeypatch.setattr(scarce_data, "make_record", made_up)
    scarce_data.run_missing(list(scarce_data.WORLDS), "")
    for world in scarce_data.WORLDS:
        tested = {run.setting for run in scarce_data.planned(world) if run.stage == "test"}
        assert scarce_data.common_setting() in tested
        assert all(run.path.exists() for run in scarce_data.planned(world))


def made_up(run, data_dir):
    """Return a record in which a smooth prior with a ridge of 0.5 is the best."""
    score = 0.6 if run.setting == "pfedfda-floor0.1-ridge0.5" else 0.5
    points = ("validation", "global", "personalized")
    return {
        "accuracy": {point: dict.fromkeys(("pooled", "mean", "worst10"), score) for point in points}
    }


def test_only_a_run_in_which_nobody_can_train_is_a_result(scarce_data, monkeypatch):
    def without_disk(config, out):
        raise RunError("no space left")

    monkeypatch.setattr("fedtailor.experiment.run.run", without_disk)
    with pytest.raises(RunError, match="no space left"):
        scarce_data.make_record(scarce_data.Run("digits-25", "fedavg_ft-epochs1", "select", 0), "")


def test_nothing_is_tested_before_all_validation_scores_are_there(scarce_data):
    assert {run.stage for run in scarce_data.planned("digits-25")} == {"select"}
    best = {"pfedfda-blend-ridge1": 0.8, "pfedfda-blend-ridge0.1": 0.9, "fedavg_ft-epochs10": 0.6}
    write_searches(scarce_data, best)
    tests = [run for run in scarce_data.planned("digits-25") if run.stage == "test"]
    assert {run.setting for run in tests} == {*scarce_data.DEFAULTS, *best}
    assert len(tests) == 5 * len(scarce_data.SEEDS["test"])


def test_a_selected_setting_is_the_best_on_validation_examples_and_not_on_test_examples(
    scarce_data,
):
    settings = ["pfedfda-floor0.0001-ridge1", "pfedfda-floor0.1-ridge1"]
    record(scarce_data, settings[0], "select", [0.6, 0.6, 0.6])
    assert scarce_data.selected("digits-25", settings) is None
    record(scarce_data, settings[1], "select", [0.5, 0.5, 0.9])
    record(scarce_data, settings[0], "test", [0.9] * 5)
    record(scarce_data, settings[1], "test", [0.1] * 5)
    assert scarce_data.selected("digits-25", settings) == settings[1]


def test_a_setting_with_which_a_run_ended_early_is_not_selected(scarce_data):
    settings = ["pfedfda-floor0.0001-ridge1", "pfedfda-floor0.0001-ridge0.01"]
    for setting in settings:
        record(scarce_data, setting, "select", [0.5, 0.5, 0.6])
    ended = scarce_data.Run("digits-25", settings[1], "select", 1)
    ended.path.write_text(json.dumps({"ended": "round 4: no client did usable work"}))
    assert scarce_data.selected("digits-25", settings) == settings[0]
    rows = dict(
        line.strip("| ").split(" | ")
        for line in scarce_data.validation_table(["digits-25"]).splitlines()[2:]
    )
    assert rows["pFedFDA, floor 0.0001, ridge 0.01"] == "ended"


def test_a_run_that_ends_early_has_a_record_that_says_why(scarce_data, monkeypatch):
    world = {**scarce_data.DEMO, "training": {**scarce_data.DEMO["training"], "lr": 1e30}}
    monkeypatch.setitem(scarce_data.WORLDS, "digits-25", world)
    made = scarce_data.make_record(
        scarce_data.Run("digits-25", "fedavg_ft-epochs1", "select", 0), ""
    )
    assert made["ended"].startswith("round ")
    assert "accuracy" not in made
    assert made["rounds"] == 0


def test_differences_are_paired_by_seed_and_have_intervals_of_student(scarce_data):
    best = {
        "pfedfda-floor0.1-ridge1": 0.9,
        "pfedfda-floor0.0001-ridge0.3": 0.8,
        "fedavg_ft-epochs5": 0.6,
    }
    write_searches(scarce_data, best)
    record(scarce_data, "pfedfda-floor0.0001-ridge1", "test", [0.5, 0.6, 0.7, 0.8, 0.9])
    record(scarce_data, "pfedfda-floor0.1-ridge1", "test", [0.51, 0.62, 0.73, 0.84, 0.95])
    record(scarce_data, "pfedfda-floor0.0001-ridge0.3", "test", [0.5, 0.6, 0.7, 0.8, 0.9])
    record(scarce_data, "fedavg_ft-epochs5", "test", [0.5] * 5)
    row = scarce_data.test_table(["digits-25"], "mean").splitlines()[2].strip("| ").split(" | ")
    # 5 points, deviation sqrt(2.5) = 1.581 points, t = 2.776 with 4 degrees of freedom
    assert row[1:3] == ["70.0 ± 19.6", "70.0 ± 19.6"]  # personalized models and the global one
    assert row[3] == "floor 0.1, ridge 1: 73.0 (+3.0 ± 2.0)"
    assert row[4] == "floor 0.0001, ridge 0.3: 70.0 (+0.0 ± 0.0)"
    assert row[5] == row[3]  # with the selected prior, the default ridge is the best
    assert row[6:] == ["-", "50.0 ± 0.0", "the default"]


def test_the_common_setting_is_the_best_over_all_federations(scarce_data):
    steady = "pfedfda-floor0.1-ridge0.5"
    for world in scarce_data.SEARCHED:
        assert scarce_data.common_setting() is None
        for setting in scarce_data.COMMON:
            record(scarce_data, setting, "select", [0.6 if setting == steady else 0.5] * 3, world)
    record(
        scarce_data, "pfedfda-floor0.0001-ridge0.3", "select", [0.9] * 3, "cifar10-5"
    )  # 0.4 better, but only here
    assert scarce_data.common_setting() == steady
    for world in scarce_data.CHECKS:
        assert {run.setting for run in scarce_data.planned(world)} == {
            "pfedfda-floor0.0001-ridge1",
            steady,
        }
        assert {run.stage for run in scarce_data.planned(world)} == {"test"}
    ended = scarce_data.Run("cifar10-25", steady, "select", 2)
    ended.path.write_text(json.dumps({"ended": "round 4: no client did usable work"}))
    assert scarce_data.common_setting() == "pfedfda-floor0.0001-ridge0.3"


def test_the_preset_is_the_setting_that_the_records_select(monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path, "benchmarks"])
    module = importlib.import_module("scarce_data")
    options = {
        name: value
        for name, value in module.SETTINGS[module.common_setting()].items()
        if name != "name"
    }
    assert options == dict(PFedFDA.presets["tuned"])


def test_validation_scores_are_shown_as_differences_from_the_default(scarce_data):
    write_searches(scarce_data, {"pfedfda-floor0.1-ridge1": 0.9})
    rows = dict(
        line.strip("| ").split(" | ")
        for line in scarce_data.validation_table(["digits-25"]).splitlines()[2:]
    )
    assert rows["pFedFDA, floor 0.0001, ridge 1"] == "50.0 ± 2.5"
    assert rows["pFedFDA, floor 0.1, ridge 1"] == "+40.0 ± 0.0"
    assert rows["FedAvg-FT, 1 epoch"] == "+0.0 ± 0.0"
