"""Settings of cells against what papers and released code state. A slip here changes a number, and
nothing else."""

from functools import cache
from pathlib import Path

import pytest

from fedtailor.core.adaptation import describe
from fedtailor.experiment.assembly import make_algorithm
from fedtailor.experiment.config import make_config
from fedtailor.papers.tables import cells, expand, load_paper

FOLDER = Path(__file__).resolve().parents[2] / "experiments"


@cache
def paper(name):
    return load_paper(name, FOLDER)


# ---------------------------------------------------------------- FedCR (Zhang et al. 2023)

FEDCR_METHODS = list(paper("fedcr").tables["2"].reference)
FEDCR_RATES = {0.5, 0.1, 0.05, 0.01, 0.005, 0.001}
"""The grid of appendix A.1.3."""
HEAD_EPOCHS = {"fedrep": 9, "fedpac": 9}
"""Epochs of the head, of the ten in all; the body has the others. Released: ``local_ep`` 10 and
``local_rep_ep`` 1."""
EXAMPLE_RATES = {"ditto": 0.5, "fedsr": 0.005, "fedcr": 0.05}
"""Learning rates of the release's example, which is CIFAR100, non-iid_2; those of all others are
0.01."""
FINAL_ROUND = {
    "ditto": "none",  # the final round is one of training
    "lg_fedavg": "10 epochs of the lower layers",
}
"""What clients do before they predict; 10 epochs of the head elsewhere. FedAvg is read from
FedAvg-FT, before it."""


@pytest.mark.parametrize("method", FEDCR_METHODS)
def test_fedcr_trains_ten_local_epochs_with_one_rate_of_the_grid(method):
    for cell in cells(paper("fedcr"), "2", method=method):
        training = cell.values["training"]
        algorithm = cell.values["algorithm"]
        if method != "fedcr":  # whose head_epochs are those of the final round
            assert algorithm.get("head_epochs", 0) == HEAD_EPOCHS.get(method, 0)
        assert training["epochs"] + HEAD_EPOCHS.get(method, 0) == 10
        assert algorithm.get("personal_epochs", 10) == 10
        assert training["lr"] in FEDCR_RATES
        assert algorithm.get("head_lr", training["lr"]) == training["lr"]


@pytest.mark.parametrize("method", FEDCR_METHODS)
def test_fedcr_final_round(method):
    """Private layers are tuned and shared ones frozen: lower ones for LG-FedAvg, which shares the
    top."""
    for cell in cells(paper("fedcr"), "2", method=method):
        algorithm = make_algorithm(make_config(cell.values))
        assert describe(algorithm.adaptation) == FINAL_ROUND.get(method, "10 epochs of the head")
        is_trained = method == "ditto"
        rounds = 250 if cell.column.startswith("fmnist") else 500
        assert cell.values["federation"]["full_last_round"] == is_trained
        assert cell.values["federation"]["rounds"] == rounds + is_trained


def test_fedcr_lg_fedavg_shares_the_upper_two_layers():
    """A layer less is another method, and what clients tune in the final round depends on it."""
    for cell in cells(paper("fedcr"), "2", method="lg_fedavg"):
        assert cell.values["algorithm"]["shared_layers"] == 2


def test_fedcr_example_of_the_release():
    """Only this column's learning rates are documented, so only they are not inferred."""
    for cell in cells(paper("fedcr"), "2", column="cifar100_2"):
        assert cell.values["training"]["lr"] == EXAMPLE_RATES.get(cell.method, 0.01)
        assert "training.lr" not in cell.inferred and "algorithm.head_lr" not in cell.inferred


def test_fedcr_penalties_of_ditto_are_those_of_the_text():
    stated = {"emnist_l": 0.1, "fmnist": 0.001, "cifar100_1": 0.001, "cifar100_2": 0.01}
    for cell in cells(paper("fedcr"), "2", method="ditto"):
        found = [value for prefix, value in stated.items() if cell.column.startswith(prefix)]
        assert ("algorithm.penalty" in cell.inferred) == (not found)
        assert cell.values["algorithm"]["penalty"] == (found or [0.001])[0]


@pytest.mark.parametrize("table", ["2", "10"])
def test_fedcr_notes_say_what_the_release_does_otherwise(table):
    notes = " ".join(paper("fedcr").tables[table].notes)
    assert (
        "FedPAC averages class means over their dimensions" in notes
        and "no evidence about feature alignment" in notes
    )
    assert "penalty of 0.1 for Ditto (text: 0.01)" in notes


# ---------------------------------------------------------------- pFedVEM (Zhu et al. 2023), Table
# 4

USUAL_RATES = {0.01, 0.001, 0.0001}
HIGHER_RATES = {0.1, 0.01, 0.001}
EPOCHS = {5, 10, 20}
BATCHES = {10, 50, 100}
GRIDS = {
    "local": {
        "training.lr": {0.001, 0.0001},
        "training.batch_size": BATCHES,
        "training.epochs": {20},
    },
    "fedavg": {
        "training.lr": USUAL_RATES,
        "training.batch_size": BATCHES,
        "training.epochs": EPOCHS,
    },
    "fedprox": {
        "training.lr": USUAL_RATES,
        "training.batch_size": BATCHES,
        "training.epochs": EPOCHS,
        "algorithm.penalty": {0.1, 1, 10},
    },
    "scaffold": {
        "training.lr": HIGHER_RATES,
        "training.batch_size": BATCHES,
        "training.epochs": EPOCHS,
    },
    "fedper": {
        "training.lr": USUAL_RATES,
        "training.batch_size": BATCHES,
        "training.epochs": EPOCHS,
    },
    "fedrep": {
        "training.lr": USUAL_RATES,
        "training.batch_size": BATCHES,
        "training.epochs": EPOCHS,
        "algorithm.head_epochs": EPOCHS,
    },
    "ifca": {"training.lr": USUAL_RATES, "training.batch_size": BATCHES, "training.epochs": EPOCHS},
    "perfedavg": {
        "algorithm.inner_lr": HIGHER_RATES,
        "training.lr": HIGHER_RATES,
        "training.steps": {5, 25, 50},
        "training.batch_size": BATCHES,
    },
    "pfedme": {
        "algorithm.outer_lr": USUAL_RATES,
        "algorithm.penalty": {1, 10, 15},
        "training.steps": EPOCHS,
        "training.batch_size": BATCHES,
    },
    "pfedbayes": {
        "algorithm.personal_lr": USUAL_RATES,
        "algorithm.global_lr": USUAL_RATES,
        "algorithm.penalty": {1, 10, 15},
        "training.epochs": EPOCHS,
        "algorithm.initial_scale": {1, 0.1, 0.01, 0.001},
    },
    "pfedvem": {
        "algorithm.head_lr": USUAL_RATES,
        "algorithm.head_steps": EPOCHS,
        "algorithm.initial_scale": {1},
    },
}
"""What the paper searches for each method: a cell must take one of these values."""


def outside_the_grid(cell):
    found = []
    for key, allowed in GRIDS[cell.method].items():
        name, _, option = key.partition(".")
        value = cell.values[name][option]
        if value not in allowed:
            found.append(f"{cell.column}: {key} is {value}, not one of {sorted(allowed)}")
    return found


@pytest.mark.parametrize("method", GRIDS)
def test_pfedvem_settings_are_of_the_grid_that_the_paper_searches(method):
    tables = [name for name, table in paper("pfedvem").tables.items() if method in table.reference]
    own = [cell for name in tables for cell in cells(paper("pfedvem"), name, method=method)]
    assert {cell.column for cell in own} >= set(paper("pfedvem").tables["1"].columns)
    assert [sentence for cell in own for sentence in outside_the_grid(cell)] == []


def test_pfedvem_every_method_of_table_1_has_a_grid():
    assert set(paper("pfedvem").tables["1"].reference) == set(GRIDS)


def test_local_has_its_own_rate_where_the_column_has_a_higher_one():
    for column in ("cifar100_50", "sun397_200"):
        local = expand(paper("pfedvem"), "1", column, "local")
        assert local.values["training"]["lr"] == 0.001 and "training.lr" in local.inferred
        assert expand(paper("pfedvem"), "1", column, "fedavg").values["training"]["lr"] == 0.01
