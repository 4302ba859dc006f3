"""The command ``fedtailor sweep`` as a user meets it, in process."""

import json
import shlex

import pytest

from fedtailor.cli.main import main

CONFIG = """
[data]
clients = 3
partition = "iid"
fraction = 0.2
val_fraction = 0.3
[model]
name = "mlp"
[algorithm]
name = "fedavg_ft"
[training]
epochs = 1
[federation]
rounds = 1
[sweep.values]
training.lr = [0.001, 0.1]
algorithm.finetune_epochs = [1, 2]
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "sweep.toml").write_text(CONFIG)


def outcome(arguments, capsys):
    """Run a command line; return exit code, stdout and stderr."""
    code = main(arguments)
    return code, *capsys.readouterr()


def test_a_sweep_prints_tables_and_writes_the_best_configuration(tmp_path, capsys):
    code, out, err = outcome(["sweep", "sweep.toml", "--out", "s"], capsys)
    assert code == 0, err
    assert "fedavg_ft on digits: 4 trials, accuracy in % on validation examples" in out
    assert "finetune_epochs" in out and "best-fedavg_ft.toml" in out
    assert "test scores did not decide" in out and "quartile" in out
    lines = err.splitlines()
    assert lines[0].startswith("note: with one seed")
    assert "fedavg_ft: trial 3 of 4: training.lr=0.1, algorithm.finetune_epochs=1" in lines
    assert "personalized" not in err, "no test score before the choice"
    assert "Trained 4 rounds. Everything is in s" in lines
    assert lines[-1] == "The best: fedtailor run s/best-fedavg_ft.toml"
    assert main(["run", "s/best-fedavg_ft.toml", "--out", "best"]) == 0


@pytest.mark.slow
def test_json_and_options_instead_of_a_file(capsys):
    options = [
        "--clients",
        "3",
        "--rounds",
        "1",
        "--set",
        "data.val_fraction=0.3",
        "--set",
        "training.epochs=1",
    ]
    sweep = [
        "-a",
        "fedavg",
        "-a",
        "ditto",
        "--values",
        "training.lr=loguniform(0.01, 0.1)",
        "--trials",
        "1",
    ]
    more = [
        "--values",
        "ditto.penalty=[0.5]",
        "--seeds",
        "3",
        "--set",
        "sweep.seed=4",
        "--out",
        "s",
        "--json",
    ]
    code, out, err = outcome(["sweep", *options, *sweep, *more], capsys)
    assert code == 0, err
    result = json.loads(out)
    assert [method["method"] for method in result["methods"]] == ["fedavg", "ditto"]
    assert (result["seeds"], result["sweep_seed"], result["rounds"]) == ([3], 4, 1)
    assert result["methods"][1]["trials"][0]["values"]["algorithm.penalty"] == 0.5


def test_an_interrupted_sweep_says_how_to_go_on(monkeypatch, capsys):
    from fedtailor.experiment import sweep as module

    run = module.run

    def interrupted(config, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run", interrupted)
    code, _, err = outcome(["sweep", "sweep.toml", "--rounds", "2", "--out", "a b"], capsys)
    assert code == 6
    last = err.splitlines()[-1]
    assert last == "interrupted. To resume: fedtailor resume 'a b'"
    monkeypatch.setattr(module, "run", run)
    code, out, _ = outcome([*shlex.split(last.partition(": fedtailor ")[2]), "--json"], capsys)
    assert code == 0 and json.loads(out)["rounds"] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["sweep"], 3, "what to try"),
        (["sweep", "missing.toml"], 3, "missing.toml"),
        (["sweep", "sweep.toml", "--values", "training.lr"], 3, "an assignment must be"),
        (
            ["sweep", "sweep.toml", "--values", "training.lr=[1]", "--values", "training.lr=[2]"],
            2,
            "twice",
        ),
        (["sweep", "sweep.toml", "--values", "training.lr=0.1"], 3, "must be a list"),
        (["sweep", "sweep.toml", "--set", "sweep.trails=1"], 3, "did you mean 'trials'"),
        (["sweep", "sweep.toml", "--set", "sweep=1"], 3, "sweep"),
        (["sweep", "sweep.toml", "--trials", "many"], 2, "--trials must be a whole number"),
        (["sweep", "sweep.toml", "-a", "dito"], 3, "did you mean 'ditto'"),
        (["sweep", "sweep.toml", "-d", "digits", "--data", "x"], 2, "not both"),
        (["sweep", "sweep.toml", "--set", "data.val_fraction=0"], 3, "data.val_fraction=0.2"),
        (["run", "sweep.toml"], 3, "fedtailor sweep"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_mistakes_are_sentences(arguments, code, words, tmp_path, capsys):
    found, out, err = outcome(arguments, capsys)
    assert (found, out) == (code, "")
    assert words in err and "Traceback" not in err
    assert not (tmp_path / "runs").exists()
