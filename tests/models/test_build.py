"""Models by name and by a user's function."""

import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from fedtailor.core.errors import ConfigError
from fedtailor.core.rng import new_key
from fedtailor.models import MODELS, build_model

OWN = """
import fedtailor
import torch
from torch import nn
from fedtailor.models.networks import mlp

def small(input_shape, num_classes, width=7):
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(input_shape).numel(), width), nn.Linear(width, num_classes))

def ready(input_shape, num_classes):
    return mlp(input_shape, num_classes, hidden=5)

class Random(nn.Sequential):
    def __init__(self, input_shape, num_classes, **options):
        self.options = options
        super().__init__(Table(), nn.Linear(4, num_classes))

class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return x + self.table

def pretrained(input_shape, num_classes):
    module = nn.Linear(4, num_classes)
    nn.init.constant_(module.weight, 0.5)
    return fedtailor.from_module(module, input_shape=input_shape, num_classes=num_classes, init="given")

def half(input_shape, num_classes):
    return Half()

class Half:
    groups = norm = shapes = feature_dim = None

def number(input_shape, num_classes):
    return 3

def fails(input_shape, num_classes):
    raise ZeroDivisionError("no luck.")

def softmax(input_shape, num_classes):
    return nn.Sequential(nn.Linear(4, num_classes), nn.Softmax(1))

constant = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Put a user's module into the current directory."""
    (tmp_path / "own_models.py").write_text(textwrap.dedent(OWN))
    (tmp_path / "broken_models.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_models", None)


def refused(spec, options=None, shape=(4,)):
    with pytest.raises(ConfigError) as caught:
        build_model(spec, shape, 3, options)
    return caught.value


def test_unknown_names_and_options_suggest_the_nearest():
    error = refused("cifar-cn")
    assert (
        error.key == "model.name"
        and "did you mean 'cifar_cnn'?" in error.message
        and error.allowed == list(MODELS)
    )
    error = refused("mlp", {"hiden": 3})
    assert error.key == "model.options.hiden" and error.allowed == ["hidden"]
    assert "did you mean 'hidden'" in error.message
    error = refused("cifar_cnn", {"hidden": 3}, shape=(3, 32, 32))
    assert "'cifar_cnn'" in error.message and error.allowed == []


@pytest.mark.usefixtures("own")
def test_a_users_function_returns_a_module_or_a_model():
    model = build_model("own_models:small", (4,), 3)
    assert model.groups["2.weight"] == "head" and model.feature_dim == 7
    assert build_model("own_models:small", (4,), 3, {"width": 9}).feature_dim == 9
    assert build_model("own_models:ready", (4,), 3).feature_dim == 5
    assert build_model("own_models:Random", (4,), 3, {"anything": 1}).shapes["0.table"] == (4,)


@pytest.mark.usefixtures("own")
def test_what_a_users_function_draws_is_the_same_at_every_site():
    state = torch.get_rng_state()
    first = build_model("own_models:Random", (4,), 3).init(new_key(0))
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    again = build_model("own_models:Random", (4,), 3).init(new_key(1))
    assert torch.equal(first["0.table"], again["0.table"]) and first["0.table"].abs().min() > 0
    assert not torch.equal(first["1.weight"], again["1.weight"])


@pytest.mark.usefixtures("own")
def test_a_users_function_may_keep_the_weights_of_its_module():
    for seed in (0, 1):
        params = build_model("own_models:pretrained", (4,), 3).init(new_key(seed))
        assert torch.equal(params["weight"], torch.full((3, 4), 0.5))


def test_the_documented_functions_work(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "howto" / "own-network.md"
    example = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)[0]
    (tmp_path / "my_models.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        assert build_model("my_models:network", (1, 8, 8), 10, {"width": 20}).feature_dim == 20
        weights = nn.Linear(64, 100)
        torch.save(weights.state_dict(), "weights.pt")
        params = build_model("my_models:pretrained", (1, 8, 8), 10).init(new_key(3))
    finally:
        sys.modules.pop("my_models", None)
    assert torch.equal(params["1.weight"], weights.weight) and torch.equal(
        params["1.bias"], weights.bias
    )


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (
            "no_such_module:f",
            "the module 'no_such_module' of model 'no_such_module:f' cannot be imported: "
            "ModuleNotF",
        ),
        ("broken_models:f", "No module named 'no_such_library'"),
        ("own_models:smal", "has no function 'smal'; did you mean 'small'."),
        ("own_models:constant", "has no function 'constant'"),
        (":f", "your own model, got ':f'"),
        ("own_models:", "your own model, got 'own_models:'"),
        ("own_models:number", "must be a torch.nn.Module or a fedtailor model, got int."),
        ("own_models:Table", "raised TypeError"),
        ("own_models:Half", "raised TypeError"),
        ("own_models:half", "got Half (without init, features, head)."),
        (
            "own_models:fails",
            "the call own_models:fails((4,), 3) raised ZeroDivisionError: no luck.",
        ),
        ("own_models:softmax", "the module 'own_models:softmax' cannot be used as a model"),
    ],
)
def test_a_users_function_that_cannot_be_used_is_explained(spec, told):
    error = refused(spec)
    assert error.key == "model.name" and told in error.message and error.message.endswith(".")
    assert not error.message.endswith("..")


def test_errors_of_a_users_function_keep_their_cause(own):
    with pytest.raises(ConfigError) as caught:
        build_model("own_models:fails", (4,), 3)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_projection_keeps_norms_on_average():
    model = build_model("projection", (2, 300), 10, {"features": 400})
    assert model.feature_dim == 400
    assert model.shapes["projection.weight"] == (400, 600)

    x = torch.randn(200, 2, 300, generator=torch.Generator().manual_seed(0))
    params = model.init(new_key(1))
    z, buffers = model.features(params, x, weight=torch.ones(200), key=new_key(2), training=True)
    ratio = z.norm(dim=1) / x.flatten(1).norm(dim=1)
    assert abs(float(ratio.mean()) - 1) < 0.02
    assert float(ratio.std()) < 0.06
    assert not buffers
    with pytest.raises(ConfigError, match=r"model\.options\.features"):
        build_model("projection", (64,), 10, {"features": 0})
