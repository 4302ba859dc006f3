"""Baselines: what sites would use alone. They never see test labels, and a cache is never stale."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedtailor.baselines
from fedtailor.baselines import Inputs, LabeledInputs, train_baselines
from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.core.schedule import BASELINE_NAMES
from fedtailor.experiment import baselines
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.baselines import add_baselines
from fedtailor.experiment.config import make_config
from fedtailor.experiment.predictions import (
    BASELINES_FILE,
    CHOICES_FILE,
    OWN_MODELS_FILE,
    PREDICTIONS_FILE,
    read_predictions,
)
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.run import run
from fedtailor.experiment.tracking import RunProgress
from fedtailor.experiment.writer import RunWriter
from fedtailor.serving.export import export_model
from fedtailor.serving.own_model import OwnModule
from fedtailor.serving.run import load

SITES = ("east", "north", "west")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Return the folder of a table of three sites, the last one with a column that is empty."""
    folder = tmp_path_factory.mktemp("table")
    random = np.random.default_rng(0)
    for site in SITES:
        rows = ["age,marker,label"]
        for number in range(60):
            age, marker = random.normal(size=2)
            is_sick = marker > 0.5 and age > -0.5
            marker_cell = "" if site == "west" else f"{marker:.3f}"
            rows.append(f"{age:.3f},{marker_cell},{'sick' if is_sick or number < 3 else 'well'}")
        (folder / f"{site}.csv").write_text("\n".join(rows) + "\n")

    return folder


def settings(table, **overrides):
    values = {
        "data": {"path": str(table)},
        "algorithm": {"name": "fedavg"},
        "federation": {"rounds": 1},
        "engine": {"name": "reference"},
    }
    overrides = [(key.replace("__", "."), value) for key, value in overrides.items()]
    return make_config(values, overrides)


def choices_of(folder):
    return json.loads((folder / CHOICES_FILE).read_text())


def add(parts, folder):
    folder.mkdir(parents=True, exist_ok=True)
    add_baselines(parts, folder, RunProgress())
    return read_predictions(folder / BASELINES_FILE)


def test_a_run_of_own_tables_has_them_beside_the_predictions_of_its_models(table, tmp_path):
    run(settings(table), out=tmp_path / "run")
    models = read_predictions(tmp_path / "run" / PREDICTIONS_FILE)
    predictions = read_predictions(tmp_path / "run" / BASELINES_FILE)
    assert list(predictions) == list(models) == [0, 1, 2]
    for client, content in predictions.items():
        assert content.positions.tolist() == models[client].positions.tolist()
        assert content.labels.tolist() == models[client].labels.tolist()
        best = choices_of(tmp_path / "run")["sites"][str(client)]["best"]
        assert best in BASELINE_NAMES
        assert set(content.probabilities) == {best, f"pooled_{best}"}


def test_test_labels_change_neither_predictions_nor_choices(table, tmp_path):
    names = "majority,logistic_regression,random_forest"
    parts = assemble(settings(table, evaluation__baselines=names), 0)
    expected = add(parts, tmp_path / "as-they-are")

    labels = parts.divided.dataset.y.copy()
    for client in parts.divided.positions:
        labels[client.test] = 1 - labels[client.test]
    dataset = replace(parts.divided.dataset, y=labels)
    parts = parts._replace(divided=parts.divided._replace(dataset=dataset))
    predictions = add(parts, tmp_path / "turned")

    for client, content in predictions.items():
        assert content.labels.tolist() == (1 - expected[client].labels).tolist()
        for name, probabilities in content.probabilities.items():
            np.testing.assert_array_equal(probabilities, expected[client].probabilities[name])
    first, second = choices_of(tmp_path / "as-they-are"), choices_of(tmp_path / "turned")
    assert first["sites"] == second["sites"]


@pytest.mark.slow
def test_processes_change_no_byte(table, tmp_path, monkeypatch):
    parts = assemble(settings(table), 0)
    add(parts, tmp_path / "one")
    monkeypatch.setattr(fedtailor.baselines, "_PARALLEL_FROM", 1)
    before = os.times()
    add(parts, tmp_path / "several")
    if len(os.sched_getaffinity(0)) > 1:
        # The processes have ended: else their time would be counted whenever they end.
        assert os.times().children_user > before.children_user
    for name in (BASELINES_FILE, CHOICES_FILE):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "several" / name).read_bytes()


def test_runs_of_a_comparison_share_them_unless_anything_differs(table, tmp_path, monkeypatch):
    def of(table, **changes):
        names = {"evaluation__baselines": "majority,logistic_regression"}
        return settings(table, **{**names, **changes})

    (tmp_path / "comparison.json").write_text("{}")
    add(assemble(of(table), 0), tmp_path / "runs" / "one")
    trainings = []
    train = baselines.train_sites
    monkeypatch.setattr(
        baselines, "train_sites", lambda *args, **kw: trainings.append(1) or train(*args, **kw)
    )

    add(assemble(of(table, algorithm__name="ditto"), 0), tmp_path / "runs" / "two")
    assert trainings == [], "the method does not matter"
    for name in (BASELINES_FILE, CHOICES_FILE):
        of_one = (tmp_path / "runs" / "one" / name).read_bytes()
        assert (tmp_path / "runs" / "two" / name).read_bytes() == of_one

    calls = 2  # for the sites, and for all data in one place
    others = [
        ("split", of(table, data__seed=1)),
        ("features", of(table, data__numbers="bins")),
        ("names", of(table, evaluation__baselines="majority")),
    ]
    for number, (name, config) in enumerate(others, 1):
        add(assemble(config, 0), tmp_path / "runs" / name)
        assert len(trainings) == calls * number, name

    add(assemble(of(table, data__seed=1), 1), tmp_path / "runs" / "other seed")
    assert len(trainings) == calls * len(others), "the seed of a run does not matter"

    # A damaged file is made again, in its own folder too.
    (tmp_path / "runs" / "one" / BASELINES_FILE).write_bytes(b"nothing")
    (tmp_path / "runs" / "two" / BASELINES_FILE).write_bytes(b"nothing")
    add(assemble(of(table), 0), tmp_path / "runs" / "one")
    assert len(trainings) == calls * (len(others) + 1)


def test_a_finished_run_gets_the_baselines_that_it_lacks(table, tmp_path):
    path = tmp_path / "run"
    run(settings(table, evaluation__baselines="none"), out=path)
    assert not (path / CHOICES_FILE).exists()
    run(settings(table, evaluation__baselines="majority,random_forest"), out=path)
    best = choices_of(path)["sites"]["0"]["best"]
    assert best in ("majority", "random_forest")
    names = set(read_predictions(path / BASELINES_FILE)[0].probabilities)
    assert names == {best, f"pooled_{best}"}


def test_known_pictures_have_none_unless_they_are_named(tmp_path):
    config = make_config({"data": {"clients": 2, "fraction": 0.1}, "federation": {"rounds": 1}})
    run(config, out=tmp_path / "run")
    assert not (tmp_path / "run" / CHOICES_FILE).exists()

    named = replace(config.schedule, baselines=",".join(BASELINE_NAMES))
    predictions = add(assemble(replace(config, schedule=named), 0), tmp_path / "named")
    assert set(predictions[0].probabilities) <= {
        *("majority", "logistic_regression"),
        *("pooled_majority", "pooled_logistic_regression"),
    }
    missing = choices_of(tmp_path / "named")["sites"]["0"]["missing"]
    assert set(missing) == {"random_forest", "gradient_boosting"}


def test_an_unknown_name_is_refused_with_the_nearest_one(table):
    with pytest.raises(ConfigError, match="did you mean 'random_forest'"):
        settings(table, evaluation__baselines="random_forrest")


def examples(labels, values=None):
    labels = np.asarray(labels)
    if values is None:
        values = np.random.default_rng(0).normal(size=(len(labels), 2))
    return LabeledInputs(Inputs(values, values), labels)


def train_each(names, training, num_classes):
    """Return what every baseline says about its training examples, and why some are missing."""
    probabilities = {}
    missing = {}
    for name in names:
        trained = train_baselines([name], training, training.inputs, num_classes=num_classes)
        probabilities |= trained.probabilities
        missing |= trained.missing
    return probabilities, missing


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        (examples([1] * 20), "one class"),
        (examples([0, 1]), "2 training examples"),
        (examples([0, 1] * 10, np.zeros((20, 2))), "the same inputs"),
    ],
)
def test_what_cannot_be_trained_is_missing_with_its_reason(training, reason):
    trained = train_baselines(BASELINE_NAMES, training, training.inputs, num_classes=3)
    assert list(trained.probabilities) == ["majority"]
    assert trained.best == "majority"
    assert set(trained.missing) == set(BASELINE_NAMES[1:])
    assert all(reason in text for text in trained.missing.values())


@pytest.mark.parametrize(("num_classes", "is_missing"), [(2, False), (3, True)])
def test_boosting_of_many_features_and_classes_is_missing_with_its_reason(
    num_classes, is_missing, monkeypatch
):
    monkeypatch.setattr(fedtailor.baselines, "_MOST_FOR_BOOSTING", 5)
    training = examples([number % num_classes for number in range(30)])
    probabilities, missing = train_each(BASELINE_NAMES, training, num_classes)
    assert ("gradient_boosting" in missing) == is_missing
    assert ("gradient_boosting" in probabilities) != is_missing
    assert "random_forest" in probabilities


def test_an_empty_column_and_a_class_with_one_example_stop_nothing():
    values = np.random.default_rng(0).normal(size=(30, 2))
    values[:, 1] = 0
    labels = (values[:, 0] > 0).astype(int)
    labels[0] = 2
    by_name, missing = train_each(BASELINE_NAMES, examples(labels, values), num_classes=4)
    assert set(by_name) == set(BASELINE_NAMES)
    assert missing == {}
    for probabilities in by_name.values():
        assert np.isfinite(probabilities).all()
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
        assert (probabilities[:, 3] == 0).all(), "the site has no such class"


def test_where_the_best_one_cannot_be_trained_on_all_examples_the_next_one_is(monkeypatch):
    values = np.random.default_rng(0).normal(size=(60, 2))
    training = examples((values[:, 0] > 0).astype(int), values)
    best = train_baselines(BASELINE_NAMES, training, training.inputs, num_classes=2).best
    fit = fedtailor.baselines._fit

    def failing(candidate, part):
        if candidate.name == best and len(part.labels) == 60:
            raise ValueError("no luck")
        return fit(candidate, part)

    monkeypatch.setattr(fedtailor.baselines, "_fit", failing)
    trained = train_baselines(BASELINE_NAMES, training, training.inputs, num_classes=2)
    assert trained.best != best and list(trained.probabilities) == [trained.best]
    assert trained.missing == {best: "no luck"}


@pytest.mark.parametrize("folds", [0, 2])
def test_a_finished_run_gets_other_baselines_and_verdicts_later(tmp_path, folds):
    generator = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for name in ("Oslo", "Porto"):
        ages = generator.integers(20, 90, 40)
        rows = [f"{age},{'ill' if age > 50 else 'well'}" for age in ages]
        (tmp_path / "data" / f"{name}.csv").write_text("\n".join(["age,label", *rows]))

    def verdicts(names, measure="accuracy", seed=2**40):
        data = {"path": str(tmp_path / "data"), "folds": folds}
        values = {"seed": seed, "data": data, "federation": {"rounds": 1}}
        values["evaluation"] = {"baselines": names, "verdict": measure}
        worth_it = run(make_config(values), out=tmp_path / "run")["worth_it"]
        own = {name for site in worth_it["sites"] for name in site["own"]}
        return worth_it["measure"], own

    assert verdicts("none") == ("accuracy", {"majority"})
    assert verdicts("logistic_regression") == ("accuracy", {"logistic_regression"})
    assert verdicts("logistic_regression", "auroc") == ("auroc", {"logistic_regression"})

    # Verdicts are over all folds, so a fold has none.
    for fold in (tmp_path / "run").glob("fold-*"):
        assert "worth_it" not in json.loads((fold / "result.json").read_text())


def test_models_are_those_of_scikit_learn():
    random = np.random.default_rng(0)
    values = random.normal(size=(150, 5)).astype(np.float32)
    labels = (values[:, :3] + random.gumbel(size=(150, 3))).argmax(1)
    names = ("logistic_regression", "random_forest")
    probabilities, _ = train_each(names, LabeledInputs(Inputs(values, values), labels), 3)

    forest = RandomForestRegressor(
        100, min_samples_leaf=3, max_features="sqrt", random_state=fedtailor.baselines._SEED
    )
    expected = forest.fit(values, np.eye(3)[labels]).predict(values)
    np.testing.assert_array_equal(probabilities["random_forest"], np.float32(expected))

    # One of the strengths was chosen.
    distances = []
    for strength in fedtailor.baselines._STRENGTHS:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=500))
        expected = model.fit(values, labels).predict_proba(values)
        distances.append(np.abs(probabilities["logistic_regression"] - expected).max())
    assert min(distances) < 1e-6


def test_without_test_examples_nothing_is_predicted():
    training = examples([0, 1] * 20)
    nobody = training.inputs.take(np.arange(0))
    trained = train_baselines(BASELINE_NAMES, training, nobody, num_classes=2, keep=True)
    assert {values.shape for values in trained.probabilities.values()} == {(0, 2)}
    assert trained.missing == {}


@pytest.mark.parametrize("num_present", [1, 2, 3])
@pytest.mark.parametrize("name", BASELINE_NAMES)
def test_a_model_that_is_kept_predicts_as_scikit_learn(name, num_present):
    random = np.random.default_rng(0)
    mean, std = np.array([1.0, -2.0]), np.array([3.0, 0.5])
    stored = random.normal(mean, std, (120, 2)).astype(np.float32)
    scaled = ((stored - mean.astype(np.float32)) / std.astype(np.float32)).astype(np.float32)
    labels = (scaled.sum(1) > 0).astype(int) + (scaled[:, 0] > 1)
    labels = np.minimum(labels, num_present - 1)
    inputs = Inputs(scaled, stored)
    trained = train_baselines(
        (name,), LabeledInputs(inputs, labels), inputs, num_classes=3, keep=True
    )
    if trained.model is None:  # a single class, and not the majority
        assert num_present == 1 and name in trained.missing
        return

    specification = SimpleNamespace(
        kind="table", mean=mean, std=std, white=1.0, l2=False, num_classes=3
    )
    module = OwnModule(name, trained.model, specification)
    predicted = module(torch.from_numpy(stored)).exp().numpy()
    np.testing.assert_allclose(predicted, trained.probabilities[name], atol=1e-5)


@pytest.mark.parametrize("name", ["random_forest", "gradient_boosting"])
def test_trees_of_two_equally_large_classes_are_those_of_their_kind(name):
    """Boosting begins at the log-odds of the classes, which are 0 here, as the scores of a forest
    do."""
    values = np.random.default_rng(0).normal(size=(120, 2)).astype(np.float32)
    labels = (np.argsort(np.argsort(values.sum(1))) >= 60).astype(int)
    inputs = Inputs(values, values)
    trained = train_baselines(
        (name,), LabeledInputs(inputs, labels), inputs, num_classes=2, keep=True
    )
    specification = SimpleNamespace(kind="table", num_classes=2)
    predicted = OwnModule(name, trained.model, specification)(torch.from_numpy(values)).exp()
    np.testing.assert_allclose(predicted.numpy(), trained.probabilities[name], atol=1e-5)


def test_the_own_model_of_series_gets_them_as_it_was_trained():
    series = np.random.default_rng(0).normal(size=(40, 6, 2)).astype(np.float32)
    flat = series.reshape(40, -1)
    labels = (flat[:, 1] > 0).astype(int)
    inputs = Inputs(flat, flat)
    names = ("logistic_regression",)
    trained = train_baselines(
        names, LabeledInputs(inputs, labels), inputs, num_classes=2, keep=True
    )
    module = OwnModule(names[0], trained.model, SimpleNamespace(kind="series", num_classes=2))

    # Networks take (n, channels, times).
    predicted = module(torch.from_numpy(series).transpose(1, 2)).exp().numpy()
    np.testing.assert_allclose(predicted, trained.probabilities[names[0]], atol=1e-5)


def test_a_site_uses_its_own_model_unless_the_personalized_one_is_better(table, tmp_path):
    folder = tmp_path / "run"
    config = settings(table, serve__fallback="best", evaluation__baselines="random_forest")
    result = run(config, out=folder)
    finished = load(folder)
    dataset = assemble(config, 0).divided.dataset
    tested = read_predictions(folder / BASELINES_FILE)
    for row in result["worth_it"]["sites"]:
        assert row["verdict"] != "better"
        model = finished.model(row["site"])
        assert model.card["algorithm"] == "random_forest"
        expected = tested[row["client"]].probabilities["random_forest"]
        rows = dataset.x[tested[row["client"]].positions]
        np.testing.assert_allclose(model.predict_proba(rows), expected, atol=1e-6)
        labels = model.classes_[dataset.y[tested[row["client"]].positions]]
        comparison = model.evaluate(rows, labels)["comparison"]["accuracy"]
        assert comparison["difference"] == pytest.approx(0, abs=1e-5)
        with pytest.raises(ConfigError, match="uses its own model"):
            export_model(model, tmp_path / "exported", "safetensors")

    # Where it is clearly better, the personalized one is used.
    path = folder / "result.json"
    path.write_text(path.read_text().replace("no clear difference", "better"))
    assert load(folder).model(SITES[0]).card["algorithm"] == "fedavg"

    arrays = safetensors.numpy.load_file(folder / OWN_MODELS_FILE)
    arrays["0/random_forest/left"] += 10**6
    safetensors.numpy.save_file(arrays, folder / OWN_MODELS_FILE)
    path.write_text(path.read_text().replace('"better"', '"worse"'))
    with pytest.raises(DataError, match="left must lie between"):
        load(folder).model(SITES[0])


def test_clients_without_names_choose_too(tmp_path):
    values = {"data": {"clients": 2, "fraction": 0.1}, "federation": {"rounds": 1}}
    values["serve"] = {"fallback": "best"}
    values["seeds"] = [0, 1]
    values["evaluation"] = {"baselines": "logistic_regression"}
    config = make_config(values)
    run(config, out=tmp_path / "run")
    tested = read_predictions(tmp_path / "run" / "seed-1" / BASELINES_FILE)[0]
    model = load(tmp_path / "run").model(0, seed=1)
    assert model.card["algorithm"] == "logistic_regression"  # after one round

    # Pictures, whose channels come first in a module and last in a baseline.
    pictures = assemble(config, 0).divided.dataset.x[tested.positions]
    expected = tested.probabilities["logistic_regression"]
    np.testing.assert_allclose(model.predict_proba(pictures), expected, atol=1e-6)


def test_a_run_that_has_finished_says_which_models_are_used(tmp_path, monkeypatch):
    """Also before the other seeds have finished; without a result nobody can know."""
    values = {"data": {"clients": 2, "fraction": 0.1}, "federation": {"rounds": 1}}
    values |= {"serve": {"fallback": "best"}, "seeds": [0, 1]}
    values["evaluation"] = {"baselines": "logistic_regression"}
    finish = RunWriter.finish

    def stop(self, *args, **options):
        if self.path.name == "seed-1":
            raise KeyboardInterrupt
        return finish(self, *args, **options)

    monkeypatch.setattr(RunWriter, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        run(make_config(values), out=tmp_path / "run")
    interrupted = load(tmp_path / "run")
    assert interrupted.model(0, seed=0).card["algorithm"] == "logistic_regression"
    with pytest.raises(DataError, match="has not finished"):
        interrupted.model(0, seed=1)


def test_a_site_whose_own_model_cannot_be_written_has_no_folder_that_finished(
    table, tmp_path, monkeypatch
):
    config = settings(table, serve__fallback="best", evaluation__baselines="random_forest")
    run(config, out=tmp_path / "run")

    def refuse(*args):
        raise RunError("no space left")

    monkeypatch.setattr("fedtailor.serving.model_folder.write_own_models", refuse)
    made = tmp_path / "made"
    with pytest.raises(RunError, match="no space left"):
        load(tmp_path / "run").onboard(table / f"{SITES[0]}.csv", made, name="Porto")
    assert not made.exists() or read_run(made).status["state"] != "finished"
