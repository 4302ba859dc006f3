"""``fedtailor leaderboard``: run what is missing, add a method of one's own, show what there is."""

import json

import pytest

from fedtailor.cli.main import main
from fedtailor.experiment import leaderboard
from fedtailor.experiment.leaderboard import BoardFederation, read_board
from fedtailor.report import leaderboard as numbers
from fedtailor.report import leaderboard_page as page

SMALL = {
    "data": {"dataset": "digits", "partition": "iid", "clients": 3, "fraction": 0.3},
    "training": {"epochs": 1, "batch_size": 20},
    "engine": {"name": "reference"},
}
OWN = """
from dataclasses import dataclass
from fedtailor.algorithms.fedavg import FedAvg

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    unused: float = 1.0
"""


@pytest.fixture(autouse=True)
def board(monkeypatch, tmp_path):
    # All are imported before: else one would keep the small federation.
    federations = {"digits": BoardFederation("three clients", SMALL)}
    for module in (leaderboard, numbers, page):
        monkeypatch.setattr(module, "FEDERATIONS", federations)

    monkeypatch.setattr(leaderboard, "_SCHEDULE", {"rounds": 1})
    monkeypatch.setattr(leaderboard, "_RATES", [0.1])
    monkeypatch.chdir(tmp_path)


def test_run_then_add_then_show(tmp_path, capsys):
    assert main(["leaderboard", "run", "local", "fedavg", "--only", "/0"]) == 0
    captured = capsys.readouterr()
    assert "1 of 2: digits/local/0" in captured.err and "leaderboard.jsonl" in captured.out
    assert len(read_board(tmp_path / "leaderboard.jsonl")) == 2

    (tmp_path / "my_method_of_the_board.py").write_text(OWN)
    words = ["leaderboard", "add", "my_method_of_the_board:Mine", "--only", "/0"]
    assert main([*words, "--values", "algorithm.unused=[1.0, 2.0]"]) == 0
    captured = capsys.readouterr()
    assert "digits: place" in captured.out and "my_method_of_the_board:Mine" in captured.out
    assert "to compare with" not in captured.err
    record = read_board(tmp_path / "leaderboard.jsonl")["digits/my_method_of_the_board:Mine/0"]
    assert [trial["values"] for trial in record["trials"]] == [
        {"algorithm.unused": 1.0},
        {"algorithm.unused": 2.0},
    ]

    # The records of an earlier version do not count.
    source = tmp_path / "my_method_of_the_board.py"
    source.write_text(OWN + "\n")
    assert main([*words, "--hours", "0"]) == 0
    assert "digits: place" not in capsys.readouterr().out

    assert main(["leaderboard", "add", "Local", "--records", "new.jsonl", "--only", "/0"]) == 0
    captured = capsys.readouterr()
    assert "digits: place" in captured.out
    assert "no records of other methods to compare with" in captured.err

    assert main(["leaderboard", "show"]) == 0
    assert "my_method_of_the_board:Mine" in capsys.readouterr().out
    assert main(["leaderboard", "show", "--json", "--out", "page.md"]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == "page.md"
    assert "Mine" in (tmp_path / "page.md").read_text() and (tmp_path / "page.png").is_file()
    records = (tmp_path / "page-records.md").read_text()
    repeats = "fedtailor leaderboard add my_method_of_the_board:Mine"
    assert f"{repeats} --values 'algorithm.unused=[1.0, 2.0]' --only digits/" in records


@pytest.mark.parametrize("command", ["run", "add"])
def test_both_commands_that_run_cells_have_the_same_options(command, capsys):
    assert main(["leaderboard", command, "--help"]) == 0
    text = capsys.readouterr().out
    for option in ("--records", "--data-dir", "--engine", "--only", "--hours", "--json"):
        assert option in text


def test_mistakes_are_told_in_a_sentence(capsys, tmp_path):
    assert main(["leaderboard", "show"]) == 4
    assert "has no records yet" in capsys.readouterr().err
    assert main(["leaderboard", "run", "fedavgg"]) == 3
    assert "did you mean 'fedavg'" in capsys.readouterr().err
    assert main(["leaderboard", "add", "nowhere:Mine"]) == 3
    assert "nowhere" in capsys.readouterr().err
    words = ["leaderboard", "add", "ditto", "--values", "training.lr=[1, 2, 3, 4, 5]"]
    assert main(words) == 3
    assert "at most 4 combinations" in capsys.readouterr().err
    assert main(["leaderboard", "add", "ditto", "--values", "algorithm.penalty=0.5"]) == 3
    assert "such as algorithm.penalty=[0.1, 1], got 0.5" in capsys.readouterr().err
    assert main(["leaderboard", "run", "ditto", "--hours", "-1"]) == 2
    assert "--hours must be a number, 0 or more" in capsys.readouterr().err
    assert main(["leaderboard", "run", "ditto", "--only", "typo/"]) == 3
    assert "--only must be" in capsys.readouterr().err
    (tmp_path / "leaderboard.jsonl").write_text("{\n")
    assert main(["leaderboard", "show"]) == 4
    assert "leaderboard.jsonl" in capsys.readouterr().err


def test_an_interrupted_board_goes_on(capsys, monkeypatch):
    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(leaderboard, "run_cell", interrupt)
        assert main(["leaderboard", "run", "local"]) == 6
    assert "continues where this one stopped" in capsys.readouterr().err


@pytest.mark.parametrize("failures, code", [({}, 0), ({"digits/local/0": "no reason"}, 5)])
def test_a_failed_cell_is_in_the_exit_code(monkeypatch, failures, code):
    monkeypatch.setattr(leaderboard, "run_cells", lambda *cells, **options: failures)
    assert main(["leaderboard", "run", "local"]) == code
