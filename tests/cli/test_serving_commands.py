"""``fedtailor predict``, ``export`` and ``onboard``, as typed."""

import csv
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedtailor
from fedtailor.cli.main import main
from serving.small_runs import make_run, write_pictures, write_tables

RUN = "pfedfda-pictures-default"
TABLES = "fedper-hospital_tables-default"
DIGITS = "knn_per-digits-default"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with finished runs: pictures, tables, digits; and data of a new site."""
    folder = tmp_path_factory.mktemp("serving")
    make_run("pfedfda", "pictures", folder)
    make_run("fedper", "hospital_tables", folder)
    make_run("knn_per", "digits", folder)
    write_pictures(folder / "new", sites=("Porto",))
    write_tables(folder / "new_tables")
    return folder


@pytest.fixture
def here(place, monkeypatch):
    """Work in the folder with the finished runs."""
    monkeypatch.chdir(place)
    return place


def json_of(capsys, *words):
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_predict_prints_a_line_for_each_picture(here, capsys):
    paths = ["pictures/Charité/dark", "pictures/Oslo/bright/00.png"]
    assert main(["predict", RUN, "--client", "Charité", *paths]) == 0
    output = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(output.out)))
    assert len(rows) == 13
    shares = [f"uncalibrated probability of {name}" for name in ("bright", "dark")]
    assert list(rows[0]) == ["input", "class", *shares, "ood_score", "unusual"]
    assert {row["unusual"] for row in rows} == {"not known"}, "2 validation examples say nothing"
    assert rows[0]["input"] == "pictures/Charité/dark/00.png"
    assert rows[12]["input"] == "pictures/Oslo/bright/00.png"
    assert len(output.err.splitlines()) == 1

    model = fedtailor.load(RUN).model("Charité")
    expected = model.predict_proba(sorted((here / "pictures" / "Charité" / "dark").glob("*.png")))
    for row, probabilities in zip(rows, expected, strict=False):
        assert [float(row[name]) for name in shares] == pytest.approx(probabilities, rel=1e-5)


def test_unreadable_pictures_are_listed_and_the_others_predicted(here, tmp_path, capsys):
    shutil.copytree("pictures/Mayo/dark", tmp_path / "mixed")
    (tmp_path / "mixed" / "05.png").write_bytes(b"no picture")
    (tmp_path / "mixed" / "06.png").write_bytes((tmp_path / "mixed" / "07.png").read_bytes()[:60])
    record = json_of(capsys, "predict", RUN, "--client", "2", tmp_path / "mixed")
    assert record["client"] == "Mayo" and record["calibrated"] is False
    assert len(record["predictions"]) == 10 and len(record["unreadable"]) == 2
    assert record["predictions"][0]["class"] in record["classes"]
    assert "05.png" in record["unreadable"][0]["name"]


def test_predict_reads_arrays_and_writes_a_file(here, tmp_path, capsys):
    digits = np.random.default_rng(0).integers(0, 17, (1200, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "=new.npz", x=digits)
    out = tmp_path / "predictions.csv"
    command = ["predict", DIGITS, "--client", "0", str(tmp_path / "=new.npz"), "--out", str(out)]
    assert main(command) == 0
    assert capsys.readouterr().out == ""
    rows = list(csv.reader(out.read_text().splitlines()))
    assert len(rows) == 1201 and rows[1][0] == "'=new.npz[0]", "no formula reaches a spreadsheet"

    # With --json, there is always one object on stdout.
    command[-1] = str(tmp_path / "predictions.json")
    told = json_of(capsys, *command)
    assert (told["out"], told["predictions"]) == (command[-1], 1200)
    assert len(json.loads(Path(command[-1]).read_text())["predictions"]) == 1200


def test_predict_reads_tables_and_says_what_was_replaced(here, tmp_path, capsys):
    table = tmp_path / "new.csv"
    table.write_text("sex,sugar,age\nfemale,5.5,40\ndiverse,6.5,\n")
    command = ["predict", TABLES, "--client", "Mayo", str(table)]
    assert main(command) == 0
    output = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(output.out)))
    assert [row["input"] for row in rows] == ["new.csv:2", "new.csv:3"]
    assert rows[0]["class"] in ("ill", "well")
    assert "1 empty cell in 1 column" in output.err and len(output.err.splitlines()) == 1
    notes = json_of(capsys, *command)["notes"]
    assert "age" in notes[0] and "sex" in notes[1]

    # Nothing is known of a row, and yet it has a prediction.
    table.write_text("id,sex,sugar,age\n7,female,5.5,40\n8,,,\n")
    assert main([*command, "--keep", "id"]) == 0
    warning = capsys.readouterr().err.splitlines()[0]
    assert warning.startswith("warning: new.csv:3: The row has no value of any feature")

    table.write_text("sex,sugar\nfemale,5.5\n")
    assert main(command) == 4
    assert "age" in capsys.readouterr().err


def test_another_unit_than_in_training_is_a_warning(here, tmp_path, capsys):
    """Of glucose: ten times the numbers of training, in a table with repeated rows."""
    generator = np.random.default_rng(0)
    sugars = generator.normal(65, 12, 18).tolist()
    rows = [f"P{row},{20 + row},m,{sugar:.2f},ill" for row, sugar in enumerate(sugars)]
    rows += ["P18,40,m,62.5,well"] * 2
    table = tmp_path / "new.csv"
    table.write_text("\n".join(["patient,age,sex,sugar,diagnosis", *rows]))
    unit = "Column 'sugar' is about 9.6 times as large"

    command = ["onboard", TABLES, "--data", str(table), "--label-column", "diagnosis"]
    assert main([*command, "--out", str(tmp_path / "site")]) == 0
    told = capsys.readouterr().err
    assert f"warning: {unit}" in told and "'new.csv:21' as 'new.csv:20'" in told
    assert "columns that seem to have another unit" not in told, "once is enough"

    assert main(["predict", TABLES, "--client", "Mayo", str(table)]) == 0
    assert f"warning: new.csv: {unit}" in capsys.readouterr().err
    assert main(["evaluate", TABLES, "--client", "Mayo", str(table)]) == 0
    assert f"warning: {unit}" in capsys.readouterr().err


def test_predict_keeps_the_columns_that_the_user_names(here, tmp_path, capsys):
    table = tmp_path / "new.csv"
    table.write_text("id,sex,sugar,age,visit\n007,female,5.5,40,=1+1\n7.0,male,6,041,May\n")
    command = ["predict", TABLES, "--client", "Mayo", str(table)]
    assert main(command) == 4, "columns that the model does not know stay errors"
    capsys.readouterr()

    assert main([*command, "--keep", "id,age", "--keep", "visit,id"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0][:4] == ["id", "age", "visit", "input"]
    assert [row[:3] for row in rows[1:]] == [["007", "40", "'=1+1"], ["7.0", "041", "May"]]
    record = json_of(capsys, *command, "--keep", "id,visit")
    assert record["predictions"][0]["kept"] == {"id": "007", "visit": "=1+1"}
    assert main([*command, "--keep", "visits"]) == 4
    assert "'visit'" in capsys.readouterr().err
    assert main(["predict", RUN, "--client", "Mayo", "pictures/Mayo", "--keep", "id"]) == 4


def test_evaluate_scores_labelled_data(here, tmp_path, capsys):
    assert main(["evaluate", RUN, "--client", "Charité", "new/Porto"]) == 0
    output = capsys.readouterr()
    assert "bright" in output.out and "at training" in output.out and output.err == ""
    assert main(["evaluate", RUN, "--client", "Charité", "pictures/Mayo"]) == 0
    assert "warning" in capsys.readouterr().err, "examples of the run were trained on"

    # Two tables; their patients are groups, and out of order columns and empty cells are as usual.
    text = "diagnosis,patient,sex,sugar,age\nill,1,female,9,40\nwell,2,male,1,\nwell,2,male,1,\n"
    for name in ("first.csv", "second.csv"):
        (tmp_path / name).write_text(text)

    tables = [tmp_path / "first.csv", tmp_path / "second.csv"]
    record = json_of(
        capsys,
        *("evaluate", TABLES, "--client", "Mayo", *tables),
        *("--label-column", "diagnosis", "--out", tmp_path / "metrics.csv"),
    )
    assert record["examples"] == 6 and record["groups"] == 4
    lines = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert float(lines[0]["value"]) == pytest.approx(record["metrics"]["accuracy"]["value"], 1e-5)
    assert {line["class"] for line in lines} == {"", "ill", "well"}

    # One example of one class: what there is, and why the rest is not.
    (tmp_path / "one.csv").write_text("diagnosis,patient,sex,sugar,age\nill,1,female,9,40\n")
    command = ["evaluate", TABLES, "--client", "Mayo", str(tmp_path / "one.csv")]
    assert main([*command, "--label-column", "diagnosis"]) == 0
    assert "No AUROC: all examples are of 'ill'" in " ".join(capsys.readouterr().out.split())


def test_export_writes_the_models_of_all_clients(here, tmp_path, capsys):
    out = tmp_path / "models"
    record = json_of(capsys, "export", RUN, "--all", "--format", "safetensors", "--out", out)
    names = [exported["client"] for exported in record["exported"]]
    assert names == ["Berlin", "Charité", "Mayo", "Oslo"]
    assert len(list(out.glob("*.safetensors"))) == 4
    assert json.loads((out / "Mayo.safetensors.json").read_text())["client"] == "Mayo"


@pytest.mark.slow
def test_onboard_with_validation_prints_the_verdict(here, tmp_path, capsys):
    out = str(tmp_path / "porto")
    command = ["onboard", RUN, "--data", "new/Porto", "--name", "Porto", "--out", out]
    assert main([*command, "--validate"]) == 0
    (row,) = json.loads((tmp_path / "porto" / "result.json").read_text())["worth_it"]["sites"]
    assert row["verdict"] in capsys.readouterr().out
    assert row["site"] == "Porto" and row["examples"] == 24
    assert set(row["scores"]) == {"own", "personalized", "global"}


def test_onboard_makes_a_model_that_predicts(here, tmp_path, capsys):
    out = str(tmp_path / "porto")
    command = ["onboard", RUN, "--data", "new/Porto", "--name", "Porto", "--out", out]
    assert main(command) == 0
    capsys.readouterr()
    record = json_of(capsys, "predict", out, "--client", "Porto", "new/Porto/dark")
    assert record["calibrated"] is False  # 24 examples
    assert main(["evaluate", out, "--client", "Porto", "new/Porto"]) == 0
    assert "warning: 'new/Porto' lies in the data" in capsys.readouterr().err
    assert main([*command, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "config"
    assert main(["resume", out]) == 3
    assert "made by onboard or adapt: there is nothing to resume" in capsys.readouterr().err


def copy_with(tmp_path, run, name, **files):
    """Return a copy of a run in which some files hold other bytes."""
    shutil.copytree(run, tmp_path / name)
    for path, raw in files.items():
        (tmp_path / name / path.replace("__", "/")).write_bytes(raw)
    return str(tmp_path / name)


def wrong(here, tmp_path):
    """Return the commands that cannot work, and words of the sentence of each."""
    run = here / RUN
    cards = {name: (run / "models" / f"{name}.json").read_text() for name in ("Oslo", "Berlin")}
    other_calibration = {**json.loads(cards["Oslo"]), "calibration": {"temperature": "warm"}}
    damaged = copy_with(tmp_path, run, "damaged", **{"models__Mayo.safetensors": b"x"})
    copy_with(
        tmp_path,
        run,
        "exchanged",
        **{
            "models__Mayo.json": cards["Oslo"].encode(),
            "models__Oslo.json": json.dumps(other_calibration).encode(),
            "models__Berlin.json": cards["Berlin"].replace("pfedfda", "fedavg").encode(),
        },
    )
    inputs = (run / "inputs.json").read_text().replace("bright", "white")
    copy_with(tmp_path, run, "renamed", **{"inputs.json": inputs.encode()})
    copy_with(tmp_path, run, "no_split", **{"split.json": b'{"clients": null}'})
    text = (run / "experiment.toml").read_text()
    text = text.replace('name = "pfedfda"', 'name = "missing.module:Method"')
    copy_with(tmp_path, run, "other", **{"experiment.toml": text.encode()})
    stopped = copy_with(tmp_path, run, "stopped", **{"status.json": b'{"state": "interrupted"}'})
    (tmp_path / "stopped" / "result.json").unlink()
    shutil.rmtree(tmp_path / "stopped" / "models")

    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "unreadable").mkdir()
    (tmp_path / "unreadable" / "a.png").write_bytes(b"a")
    np.savez(tmp_path / "named.npz", images=np.zeros((2, 12, 12)))
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 no archive")
    pictures = str(here / "pictures" / "Mayo")
    mayo = ["--client", "Mayo"]
    onnx = ["--format", "onnx", "--out", str(tmp_path / "out")]
    new = ["--data", str(here / "new" / "Porto"), "--out", str(tmp_path / "out")]

    def at(name):
        return str(tmp_path / name)

    return [
        (["predict", at("empty"), *mayo, pictures], "run"),
        (["predict", at("missing"), *mayo, pictures], "there is no folder"),
        (["predict", damaged, *mayo, pictures], "SHA-256"),
        (["predict", at("other"), *mayo, pictures], r"missing\.module"),
        (["predict", stopped, *mayo, pictures], "models"),
        (["predict", at("exchanged"), *mayo, pictures], "Mayo"),
        (["predict", at("exchanged"), "--client", "Oslo", pictures], "calibration"),
        (["predict", at("exchanged"), "--client", "Berlin", pictures], "Berlin"),
        (["predict", at("renamed"), *mayo, pictures], r"inputs\.json"),
        (["predict", RUN, "--client", "Charite", pictures], "'Charité'"),
        (["predict", RUN, "--client", "../Mayo", pictures], "Mayo"),
        (["predict", RUN, *mayo], "PATH"),
        (["predict", RUN, pictures], "--client"),
        (["predict", RUN, *mayo, "missing.png"], "'missing.png'"),
        (["predict", RUN, *mayo, at("empty")], "empty"),
        (["predict", RUN, *mayo, at("text.txt")], "picture"),
        (["predict", RUN, *mayo, at("unreadable")], "1"),
        (["predict", RUN, *mayo, at("named.npz")], "x"),
        (["predict", RUN, *mayo, at("objects.npz")], "objects"),
        (["predict", RUN, *mayo, at("broken.npz")], "archive"),
        (["predict", RUN, *mayo, "--seed", "7", pictures], "seed"),
        (["predict", RUN, *mayo, pictures, "--out", f"{RUN}/models/x.csv"], "run"),
        (["predict", RUN, *mayo, "--out", at("no/folder.csv"), pictures], "cannot write"),
        (["predict", TABLES, *mayo, pictures], "pictures"),
        (["evaluate", RUN, *mayo, pictures, "--out", f"{RUN}/x.csv"], "run"),
        (["data", "plot", "-d", "digits", "--out", f"{RUN}/x.svg"], "lies in the folder of a run"),
        (["evaluate", TABLES, *mayo, at("text.txt"), "--out", at("text.txt")], "not exist"),
        (["evaluate", RUN, *mayo, at("unreadable")], "unreadable"),
        (["evaluate", TABLES, *mayo, pictures], "patient"),
        (["evaluate", RUN, *mayo, str(here / "pictures")], "4 sites"),
        (["export", RUN, *onnx], "--client"),
        (["export", RUN, "--all", *mayo, *onnx], "--client"),
        (["export", RUN, *mayo, "--format", "onxx", "--out", "out"], "'onnx'"),
        (["export", RUN, *mayo, "--format", "safetensors", "--out", at("text.txt")], "text.txt"),
        (["export", DIGITS, "--all", *onnx], "--with-examples"),
        (["onboard", RUN, *new, "--name", "Mayo"], "'Mayo'"),
        (["onboard", stopped, *new], "interrupted"),
        (["onboard", at("no_split"), *new], "damaged"),
        (["onboard", RUN, "--data", str(here / "pictures"), "--out", at("out")], "4 sites"),
        (["onboard", TABLES, *new], "patient"),
        (["onboard", RUN, "--data", new[1], "--out", f"{RUN}/inner"], "run"),
        (["onboard", RUN, "--data", new[1], "--out", RUN], "exists"),
    ]


def test_bad_input_is_one_sentence_and_leaves_nothing(here, tmp_path, capsys):
    wrong_answers = []
    for command, words in wrong(here, tmp_path):
        before = sorted(tmp_path.rglob("*"))
        code = main(command)
        output = capsys.readouterr()
        is_one_sentence = len(output.err.strip().splitlines()) == 1 and "Trace" not in output.err
        is_clean = output.out == "" and sorted(tmp_path.rglob("*")) == before
        names_it = re.search(words, output.err)
        if code not in (2, 3, 4, 5) or not is_one_sentence or not is_clean or not names_it:
            wrong_answers.append((command, words, code, output.err))
    assert wrong_answers == []
