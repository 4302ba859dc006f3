"""What commands print: tables that fit, short progress, intervals."""

import json
import re
import shutil

import numpy as np
import pytest
from scipy import stats

from fedtailor.cli.main import main
from fedtailor.cli.show import console
from fedtailor.cli.show.data import show_embedded
from fedtailor.cli.show.progress import PlainProgress, make_progress
from fedtailor.cli.show.results import show_result
from fedtailor.experiment.estimates import wilson_interval
from fedtailor.experiment.reader import read_run

pytestmark = pytest.mark.usefixtures("folder")


def write_sites(folder, names, rows=24):
    """Write sites of images of two classes, of which a run keeps some for testing."""
    generator = np.random.default_rng(0)
    for name in names:
        (folder / name).mkdir(parents=True)
        x = generator.integers(0, 256, (rows, 8, 8), np.uint8)
        np.savez(folder / name / "train.npz", x=x, y=np.arange(rows) % 2)


COMMANDS = [
    ["list", "algorithms"],
    ["list", "datasets"],
    ["list", "models"],
    ["list", "partitions"],
    ["list", "engines"],
    ["list", "metrics"],
    ["doctor"],
    ["data", "list"],
    ["data", "list", "cifar10"],
    ["data", "partition", "--partition", "iid"],
    [
        "run",
        "-a",
        "fedavg",
        "--rounds",
        "1",
        "--seeds",
        "0,1",
        "--data",
        "own",
        "--set",
        "data.new_clients=1",
    ],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:3]))
def test_tables_fit_the_width_also_in_a_pipe(command, folder, capsys, monkeypatch):
    columns = 60
    monkeypatch.setenv("COLUMNS", str(columns))
    write_sites(folder / "own", ["north", "south", "a hospital with a name that is rather long"])
    assert main(command) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()), default=0) <= columns


def test_a_table_that_is_too_wide_goes_on_below(capsys, monkeypatch):
    columns = ["name", *(f"number {i}" for i in range(6))]
    rows = [["first", *("1" * 8 for _ in range(6))], ["second", *("2" * 8 for _ in range(6))]]
    console.table("Title", columns, rows)
    whole = capsys.readouterr().out
    assert whole.count("first") == 1 and max(map(len, whole.splitlines())) <= 120
    monkeypatch.setenv("COLUMNS", "40")
    console.table("Title", columns, rows, below="words " * 20)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 40 and out.count("first") == out.count("second") == 2
    assert all(out.count(name) == 1 for name in columns[1:]) and out.count("1" * 8) == 6


def test_without_columns_a_pipe_gets_every_number_in_one_line(capsys):
    columns = ["name", *(f"number {i}" for i in range(30))]
    console.table("Title", columns, [["first", *("1" * 8 for _ in range(30))]])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "first" in line)
    assert line.count("1" * 8) == 30


def record_of(number, accuracy=None):
    evaluation = {"point": "global", "test_set": "clients", "group": "known", "metrics": {}}
    if accuracy is not None:
        accuracies = {"mean": accuracy, "worst10": accuracy / 2}
        evaluation["metrics"] = {"accuracy": accuracies, "clients": {"evaluated": 3.0}}
    return {"round": number, "evaluations": [evaluation]}


def lines_of(progress, runs, rounds, capsys, evaluated=()):
    for run in range(runs):
        progress.begin(f"run {run}", rounds)
        for number in range(1, rounds + 1):
            progress.round(record_of(number, 0.5 if number in evaluated else None))
        progress.end()
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("runs", "rounds", "most"),
    [(1, 1000, 11), (1, 20, 11), (4, 20, 9), (3, 50, 10), (10, 7, 11), (20, 9, 11), (33, 1, 11)],
)
def test_a_pipe_gets_some_ten_lines_of_progress(runs, rounds, most, capsys):
    progress = make_progress(runs=runs)
    assert type(progress) is PlainProgress
    lines = lines_of(progress, runs, rounds, capsys)
    assert min(runs, 8) <= len(lines) <= most
    assert re.match(rf"run 0: round 1/{rounds}(, .* left)?( \(.* for all runs\))?$", lines[0]), (
        "the first round says how long it takes"
    )
    for run in range(runs) if runs <= 10 else (runs - 1,):
        assert f"run {run}: round {rounds}/{rounds}" in lines, "the last round has no time left"


def test_a_short_run_prints_every_round(capsys):
    assert [line.split(",")[0] for line in lines_of(PlainProgress(), 1, 3, capsys)] == [
        "run 0: round 1/3",
        "run 0: round 2/3",
        "run 0: round 3/3",
    ]


def test_a_resumed_run_says_where_it_goes_on_and_counts_its_own_rounds_for_the_time_left(
    capsys, monkeypatch
):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = PlainProgress()
    progress.begin("run", 100, 70)
    now[0] += 60
    progress.round({"round": 71, "evaluations": []})
    assert capsys.readouterr().err == "run: round 71/100, 29 min 00 s left\n"


def test_accuracies_of_a_round_without_a_line_come_with_the_next_one(capsys):
    lines = lines_of(PlainProgress(), 1, 100, capsys, evaluated={25, 100})
    said = {line.split(",")[0]: line for line in lines if "%" in line}
    assert said["run 0: round 30/100"].endswith(
        "left, at round 25: global 50.0 % (3 clients, worst tenth 25.0 %)"
    )
    assert (
        said["run 0: round 100/100"]
        == "run 0: round 100/100, global 50.0 % (3 clients, worst tenth 25.0 %)"
    )
    assert len(said) == 2


@pytest.mark.parametrize("right", [0, 5, 12])
def test_the_interval_is_wilsons(right):
    expected = stats.binomtest(right, 12).proportion_ci(confidence_level=0.95, method="wilson")
    found = wilson_interval(right / 12, 12)
    assert found["low"] == pytest.approx(expected.low, abs=1e-12)
    assert found["high"] == pytest.approx(expected.high, abs=1e-12)


def test_accuracies_from_few_examples_come_with_their_interval(folder, capsys):
    write_sites(folder / "own", ["north", "south"], rows=60)
    assert main(["run", "--data", "own", "-a", "fedavg", "--rounds", "1", "--out", "one"]) == 0
    out = capsys.readouterr().out
    result = read_run("one").result
    by_site, verdicts = out.split("Is it worth it, site by site?")
    assert "fedavg: worth it for" in verdicts
    for name, site in result["sites"].items():
        interval = wilson_interval(site["accuracy"], site["num_test"])
        assert site["accuracy_interval"] == interval
        (row,) = (line for line in by_site.splitlines() if line.startswith(f" {name} "))
        positive = site["by_class"]["1"]
        shares = [f"{100 * positive[name]:.1f}" for name in ("sensitivity", "specificity")]
        expected = [f"{100 * interval['low']:.1f}", "to", f"{100 * interval['high']:.1f}"]
        beside = [f"{100 * site['balanced_accuracy']:.1f}", f"{positive['auroc']:.3f}"]
        assert row.split()[-7:] == [*expected, *beside, *shares]
    pooled = result["metrics"]["personalized"]
    assert pooled["examples"] == sum(site["num_test"] for site in result["sites"].values())
    interval = pooled["pooled_interval"]
    assert interval == wilson_interval(pooled["accuracy"]["pooled"], pooled["examples"])
    assert f"[{100 * interval['low']:.1f} to {100 * interval['high']:.1f}]" in out
    assert "95 % interval (Wilson) of an accuracy from few test examples" in out
    assert "ECE: expected calibration error" in " ".join(out.split())


def test_many_examples_need_no_interval(capsys):
    assert (
        main(["run", "-a", "fedavg", "--rounds", "1", "--clients", "3", "--partition", "iid"]) == 0
    )
    assert "interval" not in capsys.readouterr().out


def test_names_are_taken_in_any_spelling(capsys):
    command = [
        "run",
        "-a",
        "FedAvg-FT",
        "-d",
        "Digits",
        "--model",
        "MLP",
        "--partition",
        "IID",
        "--engine",
        "Reference",
    ]
    assert main([*command, "--clients", "2", "--rounds", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["algorithm"], result["dataset"], result["engine"]) == (
        "fedavg_ft",
        "digits",
        "reference",
    )
    assert result["run"].startswith("runs/fedavg_ft-digits-")
    for command in (
        ["data", "list", "Fashion-MNIST"],
        ["LIST", "Models"],
    ):
        assert main(command) == 0, command


def test_a_command_to_copy_has_its_path_in_quotes(capsys):
    record = {"out": "my features", "dimension": 3, "encoder": "e", "sites": {}, "notes": []}
    show_embedded(record)
    assert "fedtailor run --data 'my features'" in capsys.readouterr().err


def test_models_that_are_missing_are_not_promised(folder, capsys):
    assert main(["run", "-a", "fedavg", "--clients", "3", "--rounds", "1", "--out", "one"]) == 0
    assert "Scores and a model for every client are in one" in capsys.readouterr().err
    result = read_run("one").result
    (folder / "one" / "models" / "1.safetensors").unlink()
    show_result(result)
    assert "Scores and 2 of 3 models (events.jsonl says why)" in capsys.readouterr().err
    shutil.rmtree(folder / "one" / "models")
    show_result(result)
    assert "Scores and no model (events.jsonl says why)" in capsys.readouterr().err
