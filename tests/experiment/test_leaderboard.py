"""A leaderboard runs what has no record, chooses without test examples, and can be repeated."""

import json
import math
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fedtailor.algorithms import ALGORITHMS
from fedtailor.core.errors import ConfigError, DataError, RunError, UsageError
from fedtailor.data import build
from fedtailor.experiment import baselines, leaderboard
from fedtailor.experiment.config import make_config
from fedtailor.experiment.leaderboard import (
    TRIALS,
    BoardFederation,
    Cell,
    is_done,
    make_cells,
    read_board,
    run_cells,
    without_older,
)
from fedtailor.experiment.sweep import make_searches
from fedtailor.experiment.sweep_options import SweepOptions
from fedtailor.experiment.tracking import RunProgress

SMALL = {
    "data": {"dataset": "digits", "partition": "iid", "clients": 3, "fraction": 0.4},
    "model": {"name": "mlp", "options": {"hidden": 16}},
    "training": {"epochs": 1, "batch_size": 5},
    "engine": {"name": "reference"},
}
TIMES = ("trial_seconds", "processor_seconds", "machine", "engine")


def shrink(monkeypatch):
    """Make one small federation the leaderboard."""
    federations = {"small": BoardFederation("digits", SMALL)}
    monkeypatch.setattr(leaderboard, "FEDERATIONS", federations)
    monkeypatch.setattr(leaderboard, "_SCHEDULE", {"rounds": 2})
    monkeypatch.setattr(leaderboard, "_RATES", [0.001, 0.1])
    monkeypatch.setattr(leaderboard, "VALUES", {"fedavg_ft": {"training.lr": [0.001, 0.3]}})


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Return the place of the records of a small leaderboard."""
    shrink(monkeypatch)
    return tmp_path / "records.jsonl"


class Board(NamedTuple):
    """The records of two methods, and how often baselines were trained for them."""

    path: Path
    trainings: int


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    path = tmp_path_factory.mktemp("board") / "records.jsonl"
    trainings = []
    train_all = baselines._train_all

    def counted(*args):
        trainings.append(None)
        return train_all(*args)

    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        patch.setattr(baselines, "_train_all", counted)
        assert run(path, "fedavg_ft", "local", only=["/0"]) == {}
    return Board(path, len(trainings))


def run(path, *methods, only=(), **options):
    cells = make_cells(methods, only=only)
    return run_cells(cells, path, work=path.parent / "work", **options)


def without_times(record):
    return {key: value for key, value in record.items() if key not in TIMES}


def test_every_method_has_right_options_and_no_more_trials_than_others():
    for method in ALGORITHMS:
        cell = Cell("digits", method, 0)
        options = SweepOptions(sampler="grid", values=dict(cell.tried))
        (search,) = make_searches(make_config(cell.sections()), options)
        assert 1 <= search.num_trials <= TRIALS, method
        tried = math.prod(len(values) for values in cell.tried.values())
        # A method without options to choose has one trial, and nothing else is tried in vain.
        assert search.num_trials == tried, method


def test_one_repetition_of_all_comes_before_the_next():
    cells = make_cells(["local", "Ditto"])
    assert [cell.repetition for cell in cells] == sorted(cell.repetition for cell in cells)
    assert {cell.method for cell in cells} == {"local", "ditto"}
    assert len({cell.digest for cell in cells}) == len(cells)
    assert [cell.name for cell in make_cells(only=["hospitals/", "fedrep/1"])] == [
        "hospitals/fedrep/1"
    ]


def test_folds_are_those_of_one_division():
    first, second = (Cell("hospitals", "local", number).sections() for number in (0, 1))
    assert (first["data"].pop("fold"), second["data"].pop("fold")) == (1, 2)
    assert first == second


def test_what_has_a_record_is_not_run_again(small, board):
    shutil.copy(board.path, small)
    records = read_board(small)
    assert list(records) == ["small/fedavg_ft/0", "small/local/0"]
    record = records["small/fedavg_ft/0"]
    assert [trial["values"] for trial in record["trials"]] == [
        {"training.lr": 0.001},
        {"training.lr": 0.3},
    ]
    best = max(record["trials"], key=lambda trial: trial["validation"])
    assert record["chosen"] == best["values"] and record["validation"] == best["validation"]
    assert len(record["accuracies"]) == 3 and record["rounds"] == 2
    assert not list((board.path.parent / "work").glob("small*"))

    said = []
    assert run(small, "fedavg_ft", only=["/0"], say=said.append) == {} and said == []
    assert small.read_bytes() == board.path.read_bytes()


@pytest.mark.slow
def test_another_repetition_has_another_division(small, board):
    shutil.copy(board.path, small)
    run(small, "fedavg_ft", only=["/1"])
    assert small.read_text().startswith(board.path.read_text()) and len(read_board(small)) == 3
    first, second = (read_board(small)[f"small/fedavg_ft/{number}"] for number in (0, 1))
    assert first["split_sha256"] != second["split_sha256"]


def test_every_method_is_judged_by_the_same_models_of_the_clients(board):
    """Clients without names have verdicts, too, and their baselines are trained once."""
    assert board.trainings == 1
    first, second = read_board(board.path).values()
    assert first["baselines"] == second["baselines"]
    assert first["baselines"]["alone_models"] == ["logistic_regression"] * 3
    assert first["baselines"]["pooled_model"] == "logistic_regression"

    # With about 48 test examples, an iid client learns from the pixels alone.
    for row in ("alone", "pooled"):
        assert len(first["baselines"][row]) == 3 and min(first["baselines"][row]) > 0.7
    for record in (first, second):
        assert len(record["verdicts"]) == 3
        assert set(record["verdicts"]) <= {"better", "no clear difference", "worse"}


def test_a_model_that_learns_nothing_is_worse_than_what_clients_have(small, monkeypatch):
    monkeypatch.setattr(leaderboard, "VALUES", {"fedavg": {"training.lr": [1e-9]}})
    assert run(small, "fedavg", only=["/0"]) == {}
    (record,) = read_board(small).values()
    assert record["verdicts"] == ["worse"] * 3


@pytest.mark.slow
def test_many_clients_without_names_have_verdicts(small, monkeypatch):
    many = {**SMALL, "data": {**SMALL["data"], "clients": 31, "fraction": 1.0}}
    monkeypatch.setattr(leaderboard, "FEDERATIONS", {"small": BoardFederation("digits", many)})
    monkeypatch.setattr(leaderboard, "VALUES", {"fedavg": {"training.lr": [0.1]}})
    assert run(small, "fedavg", only=["/0"]) == {}
    (record,) = read_board(small).values()
    assert len(record["verdicts"]) == 31 and None not in record["verdicts"]
    assert None not in record["baselines"]["alone"]


def test_a_record_of_another_protocol_does_not_count(small, monkeypatch):
    run(small, "local", only=["/0"])
    monkeypatch.setattr(leaderboard, "_SCHEDULE", {"rounds": 3})
    (cell,) = make_cells(["local"], only=["/0"])
    assert not is_done(cell, read_board(small))
    run(small, "local", only=["/0"])
    assert read_board(small)["small/local/0"]["rounds"] == 3 and is_done(cell, read_board(small))


def test_an_interrupted_cell_has_the_record_of_one_that_was_not(small, board, monkeypatch):
    rounds = []

    def stop(self, record):
        rounds.append(record)
        if len(rounds) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunProgress, "round", stop)
        run(small, "fedavg_ft", only=["/0"], engine="reference")
    assert not small.exists()
    assert list((small.parent / "work").iterdir())
    assert run(small, "fedavg_ft", only=["/0"], engine="reference") == {}
    (record,) = read_board(small).values()
    assert record["engine"] == "reference"
    assert without_times(record) == without_times(read_board(board.path)["small/fedavg_ft/0"])


def test_test_examples_never_choose(small, monkeypatch, tmp_path):
    """Permuted labels of test examples change the scores, and no choice."""
    methods = ("fedavg_ft", "knn_per")
    run(small, *methods, only=["/0"])
    honest = read_board(small)

    divide = build.divide

    def permuted(*args, **kwargs):
        division = divide(*args, **kwargs)
        test = np.concatenate([client.test for client in division.positions])
        labels = division.dataset.y.copy()
        labels[test] = np.random.default_rng(0).permutation(labels[test])
        object.__setattr__(division.dataset, "y", labels)
        return division

    monkeypatch.setattr(build, "divide", permuted)
    other = tmp_path / "other" / "records.jsonl"
    run(other, *methods, only=["/0"])
    for name, record in read_board(other).items():
        assert record["trials"] == honest[name]["trials"]
        assert record["chosen"] == honest[name]["chosen"]
        assert record["accuracies"] != honest[name]["accuracies"]


def test_no_cell_begins_after_the_hours(small):
    said = []
    run(small, "local", hours=0, say=said.append)
    assert not small.exists() and "3 cells are missing" in said[0]


def test_federations_without_data_are_passed_over(tmp_path):
    said = []
    cells = make_cells(["fed3r", "fedncm"], only=["hospitals/"])
    path = tmp_path / "records.jsonl"
    failures = run_cells(cells, path, data_dir=str(tmp_path), work=tmp_path, say=said.append)
    assert list(failures) == [cell.name for cell in cells] and not path.exists()
    assert "fedtailor data list heart" in failures["hospitals/fedncm/2"]
    assert len(said) == 2  # it is tried once


def test_federations_without_their_encoder_are_passed_over(small, monkeypatch):
    sections = {**SMALL, "data": {**SMALL["data"], "encoder": "nowhere:encoder"}}
    monkeypatch.setattr(leaderboard, "FEDERATIONS", {"small": BoardFederation("digits", sections)})
    said = []
    failures = run(small, "local", "fedavg", say=said.append)
    assert len(failures) == 6 and len(said) == 2
    assert "nowhere" in said[1] and "in the root of a clone of the repository" in said[1]


def test_a_board_without_optuna_stops_at_once(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match="a sweep needs Optuna"):
        run(small, "local")


OWN = """
from dataclasses import dataclass
from fedtailor.algorithms.fedavg import FedAvg

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    pass
"""


def test_a_changed_method_of_a_user_is_run_again(small, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "my_board_method.py"
    source.write_text(OWN)
    target = "my_board_method:Mine"
    (cell,) = make_cells([target], only=["/0"])
    assert run(small, target, only=["/0"]) == {}
    assert is_done(cell, read_board(small))
    source.write_text(OWN + "\n")
    assert not is_done(cell, read_board(small))

    with pytest.raises(ConfigError, match="no_such_module"):
        make_cells(["no_such_module:Mine"])


def test_records_of_another_version_or_of_other_values_do_not_count():
    cells = make_cells(["ditto"], only=["digits/"])
    records = {cell.name: {"method": "ditto", "protocol": cell.digest} for cell in cells} | {
        "digits/local/0": {"method": "local", "protocol": "other"}
    }
    assert without_older(records, cells) == records

    records["digits/ditto/1"]["protocol"] = "other"
    assert list(without_older(records, cells)) == [
        "digits/ditto/0",
        "digits/ditto/2",
        "digits/local/0",
    ]


def test_own_methods_of_few_exchanges_have_the_model_of_the_others():
    target = "fedtailor.algorithms.fedcof:FedCOF"
    for method in ("fedcof", target):
        assert Cell("skew-0.1", method, 0).sections()["model"] == {"name": "linear"}


def test_a_method_that_is_named_twice_has_its_cells_once():
    assert len(make_cells(["ditto", "Ditto"], only=["digits/", "/0"])) == 1


def test_wrong_options_are_told_before_anything_is_trained(small, monkeypatch):
    monkeypatch.setattr(leaderboard, "run_cell", lambda *_: pytest.fail("a cell has begun"))
    cells = make_cells(["ditto"], values={"algorithm.penlty": [0.1, 1]})
    with pytest.raises(ConfigError, match="penalty"):
        run_cells(cells, small)
    with pytest.raises(ConfigError, match="got 'batchd'"):
        run(small, "local", engine="batchd")


def test_trials_that_fail_are_told(small, monkeypatch):
    monkeypatch.setattr(leaderboard, "VALUES", {"fedavg": {"training.lr": [0.1, 1e30]}})
    said = []
    assert run(small, "fedavg", only=["/0"], say=said.append) == {}
    (record,) = read_board(small).values()
    assert [trial["validation"] is None for trial in record["trials"]] == [False, True]
    assert said[1].startswith("note: 1 trial of small/fedavg/0 failed: ")


def test_what_is_equal_for_all_methods_is_not_tried():
    with pytest.raises(ConfigError, match=r"got 'federation\.rounds'.*the same for all"):
        make_cells(["ditto"], values={"federation.rounds": [200]})


def test_more_trials_than_others_are_refused():
    with pytest.raises(ConfigError, match="at most 4 combinations"):
        make_cells(["ditto"], values={"training.lr": [0.1, 0.2, 0.3], "ditto.penalty": [1, 2]})


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        (json.dumps({"name": "a"}), "a line lacks version, protocol, federation"),
        (json.dumps({"version": 1, "name": "a"}), "a record of version 1"),
        (json.dumps({"version": "2"}), "a record of version '2'"),
        (json.dumps({"version": None}), "a record of version None"),
    ],
)
def test_damaged_and_older_records_are_refused(tmp_path: Path, line: str, sentence: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(DataError, match=rf"records\.jsonl.*{sentence}"):
        read_board(path)


def test_a_record_that_cannot_be_written_costs_no_cell(small, monkeypatch):
    append = leaderboard.append_lines

    def refuse(path, records):
        raise RunError(f"cannot write '{path}': No space left on device.", path=path)

    monkeypatch.setattr(leaderboard, "append_lines", refuse)
    with pytest.raises(RunError, match="No space left"):
        run(small, "local", only=["/0"])
    assert list((small.parent / "work").glob("small*"))

    # The trials are there, and no round is made again.
    monkeypatch.setattr(leaderboard, "append_lines", append)
    monkeypatch.setattr(RunProgress, "round", lambda *_: pytest.fail("it trains again"))
    assert run(small, "local", only=["/0"]) == {}
    assert list(read_board(small)) == ["small/local/0"]
    assert not list((small.parent / "work").glob("small*"))


def test_a_file_that_cannot_be_written_is_told_before_the_first_cell(small, monkeypatch):
    monkeypatch.setattr(leaderboard, "run_cell", lambda *_: pytest.fail("a cell has begun"))
    small.write_text("")
    with pytest.raises(RunError, match="cannot"):
        run(small / "records.jsonl", "local", only=["/0"])


def test_a_client_without_a_score_has_its_place():
    line = {"round": 2, "point": "personalized", "test_set": "clients"}
    lines = [{**line, "client": 0, "accuracy": 0.5}, {**line, "client": 2, "accuracy": 0.25}]
    assert list(leaderboard._accuracies(lines, 2, clients=4)) == [0.5, None, 0.25, None]
    assert list(leaderboard._accuracies([], 2, clients=2)) == [None, None]


@pytest.mark.parametrize("value", [0.5, True, "uniform(0.1, 1)", []])
def test_what_is_tried_is_a_list(value):
    with pytest.raises(ConfigError, match="--values must be a list of values to try"):
        make_cells(["ditto"], values={"algorithm.penalty": value})


def test_a_name_of_no_cell_is_refused():
    with pytest.raises(ConfigError, match="--only must be parts of the name of a cell"):
        make_cells(["ditto"], only=["typo/"])
