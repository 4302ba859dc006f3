"""Encoders: what they compute, what is refused, and what their digests cover."""

import hashlib
import importlib.util
import sys
from functools import partial

import numpy as np
import onnx
import pytest
import torch

import tiny_encoders
from fedtailor.core.errors import ConfigError
from fedtailor.encoders import code
from fedtailor.encoders.encoder import check_encoder, encode
from fedtailor.encoders.load import load_encoder

ONNX = f"onnx:{tiny_encoders.ONNX}"
SHAPE = (1, tiny_encoders.SIDE, tiny_encoders.SIDE)
PICTURES = torch.randint(0, 256, (70, *SHAPE), dtype=torch.uint8, generator=torch.Generator())


def test_a_module_gets_values_from_0_to_1():
    encoder = load_encoder("tiny_encoders:tiny")
    expected = tiny_encoders.Tiny()(PICTURES / 255).detach()
    torch.testing.assert_close(encode(encoder, PICTURES, 255.0), expected)
    assert encoder.license == "CC0-1.0"


def test_a_partial_may_make_a_module_and_its_values_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    lines = ["from functools import partial", "from tiny_encoders import Tiny"]
    lines += [f"seed_{seed} = partial(Tiny, seed={seed})" for seed in (0, 1)]
    (tmp_path / "partial_encoders.py").write_text("\n".join(lines) + "\n")
    one, other = (load_encoder(f"partial_encoders:seed_{seed}") for seed in (0, 1))
    assert one.digest != other.digest


def test_torchscript_is_refused(monkeypatch):
    """Its code is in no file of Python: features of another one would be taken for its own."""
    with pytest.warns(DeprecationWarning):
        traced = torch.jit.trace(tiny_encoders.Tiny().eval(), PICTURES[:2] / 255)
    monkeypatch.setattr(tiny_encoders, "traced", lambda: traced, raising=False)
    with pytest.raises(ConfigError, match="got 'TorchScript, tiny_encoders:traced'"):
        load_encoder("tiny_encoders:traced")


def test_an_onnx_file_computes_the_same():
    encoder = load_encoder(ONNX)
    assert check_encoder(encoder, PICTURES, 255.0) == tiny_encoders.FEATURES
    expected = tiny_encoders.Tiny()(PICTURES / 255).detach()
    torch.testing.assert_close(encode(encoder, PICTURES, 255.0), expected, atol=1e-5, rtol=1e-5)


def test_an_onnx_file_may_have_a_batch_size_of_its_own():
    encoder = load_encoder(f"onnx:{tiny_encoders.ONNX_OF_FOUR}")
    assert encoder.batch == 4
    assert encode(encoder, PICTURES[:6], 255.0).shape == (6, tiny_encoders.FEATURES)


@pytest.mark.parametrize("target", ["tiny_encoders:tiny", ONNX])
def test_the_features_of_an_input_have_the_same_bits_beside_any_others(target):
    encoder = load_encoder(target)
    features = encode(encoder, PICTURES, 255.0)
    order = torch.randperm(len(PICTURES), generator=torch.Generator().manual_seed(0))
    assert torch.equal(encode(encoder, PICTURES[order], 255.0), features[order])
    assert torch.equal(encode(encoder, PICTURES[41:42], 255.0), features[41:42])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("noisy", "is random: the same inputs give other features"),
        ("mixing", "mixes inputs: a feature of one alone differs"),
        ("undefined", "gives NaN or infinity"),
        ("flat", r"must return \(32, d\) for 32 inputs, and returns \(32,\)"),
        ("failing", r"failed on 32 inputs of shape \(1, 12, 12\): RuntimeError: you tried"),
        ("colors", "failed on 32 inputs"),
    ],
)
def test_what_no_encoder_may_do(name, words):
    encoder = load_encoder(f"tiny_encoders:{name}")
    with pytest.raises(ConfigError, match=f"encoder 'tiny_encoders:{name}' {words}"):
        check_encoder(encoder, PICTURES, 255.0)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("tiny_encoders:nothing", "data.encoder must be a torch.nn.Module"),
        ("tiny_encoders:raising", "raised OSError: the weights are not there"),
        ("tiny_encoders:tinyy", "has no function 'tinyy'; did you mean 'tiny'"),
        ("no_such_module:tiny", "cannot be imported"),
        ("tiny_encoders", "data.encoder must be package.module:function"),
        ("onnx:missing.onnx", "there is no file 'missing.onnx'"),
    ],
)
def test_targets_that_name_no_encoder(target, words):
    with pytest.raises(ConfigError, match=words):
        load_encoder(target)


def test_an_onnx_file_that_is_damaged_is_refused(tmp_path):
    (tmp_path / "damaged.onnx").write_bytes(b"\x00" * 100)
    with pytest.raises(ConfigError, match="cannot be opened"):
        load_encoder(f"onnx:{tmp_path / 'damaged.onnx'}")


def test_a_worker_shares_the_weights_and_nothing_else():
    encoder = load_encoder("tiny_encoders:of_attributes")
    worker = encoder.worker()
    assert worker.module is not encoder.module
    assert worker.module.first.weight.data_ptr() == encoder.module.first.weight.data_ptr()
    worker.run(PICTURES[:32], 255.0)
    assert not hasattr(encoder.module, "kept")


SOURCE = """
import numpy as np
import torch
from torch import nn
SIZE = 4
MEAN = torch.tensor([0.5])
NAMES = np.array(["a", "b"])
WEIGHTS = np.arange(4.0)[::-1]
PARTS = {"names": NAMES}
PARTS["parts"] = PARTS
LIGHTEN = nn.Threshold(-1.0, 0.0)
halve, same = lambda x: x * 0.5, 0
keep = lambda x: x * 1.0
class Settings:
    version = 1
def resize(x):
    return nn.functional.interpolate(x, size=(SIZE, SIZE))
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 3)
        self.scale = 2.0
        nn.init.ones_(self.head.weight)
        nn.init.zeros_(self.head.bias)
    def forward(self, x):
        where = (__file__, NAMES, WEIGHTS, PARTS)
        x = keep(halve(LIGHTEN(x - MEAN)))
        return self.head(resize(x).flatten(1)) * self.scale
def encoder():
    return Encoder()
def unused():
    return 1
"""


def digests_of(sources, folder, monkeypatch):
    """Return the digests of encoders whose file has these texts."""
    digests = []
    for number, source in enumerate(sources):
        own = folder / str(number)
        own.mkdir()
        (own / "of_a_user.py").write_text(source)
        with monkeypatch.context() as context:
            context.syspath_prepend(own)
            sys.modules.pop("of_a_user", None)
            digests.append(load_encoder("of_a_user:encoder").digest)

    return digests


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ("SIZE = 4", "SIZE = (4)", False),
        ("SIZE = 4", "SIZE = 5", True),
        ("self.scale = 2.0", "self.scale = float(3)", True),
        ("nn.init.zeros_", "nn.init.ones_", True),
        ("interpolate(x, size", "interpolate(x, mode='bicubic', size", True),
        ("return 1", "return 2", False),
        ("version = 1", "version = 2", False),
        ("tensor([0.5])", "tensor([0.1])", True),
        ("Threshold(-1.0", "Threshold(-2.0", True),
        ("x * 1.0", "x * 3.0", True),
        ('["a", "b"]', '["a", "c"]', True),
        ("np.arange(4.0)", "np.arange(5.0)", True),
        ("return 1", "return 1  # another folder has the same digest", False),
    ],
)
def test_the_digest_covers_weights_code_and_constants(
    tmp_path, monkeypatch, before, after, differs
):
    digests = digests_of([SOURCE, SOURCE.replace(before, after)], tmp_path, monkeypatch)
    assert (digests[0] != digests[1]) == differs


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def forward(self, x):", "@torch.no_grad()\n    def forward(self, x):"),
        ("def forward(self, x):", "@torch.inference_mode()\n    def forward(self, x):"),
        (
            "def forward(self, x):",
            "@staticmethod\n    def lower(x): return x - MEAN\n    def forward(self, x):",
        ),
    ],
)
def test_the_digest_covers_what_decorated_methods_use(tmp_path, monkeypatch, before, after):
    source = SOURCE.replace(before, after)
    if "staticmethod" in after:
        source = source.replace("LIGHTEN(x - MEAN)", "LIGHTEN(self.lower(x))")

    changed = source.replace("tensor([0.5])", "tensor([0.1])")
    digests = digests_of([source, changed], tmp_path, monkeypatch)
    assert digests[0] != digests[1]


class Step:
    def __init__(self, number):
        self.number = number

    def __call__(self, x):
        return x


class Settings:
    def __init__(self, number):
        self.number = number


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        (Step(1), Step(1), False),
        (Step(1), Step(2), True),
        ([Step(1)], [Step(2)], True),
        ({"a": 1}, {"a": 2}, True),
        (partial(pow, 2), partial(pow, 3), True),
        (partial(pow, 2), partial(max, 2), True),
        (torch.nn.functional.relu, torch.nn.functional.gelu, True),
        (np.zeros(3), np.ones(3), True),
        (torch.zeros(2), torch.zeros(3), True),
        ([torch.nn.Linear(1, 1)], [torch.nn.Linear(2, 1)], True),
        (Settings(1), Settings(2), False),
    ],
)
def test_the_digest_covers_what_is_plain_or_can_be_called(first, second, differ):
    digests = []
    for value in (first, second):
        module = tiny_encoders.Tiny()
        module.attribute = value
        digests.append(code.digest_of_module(tiny_encoders.tiny, module))

    assert (digests[0] != digests[1]) == differ


def test_the_digest_does_not_depend_on_what_pytorch_gives_modules(monkeypatch):
    digest = load_encoder("tiny_encoders:tiny").digest
    monkeypatch.setattr(code, "_OF_EVERY_MODULE", code._OF_EVERY_MODULE | {"_of_a_later_version"})
    original = torch.nn.Module.__init__

    def later(self):
        original(self)
        self._of_a_later_version = 1

    monkeypatch.setattr(torch.nn.Module, "__init__", later)
    assert load_encoder("tiny_encoders:tiny").digest == digest


def test_the_digest_of_a_file_is_that_of_its_bytes():
    raw = tiny_encoders.ONNX.read_bytes()
    assert load_encoder(ONNX).digest == hashlib.sha256(raw).hexdigest()


def test_an_onnx_file_without_its_weights_is_refused(tmp_path):
    model = onnx.load(tiny_encoders.ONNX)
    path = tmp_path / "large.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=100)
    digest = load_encoder(f"onnx:{path}").digest

    (tmp_path / "weights").write_bytes(bytes((tmp_path / "weights").stat().st_size))
    assert load_encoder(f"onnx:{path}").digest != digest

    (tmp_path / "weights").unlink()
    with pytest.raises(ConfigError, match="cannot be opened"):
        load_encoder(f"onnx:{path}")


@pytest.mark.parametrize("library", ["onnx", "onnxruntime"])
def test_an_onnx_file_needs_both_libraries(library, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == library else found(name)
    )
    with pytest.raises(ConfigError, match=f"needs {library}: python -m pip install"):
        load_encoder(ONNX)


def test_what_an_encoder_prints_as_it_loads_is_no_output_of_a_command(capsys):
    load_encoder("tests.tiny_encoders:talkative")
    printed = capsys.readouterr()
    assert "loading" in printed.err
    assert not printed.out
