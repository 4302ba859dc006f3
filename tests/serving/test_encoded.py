"""Models behind a frozen encoder take raw pictures, in every way of use."""

import dataclasses
import json
import shutil
import warnings
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate

import fedtailor
import tiny_encoders
from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.data.build import build
from fedtailor.data.embedded_folder import write_embedded
from fedtailor.data.embedding import embed
from fedtailor.data.options import DataOptions
from fedtailor.data.own.read import load_own
from fedtailor.serving.evaluate import to_csv
from fedtailor.serving.site_data import load_site
from fedtailor.serving.trace import _resize_by_products
from marks import quick
from serving.small_runs import settings, test_examples, write_hospital_tables, write_pictures

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDTAILOR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("encoded")
    write_pictures(place / "pictures")
    write_pictures(place / "new", sites=("Porto",))
    shutil.copy(tiny_encoders.ONNX, place / "tiny.onnx")
    return place


def options(folder, encoder, **others):
    data = {"path": str(folder / "pictures"), "image_size": 12, "val_fraction": 0.1}
    if encoder == "onnx":
        encoder = f"onnx:{folder / 'tiny.onnx'}"
    return {**data, "encoder": encoder, **others}


def trained(folder, encoder, algorithm="fedavg", **others):
    config = settings(algorithm, options(folder, encoder, **others), "mlp")
    words = [algorithm, encoder, *map(str, others.values())]
    out = folder / "-".join(words).replace(":", "-")
    if not out.exists():
        fedtailor.run(config, out=out)
    return fedtailor.load(out), config


@pytest.fixture(params=["tiny_encoders:tiny", "onnx"])
def encoder(request):
    return request.param


@pytest.mark.parametrize(
    ("encoder", "normalize"),
    quick(
        list(product(["tiny_encoders:tiny", "onnx"], ["auto", "l2", "training"])),
        ("tiny_encoders:tiny", "auto"),
        ("tiny_encoders:tiny", "l2"),
        ("tiny_encoders:tiny", "training"),
        ("onnx", "auto"),
    ),
)
def test_predictions_of_pictures_have_the_bits_of_the_run(folder, encoder, normalize):
    run, config = trained(folder, encoder, normalize=normalize)
    data = embed(build(config.data, run_seed=0))
    for number, (pictures, labels) in enumerate(test_examples(config)):
        model = run.model(number)
        assert pictures.shape[1:] == (12, 12, 1)
        assert model.score(pictures, labels) == run.clients[number].personalized.accuracy
        rows = data.positions[number].test
        head = model.module.head
        expected = head(torch.from_numpy(data.dataset.x[rows]))
        assert np.array_equal(model.logits(pictures), expected.numpy())


def test_files_are_predicted(folder, encoder):
    run, _ = trained(folder, encoder)
    picture = folder / "pictures" / "Oslo" / "bright" / "00.png"
    assert run.model("Oslo").predict(picture).shape == (1,)


def test_a_model_is_evaluated_on_pictures(folder, encoder):
    run, _ = trained(folder, encoder)
    model = run.model("Oslo")
    site = load_site(str(folder / "pictures" / "Oslo"), model.inputs, purpose="scores")
    record = model.evaluate(site.x, model.classes_[site.y])
    assert record["examples"] == 24
    assert to_csv(record)


def test_a_new_site_brings_pictures(folder, encoder, tmp_path):
    run, _ = trained(folder, encoder)
    onboarded = run.onboard(folder / "new" / "Porto", tmp_path / "porto")
    picture = folder / "new" / "Porto" / "dark" / "00.png"
    assert onboarded.model(0).predict(picture).shape == (1,)


@pytest.mark.parametrize(
    ("encoder", "algorithm", "normalize"),
    quick(
        list(product(["tiny_encoders:tiny", "onnx"], ["fedavg", "pfedfda"], ["auto", "l2"])),
        ("tiny_encoders:tiny", "fedavg", "l2"),
        ("onnx", "pfedfda", "auto"),
    ),
)
def test_the_exported_graph_holds_encoder_and_head(folder, encoder, algorithm, normalize, tmp_path):
    run, config = trained(folder, encoder, algorithm, normalize=normalize)
    model = run.model("Oslo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = fedtailor.export_model(model, tmp_path, "onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    pictures = np.concatenate([x for x, _ in test_examples(config)])
    for part in (pictures, pictures[:1]):
        inputs = np.ascontiguousarray(part.transpose(0, 3, 1, 2))
        (probabilities,) = session.run(["probabilities"], {"inputs": inputs})
        assert np.abs(probabilities - model.predict_proba(part)).max() <= 1e-5

    card = json.loads((tmp_path / "Oslo.onnx.json").read_text())
    assert card["inputs"]["shape"] == ["batch", 1, 12, 12]
    assert card["encoder"]["digest"] == model.card["encoder"]["digest"]


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_exported_graphs_resize_with_the_weights_of_pytorch(mode, antialias):
    """Other positions between pixels would be off by ten times as much."""

    class Resizing(nn.Module):
        def forward(self, x):
            return interpolate(
                x.float(), (36, 8), mode=mode, antialias=antialias, align_corners=False
            )

    pictures = torch.randint(0, 256, (2, 1, 12, 16), dtype=torch.uint8)
    program = torch.export.export(Resizing(), (pictures,))
    graph = program.module()
    assert _resize_by_products(graph)
    operators = [str(node.target) for node in graph.graph.nodes]
    assert not any("upsample" in operator for operator in operators)
    torch.testing.assert_close(graph(pictures), Resizing()(pictures), rtol=3e-7, atol=1e-4)


@pytest.mark.slow
def test_other_formats(folder, tmp_path):
    model = trained(folder, "tiny_encoders:tiny")[0].model("Oslo")
    program = torch.export.load(fedtailor.export_model(model, tmp_path, "torch-export")).module()
    pictures = torch.randint(0, 256, (5, 1, 12, 12), dtype=torch.uint8)
    _, probabilities = program(pictures)
    expected = model.predict_proba(pictures.permute(0, 2, 3, 1).numpy())
    assert np.abs(probabilities.numpy() - expected).max() <= 1e-5
    assert fedtailor.export_model(model, tmp_path, "safetensors").exists()


def test_a_graph_of_onnx_has_no_other_format(folder, tmp_path):
    model = trained(folder, "onnx")[0].model("Oslo")
    with pytest.raises(RunError, match="its encoder is an ONNX file"):
        fedtailor.export_model(model, tmp_path, "torch-export")


def test_the_card_names_the_encoder(folder):
    card = trained(folder, "tiny_encoders:tiny")[0].model("Oslo").card
    assert card["encoder"]["target"] == "tiny_encoders:tiny"
    assert card["encoder"]["license"] == "CC0-1.0"


def test_without_its_encoder_a_model_is_of_no_use(folder, tmp_path):
    run, _ = trained(folder, "onnx")
    file = folder / "tiny.onnx"
    shutil.move(file, tmp_path / "away.onnx")
    try:
        with pytest.raises(ConfigError, match=r"there is no file '.*tiny.onnx' for the encoder"):
            run.model("Oslo")

        # Another file under the same name.
        shutil.copy(tiny_encoders.ONNX_OF_FOUR, file)
        with pytest.raises(ConfigError, match=r"has changed: its digest is \w{64}, and that of"):
            run.model("Oslo")
    finally:
        shutil.move(tmp_path / "away.onnx", file)


def test_a_run_on_a_folder_of_features_takes_pictures_too(folder, tmp_path):
    out = tmp_path / "features"
    own = DataOptions(path=str(folder / "pictures"), image_size=12, encoder="tiny_encoders:tiny")
    write_embedded(load_own(own.path, own), own, out)
    fedtailor.run(settings("fedavg", {"path": str(out), "val_fraction": 0.1}), out=tmp_path / "run")
    run = fedtailor.load(tmp_path / "run")

    # The same features, so the same model as a run with the encoder.
    with_encoder, config = trained(folder, "tiny_encoders:tiny")
    pictures, _ = test_examples(config)[0]
    logits = run.model("Oslo").logits(pictures)
    assert np.array_equal(logits, with_encoder.model("Oslo").logits(pictures))

    # A new site brings pictures, or features of the same encoder.
    new = folder / "new" / "Porto"
    features = tmp_path / "porto-features"
    options_of_site = dataclasses.replace(own, path=str(new))
    write_embedded(load_own(str(new), options_of_site), options_of_site, features)
    models = []
    for number, data in enumerate((new, features)):
        onboarded = run.onboard(data, tmp_path / f"onboarded-{number}", name="Porto")
        models.append(onboarded.model(0).logits(pictures))

    assert np.array_equal(*models)

    others = tmp_path / "other-features"
    other = dataclasses.replace(options_of_site, encoder="tiny_encoders:other")
    write_embedded(load_own(str(new), other), other, others)
    with pytest.raises(DataError, match="holds features of an encoder with the digest"):
        run.onboard(others, tmp_path / "never", name="Porto")

    # A file that says so may still hold other numbers.
    (file,) = features.rglob("*.npz")
    arrays = dict(np.load(file))
    np.savez(file, **{**arrays, "x": arrays["x"][:, :-1]})
    with pytest.raises(DataError, match=r"holds inputs of shape \(5,\); the model takes \(6,\)"):
        run.onboard(features, tmp_path / "never", name="Porto")


def test_rows_of_tables_are_embedded_after_their_cells(tmp_path):
    write_hospital_tables(tmp_path / "tables")
    write_hospital_tables(tmp_path / "new", sites=("Porto",))
    data = {"path": str(tmp_path / "tables"), "group": "patient"}
    data["encoder"] = "tiny_encoders:rows"
    fedtailor.run(settings("fedavg", data, "mlp"), out=tmp_path / "run")
    run = fedtailor.load(tmp_path / "run")
    inputs = run.model("Oslo").inputs
    assert inputs.columns.names == ("age", "sex", "sugar")
    with pytest.warns(UserWarning, match="empty cells"):
        assert run.model("Oslo").predict(tmp_path / "new" / "Porto.csv").shape == (50,)

    onboarded = run.onboard(tmp_path / "new" / "Porto.csv", tmp_path / "porto")
    assert sum(onboarded.model(0).card["class_counts"]) == 50
