"""``fedtailor privacy plan``: noise for a budget, a budget for a noise, and wrong values."""

import json

import pytest

from fedtailor.cli.main import main
from fedtailor.core.errors import DataError
from fedtailor.experiment import expected_loss
from fedtailor.experiment.config import make_config
from fedtailor.privacy.accountant import Release, epsilon_of


def plan(capsys, *options):
    assert main(["privacy", "plan", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_noise_for_a_budget(capsys):
    record = plan(capsys, "--rounds", "30", "--set", "privacy.epsilon=8")
    (row,) = record["plans"]
    assert row["noise"] == pytest.approx(3.29, abs=0.01)
    assert 7.99 < row["epsilon"] <= 8
    assert row["epsilon_known_cohort"] == row["epsilon"]


def test_the_budget_for_a_noise_where_clients_are_drawn(capsys):
    options = ["--rounds", "20", "--participation", "0.3", "--set", "privacy.noise=2.5"]
    (row,) = plan(capsys, *options, "--clients", "300")["plans"]
    releases = [Release(2.5, 0.3, 19), Release(2.5, 1.0, 1)]  # all take part in the last round
    assert row["epsilon"] == pytest.approx(epsilon_of(1e-5, releases))
    assert row["epsilon_known_cohort"] > row["epsilon"]

    # Of 20 clients, often nobody is drawn, and then again.
    (row,) = plan(capsys, *options, "--clients", "20")["plans"]
    assert row["epsilon_known_cohort"] == row["epsilon"]


def test_methods_of_few_exchanges_have_rounds_of_their_own(capsys):
    options = ["--clients", "10", "--rounds", "30", "--participation", "0.3"]
    options += ["--set", "privacy.unit=client", "--set", "privacy.noise=2.5"]
    record = plan(capsys, "--set", "algorithm.name=fedncm", *options)
    assert (record["rounds"], record["participation"]) == (1, "all")
    assert record["plans"][0]["epsilon"] == pytest.approx(epsilon_of(1e-5, [Release(2.5, 1.0, 1)]))


def test_without_a_budget_there_is_a_line_for_usual_ones(capsys):
    assert main(["privacy", "plan", "--rounds", "10"]) == 0
    text = capsys.readouterr().out
    assert [f"epsilon {budget}.00" in text for budget in (8, 4, 2, 1)] == [True] * 4


def test_a_budget_below_zero_is_named(capsys):
    assert main(["privacy", "plan", "--set", "privacy.epsilon=-1"]) == 3
    assert "privacy.epsilon must be >= 0" in capsys.readouterr().err


def test_a_plan_with_the_expected_loss(capsys):
    options = [
        "-d",
        "digits",
        "--set",
        "data.clients=4",
        "--rounds",
        "2",
        "--set",
        "data.partition=iid",
    ]
    options += ["--set", "algorithm.name=fedavg", "--set", "data.fraction=0.2"]
    options += ["--set", "privacy.unit=example", "--set", "privacy.noise_from=sites"]
    options += ["--set", "privacy.epsilon=0.2", "--simulate"]
    record = plan(capsys, *options)
    (row,) = record["plans"]
    assert record["without_noise"].keys() == row["accuracy"].keys() == {"global", "personalized"}
    assert row["accuracy"]["global"] < record["without_noise"]["global"]

    # The same in words; the budget says how much noise it was.
    assert main(["privacy", "plan", *options]) == 0
    said = capsys.readouterr()
    assert "epsilon 0.20 (delta 1e-05) per example. Expected: global" in said.out
    assert "Without noise: global" in said.out
    assert "run 2 of 2: epsilon 0.20" in said.err


def test_no_loss_can_be_expected_without_test_examples(monkeypatch):
    untested = {"metrics": {"global": {"clients": {"evaluated": 0}}}}
    monkeypatch.setattr(expected_loss, "run", lambda *_, **__: untested)
    config = make_config({})
    with pytest.raises(DataError, match="no client has test examples"):
        expected_loss.expected_accuracies(config, config.privacy)
