"""Dropout and batch normalization of a user's module: keyed, weighted, and otherwise PyTorch's."""

import pytest
import torch
from torch import nn

from fedtailor.core.rng import new_key
from fedtailor.models.module import from_module

WIDTHS = {nn.BatchNorm1d: (6,), nn.BatchNorm2d: (6, 3, 4), nn.BatchNorm3d: (6, 2, 3, 2)}
OPTIONS = [
    {},
    {"momentum": None},
    {"momentum": 0.7},
    {"affine": False},
    {"track_running_stats": False},
]


def network(kind, **options):
    shape = WIDTHS[kind]
    flat = torch.Size(shape).numel()
    return nn.Sequential(kind(6, **options), nn.Flatten(), nn.Tanh(), nn.Linear(flat, 3)), shape


def example_rows(count, shape, seed):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed)) * 2 + 1


def run(model, params, x, weight=None, *, training=True, key=None):
    weight = torch.ones(len(x)) if weight is None else weight
    z, buffers = model.features(params, x, weight=weight, key=key or new_key(0), training=training)
    return z, {**params, **buffers}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", list(WIDTHS), ids=lambda kind: kind.__name__)
def test_batch_norm_equals_pytorchs_over_several_steps(kind, options, float64):
    module, shape = network(kind, **options)
    model = from_module(module, input_shape=shape, num_classes=3)
    params = model.values()
    module.train()
    for step in range(4):
        x = example_rows(5, shape, step)
        weight = torch.ones(7)
        weight[2] = weight[6] = 0
        padded = torch.full((7, *shape), 1e6)
        padded[weight > 0] = x
        z, updated = run(model, params, x)
        z_padded, params = run(model, params, padded, weight)
        torch.testing.assert_close(model.head(params, z), module(x), rtol=0, atol=1e-12)
        torch.testing.assert_close(z_padded[weight > 0], z, rtol=0, atol=1e-12)
        for name, value in module.state_dict().items():
            if name.startswith("0.") and value.dim():
                torch.testing.assert_close(params[name], value, rtol=1e-13, atol=1e-13)
            elif name.startswith("0."):
                assert float(params[name]) == float(value) == step + 1
            torch.testing.assert_close(params[name], updated[name], rtol=1e-13, atol=1e-13)
    module.eval()
    z, after = run(model, params, x, training=False)
    torch.testing.assert_close(model.head(params, z), module(x), rtol=0, atol=1e-12)
    assert all(torch.equal(after[name], params[name]) for name in params)


def test_a_batch_without_real_rows_changes_no_statistics():
    module, shape = network(nn.BatchNorm2d)
    model = from_module(module, input_shape=shape, num_classes=3)
    params = model.init(new_key(0))
    z, after = run(model, params, example_rows(4, shape, 0), torch.zeros(4))
    assert all(torch.equal(after[name], params[name]) for name in params) and z.isfinite().all()


def test_a_single_value_per_channel_gives_finite_numbers_and_keeps_the_variance():
    module, shape = network(nn.BatchNorm1d)
    with pytest.raises(ValueError, match="more than 1 value"):
        module.train()(example_rows(1, shape, 0))
    model = from_module(module, input_shape=shape, num_classes=3)
    params = {**model.init(new_key(0)), "0.bias": torch.full((6,), 0.5)}
    x = example_rows(3, shape, 0)
    weight = torch.tensor([0.0, 1.0, 0.0])

    def loss(params):
        z, after = run(model, params, x, weight)
        return (z * weight[:, None]).sum(), (z, after)

    gradients, (z, after) = torch.func.grad(loss, has_aux=True)(params)
    torch.testing.assert_close(z[1], torch.full((6,), 0.5).tanh())
    assert torch.equal(after["0.running_var"], params["0.running_var"])
    torch.testing.assert_close(after["0.running_mean"], 0.1 * x[1])
    assert all(value.isfinite().all() for value in gradients.values())


def test_a_batch_norm_used_twice_tracks_twice(float64):
    norm = nn.BatchNorm1d(4)
    module = nn.Sequential(norm, nn.Linear(4, 4), norm, nn.Linear(4, 3))
    model = from_module(module, input_shape=(4,), num_classes=3)
    params = model.values()
    x = example_rows(6, (4,), 0)
    expected = module.train()(x)
    z, after = run(model, params, x)
    torch.testing.assert_close(model.head(params, z), expected, rtol=0, atol=1e-12)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(after[f"0.{name}"], getattr(norm, name), rtol=1e-13, atol=1e-13)
    assert float(after["0.num_batches_tracked"]) == 2


class Tokens(nn.Module):
    """Folds a second axis into the rows before normalizing: several rows per example."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.norm(x.flatten(0, 1)).view(x.shape[0], -1))


def test_rows_folded_into_the_batch_follow_the_weight_of_their_example(float64):
    module = Tokens()
    model = from_module(module, input_shape=(2, 4), num_classes=3)
    params = model.values()
    x = example_rows(5, (2, 4), 0)
    expected = module.train()(x[:3])
    z, after = run(model, params, x, torch.tensor([1.0, 1, 1, 0, 0]))
    torch.testing.assert_close(model.head(params, z[:3]), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        after["norm.running_var"], module.norm.running_var, rtol=1e-13, atol=1e-13
    )


DROPOUTS = {
    nn.Dropout: (40, 50),
    nn.Dropout1d: (500, 4),
    nn.Dropout2d: (500, 2, 2),
    nn.Dropout3d: (500, 2, 1, 2),
}


def dropped(kind, rate, shape):
    """Return a model whose features are its inputs after dropout."""
    module = nn.Sequential(kind(rate), nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 2))
    return from_module(module, input_shape=shape, num_classes=2)


@pytest.mark.parametrize("kind", list(DROPOUTS), ids=lambda kind: kind.__name__)
def test_dropout_is_keyed_has_its_rate_and_drops_what_it_should(kind):
    shape = DROPOUTS[kind]
    rate = 0.3
    model = dropped(kind, rate, shape)
    params = model.init(new_key(0))
    x = torch.ones(4, *shape)
    z, _ = run(model, params, x, key=new_key(0))
    assert torch.equal(z, run(model, params, x, key=new_key(0))[0])
    assert not torch.equal(z, run(model, params, x, key=new_key(0, client=1))[0])
    assert not torch.equal(z[0], z[1])
    kept = z.view(4, *shape) != 0
    torch.testing.assert_close(z[z != 0], torch.full_like(z[z != 0], 1 / (1 - rate)))
    units = kept.flatten() if kind is nn.Dropout else kept.flatten(2)
    if kind is not nn.Dropout:
        assert torch.equal(units.all(2), units.any(2)), "channels are dropped as a whole"
        units = units[..., 0].flatten()
    error = 5 * (rate * (1 - rate) / units.numel()) ** 0.5  # five standard deviations
    assert abs(units.double().mean() - (1 - rate)) < error
    assert torch.equal(run(model, params, x, training=False)[0], x.flatten(1))


def test_every_dropout_and_every_use_draws_its_own_mask():
    drop = nn.Dropout(0.5)
    module = nn.Sequential(drop, drop, nn.Dropout(0.5), nn.Linear(4000, 2))
    model = from_module(module, input_shape=(4000,), num_classes=2)
    z, _ = run(model, model.init(new_key(0)), torch.ones(2, 4000))
    share = float((z != 0).double().mean())
    assert abs(share - 1 / 8) < 5 * (1 / 8 * 7 / 8 / 8000) ** 0.5


def test_a_batch_may_be_empty():
    module, shape = network(nn.BatchNorm1d, track_running_stats=False)
    model = from_module(module, input_shape=shape, num_classes=3)
    for training in (False, True):
        z, _ = run(model, model.values(), torch.empty(0, *shape), training=training)
        assert z.shape == (0, 6)
