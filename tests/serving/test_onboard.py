"""New sites, onboarded from a finished run."""

import hashlib
import itertools
import json

import numpy as np
import pytest

import fedtailor
from fedtailor.algorithms import ALGORITHMS
from fedtailor.core.codec import encode
from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.core.metrics import per_client
from fedtailor.experiment.estimates import wilson_interval
from fedtailor.experiment.site_rows import site_rows
from fedtailor.serving.new_client import load_finished_run, onboard
from fedtailor.serving.site_data import SiteData, load_site
from fedtailor.serving.validate import cross_validate, folds_of
from serving.small_runs import (
    make_run,
    parts_of,
    settings,
    write_hospital_tables,
    write_pictures,
    write_tables,
)

FAST = (("pfedfda", "tables"), ("fedavg_ft", "images"))


def digest(folder):
    """Return a digest of all files of a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(str(path.relative_to(folder)).encode())
        found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()


@pytest.mark.parametrize(
    ("algorithm", "dataset"),
    [
        pytest.param(*pair, marks=() if pair in FAST else (pytest.mark.slow,))
        for pair in itertools.product(ALGORITHMS, ["images", "tables"])
    ],
)
def test_an_onboarded_site_has_the_bits_of_the_simulated_new_client(algorithm, dataset, tmp_path):
    data = {"clients": 5, "new_clients": 2, "fraction": 0.2}
    if dataset == "tables":
        write_tables(tmp_path / "data")
        data = {"path": str(tmp_path / "data"), "new_clients": 2}
    config = settings(algorithm, data)
    fedtailor.run(config, out=tmp_path / "run")
    run = fedtailor.load(tmp_path / "run")
    divided = parts_of(config).divided
    server = load_finished_run(run.records)
    for client in run.clients[-2:]:
        rows = divided.positions[client.number]
        both = np.concatenate([rows.train, rows.test])
        site = SiteData(divided.dataset.x[both], divided.dataset.y[both], len(rows.train), "site")
        made = onboard(server, site, number=client.number)
        raw, card = run.records.model_file(client.number)
        assert encode(made.personal) == raw
        assert (
            per_client(made.scores)["accuracy"]
            == card["scores"]["accuracy"]
            == client.personalized.accuracy
        )


@pytest.mark.parametrize("noise", [False, True])
def test_a_folder_for_new_sites_makes_the_same_model_and_tells_nothing_of_the_others(
    noise, tmp_path
):
    write_tables(tmp_path / "data")
    last = sorted(path.stem for path in (tmp_path / "data").iterdir())[-1]
    data = {"path": str(tmp_path / "data"), "new_clients": [last], "label_column": "label"}
    config = settings("pfedfda", data)
    fedtailor.run(config, out=tmp_path / "run")
    run = fedtailor.load(tmp_path / "run")
    if noise:
        privacy = {"unit": "client", "epsilon": 2.0, "delta": 1e-5}
        (run.path / "result.json").write_text(json.dumps({**run.result, "privacy": privacy}))
        run = fedtailor.load(tmp_path / "run")

    assert run.hand_over(tmp_path / "new") == []
    files = [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
    for path in files:
        told = [*run.clients.names, str(tmp_path)]
        assert not any(text.encode() in path.read_bytes() for text in told), path
    assert not {"models", "clients.jsonl", "predictions.safetensors"} & {
        path.name for path in (tmp_path / "new").iterdir()
    }

    data = next((tmp_path / "data").iterdir())
    models = []
    for origin in (run, fedtailor.load(tmp_path / "new")):
        made = origin.onboard(data, tmp_path / f"of_{origin.path.name}", name="Porto")
        models.append(made.records.model_file("Porto"))

    assert models[0] == models[1]
    assert ("privacy" in models[1][1]) is noise
    with pytest.raises(DataError, match="fedtailor onboard makes one"):
        fedtailor.load(tmp_path / "new").model("0")


@pytest.mark.slow
def test_the_best_round_is_what_new_sites_get(tmp_path):
    data = {"clients": 4, "new_clients": 1, "fraction": 0.2, "val_fraction": 0.3}
    config = settings(
        "pfedfda",
        data,
        federation={"rounds": 6},
        evaluation={"personalized_every": 1, "select": "best"},
    )
    fedtailor.run(config, out=tmp_path / "run")
    run = fedtailor.load(tmp_path / "run")
    divided = parts_of(config).divided
    rows = divided.positions[3]
    site = SiteData(
        divided.dataset.x[rows.train], divided.dataset.y[rows.train], len(rows.train), "site"
    )
    raw, card = run.records.model_file(3)
    assert encode(onboard(load_finished_run(run.records), site, number=3).personal) == raw
    assert card["round"] == run.result["selected"]["round"] < 6
    assert run.clients[3].personalized.accuracy == card["scores"]["accuracy"]


def test_a_site_gets_a_folder_of_its_own_and_the_run_stays_as_it_is(shelf, tmp_path):
    run, _ = make_run("pfedfda", "pictures", shelf)
    write_pictures(tmp_path / "sites", sites=("Porto",), each=20)
    before = digest(run.path)
    made = run.onboard(tmp_path / "sites" / "Porto", tmp_path / "porto", name="Pörto")
    assert digest(run.path) == before
    assert (
        made.state == "finished"
        and made.clients.names == ["Pörto"]
        and made.clients[0].num_train == 40
    )
    model = made.model("Pörto")
    files = sorted((tmp_path / "sites" / "Porto" / "dark").glob("*.png"))
    assert model.predict(files).tolist() == ["dark"] * 20
    assert model.card["adaptation"] == "closed form"
    assert "onboarded" in made.records.provenance
    again = run.onboard(tmp_path / "sites" / "Porto", tmp_path / "again", name="Pörto")
    assert again.records.model_file("Pörto")[0] == made.records.model_file("Pörto")[0]
    with pytest.raises(DataError, match="onboarded"):
        made.onboard(tmp_path / "sites" / "Porto", tmp_path / "third", name="x")


def test_tables_are_onboarded_by_the_normalization_of_the_run(shelf, tmp_path):
    run, _ = make_run("fedlda", "tables", shelf)
    write_tables(tmp_path / "data", rows=30)
    made = run.onboard(tmp_path / "data" / "Oslo.csv", tmp_path / "made", name="Bergen")
    assert made.result["examples"] == 30
    assert np.array_equal(made.model("Bergen").inputs.mean, run.model("Oslo").inputs.mean)


def test_tables_with_text_are_encoded_as_in_the_run(shelf, tmp_path):
    run, _ = make_run("pfedfda", "hospital_tables", shelf)
    write_hospital_tables(tmp_path / "data", sites=("Porto",))
    made = run.onboard(tmp_path / "data" / "Porto.csv", tmp_path / "made")
    assert (
        made.result["examples"] == 50
        and made.model("Porto").inputs.to_record() == run.model("Oslo").inputs.to_record()
    )
    table = tmp_path / "data" / "Porto.csv"
    table.write_text(table.read_text().replace("sugar", "glucose"))
    with pytest.raises(DataError, match="sugar"):
        run.onboard(table, tmp_path / "other")


def test_a_site_with_a_single_class_gets_a_model_and_a_warning(shelf, tmp_path):
    """A method that learns no shares of classes keeps what other sites know of the other class."""
    run, _ = make_run("fedavg", "hospital_tables", shelf)
    write_hospital_tables(tmp_path / "data", sites=("Porto",))
    table = tmp_path / "data" / "Porto.csv"
    lines = table.read_text().splitlines()
    well = [line for line in lines[1:] if line.endswith("well")]
    filled = [line for line in well if ",," not in line and "NA" not in line]
    table.write_text("\n".join(line for line in lines if line not in well))
    made = run.onboard(table, tmp_path / "made", validate=True)
    (warning,) = made.result["notes"]
    assert "All examples are of class 'ill': a model that follows" in warning

    new = tmp_path / "new.csv"
    new.write_text("\n".join([lines[0], *filled]))
    assert (made.model("Porto").predict(new) == "well").mean() > 0.5


def test_folds_never_divide_a_patient(shelf, tmp_path):
    write_hospital_tables(tmp_path / "data", sites=("Porto",))
    run, _ = make_run("pfedfda", "hospital_tables", shelf)
    site = load_site(
        str(tmp_path / "data" / "Porto.csv"), run.model("Oslo").inputs, group="patient"
    )
    assert len(np.unique(site.groups)) == 25
    for train, held_out in folds_of(site):
        assert set(site.groups[train]).isdisjoint(site.groups[held_out])


def test_cross_validation_never_looks_at_the_examples_it_scores(shelf):
    run, _ = make_run("fedavg_ft", "digits", shelf)
    generator = np.random.default_rng(0)
    x = generator.integers(0, 17, (200, 8, 8, 1), dtype=np.uint8)
    y = generator.integers(0, 2, 200)
    validation = cross_validate(load_finished_run(run.records), SiteData(x, y, 200, "noise"))
    (row,) = site_rows(validation.trainings)
    assert row.examples == 200 and row.own == {"local": 5}
    for name, scores in row.scores.items():
        low = wilson_interval(scores.accuracy, 200)["low"]
        assert low <= 0.5, f"{name}: noise cannot be predicted"
    assert row.verdict == "no clear difference"
    assert validation.calibration.threshold is None, "the method has no ood_score"


def write_other_class(folder):
    write_pictures(folder / "all", sites=("Porto",))
    (folder / "all" / "Porto" / "dark").rename(folder / "drak")
    (folder / "all" / "Porto" / "bright").rename(folder / "bright")
    (folder / "all" / "Porto").rmdir()
    (folder / "all").rmdir()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (write_other_class, "drak"),
        (write_pictures, "Berlin, Charité, Mayo, Oslo"),
        (
            lambda folder: write_tables(folder, sites=("Oslo",)),
            r"data.kind is pictures.* features \(3,\)",
        ),
        (lambda folder: folder.mkdir(), "data"),
        (lambda folder: None, "data"),
    ],
    ids=["other class", "several sites", "tables for images", "empty", "missing"],
)
def test_wrong_data_is_refused_and_nothing_is_written(write, words, shelf, tmp_path):
    run, _ = make_run("fedavg", "pictures", shelf)
    write(tmp_path / "data")
    with pytest.raises(DataError, match=words):
        run.onboard(tmp_path / "data", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_name_that_is_taken_or_a_folder_that_exists_is_refused(shelf, tmp_path):
    run, _ = make_run("fedavg", "pictures", shelf)
    write_pictures(tmp_path / "data", sites=("Porto",))
    with pytest.raises(ConfigError, match="'Mayo'"):
        run.onboard(tmp_path / "data" / "Porto", tmp_path / "out", name="Mayo")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="full"):
        run.onboard(tmp_path / "data" / "Porto", tmp_path / "full")


def test_a_damaged_or_unfinished_run_cannot_onboard(shelf, tmp_path):
    import shutil

    run, _ = make_run("fedavg", "pictures", shelf)
    shutil.copytree(run.path, tmp_path / "run")
    write_pictures(tmp_path / "data", sites=("Porto",))
    (file,) = (tmp_path / "run" / "checkpoints").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(DataError, match="damaged"):
        fedtailor.load(tmp_path / "run").onboard(tmp_path / "data" / "Porto", tmp_path / "out")
    (manifest,) = (tmp_path / "run" / "checkpoints").glob("*.json")
    manifest.write_text(json.dumps({}))
    with pytest.raises(DataError, match="damaged"):
        fedtailor.load(tmp_path / "run").onboard(tmp_path / "data" / "Porto", tmp_path / "out")


def test_few_examples_cannot_be_cross_validated(shelf, tmp_path):
    run, _ = make_run("fedavg", "pictures", shelf)
    server = load_finished_run(run.records)
    write_pictures(tmp_path / "data", sites=("Porto",), each=2)
    site = load_site(str(tmp_path / "data" / "Porto"), server.method.inputs)
    with pytest.raises(DataError, match="5"):
        cross_validate(server, site)


def test_a_method_that_fails_is_an_error_of_the_run(shelf, monkeypatch):
    run, tests = make_run("pfedfda", "digits", shelf)
    server = load_finished_run(run.records)

    def broken(*arguments):
        raise ValueError("out of luck")

    monkeypatch.setattr(type(server.method.algorithm), "personalize", broken)
    x, _ = tests[0]
    with pytest.raises(RunError, match="out of luck"):
        onboard(server, SiteData(x, np.zeros(len(x), dtype=np.int64), len(x), "site"))


def test_bins_of_the_run_are_those_of_predictions_and_new_sites(tmp_path):
    write_tables(tmp_path / "data", rows=40)
    table = tmp_path / "data" / "Oslo.csv"
    header, first, *rows = table.read_text().splitlines()
    _age, rest = first.split(",", 1)
    table.write_text("\n".join([header, f",{rest}", *rows]) + "\n")
    data = {"path": str(tmp_path / "data"), "numbers": "bins", "missing": "indicator"}
    fedtailor.run(settings("pfedfda", data), out=tmp_path / "run")
    run = fedtailor.load(tmp_path / "run")
    write_tables(tmp_path / "new", rows=30, sites=("Porto",))
    made = run.onboard(tmp_path / "new" / "Porto.csv", tmp_path / "made")
    inputs = run.model("Oslo").inputs
    assert made.model("Porto").inputs.to_record() == inputs.to_record()
    assert inputs.columns.feature_names[4] == "age (missing)" and inputs.shape == (13,)

    # A table and an array of its cells are encoded alike.
    rows = np.array([row.split(",") for row in rows])
    cells = rows[:, [0, 1, 3]].astype(np.float32)
    table.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    model = run.model("Oslo")
    np.testing.assert_array_equal(model.predict_proba(cells), model.predict_proba(table))
    with pytest.raises(DataError, match="rows of 3 cells"):
        model.predict(np.zeros((2, 13)))
