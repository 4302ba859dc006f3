"""Models of finished runs, loaded and used."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import fedtailor
from fedtailor.algorithms import ALGORITHMS
from fedtailor.core.errors import ConfigError, DataError
from serving.small_runs import make_run, settings, write_pictures, write_tables

KINDS = ("digits", "tables", "hospital_tables", "pictures")
FAST = {
    "pfedfda": "digits",
    "knn_per": "pictures",
    "fedper": "hospital_tables",
}


def everything(kinds, fast):
    """Return all pairs of method and kind of data, slow unless they are among the fast ones."""
    pairs = []
    for name in ALGORITHMS:
        for kind in kinds:
            marks = () if fast.get(name) == kind else (pytest.mark.slow,)
            pairs.append(pytest.param(name, kind, id=f"{name}-{kind}", marks=marks))
    return pairs


@pytest.mark.parametrize(("algorithm", "kind"), everything(KINDS, FAST))
def test_the_accuracy_of_loaded_models_is_the_reported_one(algorithm, kind, shelf):
    run, tests = make_run(algorithm, kind, shelf)
    for client, (x, labels) in zip(run.clients, tests, strict=True):
        accuracy = (run.model(client.name).predict(x) == labels).mean()
        assert accuracy == client.personalized.accuracy
        assert client.num_test == len(labels)


def test_pictures_are_predicted_from_their_files(shelf):
    run, _ = make_run("pfedfda", "pictures", shelf)
    model = run.model("Charité")
    files = sorted((shelf / "pictures" / "Charité" / "dark").glob("*.png"))
    by_path = model.predict_proba(files)
    by_picture = model.predict_proba([Image.open(file) for file in files])
    assert np.array_equal(by_path, by_picture)
    assert model.predict(files[0]).tolist() == model.predict([str(files[0])]).tolist()
    assert np.allclose(by_path.sum(1), 1)


def test_a_gray_model_takes_pictures_with_colors(shelf, tmp_path):
    model = make_run("fedavg", "pictures", shelf)[0].model("Mayo")
    gray = np.full((12, 12), 40, dtype=np.uint8)
    Image.fromarray(np.stack([gray] * 3, axis=2)).save(tmp_path / "rgb.png")
    assert np.array_equal(model.predict_proba(tmp_path / "rgb.png"), model.predict_proba(gray))


def test_arrays_may_have_any_usual_form(shelf):
    model = make_run("fedavg", "pictures", shelf)[0].model("Mayo")
    images = np.random.default_rng(0).integers(0, 256, (3, 12, 12), dtype=np.uint8)
    expected = model.logits(images)
    for form in (
        images[..., None],
        images[:, None],
        images.astype(float),
        torch.from_numpy(images),
        images.tolist(),
    ):
        assert np.array_equal(model.logits(form), expected)
    assert np.array_equal(model.logits(images[1]), model.logits(images[1:2]))
    features = torch.from_numpy(model.features(images))
    assert torch.allclose(
        features @ model.module.tree()["head.weight"].T + model.module.tree()["head.bias"],
        torch.from_numpy(expected),
    )


def test_pictures_of_digits_get_their_white(tmp_path, shelf):
    run, tests = make_run("fedavg", "digits", shelf)
    digit = tests[0][0][0]
    Image.fromarray(np.rint(digit[..., 0] * (255 / 16)).astype(np.uint8)).save(
        tmp_path / "digit.png"
    )
    assert np.array_equal(run.model(0).logits(tmp_path / "digit.png"), run.model(0).logits(digit))


ALONE = {"evaluation": {"baselines": "none"}}
"""Sections of a configuration: nobody asks what sites would use alone."""


def floats():
    """Return images of floats that are not within 0 and 1, at two sites."""
    generator = np.random.default_rng(0)
    return {site: (generator.normal(0, 3, (20, 4, 4)), np.arange(20) % 2) for site in ("a", "b")}


def unit_floats():
    """Return images of floats within 0 and 1, at two sites."""
    generator = np.random.default_rng(0)
    return {site: (generator.random((20, 4, 4)), np.arange(20) % 2) for site in ("a", "b")}


@pytest.mark.parametrize("normalize", ["auto", "training"])
def test_images_of_floats_are_taken_on_the_scale_of_training(normalize, tmp_path):
    study = fedtailor.from_folder("serving.test_models:floats", normalize=normalize)
    model = study.fit("fedavg", rounds=1, out=tmp_path / "any", config=ALONE).model("a")
    assert model.predict(floats()["a"][0].astype(np.float32)).shape == (20,)


def test_images_of_floats_within_0_and_1_stay_within(tmp_path):
    model = (
        fedtailor.from_folder("serving.test_models:unit_floats")
        .fit("fedavg", rounds=1, out=tmp_path / "u", config=ALONE)
        .model("a")
    )
    with pytest.raises(DataError, match="values from 0 to 1, where 1 is white"):
        model.predict(200 * unit_floats()["a"][0])


def test_names_of_classes_and_numbers_of_clients(shelf):
    run, _ = make_run("fedavg", "pictures", shelf)
    model = run.model(2)
    assert model.client == "Mayo" and model.classes_.tolist() == ["bright", "dark"]
    assert set(model.predict(np.zeros((2, 12, 12), dtype=np.uint8))) <= {"bright", "dark"}
    assert run.clients.names == ["Berlin", "Charité", "Mayo", "Oslo"]
    assert run.clients["Oslo"].number == 3 and run.clients[-1].name == "Oslo"
    with pytest.raises(ConfigError, match="'Oslo'"):
        run.clients["Osla"]


def test_a_model_is_a_step_of_scikit_learn(shelf):
    run, tests = make_run("pfedfda", "digits", shelf)
    model = run.model(0)
    x, labels = tests[0]
    pipeline = make_pipeline(FunctionTransformer(), model)
    assert accuracy_score(labels, pipeline.predict(x)) == run.clients[0].personalized.accuracy
    assert np.array_equal(pipeline.predict_proba(x), FrozenEstimator(model).predict_proba(x))
    assert (
        model.fit(x, labels) is model
        and pipeline.score(x, labels) == run.clients[0].personalized.accuracy
    )


def test_the_module_is_a_plain_one_with_preprocessing_inside(shelf):
    run, tests = make_run("fedavg_ft", "digits", shelf)
    model = run.model(0)
    x, labels = tests[0]
    assert isinstance(model.module, torch.nn.Module) and not model.module.training
    with torch.no_grad():
        logits = model.module(torch.from_numpy(x).permute(0, 3, 1, 2))
    assert (model.classes_[logits.argmax(1).numpy()] == labels).mean() == run.clients[
        0
    ].personalized.accuracy
    names = set(model.module.state_dict())
    assert "model_head_weight" in names


def test_probabilities_are_calibrated_on_validation_examples(tmp_path):
    study = fedtailor.from_dataset("digits", clients=2, val_fraction=0.3)
    run = study.fit("pfedfda", rounds=1, out=tmp_path / "run")
    model = run.model(0)
    assert model.is_calibrated and model.temperature != 1
    x = np.random.default_rng(0).integers(0, 17, (20, 8, 8)).astype(np.uint8)
    raw = torch.softmax(torch.from_numpy(model.logits(x)).double() / model.temperature, 1)
    assert np.array_equal(model.predict_proba(x), raw.numpy())
    assert (
        model.ood_threshold is not None
        and (model.ood_score(255 * np.ones((1, 8, 8))) > model.ood_threshold).all()
    )


def test_few_validation_examples_leave_a_model_uncalibrated(shelf):
    model = make_run("pfedfda", "tables", shelf)[0].model("Oslo")
    assert not model.is_calibrated and model.temperature == 1 and model.ood_threshold is None
    assert (
        make_run("fedavg", "pictures", shelf)[0].model("Oslo").ood_score(np.zeros((12, 12))) is None
    )


def test_a_run_is_a_table(shelf):
    run, _ = make_run("fedavg", "pictures", shelf)
    text = str(run.table())
    assert text.splitlines()[0].split() == [
        "client",
        "train",
        "validation",
        "test",
        "global",
        "local",
        "personalized",
        "balanced",
        "AUROC",
    ]
    balanced = run.clients[1].personalized.balanced_accuracy
    assert run.table().records()[1]["balanced"] == pytest.approx(100 * balanced, abs=0.05)
    auroc = run.clients[1].personalized.auroc
    assert run.table().records()[1]["AUROC"] == pytest.approx(auroc, abs=0.0005)
    assert text.splitlines()[2].split()[-1] == f"{auroc:.3f}"
    assert run.table().records()[1]["client"] == "Charité"
    assert "<td>Charité</td>" in run._repr_html_() and "<table>" in run.clients._repr_html_()


def test_hostile_names_are_escaped_in_html(tmp_path):
    write_pictures(tmp_path / "data", sites=("<script>alert(1)<|script>".replace("|", "_"), "b"))
    run = fedtailor.from_folder(tmp_path / "data", image_size=12).fit(
        "fedavg", rounds=1, out=tmp_path / "run", config=ALONE
    )
    assert "<script" not in run._repr_html_() and "&lt;script" in run._repr_html_()


def test_a_study_does_what_the_command_line_does(shelf, tmp_path):
    config = {"training": {"epochs": 1, "lr": 0.05}, "engine": {"name": "reference"}}
    run, _ = make_run("pfedfda", "digits", shelf)
    study = fedtailor.from_dataset("digits", clients=4, fraction=0.2, val_fraction=0.2)
    again = study.fit("pfedfda", rounds=1, out=tmp_path / "again", config=config)
    assert again.result["metrics"] == run.result["metrics"]
    with pytest.raises(ConfigError, match="covridge"):
        study.fit("pfedfda", covridge=1)


def test_several_seeds_have_their_own_models(tmp_path):
    config = fedtailor.make_config(
        {"seeds": [0, 1], "data": {"clients": 3, "fraction": 0.1}, "federation": {"rounds": 1}}
    )
    fedtailor.run(config, out=tmp_path / "two")
    run = fedtailor.load(tmp_path / "two")
    x = np.zeros((1, 8, 8), dtype=np.uint8)
    assert not np.array_equal(run.model(0, seed=0).logits(x), run.model(0, seed=1).logits(x))
    assert np.array_equal(run.seeds[1].model(0).logits(x), run.seed(1).model(0).logits(x))
    for forgotten in (lambda: run.model(0), lambda: run.clients):
        with pytest.raises(ConfigError, match="seed"):
            forgotten()


@pytest.mark.parametrize(
    ("kind", "inputs", "words"),
    [
        ("pictures", np.zeros((2, 13, 12)), "12 x 12 pixels and 1 channel"),
        ("pictures", np.zeros((2, 12, 12, 3)), "12 x 12 pixels and 1 channel"),
        ("pictures", np.full((1, 12, 12), 300), "from 0 to 255"),
        ("pictures", np.full((1, 12, 12), -1.0), "from 0 to 255"),
        ("pictures", np.full((1, 12, 12), 0.5), "255"),
        ("pictures", np.full((1, 12, 12), math.nan), "finite"),
        ("pictures", np.ones((1, 12, 12), dtype=bool), "bool"),
        ("pictures", np.full((1, 12, 12), "a"), "<U1"),
        ("pictures", [[1, 2], [3]], "list"),
        ("pictures", None, "object"),
        ("pictures", "missing.png", "missing.png"),
        ("tables", np.zeros((2, 4)), "(2, 4)"),
        ("tables", np.array([[1, math.inf, 0]]), "row 0"),
        ("tables", np.array([[1, 1e300, 0]]), "finite"),
    ],
)
def test_wrong_inputs_are_refused(kind, inputs, words, shelf):
    model = make_run("fedavg", kind, shelf)[0].model("Mayo")
    with pytest.raises(DataError) as error:
        model.predict(inputs)
    assert words in error.value.message


def frame(**columns):
    """Return a stand-in for a data frame."""

    class Column:
        def __init__(self, values):
            self.values = values

        def to_numpy(self):
            return np.array(self.values, dtype=object if isinstance(self.values[0], str) else float)

    class Columns(dict):
        @property
        def columns(self):
            return list(self)

    return Columns({name: Column(values) for name, values in columns.items()})


def test_rows_of_a_data_frame_are_read_like_the_table(shelf):
    run, _ = make_run("fedper", "hospital_tables", shelf)
    model = run.model("Mayo")
    plan = model.inputs.columns
    assert plan.feature_names == ("age", "sex=female", "sex=male", "sex=missing", "sugar")
    with pytest.warns(UserWarning, match="Column 'age' has 1 empty cell"):
        found = model.logits(frame(sugar=[5.0, 7.0], sex=["male", "female"], age=[math.nan, 50.0]))
    fill = plan.columns[0].fill
    assert np.array_equal(found, model.logits([[fill, 0, 1, 0, 5.0], [50, 1, 0, 0, 7.0]]))
    with pytest.raises(DataError, match=r"1 column is missing.*'sugar'"):
        model.predict(frame(sex=["male"], age=[1.0]))
    with pytest.raises(DataError, match="did not have: 'weight'"):
        model.predict(frame(sex=["male"], age=[1.0], sugar=[1.0], weight=[1.0]))


def test_values_that_mean_missing_do_so_in_arrays_too(tmp_path):
    write_tables(tmp_path / "tables")
    data = {"path": str(tmp_path / "tables"), "missing_values": {"sugar": [0]}}
    fedtailor.run(settings("fedavg", data), out=tmp_path / "run")
    model = fedtailor.load(tmp_path / "run").model("Oslo")
    with pytest.warns(UserWarning, match="Column 'sugar' has 1 empty cell"):
        expected = model.logits(frame(age=[30.0], pressure=[31.0], sugar=[0.0]))
    assert np.array_equal(model.logits(np.array([[30.0, 31.0, 0.0]])), expected)


def test_the_number_of_a_client_is_its_place_whatever_its_name(tmp_path):
    write_tables(tmp_path / "tables", sites=("1", "2", "3"))
    fedtailor.run(settings("fedavg", {"path": str(tmp_path / "tables")}), out=tmp_path / "run")
    run = fedtailor.load(tmp_path / "run")
    assert [run.model(number).client for number in range(3)] == ["1", "2", "3"]
    assert run.model("1").client == "1"


def test_a_damaged_or_missing_model_is_an_error(shelf, tmp_path):
    import shutil

    run, _ = make_run("fedavg", "digits", shelf)
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    file = copy / "models" / "0.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    (copy / "models" / "1.json").write_text(
        json.dumps({**json.loads((copy / "models" / "1.json").read_text()), "number": "1"})
    )
    (copy / "models" / "2.safetensors").unlink()
    broken = fedtailor.load(copy)
    with pytest.raises(DataError, match=r"SHA-256 does not match"):
        broken.model(0)
    with pytest.raises(DataError, match="number of the client"):
        broken.model(1)
    with pytest.raises(DataError, match="cannot read"):
        broken.model(2)
    with pytest.raises(DataError, match="holds no model of client 9"):
        broken.model(9)
    (copy / "inputs.json").write_text(
        (copy / "inputs.json").read_text().replace('"version": 1', '"version": 2')
    )
    with pytest.raises(DataError, match=r"of version 2"):
        broken.model(3)
    (copy / "inputs.json").unlink()
    with pytest.raises(DataError, match=r"inputs\.json"):
        broken.model(3)
