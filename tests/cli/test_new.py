"""A new project runs at once, and its test passes."""

import json

import pytest

import fedtailor
from fedtailor.cli.main import main
from fedtailor.experiment.starter import METHOD, TEST
from tutorial import BLOCK, ROOT


@pytest.mark.slow
def test_a_new_project_is_usable_and_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my study"]) == 0
    assert "cd 'my study'" in capsys.readouterr().out

    monkeypatch.chdir(tmp_path / "my study")
    monkeypatch.syspath_prepend(tmp_path / "my study")
    assert main(["data", "check", "data"]) == 0
    printed = capsys.readouterr()
    assert "dublin" in printed.out and "The data can be used." in printed.err

    short = ["--rounds", "1", "--set", "evaluation.baselines=none", "--out", "run"]
    assert main(["run", "config.toml", *short]) == 0
    assert fedtailor.load("run").clients.names == ["athens", "berlin", "cairo", "dublin"]
    assert main(["report", "run", "--out", "report.html"]) == 0
    assert main(["export", "run", "--all", "--format", "torch-export", "--out", "exported"]) == 0


def test_a_project_without_a_name_is_refused(capsys):
    assert main(["new", ""]) == 2
    assert "the value of NAME is empty" in capsys.readouterr().err


def test_it_never_overwrites(tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    assert main(["new", str(tmp_path / "taken")]) == 3
    assert "choose another folder" in capsys.readouterr().err
    assert main(["new", str(tmp_path / "free"), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert len(files) == 7 and all((tmp_path / "free" / name).is_file() for name in files)


def test_the_method_is_that_of_the_tutorial():
    text = (ROOT / "docs" / "tutorials" / "write-a-method.md").read_text()
    files = {match["file"]: match["text"] for match in BLOCK.finditer(text) if match["file"]}
    assert files == {"my_method.py": METHOD, "test_my_method.py": TEST}


def test_without_a_command_it_says_what_to_do_first(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  fedtailor {word}" in out for word in ("demo", "new", "data check"))


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_commands_are_completed(shell, monkeypatch, capsys):
    monkeypatch.setenv("_FEDTAILOR_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", "fedtailor da")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "fedtailor da")
    assert main([]) == 0
    assert "data" in capsys.readouterr().out
