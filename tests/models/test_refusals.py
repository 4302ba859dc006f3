"""Modules that cannot be used, and what the user is told."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from fedtailor.core.errors import ConfigError
from fedtailor.models.module import from_module

SHAPE = (3, 6, 6)


class Net(nn.Module):
    """A network with one layer of interest."""

    def __init__(self, layer, width=3 * 36):
        super().__init__()
        self.middle = nn.Sequential(layer)
        self.fc = nn.Linear(width, 4)

    def forward(self, x):
        return self.fc(self.middle(x).flatten(1))


class Functional(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, self.training)


class Drawing(nn.Module):
    """Draws from numpy or Python in training."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return x * (1.0 + self.draw() if self.training else 1.0)


class OwnBatchNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) + 0


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


class Centered(nn.Module):
    def forward(self, x):
        return x - x.mean(0) if self.training else x


class TimeFirst(nn.Module):
    """Moves the axis of the examples before it drops."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(x.transpose(0, 1)).transpose(0, 1)


def refused(module, **options):
    with pytest.raises(ConfigError) as caught:
        from_module(module, input_shape=options.pop("input_shape", SHAPE), num_classes=4, **options)
    assert caught.value.message.startswith(
        f"the module '{type(module).__name__}' cannot be used as a model: "
    )
    assert caught.value.key in ("model.name", "model.head")
    return caught.value.message


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (nn.RReLU(), "RReLU"),
        (nn.AlphaDropout(0.5), "AlphaDropout"),
        (nn.FeatureAlphaDropout(0.5), "FeatureAlphaDropout"),
        (Functional(), "Functional"),
        (Drawing(random.random), "Drawing"),
        (Drawing(lambda: float(np.random.rand())), "Drawing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_randomness_is_refused_by_name(layer, kind):
    message = refused(Net(layer))
    assert f"layer 'middle.0' ({kind}) draws random numbers that no key controls" in message


def test_dropout_within_a_forward_of_its_own_is_refused_by_the_modules_name():
    class Inline(Net):
        def forward(self, x):
            return self.fc(F.dropout(x.flatten(1), 0.5, self.training))

    assert "its own forward (Inline) draws random numbers" in refused(Inline(nn.Identity()))


def test_attention_with_dropout_is_refused_and_without_is_not():
    def attention(rate):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=rate, batch_first=True)
        return nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 4))

    with pytest.raises(ConfigError, match=r"'0\.self_attn' \(MultiheadAttention\) draws"):
        from_module(attention(0.1), input_shape=(5, 8), num_classes=4)
    assert from_module(attention(0.0), input_shape=(5, 8), num_classes=4).norm >= {
        "0.norm1.weight",
        "0.norm2.bias",
    }


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (
            nn.InstanceNorm2d(3, track_running_stats=True),
            "'middle.0' (InstanceNorm2d) changes its 'running_mean'",
        ),
        (OwnBatchNorm(3), "'middle.0' (OwnBatchNorm) changes its 'running_mean'"),
        (Counter(), "'middle.0' (Counter) changes its 'calls'"),
        (parametrizations.spectral_norm(nn.Conv2d(3, 3, 1)), "(_SpectralNorm) changes its '_u'"),
    ],
    ids=["InstanceNorm", "OwnBatchNorm", "Counter", "spectral_norm"],
)
def test_layers_that_change_their_buffers_are_refused_by_name(layer, told):
    assert told in refused(Net(layer))


@pytest.mark.parametrize(
    "layer", [Centered(), TimeFirst(), OwnBatchNorm(3, track_running_stats=False)]
)
def test_layers_that_mix_examples_are_refused(layer):
    assert (
        "in training the features of an example depend on the other rows of its batch"
        in refused(Net(layer))
    )


def test_what_follows_the_head_is_refused():
    assert "nothing may follow the head '1'" in refused(
        nn.Sequential(nn.Flatten(), nn.Linear(108, 4), nn.LogSoftmax(1))
    )


def test_a_head_that_is_not_the_last_layer_is_refused_until_it_is_named():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(108, 4)
            self.auxiliary = nn.Linear(108, 4)

        def forward(self, x):
            return self.fc(x.flatten(1))

    assert "pass head=... to choose another layer" in refused(TwoHeads())
    model = from_module(TwoHeads(), input_shape=SHAPE, num_classes=4, head="fc")
    assert model.groups["fc.weight"] == "head" and model.groups["auxiliary.weight"] == "body"


def test_heads_that_do_not_fit_are_refused():
    assert "with 4 outputs ('fc'), got 'fcc'; did you mean 'fc'." in refused(
        Net(nn.Identity()), head="fcc"
    )
    assert "no nn.Linear with 4 outputs" in refused(nn.Sequential(nn.Tanh()), input_shape=(4,))
    frozen = Net(nn.Identity())
    frozen.fc.requires_grad_(False)
    assert "'fc' is frozen" in refused(frozen)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    assert "shares a parameter with '0'" in refused(tied, input_shape=(4,))


def test_inputs_and_outputs_that_do_not_fit_are_refused():
    assert "inputs of shape (3, 3, 5, 5)" in refused(Net(nn.Identity()), input_shape=(3, 5, 5))
    assert "logits of shape (3, 4) for 3 examples, got (3, 9)" in refused(
        nn.Linear(2, 9), input_shape=(2,)
    )
    assert "cannot be copied" in refused(
        nn.Sequential(nn.LazyBatchNorm2d(), nn.Flatten(), nn.Linear(108, 4))
    )


class Checkpointed(nn.Module):
    """Runs some of its layers again in the backward pass."""

    def __init__(self, *layers, reentrant=False):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.again = nn.Sequential(*layers, nn.Linear(6, 6), nn.Tanh(), nn.LayerNorm(6))
        self.fc = nn.Linear(6, 4)
        self.reentrant = reentrant

    def forward(self, x):
        z = self.first(x)
        return self.fc(checkpoint(self.again, z, use_reentrant=self.reentrant))


@pytest.mark.parametrize(
    "module",
    [Checkpointed(), Checkpointed(nn.Dropout(0.5)), Checkpointed(reentrant=True)],
    ids=["plain", "dropout", "reentrant"],
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_gradient_checkpointing_is_refused(module):
    assert "turn gradient checkpointing off" in refused(module, input_shape=(4,))


class Unusual(nn.Module):
    """Has what could be taken for wrong gradients: none, frozen ones, and layers used twice."""

    def __init__(self, width=6):
        super().__init__()
        self.again = nn.Linear(width, width)
        self.tied = nn.Linear(width, width)
        self.tied.weight = self.again.weight
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(width, momentum=None)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.unused = nn.Linear(width, width)
        self.detached = nn.Linear(width, width)
        self.register_buffer("whole", torch.arange(width))
        self.fc = nn.Linear(width, 4)

    def forward(self, x):
        z = self.norm(self.drop(self.again(self.norm(self.drop(self.again(x))))))
        z = self.frozen(self.tied(z)) * self.whole
        return self.fc(z + self.detached(x).detach())


class LastOutput(nn.Module):
    def forward(self, outputs):
        return outputs[0][:, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_right_gradients_are_not_refused(dtype):
    torch.set_default_dtype(dtype)
    try:
        recurrent = nn.LSTM(3, 5, num_layers=2, bidirectional=True, batch_first=True)
        sparse = nn.Sequential(Rounded(), nn.Embedding(9, 2, sparse=True), nn.Flatten())
        modules = {
            Unusual(): (6,),
            nn.Sequential(recurrent, LastOutput(), nn.Linear(10, 4)): (7, 3),
            nn.Sequential(sparse, nn.Linear(8, 4)): (4,),
            nn.Sequential(nn.Linear(4, 6).requires_grad_(False), nn.Linear(6, 4)): (4,),
            nn.Linear(4, 4): (4,),
        }
        for module, shape in modules.items():
            assert from_module(module, input_shape=shape, num_classes=4).feature_dim
            for without_gradients in (torch.no_grad, torch.inference_mode):
                with without_gradients():
                    assert from_module(module, input_shape=shape, num_classes=4).feature_dim
    finally:
        torch.set_default_dtype(torch.float32)


class Rounded(nn.Module):
    def forward(self, x):
        return (8 * x.abs()).long()
