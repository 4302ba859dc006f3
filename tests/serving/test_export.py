"""Exported models say the same as the models of the package."""

import json

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

import fedtailor
from fedtailor.algorithms import ALGORITHMS
from fedtailor.core.errors import ConfigError, RunError
from fedtailor.serving.export import SUFFIXES, card_path, export_card, export_model
from fedtailor.serving.trace import traced
from marks import quick
from serving.small_runs import make_run

onnxruntime = pytest.importorskip("onnxruntime")

SIDES = {"mlp": 12, "cifar_cnn": 32, "resnet18_gn": 32, "serving.test_export:own_module": 16}
TOLERANCE = {"resnet18_gn": 1e-4}
FAST = {"serving.test_export:own_module": ("fedbn",)}


def own_module(shape, classes, width=8):
    """Return a module with BatchNorm and Dropout."""
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, stride=2),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(16, classes),
    )


def sites(side=12):
    """Return random images in three classes at two sites."""
    generator = np.random.default_rng(0)
    found = {}
    for site in ("a", "b"):
        images = generator.integers(0, 256, (24, side, side, 3), dtype=np.uint8)
        found[site] = (images, np.arange(24) % 3)
    return found


def sites_16():
    return sites(16)


def sites_32():
    return sites(32)


DATA = {
    12: "serving.test_export:sites",
    16: "serving.test_export:sites_16",
    32: "serving.test_export:sites_32",
}


def trained(algorithm, model, folder):
    """Return the model of a site after one round."""
    out = folder / f"export-{algorithm}-{model}".replace(":", "-")
    if out.exists():
        return fedtailor.load(out).model("a")
    study = fedtailor.from_folder(DATA[SIDES[model]])
    config = {"training": {"epochs": 1, "lr": 0.01}, "engine": {"name": "reference"}}
    config["evaluation"] = {"baselines": "none"}
    return study.fit(algorithm, rounds=1, model=model, out=out, config=config).model("a")


def products():
    pairs = []
    for model in SIDES:
        for algorithm in ALGORITHMS:
            if algorithm == "pfedgp":
                continue  # ONNX has no Cholesky factorization
            if (algorithm, model) == ("pfedhn", "resnet18_gn"):
                continue  # its training takes more than 21 GB of memory
            marks = () if algorithm in FAST.get(model, ()) else (pytest.mark.slow,)
            pairs.append(
                pytest.param(
                    algorithm, model, id=f"{algorithm}-{model.rpartition(':')[2]}", marks=marks
                )
            )
    return pairs


@pytest.mark.slow
def test_onnx_has_no_cholesky_factorization(shelf, tmp_path):
    personal = trained("pfedgp", "mlp", shelf)
    with pytest.raises(RunError, match="cannot be exported as onnx"):
        fedtailor.export_model(personal, tmp_path, "onnx", with_examples=True)


@pytest.mark.parametrize(("algorithm", "model"), products())
def test_onnx_says_the_same_as_torch(algorithm, model, shelf, tmp_path):
    personal = trained(algorithm, model, shelf)
    path = fedtailor.export_model(personal, tmp_path, "onnx", with_examples=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    images = np.random.default_rng(1).integers(
        0, 256, (37, SIDES[model], SIDES[model], 3), dtype=np.uint8
    )
    for part in (images, images[:1]):
        inputs = np.ascontiguousarray(part.transpose(0, 3, 1, 2))
        logits, probabilities = session.run(None, {"inputs": inputs})
        expected = personal.logits(part)
        scale = max(1, np.abs(expected[np.isfinite(expected)]).max())
        # A head of few examples can have logits of a thousand, which float32 rounds to 1e-4.
        tolerance = max(TOLERANCE.get(model, 1e-5), min(1e-6 * scale, 1e-3))
        assert np.abs(probabilities - personal.predict_proba(part)).max() <= tolerance
        expected = expected - expected.max(1, keepdims=True)  # all classes may share a term
        logits = logits - logits.max(1, keepdims=True)
        finite = np.isfinite(expected)
        assert np.array_equal(finite, np.isfinite(logits))
        assert np.abs(logits - expected)[finite].max() <= 1e-5 * scale


@pytest.mark.slow
def test_closed_form_heads_are_one_linear_layer(shelf):
    model = trained("pfedfda", "mlp", shelf)
    program = traced(model.module, model.inputs, model.temperature)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    linear = [target for target in targets if "mm" in target or "linear" in target]
    assert len(linear) == 2, "the hidden layer, and the head"


def test_the_card_says_what_goes_in_and_what_comes_out(shelf):
    card = export_card(trained("pfedfda", "mlp", shelf), "onnx")
    assert card["inputs"]["shape"] == ["batch", 3, 12, 12] and card["inputs"]["stored"] == "uint8"
    assert card["classes"] == ["0", "1", "2"] and card["calibrated"] is False
    assert card["client"] == "a" and card["algorithm"] == "pfedfda"
    assert set(card["outputs"]) == {"logits", "probabilities"}


def test_tables_are_normalized_in_the_graph(shelf):
    run, tests = make_run("pfedfda", "tables", shelf)
    model = run.model(0)
    x, labels = tests[0]
    program = traced(model.module, model.inputs, model.temperature).module()
    logits, _ = program(torch.from_numpy(x))
    accuracy = (model.classes_[logits.argmax(1).numpy()] == labels).mean()
    assert accuracy == run.clients[0].personalized.accuracy


@pytest.mark.slow
def test_torch_export_needs_no_fedtailor(shelf, tmp_path):
    personal = trained("fedsr", "mlp", shelf)
    path = fedtailor.export_model(personal, tmp_path, "torch-export")
    module = torch.export.load(path).module()
    images = torch.randint(0, 256, (5, 3, 12, 12), dtype=torch.uint8)
    _, probabilities = module(images)
    expected = personal.predict_proba(images.permute(0, 2, 3, 1).numpy())
    assert np.abs(probabilities.numpy() - expected).max() <= 1e-5


def test_safetensors_holds_model_and_preprocessing(shelf, tmp_path):
    personal = trained("pfedfda", "mlp", shelf)
    path = fedtailor.export_model(personal, tmp_path, "safetensors")
    tensors = safetensors.numpy.load_file(path)
    assert tensors["preprocessing.white"] == 255
    assert np.array_equal(tensors["head.weight"], personal.module.tree().head.weight.numpy())
    card = json.loads((tmp_path / "a.safetensors.json").read_text())
    assert card["format"] == "safetensors" and card["file"] == "a.safetensors"


def test_nothing_is_written_into_a_run(shelf):
    run, _ = make_run("pfedfda", "tables", shelf)
    before = sorted(run.path.rglob("*"))
    for folder in (run.path / "models", run.path, run.path / "new"):
        with pytest.raises(ConfigError, match="run"):
            fedtailor.export_model(run.model(0), folder, "safetensors")
    assert sorted(run.path.rglob("*")) == before


@pytest.mark.parametrize("format", quick(["safetensors", "torch-export"], "safetensors"))
def test_another_model_is_never_overwritten(shelf, tmp_path, format):
    run, _ = make_run("fedavg", "pictures", shelf)
    other, _ = make_run("fedrep", "pictures", shelf)
    path = export_model(run.model("Charité"), tmp_path, format)
    assert export_model(run.model("Charité"), tmp_path, format) == path

    before = path.read_bytes()
    with pytest.raises(ConfigError, match="never overwritten by another one"):
        export_model(other.model("Charité"), tmp_path, format)
    card_path(path).unlink()
    with pytest.raises(ConfigError, match="never overwritten by another one"):
        export_model(run.model("Charité"), tmp_path, format)
    assert path.read_bytes() == before


def test_an_export_that_was_killed_can_be_repeated(shelf, tmp_path, monkeypatch):
    run, _ = make_run("fedavg", "pictures", shelf)

    class Killed(BaseException):
        pass

    def killed(path, content):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("fedtailor.serving.export.write_whole", killed)
        with pytest.raises(Killed):
            export_model(run.model("Oslo"), tmp_path, "safetensors")

    path = export_model(run.model("Oslo"), tmp_path, "safetensors")
    assert path.exists() and card_path(path).exists()


def test_features_of_examples_leave_only_on_purpose(shelf, tmp_path):
    personal = trained("knn_per", "mlp", shelf)
    for format in SUFFIXES:
        with pytest.raises(ConfigError, match="--with-examples"):
            fedtailor.export_model(personal, tmp_path, format)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_an_error_with_a_hint(shelf, tmp_path):
    with pytest.raises(ConfigError, match="'onnx'"):
        fedtailor.export_model(trained("pfedfda", "mlp", shelf), tmp_path, "onxx")


def test_a_model_that_cannot_be_traced_says_why(shelf, tmp_path, monkeypatch):
    personal = trained("pfedfda", "mlp", shelf)

    def untraceable(self, task, personal, x):
        return x if x.sum().item() > 0 else -x

    monkeypatch.setattr(type(personal.module.algorithm), "predict", untraceable)
    with pytest.raises(RunError, match="'a'") as error:
        fedtailor.export_model(personal, tmp_path, "onnx")
    assert "\n" not in error.value.message and len(error.value.message) <= 600


def test_without_the_packages_the_sentence_says_what_to_install(shelf, tmp_path, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnx" else find(name)
    )
    with pytest.raises(ConfigError, match=r"pip install .*onnx"):
        fedtailor.export_model(trained("pfedfda", "mlp", shelf), tmp_path, "onnx")
