"""``fedtailor predict``, ``export`` and ``onboard``, as typed."""

import csv
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

import fedtailor
from fedtailor.cli.main import main
from serving.small_runs import make_run, write_pictures, write_tables


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with finished runs: pictures, tables, digits; and data of a new site."""
    folder = tmp_path_factory.mktemp("serving")
    make_run("pfedfda", "pictures", folder)
    make_run("fedavg", "tables", folder)
    make_run("knn_per", "digits", folder)
    write_pictures(folder / "new", sites=("Porto",))
    write_tables(folder / "new_tables")
    return folder


@pytest.fixture
def here(place, monkeypatch):
    """Work in the folder with the finished runs."""
    monkeypatch.chdir(place)
    return place


RUN = "pfedfda-pictures-default"
TABLES = "fedavg-tables-default"
DIGITS = "knn_per-digits-default"


def test_predict_prints_a_line_for_each_picture(here, capsys):
    assert (
        main(
            [
                "predict",
                RUN,
                "--client",
                "Charité",
                "pictures/Charité/dark",
                "pictures/Oslo/bright/00.png",
            ]
        )
        == 0
    )
    output = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(output.out)))
    assert len(rows) == 13 and list(rows[0]) == [
        "input",
        "class",
        "uncalibrated_probability",
        "ood_score",
    ]
    assert (
        rows[0]["input"] == "pictures/Charité/dark/00.png"
        and rows[12]["input"] == "pictures/Oslo/bright/00.png"
    )
    model = fedtailor.load(RUN).model("Charité")
    expected = model.predict_proba(sorted((here / "pictures" / "Charité" / "dark").glob("*.png")))
    for row, probabilities in zip(rows, expected, strict=False):
        assert float(row["uncalibrated_probability"]) == pytest.approx(
            probabilities.max(), rel=1e-5
        )
    assert "uncalibrated" in output.err


def test_predict_writes_json(here, capsys):
    assert main(["predict", RUN, "--client", "Mayo", "pictures/Mayo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["client"] == "Mayo" and found["calibrated"] is False and found["unreadable"] == []
    assert len(found["predictions"]) == 24 and found["predictions"][0]["class"] in found["classes"]


def test_unreadable_pictures_are_listed_and_the_others_predicted(here, tmp_path, capsys):
    shutil.copytree("pictures/Mayo/dark", tmp_path / "mixed")
    (tmp_path / "mixed" / "05.png").write_bytes(b"no picture")
    (tmp_path / "mixed" / "06.png").write_bytes((tmp_path / "mixed" / "07.png").read_bytes()[:60])
    assert main(["predict", RUN, "--client", "Mayo", str(tmp_path / "mixed"), "--json"]) == 0
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert len(found["predictions"]) == 10 and len(found["unreadable"]) == 2
    assert "05.png" in found["unreadable"][0]["name"] and output.err.count("left out") == 2


def test_predict_reads_arrays_and_writes_a_file(here, tmp_path, capsys):
    np.savez(
        tmp_path / "=new.npz",
        x=np.random.default_rng(0).integers(0, 17, (1200, 8, 8), dtype=np.uint8),
    )
    out = tmp_path / "predictions.csv"
    assert (
        main(["predict", DIGITS, "--client", "0", str(tmp_path / "=new.npz"), "--out", str(out)])
        == 0
    )
    assert capsys.readouterr().out == ""
    rows = list(csv.reader(out.read_text().splitlines()))
    assert len(rows) == 1201 and rows[1][0] == "'=new.npz[0]", "no formula reaches a spreadsheet"


def test_predict_reads_tables_and_says_what_was_replaced(here, tmp_path, capsys):
    make_run("fedper", "hospital_tables", here)
    new = tmp_path / "new.csv"
    new.write_text("sex,sugar,age\nfemale,5.5,40\ndiverse,6.5,\n")
    assert main(["predict", "fedper-hospital_tables-default", "--client", "Mayo", str(new)]) == 0
    output = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(output.out)))
    assert [row["input"] for row in rows] == ["new.csv:2", "new.csv:3"] and rows[0]["class"] in (
        "ill",
        "well",
    )
    assert "empty cell" in output.err and "no training example had" in output.err
    new.write_text("sex,sugar\nfemale,5.5\n")
    assert main(["predict", "fedper-hospital_tables-default", "--client", "Mayo", str(new)]) == 4
    assert "1 column is missing" in capsys.readouterr().err


def test_clients_can_be_named_by_number(here, capsys):
    assert main(["predict", RUN, "--client", "1", "pictures/Mayo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["client"] == "Charité"


def test_export_writes_the_models_of_all_clients(here, tmp_path, capsys):
    assert (
        main(
            [
                "export",
                RUN,
                "--all",
                "--format",
                "safetensors",
                "--out",
                str(tmp_path / "models"),
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)["exported"]
    assert [each["client"] for each in found] == ["Berlin", "Charité", "Mayo", "Oslo"]
    assert len(list((tmp_path / "models").glob("*.safetensors"))) == 4
    assert (
        json.loads((tmp_path / "models" / "Mayo.safetensors.json").read_text())["client"] == "Mayo"
    )


def test_onboard_makes_a_model_that_predicts(here, tmp_path, capsys):
    out = str(tmp_path / "porto")
    assert (
        main(["onboard", RUN, "--data", "new/Porto", "--name", "Porto", "--out", out, "--validate"])
        == 0
    )
    output = capsys.readouterr()
    assert "a model of its own" in output.out and "fedtailor predict" in output.err
    assert main(["predict", out, "--client", "Porto", "new/Porto/dark", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["calibrated"] is False  # 24 examples
    assert main(["onboard", RUN, "--data", "new/Porto", "--out", out, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "config"


def wrong(here, tmp_path):
    """Return the commands that cannot work, and a part of the sentence of each."""
    run = here / RUN
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    (damaged / "models" / "Mayo.safetensors").write_bytes(b"x")
    (damaged / "models" / "Oslo.json").write_text("[")
    (damaged / "inputs.safetensors").write_bytes(b"")
    newer = tmp_path / "newer"
    shutil.copytree(run, newer)
    provenance = json.loads((newer / "provenance.json").read_text())
    (newer / "provenance.json").write_text(json.dumps({**provenance, "schema": 99}))
    other_method = tmp_path / "other"
    shutil.copytree(run, other_method)
    text = (other_method / "experiment.toml").read_text()
    (other_method / "experiment.toml").write_text(
        text.replace('name = "pfedfda"', 'name = "missing.module:Method"')
    )
    unfinished = tmp_path / "unfinished"
    shutil.copytree(run, unfinished)
    shutil.rmtree(unfinished / "models")
    shutil.rmtree(unfinished / "checkpoints")
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "text.txt").write_text("hello")
    big = tmp_path / "big.png"
    Image.fromarray(np.zeros((3, 4), dtype=np.uint8)).save(big)
    np.savez(tmp_path / "nan.npz", x=np.full((2, 12, 12), np.nan))
    np.savez(tmp_path / "shape.npz", x=np.zeros((2, 13, 12)))
    np.savez(tmp_path / "named.npz", images=np.zeros((2, 12, 12)))
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    np.savez(tmp_path / "features.npz", x=np.zeros((2, 5)))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 no archive")
    (tmp_path / "unreadable").mkdir()
    (tmp_path / "unreadable" / "a.png").write_bytes(b"a")
    stopped = tmp_path / "stopped"
    shutil.copytree(run, stopped)
    (stopped / "result.json").unlink()
    (stopped / "status.json").write_text(json.dumps({"state": "interrupted", "rounds_done": 1}))
    exchanged = tmp_path / "exchanged"
    shutil.copytree(run, exchanged)
    for suffix in (".safetensors", ".json"):
        (exchanged / "models" / f"Mayo{suffix}").write_bytes(
            (run / "models" / f"Oslo{suffix}").read_bytes()
        )
    card = json.loads((run / "models" / "Oslo.json").read_text())
    (exchanged / "models" / "Oslo.json").write_text(
        json.dumps({**card, "calibration": {"temperature": "warm"}})
    )
    (exchanged / "models" / "Berlin.json").write_text(
        json.dumps(
            {**json.loads((run / "models" / "Berlin.json").read_text()), "algorithm": "fedavg"}
        )
    )
    renamed = tmp_path / "renamed"
    shutil.copytree(run, renamed)
    inputs = json.loads((run / "inputs.json").read_text())
    (renamed / "inputs.json").write_text(json.dumps({**inputs, "class_names": ["dark", "bright"]}))
    no_split = tmp_path / "no_split"
    shutil.copytree(run, no_split)
    (no_split / "split.json").write_text(json.dumps({"clients": None}))
    own_table = tmp_path / "own.csv"
    own_table.write_text("age,pressure,sugar\n1,2,3\n")
    pictures = str(here / "pictures" / "Mayo")
    mayo = ["--client", "Mayo"]
    onnx = ["--format", "onnx", "--out", str(tmp_path / "out")]
    new = ["--data", str(here / "new" / "Porto"), "--out", str(tmp_path / "out")]
    return [
        (["predict", str(empty), *mayo, pictures], "is not the folder of a run"),
        (["predict", str(tmp_path / "missing"), *mayo, pictures], "is not the folder of a run"),
        (["predict", str(tmp_path / "text.txt"), *mayo, pictures], "is not the folder of a run"),
        (["predict", str(damaged), *mayo, pictures], "SHA-256"),
        (["predict", str(damaged), "--client", "Oslo", pictures], "damaged"),
        (["predict", str(damaged), "--client", "Berlin", pictures], "damaged"),
        (["predict", str(newer), *mayo, pictures], "version 99"),
        (["predict", str(other_method), *mayo, pictures], "missing.module"),
        (["predict", str(unfinished), *mayo, pictures], "holds no models"),
        (
            ["predict", RUN, *mayo, str(tmp_path / "unreadable")],
            "none of the 1 pictures can be read",
        ),
        (
            ["predict", RUN, *mayo, pictures, "--out", f"{RUN}/models/x.csv"],
            "lies in the folder of a run",
        ),
        (
            ["predict", TABLES, *mayo, str(own_table), "--out", str(own_table)],
            "is one of the inputs",
        ),
        (["predict", str(exchanged), *mayo, pictures], "it is the card of client 'Oslo'"),
        (
            ["predict", str(exchanged), "--client", "Oslo", pictures],
            "its calibration is impossible",
        ),
        (["predict", str(exchanged), "--client", "Berlin", pictures], "a model of another method"),
        (["predict", str(renamed), *mayo, pictures], "not the one with which the model"),
        (["predict", RUN, "--client", "Charite", pictures], "did you mean 'Charité'"),
        (["predict", RUN, "--client", "4", pictures], "no model of client '4'"),
        (
            ["onboard", str(stopped), *new],
            "is interrupted: a new site needs a run that has finished",
        ),
        (["onboard", str(no_split), *new], "damaged"),
        (
            ["onboard", RUN, "--data", str(here / "new" / "Porto"), "--out", f"{RUN}/inner"],
            "lies in the folder of a run",
        ),
        (["predict", RUN, "--client", "Maya", pictures], "did you mean 'Mayo'"),
        (["predict", RUN, "--client", "", pictures], "no model of client ''"),
        (["predict", RUN, "--client", "../Mayo", pictures], "no model of client"),
        (["predict", RUN, *mayo], "Missing argument|PATH"),
        (["predict", RUN, pictures], "Missing option|--client"),
        (["predict", RUN, *mayo, "missing.png"], "'missing.png' does not exist"),
        (["predict", RUN, *mayo, str(empty)], "holds no pictures"),
        (["predict", RUN, *mayo, str(tmp_path / "text.txt")], "must be a picture"),
        (["predict", RUN, *mayo, str(tmp_path / "nan.npz")], "finite"),
        (["predict", RUN, *mayo, str(tmp_path / "shape.npz")], "images of 12 x 12 pixels"),
        (["predict", RUN, *mayo, str(tmp_path / "named.npz")], "must hold an array x"),
        (["predict", RUN, *mayo, str(tmp_path / "objects.npz")], "Python objects"),
        (["predict", RUN, *mayo, str(tmp_path / "broken.npz")], "damaged"),
        (["predict", RUN, *mayo, "--seed", "7", pictures], "seed must be one of"),
        (["predict", RUN, *mayo, "--seed", "x", pictures], "--seed must be a whole number"),
        (
            ["predict", RUN, *mayo, "--out", str(tmp_path / "no" / "folder.csv"), pictures],
            "cannot write",
        ),
        (["predict", TABLES, *mayo, pictures], "tables of features, not pictures"),
        (["predict", TABLES, *mayo, str(tmp_path / "features.npz")], "rows of 3 features"),
        (["export", RUN, *onnx], "either --client NAME or --all"),
        (["export", RUN, "--all", *mayo, *onnx], "either --client NAME or --all"),
        (["export", RUN, *mayo, "--format", "onxx", "--out", "out"], "did you mean 'onnx'"),
        (["export", RUN, "--client", "Osla", *onnx], "did you mean 'Oslo'"),
        (
            ["export", RUN, *mayo, "--format", "onnx", "--out", str(tmp_path / "text.txt")],
            "text.txt",
        ),
        (["export", DIGITS, "--all", *onnx], "--with-examples"),
        (["export", str(damaged), *mayo, *onnx], "SHA-256"),
        (["export", str(empty), "--all", *onnx], "is not the folder of a run"),
        (["onboard", RUN, *new, "--name", "Mayo"], "client 'Mayo' already"),
        (["onboard", str(unfinished), *new], "no checkpoint"),
        (["onboard", str(damaged), *new], "damaged"),
        (["onboard", str(newer), *new], "version 99"),
        (
            ["onboard", RUN, "--data", str(here / "pictures"), "--out", str(tmp_path / "out")],
            "holds 4 sites",
        ),
        (
            [
                "onboard",
                RUN,
                "--data",
                str(here / "new_tables" / "Oslo.csv"),
                "--out",
                str(tmp_path / "o"),
            ],
            "shape",
        ),
        (
            [
                "onboard",
                TABLES,
                "--data",
                str(here / "new" / "Porto"),
                "--out",
                str(tmp_path / "o"),
            ],
            "shape",
        ),
        (["onboard", RUN, "--data", str(empty), "--out", str(tmp_path / "out")], "holds no files"),
        (
            ["onboard", RUN, "--data", str(here / "new" / "Porto"), "--out", str(here / RUN)],
            "exists",
        ),
    ]


def test_bad_input_is_one_sentence_and_leaves_nothing(here, tmp_path, capsys):
    cases = wrong(here, tmp_path)
    assert len(cases) >= 40
    wrong_answers = []
    for command, sentence in cases:
        before = sorted(tmp_path.rglob("*"))
        code = main(command)
        output = capsys.readouterr()
        is_one_sentence = len(output.err.strip().splitlines()) == 1 and re.search(
            sentence, output.err
        )
        is_clean = (
            output.out == ""
            and "Traceback" not in output.err
            and sorted(tmp_path.rglob("*")) == before
        )
        if code not in (2, 3, 4, 5) or not is_one_sentence or not is_clean:
            wrong_answers.append((command, sentence, code, output.err))
    assert wrong_answers == []
