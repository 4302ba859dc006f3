"""The plan of runs, what they would cost, and what the record of a run keeps."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.experiment.config import make_config
from fedtailor.experiment.progress import Silence
from fedtailor.experiment.run import run
from fedtailor.papers.costs import Estimate, estimate, example_passes
from fedtailor.papers.plan import read_plan, single_runs
from fedtailor.papers.records import read_records, read_score, write_record
from fedtailor.papers.runs import TimeLimit, TooLong, run_cell, with_curve
from fedtailor.papers.tables import cells, expand, load_paper

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"

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
federation = {rounds = 4, participation = "fixed(2)", full_last_round = false}
evaluation = {every = 0}

[columns.a]
label = "A"

[columns.b]
label = "B"
data = {fraction = 0.5, new_clients = 1}

[methods.fedavg]
label = "FedAvg"
point = "global"
run_of = "tuned"

[methods.tuned]
label = "FedAvg-FT"
point = "personalized"
algorithm = {name = "fedavg_ft"}

[methods.tuned.columns.b]
training = {lr = 0.05}

[methods.alone]
label = "Local"
point = "personalized"
algorithm = {name = "local"}

[tables.1]
title = "All"
columns = ["a", "b"]
[tables.1.reference]
fedavg = [0.5, 0.5]
tuned = [0.6, 0.6]
alone = [0.6, 0.6]

[tables.2]
title = "Global models"
columns = ["a"]
[tables.2.reference]
fedavg = [0.5]
"""

PLAN = """
[[runs]]
paper = "small"
table = "2"

[[runs]]
paper = "small"
table = "1"
columns = ["b", "a"]
methods = ["tuned", "fedavg"]
seeds = [0, 1]

[[runs]]
paper = "small"
table = "1"
columns = ["a"]
"""


@pytest.fixture
def paper(tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "paper.toml").write_text(PAPER)
    return load_paper("small", tmp_path)


def read(tmp_path, text):
    (tmp_path / "plan.toml").write_text(text)
    return read_plan(tmp_path / "plan.toml", tmp_path)


def test_a_plan_is_run_in_its_order_and_every_run_once(paper, tmp_path):
    planned = read(tmp_path, PLAN)
    assert [(cell.table, cell.column, cell.method, cell.seed) for cell in planned] == [
        (
            "1",
            "a",
            "tuned",
            0,
        ),  # the first section asks for FedAvg there, which is read from this run
        ("1", "b", "tuned", 0),
        ("1", "b", "tuned", 1),
        ("1", "a", "tuned", 1),
        ("1", "a", "alone", 0),
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (PLAN, "", "must consist of sections [[runs]]"),
        (PLAN, "runs = 3", "must consist of sections [[runs]]"),
        (PLAN, "[runs]\npaper = 'small'", "must consist of sections [[runs]]"),
        (PLAN, "runs", "is not valid TOML"),
        ('table = "2"', "", "[runs, number 1] needs 'table'"),
        ('methods = ["tuned"', 'method = ["tuned"', "did you mean 'methods'?"),
        ('"b", "a"', '"c"', "unknown column of table 1 'c'"),
        ('"tuned", ', '"tund", ', "did you mean 'tuned'?"),
        ('paper = "small"', 'paper = "smal"', "did you mean 'small'?"),
        ("[0, 1]", "[-1]", "seeds"),
    ],
)
def test_mistakes_in_a_plan(old, new, message, paper, tmp_path):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, PLAN.replace(old, new, 1))
    assert message in caught.value.message and "plan.toml" in caught.value.message


def test_a_plan_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        read_plan(tmp_path / "plan.toml")


def test_the_plan_of_the_repository_begins_with_new_clients():
    planned = read_plan(EXPERIMENTS / "plan.toml", EXPERIMENTS)
    assert {(cell.paper.name, cell.table) for cell in planned[:5]} == {("pfedfda", "4")}
    assert len({(cell.digest, cell.seed) for cell in planned}) == len(planned)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('run_of = "tuned"', 'run_of = "tund"', "did you mean 'tuned'?"),
        ('run_of = "tuned"', 'run_of = "fedavg"', "unknown method 'fedavg'"),
        (
            'run_of = "tuned"',
            'run_of = "tuned"\ntraining = {lr = 1.0}',
            "methods.fedavg must not have 'training'",
        ),
    ],
)
def test_mistakes_in_the_name_of_another_run(old, new, message, paper, tmp_path):
    (tmp_path / "small" / "paper.toml").write_text(PAPER.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_paper("small", tmp_path)
    assert message in caught.value.message


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the cells of column b with their record, whose run has a new client."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "small").mkdir()
    (folder / "small" / "paper.toml").write_text(PAPER)
    found = cells(load_paper("small", folder), "1", column="b")
    return found, run_cell(found[1], folder / "out"), folder


def test_fedavg_has_the_numbers_of_its_own_run(finished, tmp_path):
    (fedavg, tuned, _), record, _ = finished
    assert fedavg.digest == tuned.digest and fedavg.values["training"]["lr"] == 0.05
    alone = {**fedavg.values, "algorithm": {"name": "fedavg"}}
    result = run(make_config(alone), out=tmp_path / "fedavg")
    figures = result["metrics"]["global"]
    left_out = {name: figures[name] for name in ("recall", "by_class", "confusion")}
    assert figures == record["result"]["metrics"]["global"] | left_out
    assert (
        read_score(fedavg.readings[0], record["result"])
        == result["metrics"]["global"]["accuracy"]["mean"]
    )
    new = dataclasses.replace(fedavg.readings[0].score, clients="new")
    reading = dataclasses.replace(fedavg.readings[0], score=new)
    assert (
        read_score(reading, record["result"])
        == result["new_clients"]["personalized"]["accuracy"]["mean"]
    )


def test_a_record_keeps_the_curve_and_the_clients(finished):
    _, record, folder = finished
    rounds = {(each["point"], each["clients"]): [] for each in record["curve"]}
    for each in record["curve"]:
        rounds[each["point"], each["clients"]].append(each["round"])
    assert rounds == {
        ("local", "known"): [1, 2, 3, 4],
        ("global", "known"): [1, 2, 3, 4],
        ("global", "new"): [1, 2, 3, 4],
        ("personalized", "known"): [4],
        ("personalized", "new"): [4],
    }
    last = record["result"]["metrics"]["personalized"]["accuracy"]
    assert (
        record["curve"][-2]["mean"] == last["mean"]
        and record["curve"][-2]["pooled"] == last["pooled"]
    )
    by_client = record["by_client"]
    assert [len(by_client[name]) for name in ("num_train", "num_test")] == [
        3,
        3,
    ]  # the fourth client is new
    correct = by_client["correct"]["personalized"]
    assert sum(correct) / sum(by_client["num_test"]) == pytest.approx(last["pooled"])
    assert (
        by_client["correct"]["local"].count(None) == 1
    )  # two of three took part in the last round
    assert by_client["diagnostics"]["steps"] and record["cpu_seconds"] > 0
    path = write_record(folder / "results", record)
    assert read_records(folder / "results", "small") == [json.loads(path.read_bytes())]
    assert (
        f'"num_test": {by_client["num_test"]}'.replace("[", "[ ").replace("]", " ]")
        in path.read_text()
    )


def test_evaluations_during_a_run_change_nothing(paper, tmp_path):
    config = make_config(expand(paper, "1", "a", "tuned").values)
    more = with_curve(config)
    assert (more.schedule.evaluate_every, more.schedule.personalized_every) == (1, 1)
    results = [
        run(each, out=tmp_path / name)["metrics"]
        for name, each in (("few", config), ("many", more))
    ]
    assert results[0] == results[1]


def test_curves_of_long_runs():
    rounds = make_config({"federation": {"rounds": 250}, "evaluation": {"every": 0}})
    assert (
        with_curve(rounds).schedule.evaluate_every,
        with_curve(rounds).schedule.personalized_every,
    ) == (25, 63)
    given = make_config(
        {"federation": {"rounds": 100}, "evaluation": {"every": 5, "personalized_every": 50}}
    )
    assert with_curve(given) == given


def test_what_a_run_would_cost(paper):
    tuned, alone = (expand(paper, "1", "a", name) for name in ("tuned", "alone"))
    half = expand(paper, "1", "b", "tuned")
    assert example_passes(alone.values) == 2 * example_passes(tuned.values)  # everybody trains
    assert example_passes(half.values) == pytest.approx(example_passes(tuned.values) * 0.5 * 0.75)
    result = {"seconds": {"total": 80.0}, "events": {"quarantine": 0}}
    record = {"digest": tuned.digest, "config": tuned.values, "result": result}
    found = [estimate(cell, [record]) for cell in (tuned, half, alone)]
    assert [(each.seconds, each.basis) for each in found] == [
        (80.0, "another seed"),
        (pytest.approx(30.0), "same method"),
        (pytest.approx(160.0), "other methods"),
    ]
    diverged = {**record, "result": {**result, "events": {"quarantine": 1}}}
    larger = dataclasses.replace(
        tuned, values={**tuned.values, "model": {"name": "mlp", "options": {"hidden": 16}}}
    )
    assert estimate(larger, [record]) == Estimate(pytest.approx(160.0), "other networks")
    on_two_cores = {**record, "cpu_seconds": 60.0, "provenance": {"machine": {"physical_cores": 2}}}
    assert estimate(tuned, [on_two_cores]).seconds == 30.0
    resumed = {**record, "cpu_seconds": None}  # what the interrupted process took is not known
    assert estimate(tuned, [resumed]) is None and estimate(half, [resumed]) is None
    assert estimate(tuned, [resumed, on_two_cores]).seconds == 30.0
    assert estimate(tuned, []) is None and estimate(tuned, [diverged]) is None


@pytest.mark.parametrize(
    ("where", "passes"),
    [
        (("pfedfda", "1", "cifar10_s_25", "pfedfda"), 200 * 0.3 * 60_000 * 0.8 * 0.25 * 5),
        (("pfedfda", "3", "cifar10_scarce", "fedavg_ft"), 200 * 0.3 * 6_300 * 0.8 * 5),
        (("pfedvem", "6", "cifar10_100_5000", "pfedvem"), 100 * 5_000 * 5),
        (("pfedvem", "6", "cifar10_100", "pfedvem"), 100 * 50_000 * 5),
        (("pfedvem", "6", "cifar10_100_5000", "perfedavg"), 100 * 0.1 * 100 * 25 * 10),
        (("fedcr", "2", "fmnist_2", "fedrep"), 250 * 0.1 * 70_000 * 0.7 * (9 + 1)),
        (("pfedfda", "7", "digit5_25", "local"), None),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_sizes_of_runs(where, passes):
    name, *rest = where
    found = example_passes(expand(load_paper(name, EXPERIMENTS), *rest).values)
    assert found == (None if passes is None else pytest.approx(passes))


def test_a_run_that_would_take_too_long_is_stopped_early(paper, tmp_path, monkeypatch):
    # processor time of user, system and children; before the run, when it begins, and after each of
    # two rounds
    spent = iter([(0, 0, 0, 0), (0, 0, 0, 0), (8, 1, 1, 0), (16, 2, 1, 1)])
    names = ("user", "system", "children_user", "children_system")
    times = SimpleNamespace(
        times=lambda: SimpleNamespace(**dict(zip(names, next(spent), strict=True)))
    )
    monkeypatch.setattr("fedtailor.papers.runs.os", times)
    monkeypatch.setattr("fedtailor.papers.runs.machine", lambda: {"physical_cores": 2})
    cell = expand(paper, "1", "a", "tuned")
    with pytest.raises(TooLong) as caught:
        run_cell(cell, tmp_path / "out", progress=TimeLimit(Silence(), 19))
    assert caught.value.seconds == 20  # four rounds, five seconds each
    assert len((tmp_path / "out" / "rounds.jsonl").read_text().splitlines()) == 2


def test_single_runs_prefer_the_method_that_trains_so(paper):
    both = cells(paper, "1", column="a")
    assert [cell.method for cell in single_runs(both)] == ["tuned", "alone"]
    assert [cell.method for cell in single_runs(both[:1])] == ["fedavg"]
