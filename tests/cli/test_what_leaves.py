"""``fedtailor what-leaves``: of algorithms and of runs."""

import json
import re

import numpy as np
import pytest

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.cli.main import main
from fedtailor.core.message import Field
from fedtailor.core.scores import Scores
from fedtailor.experiment.what_leaves import to_markdown, what_leaves_algorithm

pytestmark = pytest.mark.usefixtures("folder")


def record_of(capsys, *arguments):
    assert main(["what-leaves", *arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def sent(record, when):
    return {value["name"]: value for value in record["sent"] if value["when"] == when}


def test_an_algorithm_has_the_model_and_data_of_the_demo_unless_others_are_named(capsys):
    record = record_of(capsys, "FedPAC")
    assert (record["model"], record["dataset"], record["classes"]) == ("mlp", "digits", 10)
    assert record["single_sites_in_rounds"] == ["head", "statistics"]
    in_rounds = sent(record, "round")
    assert sum(value["bytes"] for value in in_rounds.values()) == record["bytes"]["up"]
    at_evaluations = sent(record, "evaluation")
    assert at_evaluations["training_metrics"]["content"] == "head_loss, loss, steps"
    assert at_evaluations["scores: confusion"]["shape"] == "100"

    # All that a site sends of its scores.
    scores = [name.removeprefix("scores: ") for name in at_evaluations if "scores: " in name]
    assert sorted(", ".join(scores).split(", ")) == sorted(Scores._fields)
    assert record["model_holds_examples"] is False

    options = ["--set", "model.options.hidden=7", "--set", "algorithm.combine_heads=false"]
    smaller = record_of(capsys, "fedpac", *options)
    assert smaller["model_numbers"] == 64 * 7 + 7 + 7 * 10 + 10
    assert smaller["single_sites_in_rounds"] == []


def test_a_model_that_holds_examples_is_named(capsys):
    assert main(["what-leaves", "knn_per", "--set", "federation.robust=median", "--markdown"]) == 0
    text = capsys.readouterr().out
    assert "holds features and labels" in text and "median" in text


def test_a_misspelt_run_is_not_taken_for_an_algorithm(folder, capsys):
    (folder / "runs" / "first").mkdir(parents=True)
    assert main(["what-leaves", "runs/firs"]) == 4
    assert "no folder 'runs/firs'; did you mean 'first'?" in capsys.readouterr().err


def test_a_run_has_its_own_data_and_its_cards_say_what_was_sent(folder, capsys):
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        (folder / "own" / site).mkdir(parents=True)
        x = rng.normal(size=(40, 3))
        np.savez(folder / "own" / site / "train.npz", x=x, y=np.arange(40) % 2)
    command = ["run", "--data", "own", "-a", "ifca", "--rounds", "1", "--out", "one"]
    assert main([*command, "--set", "evaluation.baselines=none"]) == 0
    capsys.readouterr()

    record = record_of(capsys, "one")
    before = sent(record, "setup")
    assert list(before) == ["counts", "class names", "count", "means", "squares"]
    assert before["means"]["shape"] == "3" and before["means"]["single_sites"]
    assert sent(record, "evaluation")["diagnostics"]["content"] == "cluster"

    card = json.loads((folder / "one" / "models" / "north.json").read_text())
    assert {value["name"] for value in card["sent"]} == sent(record, "round").keys()
    assert not (folder / "one" / "what-leaves.md").exists()
    assert main(["what-leaves", "one"]) == 0


class Own(FedAvg):
    """Declares a kind of value and a weight that nobody knows, and cannot be trained."""

    def broadcast(self, *arguments):
        raise ValueError("not today")

    def messages(self, task):
        return {"se|cret": Field(kind="gra|dient\x1b[31m", shapes=(2,), weight="ma<gic")}


def test_a_method_of_your_own_may_declare_anything_and_cannot_change_the_page():
    record = what_leaves_algorithm(f"{__name__}:Own")
    assert record["model_holds_examples"] is None
    text = to_markdown({**record, "dataset": "a | b\n# `<script>`\x1b[31m"})
    assert "<" not in text and "\x1b" not in text and "se|cret" not in text
    assert len(re.findall("^# ", text, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["fedavgg"], 3, "fedavg"),
        (["nowhere"], 3, "apfl"),
        (["fedavg", "--json", "--markdown"], 2, "--markdown"),
        (["fedavg", "--set", "training.epochs=no"], 3, "training.epochs"),
        (["one", "--model", "mlp"], 2, "one"),
    ],
)
def test_mistakes_are_one_sentence(folder, arguments, code, message, capsys):
    (folder / "one").mkdir()
    (folder / "one" / "experiment.toml").write_text("seed = 0\n")
    assert main(["what-leaves", *arguments]) == code
    captured = capsys.readouterr()
    assert message in captured.out + captured.err and "Traceback" not in captured.err
