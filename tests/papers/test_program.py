"""The program that runs the papers' experiments: python -m experiments."""

import tomllib

import pytest

from experiments import runs
from experiments.__main__ import main
from experiments.cells import expand
from experiments.paper import load_paper
from experiments.records import read_records
from experiments.runtime import time_methods
from fedtailor.cli.main import main as fedtailor
from fedtailor.experiment.config import make_config
from fedtailor.experiment.run import run

PAPER = """
[paper]
title = "Small"
authors = "Nobody"
venue = "Nowhere"
year = 2024

[base]
inferred = ["training.lr"]
data = {partition = "iid", clients = 4}
model = {name = "mlp", options = {hidden = 8}}
training = {lr = 0.1, epochs = 1}
federation = {rounds = 2, participation = "fixed(2)", full_last_round = false}
evaluation = {every = 0}

[columns.plain]
label = "Digits"

[columns.quarter]
label = "Digits, 25 %"
data = {fraction = 0.25, new_clients = 1}

[columns.street]
label = "House numbers"
data = {dataset = "svhn"}

[methods.fedavg]
label = "FedAvg"
point = "global"
run_of = "fedavg_ft"

[methods.fedavg_ft]
label = "FedAvg-FT"
point = "personalized"
algorithm = {name = "fedavg_ft"}

[methods.local]
label = "Local"
point = "personalized"
algorithm = {name = "local"}

[tables.1]
title = "All"
columns = ["plain", "quarter", "street"]
unit = "percent"
notes = ["A note."]

[tables.1.reference]
fedavg = [50.0, nan, 10.0]
fedavg_ft = [60.0, 55.0, 10.0]
local = [60.0, 55.0, 10.0]
"""
PLAN = """
[[runs]]
paper = "small"
table = "1"
columns = ["street", "plain"]
methods = ["fedavg_ft"]
seeds = [0, 1]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return a folder with a small paper, which is also the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "paper.toml").write_text(PAPER)
    return tmp_path


@pytest.fixture
def call(folder, capsys):
    """Return a function that runs a command and returns its output."""

    def call(*arguments, code=0):
        assert main(arguments, folder) == code
        output = capsys.readouterr()
        return output.out if code == 0 else output.out + output.err

    return call


def test_list_and_show(call, folder, capsys):
    assert "small" in call("list")
    assert "fedtailor data fetch svhn" in call("list", "small")

    text = call("show", "small", "1", "quarter", "fedavg_ft", "--seed", "3")
    values = tomllib.loads(text)
    assert values["seed"] == 3 and values["data"]["fraction"] == 0.25
    assert "training.lr" in text.partition("\n\n")[0]
    (folder / "cell.toml").write_text(text)
    assert fedtailor(["run", "cell.toml", "--rounds", "1", "--json"]) == 0


def test_runs_near_the_printed_number_get_three_seeds(call, folder):
    text = PAPER.replace("[base]", "[tolerance]\n1 = 40.0\n\n[base]")
    text = text.replace("local = [60.0, 55.0, 10.0]", "local = [60.0, nan, nan]")
    (folder / "small" / "paper.toml").write_text(text)
    assert call("run", "--close", "--list") == ""

    call("run", "small", "1", "--column", "plain", "--method", "local")
    listed = call("run", "--close", "--list")
    assert call("run", "SMALL", "--close", "--list") == call("run", "small", "--close", "--list")
    assert "local, seed 0: has a record" in listed and "local, seed 2: to run" in listed


def test_a_run_keeps_a_record_of_each_cell_and_runs_none_twice(call, folder):
    assert call("run", "small", "1", "--list").count("to run") == 4
    assert "svhn" in call("run", "small", "1")
    lines = read_records("small", folder)
    # FedAvg's numbers are read from the run of FedAvg-FT.
    methods = {(record["column"], record["method"]) for record in lines}
    assert methods == {(c, m) for c in ("plain", "quarter") for m in ("fedavg_ft", "local")}
    text = (folder / "small" / "records.jsonl").read_text()
    assert "recall" not in text and str(folder) not in text
    assert not list((folder / "runs").glob("*/models"))

    assert call("run", "small", "1").count("has a record") == 4
    table = call("table", "small")
    assert "A note." in table and "3 of 9 numbers" in table
    assert "mean" in call("difference", "small", "1", "plain", "fedavg_ft", "local")

    # With other settings the records are not compared any more.
    (folder / "small" / "paper.toml").write_text(PAPER.replace("lr = 0.1", "lr = 0.05"))
    assert "9 of 9 numbers" in call("table", "small", "1")


def test_a_method_is_run_in_the_tables_that_have_it(call, folder):
    only_local = """
[tables.2]
title = "Only one method"
columns = ["plain"]
reference = {local = [nan]}
"""
    (folder / "small" / "paper.toml").write_text(PAPER + only_local)
    assert call("run", "small", "--method", "FedAvg-FT", "--list").count("to run") == 2
    listed = call("run", "small", "--method", "local", "--column", "plain", "--list")
    assert listed.count("to run") == 1
    (folder / "small" / "paper.toml").write_text(PAPER.partition("[tables.1]")[0] + only_local)
    refused = call("run", "small", "--method", "local", "--column", "quarter", code=3)
    assert "no table of small" in refused


def test_a_record_has_the_numbers_of_its_run(folder):
    tuned = expand(load_paper("small", folder), "1", "quarter", "fedavg_ft")
    record = runs.run_cell(tuned, folder / "run")
    plain = run(make_config(tuned.values), out=folder / "plain")
    # Evaluations during a run change nothing.
    expected = plain["metrics"]["personalized"]["accuracy"]
    assert record["result"]["metrics"]["personalized"]["accuracy"] == expected

    rounds = {}
    for point in record["curve"]:
        rounds.setdefault((point["point"], point["clients"]), []).append(point["round"])
    assert rounds["global", "known"] == [1, 2] and rounds["personalized", "known"] == [2]

    by_client = record["by_client"]
    assert len(by_client["num_test"]) == 3  # the fourth client is new
    correct = by_client["correct"]["personalized"]
    assert sum(correct) / sum(by_client["num_test"]) == pytest.approx(expected["pooled"])
    assert by_client["correct"]["local"].count(None) == 1  # two clients took part


def test_rounds_of_methods_are_timed_in_turn(folder):
    first, second = time_methods(load_paper("small", folder), "plain", ["fedavg", "local"], 2)
    assert (first.method, first.ratio, second.method) == ("fedavg", 1.0, "local")
    assert 0 < second.least <= second.ratio <= second.largest


def test_a_plan_continues_after_an_interruption(call, folder, monkeypatch):
    (folder / "plan.toml").write_text(PLAN)
    original = runs.run_cell
    seeds = []

    def run_until_interrupted(cell, *arguments, **options):
        seeds.append(cell.seed)
        if len(seeds) == 2:
            raise KeyboardInterrupt
        return original(cell, *arguments, **options)

    monkeypatch.setattr("experiments.__main__.run_cell", run_until_interrupted)
    call("run", "--plan", "plan.toml", code=130)
    assert [record["seed"] for record in read_records("small", folder)] == [0]
    call("run", "--plan", "plan.toml")
    assert seeds == [0, 1, 1]


def test_a_failure_does_not_stop_the_others(call, folder):
    text = PAPER.replace('label = "Digits"\n', 'label = "Digits"\ndata = {test = "given"}\n')
    (folder / "small" / "paper.toml").write_text(text)
    output = call("run", "small", "1", "--method", "fedavg_ft", code=3)
    assert "data.test" in output
    assert [record["column"] for record in read_records("small", folder)] == ["quarter"]


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (["list", "smal"], 3, "'small'"),
        (["show", "small", "9", "plain", "local"], 3, "'9'"),
        (["show", "small", "1", "plian", "local"], 3, "'plain'"),
        (["run", "small", "1", "--method", "locl"], 3, "'local'"),
        (["run"], 2, "--plan"),
        (["run", "small", "--plan", "plan.toml"], 2, "--plan"),
        (["run", "--plan", "plan.toml", "--seed", "1"], 2, "--plan"),
        (["run", "small", "--close", "--method", "local"], 2, "--close"),
        (["run", "small", "--method", "locl"], 3, "'local'"),
        (["search", "small"], 3, "no grids"),
        (["run", "--plan", "plan.toml"], 4, "plan.toml"),
        (["difference", "small", "1", "plain", "local", "fedavg"], 4, "plain"),
    ],
)
def test_mistakes_are_named(arguments, code, name, call):
    assert name in call(*arguments, code=code)
