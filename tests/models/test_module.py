"""A user's module as a model: same function, groups, own initialization, threads, stacks of
clients."""

import pickle
import threading

import torch
import torch.nn.functional as F
from torch import nn

from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import new_key
from fedtailor.core.task import Task, Training
from fedtailor.models.module import from_module
from fedtailor.training.blocks import train
from fedtailor.training.losses import classification_loss

SHAPE = (3, 8, 8)


class Network(nn.Module):
    """Convolution, batch and group normalization, dropout of both kinds, a head that is not the
    last attribute."""

    def __init__(self, rate=0.0, momentum=0.1):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8, momentum=momentum)
        self.classifier = nn.Linear(16, 5)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout2d(rate)
        self.group = nn.GroupNorm(2, 8)
        self.linear = nn.Linear(8 * 16, 16)
        self.last = nn.Dropout(rate)

    def forward(self, x):
        x = self.group(self.drop(self.act(self.norm(self.conv(x)))))
        return self.classifier(self.last(self.act(self.linear(F.max_pool2d(x, 2).flatten(1)))))


def wrapped(module, **options):
    return from_module(
        module, input_shape=options.pop("input_shape", SHAPE), num_classes=5, **options
    )


def inputs(count, seed=0):
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def features(model, params, x, *, training=True, key=None, weight=None):
    weight = torch.ones(len(x)) if weight is None else weight
    return model.features(params, x, weight=weight, key=key or new_key(0), training=training)


def test_groups_and_norm_follow_the_layers():
    model = wrapped(Network())
    assert list(model.groups.items())[:9] == [
        ("conv.weight", "body"),
        ("conv.bias", "body"),
        ("norm.weight", "body"),
        ("norm.bias", "body"),
        ("norm.running_mean", "buffer"),
        ("norm.running_var", "buffer"),
        ("norm.num_batches_tracked", "buffer"),
        ("classifier.weight", "head"),
        ("classifier.bias", "head"),
    ]
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert model.norm == {f"norm.{name}" for name in ("weight", "bias", *statistics)} | {
        "group.weight",
        "group.bias",
    }
    assert list(model.shapes) == list(model.groups) and model.feature_dim == 16
    params = model.init(new_key(0))
    assert {name: tuple(value.shape) for name, value in params.items()} == model.shapes
    assert {value.dtype for value in params.values()} == {torch.get_default_dtype()}


def test_evaluation_equals_the_module(float64):
    module = Network(rate=0.5)
    module(inputs(4))  # statistics that are not the initial ones
    module.eval()
    model = wrapped(module)
    params = model.values()
    z, buffers = features(model, params, inputs(6), training=False)
    torch.testing.assert_close(model.head(params, z), module(inputs(6)), rtol=0, atol=1e-13)
    assert buffers == {} and z.shape == (6, 16)


def test_initialization_is_keyed_and_the_layers_own():
    model = wrapped(Network())
    first = model.init(new_key(0))
    again = model.init(new_key(0))
    other = model.init(new_key(1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["conv.weight"], other["conv.weight"])
    assert 0.9 / 27**0.5 < first["conv.weight"].abs().max() <= 1 / 27**0.5
    assert torch.equal(first["norm.weight"], torch.ones(8)) and torch.equal(
        first["norm.running_var"], torch.ones(8)
    )
    torch.set_default_dtype(torch.float64)
    try:
        double = model.init(new_key(0))
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(
        torch.equal(double[name].float(), first[name]) and double[name].dtype == torch.float64
        for name in first
    )


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.full((4,), 3.0))

    def forward(self, x):
        return x * self.factor


class Opinionated(nn.Sequential):
    def reset_parameters(self):
        nn.init.constant_(self[1].weight, 0.25)


def test_own_reset_has_the_last_word_and_layers_without_one_keep_their_values():
    model = wrapped(Opinionated(Scale(), nn.Linear(4, 6), nn.Linear(6, 5)), input_shape=(4,))
    params = model.init(new_key(0))
    assert torch.equal(params["0.factor"], torch.full((4,), 3.0))
    assert torch.equal(params["1.weight"], torch.full((6, 4), 0.25))


class Pieces(nn.Module):
    """A frozen layer, a constant buffer, a layer used twice under two names, and an own head
    name."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("shift", torch.arange(4.0))
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.out = nn.Linear(4, 5, bias=False)

    def forward(self, x):
        return self.out(
            torch.tanh(self.second(torch.tanh(self.first(self.frozen(x) + self.shift))))
        )


def test_frozen_parameters_and_other_buffers_are_constants(float64):
    module = Pieces()
    model = wrapped(module, input_shape=(4,), head="out")
    assert list(model.groups) == ["first.weight", "first.bias", "out.weight"]
    params = model.init(new_key(0))
    x = torch.randn(3, 4)
    module.load_state_dict({**params, "second.weight": params["first.weight"]}, strict=False)
    module.first.bias.data.copy_(params["first.bias"])
    logits = model.head(params, features(model, params, x, training=False)[0])
    torch.testing.assert_close(logits, module(x), rtol=0, atol=1e-14)


def test_gradients_equal_the_modules(float64):
    module = Network().train()
    model = wrapped(module)
    x = inputs(6)
    y = torch.arange(6) % 5
    params = model.values()
    trained = {name: value for name, value in params.items() if model.groups[name] != "buffer"}

    def loss(trained):
        everything = {**params, **trained}
        return F.cross_entropy(model.head(everything, features(model, everything, x)[0]), y)

    gradients = torch.func.grad(loss)(trained)
    F.cross_entropy(module(x), y).backward()
    for name, reference in module.named_parameters():
        torch.testing.assert_close(gradients[name], reference.grad, rtol=1e-9, atol=1e-13)


def test_training_a_stack_of_uneven_clients_equals_one_by_one(float64):
    model = wrapped(Network(rate=0.3))
    task = Task(model, 5, SHAPE)
    x = inputs(20).contiguous(memory_format=torch.channels_last)
    y = torch.arange(20) % 5
    index = torch.arange(20).view(2, 10)
    weight = torch.ones(2, 10)
    weight[1, 3:] = 0  # batches of 3 rows beside batches of 4
    training = Training(lr=0.1, momentum=0.5, epochs=2, batch_size=4)

    def program(index, weight, client):
        key = new_key(0)._replace(client=client)
        params = model.init(new_key(0))
        return train(
            task,
            classification_loss,
            params,
            data=ExampleSet(x, y, index, weight),
            key=key,
            training=training,
        ).params

    stacked = torch.func.vmap(program)(index, weight, torch.arange(2))
    for client in range(2):
        for name, value in program(index[client], weight[client], torch.tensor(client)).items():
            torch.testing.assert_close(stacked[name][client], value, rtol=0, atol=1e-12)
    assert stacked["norm.num_batches_tracked"].tolist() == [6, 2]


def test_the_first_call_of_a_thread_may_be_within_transforms(float64):
    model = wrapped(Pieces(), input_shape=(4,))  # its constants must not be caught by the transform
    params = model.init(new_key(0))
    x = torch.randn(3, 2, 4)

    def loss(params, x):
        return features(model, params, x)[0].sum() + sum(
            value.sum() for value in model.init(new_key(0)).values()
        )

    def work():
        batched.append(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x))
        single.extend(torch.func.grad(loss)(params, x[client]) for client in range(3))
        plain.append(features(model, params, x[0])[0])

    batched = []
    single = []
    plain = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(plain) == 1
    for client in range(3):
        for name in params:
            torch.testing.assert_close(
                batched[0][name][client], single[client][name], rtol=0, atol=1e-12
            )


def test_threads_with_different_parameters_do_not_meet():
    model = wrapped(Network(rate=0.3))
    clients = [model.init(new_key(0, client=client)) for client in range(2)]
    expected = [
        [features(model, p, inputs(4, step), training=bool(step % 2)) for step in range(2)]
        for p in clients
    ]
    start = threading.Barrier(2)
    wrong = []

    def work(client):
        start.wait()
        for step in list(range(2)) * 40:
            z, buffers = features(model, clients[client], inputs(4, step), training=bool(step % 2))
            same = all(
                torch.equal(value, expected[client][step][1][name])
                for name, value in buffers.items()
            )
            if not same or not torch.equal(z, expected[client][step][0]):
                wrong.append((client, step))

    threads = [threading.Thread(target=work, args=(client,)) for client in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_models_survive_being_sent_to_a_process():
    model = wrapped(Network())
    params = model.init(new_key(0))
    expected = features(model, params, inputs(2))[0]
    sent = pickle.loads(pickle.dumps(model))
    assert torch.equal(features(sent, params, inputs(2))[0], expected)
    assert all(torch.equal(a, b) for a, b in zip(sent.init(new_key(0)).values(), params.values()))
