"""The commands of ``fedtailor experiments``, in process, with a small paper on the embedded
digits."""

import json
import tomllib
from pathlib import Path

import pytest

from fedtailor.cli.experiments import experiments_app
from fedtailor.cli.main import main

COMMANDS = ("list", "show", "run", "report", "difference")

PAPER = """
[paper]
title = "Small"
authors = "Nobody"
venue = "Nowhere"
year = 2024

[base]
inferred = ["training.lr"]
data = {partition = "iid", clients = 3}
model = {name = "mlp", options = {hidden = 8}}
training = {lr = 0.1, epochs = 1}
federation = {rounds = 2}

[columns.plain]
label = "Digits"

[columns.quarter]
label = "Digits, 25 %"
data = {fraction = 0.25}

[columns.street]
label = "House numbers"
data = {dataset = "svhn"}

[methods.fedavg]
label = "FedAvg"
point = "global"
algorithm = {name = "fedavg"}

[methods.fedavg_ft]
label = "FedAvg-FT"
point = "personalized"
algorithm = {name = "fedavg_ft"}

[methods.later]
label = "Later"
point = "personalized"
algorithm = {name = "not_written_yet", strength = 1.0}

[tables.1]
title = "All"
columns = ["plain", "quarter", "street"]
unit = "percent"
notes = ["A note."]

[tables.1.reference]
fedavg = [50.0, nan, 10.0]
fedavg_ft = [60.0, 55.0, 10.0]
later = [70.0, 65.0, 10.0]

[tables.2]
title = "The same again"
columns = ["plain"]

[tables.2.reference]
fedavg = [0.5]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    (tmp_path / "experiments" / "small").mkdir(parents=True)
    (tmp_path / "experiments" / "small" / "paper.toml").write_text(PAPER)
    return tmp_path


@pytest.fixture
def call(capsys):
    """Return a function that runs a command; it returns exit code, stdout and stderr."""

    def call(*arguments):
        code = main(["experiments", *arguments])
        return code, *capsys.readouterr()

    return call


def as_json(result, code=0):
    assert result[0] == code, result
    return json.loads(result[1])


def test_the_commands_are_these():
    names = [
        command.name or command.callback.__name__ for command in experiments_app.registered_commands
    ]
    assert names == list(COMMANDS)


def test_list(call):
    found = as_json(call("list", "--json"))["papers"]
    assert [
        (each["paper"], each["cells"], each["available"], each["recorded"]) for each in found
    ] == [("small", 10, 5, 0)]
    code, out, _ = call("list")
    assert code == 0 and "small" in out and "10" in out
    one = as_json(call("list", "small", "--json"))
    assert [table["table"] for table in one["tables"]] == ["1", "2"]
    assert one["missing"] == [
        "algorithm not_written_yet: not available yet",
        "data set svhn is absent: fedtailor data fetch svhn",
    ]
    code, out, err = call("list", "small")
    assert code == 0 and "fedavg_ft" in out and "fedtailor data fetch svhn" in err


def test_show_prints_what_run_accepts(call, folder, capsys):
    code, out, _ = call("show", "small", "1", "quarter", "fedavg", "--seed", "3")
    assert code == 0
    values = tomllib.loads(out)
    assert (
        values["seed"] == 3
        and values["data"]["fraction"] == 0.25
        and values["federation"] == {"rounds": 2}
    )
    comments = [line for line in out.splitlines() if line.startswith("#")]
    assert sum("inferred" in line and "training.lr" in line for line in comments) == 1
    (folder / "cell.toml").write_text(out)
    assert main(["run", "cell.toml", "--rounds", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == [3]


def test_show_says_what_is_missing(call):
    _, out, _ = call("show", "small", "1", "street", "later")
    assert "# missing: algorithm not_written_yet: not available yet" in out
    record = as_json(call("show", "small", "1", "street", "later", "--json"))
    assert len(record["missing"]) == 2 and record["scores"]["accuracy"]["reference"] == 0.1


def test_run_keeps_a_record_of_each_cell_and_runs_none_twice(call, folder):
    outcomes = as_json(call("run", "small", "1", "--json"))["cells"]
    states = {(each["column"], each["method"]): each["state"] for each in outcomes}
    assert {key for key, state in states.items() if state == "done"} == {
        (column, method) for column in ("plain", "quarter") for method in ("fedavg", "fedavg_ft")
    }
    assert set(states.values()) == {"done", "skipped"} and len(states) == 9
    files = sorted((folder / "experiments" / "results" / "small").glob("*.json"))
    assert len(files) == 4
    record = json.loads(next(path for path in files if "plain-fedavg-" in path.name).read_text())
    score = record["scores"]["accuracy"]
    assert (score["point"], score["figure"], score["reference"]) == ("global", "mean", 0.5)
    assert score["value"] == record["result"]["metrics"]["global"]["accuracy"]["mean"]
    assert score["difference"] == pytest.approx(score["value"] - 0.5)
    assert record["provenance"]["split_sha256"] and record["result"]["seconds"]["total"] > 0
    assert record["inferred"] == ["training.lr"] and "recall" not in files[0].read_text()
    assert str(folder) not in "".join(path.read_text() for path in files)
    again = as_json(call("run", "small", "1", "--json"))["cells"]
    assert {each["state"] for each in again} == {"has a record", "skipped"}
    assert (
        as_json(call("run", "small", "2", "--json"))["cells"][0]["state"] == "has a record"
    )  # the same settings
    assert (
        as_json(call("run", "small", "2", "--seed", "1", "--json"))["cells"][0]["state"] == "done"
    )

    rows = as_json(call("report", "small", "2", "--json"))["tables"][0]["rows"]
    assert rows[0]["seeds"] == [0, 1] and rows[0]["sem"] >= 0 and rows[0]["scored_clients"] == 3
    assert as_json(call("list", "--json"))["papers"][0]["recorded"] == 5
    code, out, err = call("report")
    assert code == 0 and "small, table 1" in out and "5 of 9 numbers have no record yet" in out
    assert "note: A note." in err


def test_the_difference_of_two_methods(call, folder):
    for seed in ("0", "1"):
        as_json(call("run", "small", "1", "--column", "quarter", "--seed", seed, "--json"))
    found = as_json(call("difference", "small", "1", "quarter", "fedavg_ft", "fedavg", "--json"))
    scores = {
        (record["method"], record["seed"]): record["scores"]["accuracy"]["value"]
        for record in map(
            json.loads, map(Path.read_text, (folder / "experiments/results/small").iterdir())
        )
    }
    by_seed = {str(seed): scores["fedavg_ft", seed] - scores["fedavg", seed] for seed in (0, 1)}
    assert found["by_seed"] == pytest.approx(by_seed)
    assert found["difference"] == pytest.approx(sum(by_seed.values()) / 2)
    assert (found["figure"], found["clients"], found["points"]) == (
        "mean",
        3,
        ["personalized", "global"],
    )
    assert (
        found["interval_over_seeds"]["low"]
        <= found["difference"]
        <= found["interval_over_seeds"]["high"]
    )
    code, out, _ = call("difference", "small", "1", "quarter", "fedavg_ft", "fedavg")
    assert code == 0 and "seed 1" in out and "3 clients, all with the same weight" in out
    code, _, err = call("difference", "small", "1", "plain", "fedavg_ft", "fedavg")
    assert code == 4 and "no seed has a record of both fedavg_ft and fedavg on plain" in err


def test_records_of_other_settings_are_not_compared(call, folder):
    as_json(call("run", "small", "2", "--json"))
    path = folder / "experiments" / "small" / "paper.toml"
    path.write_text(PAPER.replace("lr = 0.1", "lr = 0.05"))
    result = as_json(call("report", "--json"))
    assert result["records_of_other_settings"] == 1
    assert all(row["value"] is None for table in result["tables"] for row in table["rows"])
    code, _, err = call("report")
    assert (
        code == 0
        and "1 record belongs to settings that are no longer in any table; not shown" in err
    )
    assert as_json(call("run", "small", "2", "--json"))["cells"][0]["state"] == "done"


def test_a_trial_leaves_no_record(call, folder):
    code, _, err = call("run", "small", "2", "--rounds", "1")
    assert code == 0 and "a trial" in err and "paper 50.0" in err
    assert not (folder / "experiments" / "results").exists()


def test_a_failure_does_not_stop_the_others(call, folder):
    path = folder / "experiments" / "small" / "paper.toml"
    path.write_text(
        PAPER.replace(
            'label = "Digits"\n',
            'label = "Digits"\ndata = {clients = 3, new_clients = 2, test = "given"}\n',
        )
    )
    code, out, _ = call("run", "small", "1", "--method", "fedavg", "--rounds", "1", "--json")
    assert code == 5
    states = {
        each["column"]: (each["state"], each.get("reasons")) for each in json.loads(out)["cells"]
    }
    assert states["plain"][0] == "failed" and "data.test" in states["plain"][1][0]
    assert states["quarter"][0] == "trial" and states["street"][0] == "skipped"


def test_an_interruption_ends_it_and_keeps_what_is_finished(call, folder, monkeypatch):
    from fedtailor.papers import runs as paper_runs

    real = paper_runs.run_cell

    def interrupted(cell, *arguments, **options):
        if cell.column == "quarter":
            raise KeyboardInterrupt
        return real(cell, *arguments, **options)

    monkeypatch.setattr(paper_runs, "run_cell", interrupted)
    code, _, err = call("run", "small", "1", "--method", "fedavg")
    assert code == 6 and "interrupted" in err
    assert len(list((folder / "experiments" / "results" / "small").iterdir())) == 1


PLAN = """
[[runs]]
paper = "small"
table = "1"
columns = ["quarter", "street"]
methods = ["fedavg"]

[[runs]]
paper = "small"
table = "2"
seeds = [0, 1]
"""


@pytest.fixture
def plan(folder):
    """Return the options that run a plan."""
    (folder / "plan.toml").write_text(PLAN)
    return "run", "--plan", "plan.toml"


def test_a_plan_runs_in_its_order_and_resumes_after_an_interruption(
    call, folder, plan, monkeypatch
):
    from fedtailor.papers import runs as paper_runs

    real = paper_runs.run_cell
    made = []

    def run_until_killed(cell, *arguments, **options):
        made.append((cell.column, cell.method, cell.seed))
        if len(made) == 2:
            raise KeyboardInterrupt
        return real(cell, *arguments, **options)

    monkeypatch.setattr(paper_runs, "run_cell", run_until_killed)
    code, _, err = call(*plan)
    assert (
        code == 6 and "quarter, fedavg, seed 0: time not known; then 2 more (time not known)" in err
    )
    code, _, err = call(*plan)
    assert (
        code == 0
        and "quarter, fedavg, seed 0: has a record" in err
        and "street, fedavg, seed 0: skipped" in err
    )
    assert made == [
        ("quarter", "fedavg", 0),
        ("plain", "fedavg", 0),
        ("plain", "fedavg", 0),
        ("plain", "fedavg", 1),
    ]
    assert {each["state"] for each in as_json(call(*plan, "--json"))["cells"]} == {
        "has a record",
        "skipped",
    }
    assert len(made) == 4
    assert not list((folder / "runs").glob("*/models/*"))  # the records are kept, not the models


def test_a_dry_run_lists_what_is_done_and_what_the_rest_would_cost(call, folder, plan):
    as_json(call("run", "small", "1", "--column", "quarter", "--method", "fedavg", "--json"))
    listed = as_json(call(*plan, "--dry-run", "--json"))["runs"]
    found = [(each["column"], each["seed"], each["state"], each["basis"]) for each in listed]
    assert found == [
        ("quarter", 0, "has a record", "measured"),
        ("street", 0, "skipped", "same method"),
        ("plain", 0, "to run", "same method"),
        ("plain", 1, "to run", "same method"),
    ]
    assert listed[2]["seconds"] == pytest.approx(4 * listed[0]["seconds"])
    code, out, err = call(*plan, "--dry-run")
    assert (
        code == 0
        and "has a record: 1 (" in out
        and "to run: 2 (" in out
        and "missing: data set svhn" in err
    )
    assert len(list((folder / "experiments" / "results" / "small").iterdir())) == 1
    assert [
        each["method"] for each in as_json(call("run", "small", "2", "--dry-run", "--json"))["runs"]
    ] == ["fedavg"]


def test_runs_above_the_limit_are_left_out(call, folder, plan):
    as_json(call("run", "small", "1", "--column", "quarter", "--method", "fedavg", "--json"))
    (path,) = (folder / "experiments" / "results" / "small").iterdir()
    record = json.loads(path.read_text())
    record["cpu_seconds"] = 60.0 * record["provenance"]["machine"]["physical_cores"]
    path.write_text(json.dumps(record))
    outcomes = as_json(call(*plan, "--max-minutes", "3", "--json"))["cells"]
    assert [each["state"] for each in outcomes] == [
        "has a record",
        "skipped",
        "too long",
        "too long",
    ]
    code, _, err = call(*plan, "--max-minutes", "3")
    assert (
        code == 0
        and "plain, fedavg, seed 0: left out, would take about 4 min 00 s (judged by same method)"
        in err
    )
    assert "too long: 2 (8 min 00 s)" in call(*plan, "--max-minutes", "3", "--dry-run")[1]


def test_nothing_that_can_be_run_is_a_problem_with_data(call):
    code, _, err = call("run", "small", "1", "--column", "street")
    assert code == 4 and err.count("fedtailor data fetch svhn") == 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["list", "smal"], 3, "did you mean 'small'"),
        (["show", "small", "9", "plain", "fedavg"], 3, "unknown table of small '9'"),
        (["show", "small", "1", "plian", "fedavg"], 3, "did you mean 'plain'"),
        (["run", "small", "1", "--method", "fedagv"], 3, "did you mean 'fedavg'"),
        (
            ["run", "small", "1", "--rounds", "0"],
            2,
            "--rounds must be a whole number, 1 or more, got '0'.",
        ),
        (["run", "small"], 2, "give PAPER and TABLE, or --plan FILE."),
        (["run", "small", "1", "--plan", "plan.toml"], 2, "PAPER has no effect with --plan"),
        (["run", "--plan", "plan.toml", "--seed", "1"], 2, "--seed has no effect with --plan"),
        (["run", "--plan", "plan.toml"], 4, "cannot read 'plan.toml'"),
        (
            ["run", "--plan", "plan.toml", "--max-minutes", "x"],
            2,
            "--max-minutes must be a whole number, 1 or more",
        ),
        (["report", "small", "7"], 3, "unknown table of small '7'"),
    ],
)
def test_mistakes(arguments, code, message, call):
    found = call(*arguments)
    assert found[0] == code and message in found[2] and found[1] == ""


@pytest.mark.parametrize("text", ["{", "[]", '{"seed": 0}'])
def test_a_damaged_record(text, call, folder):
    place = folder / "experiments" / "results" / "small"
    place.mkdir(parents=True)
    (place / "bad.json").write_text(text)
    code, _, err = call("report", "small")
    assert code == 4 and "bad.json" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command, call):
    code, out, _ = call(command, "--help")
    assert code == 0 and "Usage" in out
