"""``fedtailor what-leaves``: pages of algorithms and of runs."""

import json

import numpy as np
import pytest

from fedtailor.cli.main import main
from fedtailor.experiment.records import read_run


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


def page(capsys, *arguments):
    assert main(["what-leaves", *arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_an_algorithm_has_the_model_and_data_of_the_demo_unless_others_are_named(capsys):
    found = page(capsys, "FedPAC")
    assert (found["model"], found["dataset"], found["classes"]) == ("mlp", "digits", 10)
    assert found["server_sees_single_sites"] == ["head", "statistics"]
    assert found["reported"]["training_metrics"] == ["head_loss", "loss", "steps"]
    smaller = page(
        capsys,
        "fedpac",
        "--set",
        "model.options.hidden=7",
        "--set",
        "algorithm.combine_heads=false",
    )
    assert smaller["model_numbers"] == 64 * 7 + 7 + 7 * 10 + 10
    assert smaller["server_sees_single_sites"] == []


def test_a_run_has_its_own_page_with_the_bytes_of_its_rounds(folder, capsys):
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        (folder / "own" / site).mkdir(parents=True)
        np.savez(
            folder / "own" / site / "train.npz", x=rng.normal(size=(40, 3)), y=np.arange(40) % 2
        )
    assert main(["run", "--data", "own", "-a", "ifca", "--rounds", "2", "--out", "one"]) == 0
    capsys.readouterr()
    found = page(capsys, "one")
    rounds = read_run("one").rounds
    assert found["totals"]["up"] == [record["bytes"]["up"] for record in rounds]
    assert found["bytes"]["up"] * 2 == rounds[0]["bytes"]["up"]
    assert found["reported"]["diagnostics"] == ["cluster"]
    assert [each["name"] for each in found["setup"]] == [
        "num_train",
        "class names",
        "count",
        "means",
        "squares",
    ]
    assert found["setup"][3]["shape"] == [3]

    assert main(["what-leaves", "one", "--markdown"]) == 0
    text = capsys.readouterr().out
    written = (folder / "one" / "what-leaves.md").read_text()
    sections = ["In short", "Before the first round", "Models"]
    for section in sections:
        assert (
            text.split(f"## {section}")[1].split("## ")[0]
            == written.split(f"## {section}")[1].split("## ")[0]
        )
    assert (
        "In the 2 rounds of this run so far, all sites together sent" in text
        and "so far" not in written
    )
    assert main(["what-leaves", "one"]) == 0
    assert "What leaves a site: ifca" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["fedavgg"], 3, "neither the folder of a run nor an algorithm; did you mean 'fedavg'?"),
        (["nowhere/run"], 3, "neither the folder of a run nor an algorithm. Known: apfl"),
        (["fedavg", "--json", "--markdown"], 2, "give --json or --markdown, not both"),
        (["fedavg", "--set", "training.epochs=no"], 3, "training.epochs"),
        (
            ["one", "--model", "mlp"],
            2,
            "'one' is a run, which has its own data, model and options.",
        ),
    ],
)
def test_mistakes_are_one_sentence(folder, arguments, code, message, capsys):
    (folder / "one").mkdir()
    (folder / "one" / "experiment.toml").write_text("seed = 0\n")
    assert main(["what-leaves", *arguments]) == code
    captured = capsys.readouterr()
    assert message in captured.out + captured.err and "Traceback" not in captured.err
