"""A recording gives the results of its function bit for bit, whatever its inputs hold; or it is
refused."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedtailor.core.rng import new_key, normal, random_words, uniform
from fedtailor.training.recording import CannotRecord, record

WEIGHT, BIAS, X, Y = (4, 6), (4,), (5, 6), 5


def inputs(seed):
    """Return new values: weight, bias, examples, labels."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(shape, generator=generator) for shape in (WEIGHT, BIAS, X)]
    return [*drawn, torch.randint(4, (Y,), generator=generator)]


def loss_of(weight, bias, x, y):
    return F.cross_entropy(F.relu(F.linear(x, weight, bias)), y)


def gradient(weight, bias, x, y):
    with torch.enable_grad():
        leaves = [weight.detach().requires_grad_(), bias.detach().requires_grad_()]
        loss = loss_of(*leaves, x, y)
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def functional_gradient(weight, bias, x, y):
    return torch.func.grad(loss_of, argnums=(0, 1))(weight, bias, x, y)


def gradient_of_every_example(weight, bias, x, y):
    return [
        torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, None, 0, 0))(weight, bias, x, y)
    ]


def second_order(weight, bias, x, y):
    def stepped(weight):
        return loss_of(weight - 0.1 * torch.func.grad(loss_of)(weight, bias, x, y), bias, x, y)

    return [torch.func.grad(stepped)(weight)]


def normalized(weight, bias, x, y):
    mean, deviation = x.mean(0), x.std(0)
    return [F.linear((x - mean) / deviation, weight, bias), mean]


def writes_to_a_constant(weight, bias, x, y):
    counts = bias.new_zeros(4).scatter_add_(0, y, torch.ones(len(y)))
    counts.add_(1)
    return [counts, torch.zeros(4, 6).index_add_(0, y, x) / counts[:, None]]


def writes_to_what_it_made(weight, bias, x, y):
    made = x @ weight.T
    part = made[1:3]
    part.mul_(2)
    made += bias
    return [made, part.sum()]


def looks_up(weight, bias, x, y):
    return [bias[y], weight[y, y], F.embedding(y, weight)]


def sorts(weight, bias, x, y):
    values, places = x.sort(dim=1)
    return [values, places, *x.topk(2), x.max(dim=0).values]


def made_of_numbers(weight, bias, x, y):
    present = torch.tensor([0.0] * 4)
    present[y] = 1  # what one client writes must not be there for the next
    return [present, torch.tensor([1.0, 2.0, 3.0, 4.0]) * bias]


def without_gradients_for_inputs(weight, bias, x, y):
    with torch.enable_grad():
        kernel = weight.detach().view(4, 1, 2, 3).requires_grad_()
        images = x.view(5, 1, 2, 3)
        loss = F.conv2d(images, kernel).square().sum() + F.layer_norm(x @ weight.T, (4,)).sum()
        return list(torch.autograd.grad(loss, kernel))


def changes_shapes_in_place(weight, bias, x, y):
    row = x.mean(0, keepdim=True) + 1
    doubled = row * 2
    return [row.squeeze_(0) + 1, doubled, row.unsqueeze_(1).t_() @ weight.T]


def returns_views(weight, bias, x, y):
    return [x.T, x[1:].reshape(-1), weight]


FUNCTIONS = [
    gradient,
    functional_gradient,
    gradient_of_every_example,
    second_order,
    normalized,
    writes_to_a_constant,
    writes_to_what_it_made,
    looks_up,
    sorts,
    made_of_numbers,
    without_gradients_for_inputs,
    changes_shapes_in_place,
    returns_views,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_replay_gives_what_the_function_gives(function):
    places = inputs(0)
    recording = record(lambda: function(*places), places)
    for seed in (1, 2, 1):
        for place, value in zip(places, inputs(seed), strict=True):
            place.copy_(value)
        recording.replay()
        expected = function(*inputs(seed))
        assert len(recording.outputs) == len(expected)
        for found, value in zip(recording.outputs, expected, strict=True):
            assert torch.equal(found, value)
            assert found.stride() == value.stride()


def test_results_are_the_first_ones_until_a_replay():
    places = inputs(0)
    expected = gradient(*inputs(0))
    recording = record(lambda: gradient(*places), places)
    assert all(map(torch.equal, recording.outputs, expected))
    assert not any(output.requires_grad for output in recording.outputs)


def test_views_and_constants_are_not_run_again():
    (x,) = places = [torch.randn(3, 4)]

    def function():
        scale = torch.ones_like(x[0]).exp().sum()  # the same in every replay
        return [(x.T.reshape(2, 6).unsqueeze(0) * scale).squeeze(0).T]

    recording = record(function, places)
    assert len(recording) == 2  # the copy that reshaping a transposed matrix makes, and the product


def test_what_is_not_read_is_known():
    used, unused = torch.randn(3), torch.randn(3)
    recording = record(lambda: [used * 2], [used, unused])
    assert recording.reads(used)
    assert not recording.reads(unused)


def refused(function, *places):
    with pytest.raises(CannotRecord) as caught:
        record(function, places)
    return str(caught.value)


@pytest.mark.parametrize(
    "look",
    [
        lambda x: float(x.sum()),
        lambda x: bool((x > 0).all()),
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x.numpy().sum(),
        lambda x: x.__array__().sum(),
        lambda x: int(x.argmax()),
        lambda x: float(np.from_dlpack(x).sum()),
        lambda x: torch.tensor_split(x, (x > 0).sum()[None])[0].sum(),
        lambda x: x.data_ptr(),
        lambda x: torch.allclose(x, x),
    ],
    ids=[
        "float",
        "bool",
        "item",
        "tolist",
        "numpy",
        "array",
        "int",
        "dlpack",
        "tensor_split",
        "data_ptr",
        "allclose",
    ],
)
def test_looking_at_values_is_refused(look):
    x = torch.randn(3)
    message = refused(lambda: [x * look(x) if not isinstance(look(x), list) else x], x)
    assert message.startswith(
        ("it reads values on the host", "it is not known to be repeated exactly")
    )


@pytest.mark.parametrize(
    "choose",
    [lambda x: x[x > 0], lambda x: x.nonzero(), lambda x: x.masked_select(x > 0), torch.unique],
)
def test_results_whose_size_depends_on_values_are_refused(choose):
    x = torch.randn(3)
    assert refused(lambda: [choose(x)], x).startswith(
        "it is not known to be repeated exactly: aten::"
    )


@pytest.mark.parametrize(
    "draw", [torch.rand_like, F.dropout, torch.bernoulli, lambda x: x + torch.randn(3)]
)
def test_random_numbers_are_refused(draw):
    x = torch.rand(3)
    assert refused(lambda: [draw(x)], x).startswith(
        "it is not known to be repeated exactly: aten::"
    )


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.inv,
        torch.linalg.eigvalsh,
        torch.linalg.cholesky,
        torch.prod,
        lambda x: torch._assert_async(x.sum()),
    ],
)
def test_operations_that_look_at_values_to_raise_an_error_or_go_other_ways_when_watched_are_refused(
    function,
):
    x = torch.eye(3) + 0.1
    assert refused(lambda: [function(x)], x).startswith(
        "it is not known to be repeated exactly: aten::"
    )


@pytest.mark.parametrize("draw", [normal, uniform, lambda key, shape: random_words(key, *shape)])
def test_a_draw_is_one_operation_and_made_again_for_the_key_of_each_replay(draw):
    x = torch.ones(3)
    step = torch.tensor(2)
    key = new_key(1, client=3, purpose="noise")

    def function():
        return [x * draw(key.at(step), (3,)).add_(1)]

    recording = record(function, [x, step])
    assert recording.reads(step)
    assert len(recording) == 3
    for number in (9, 4, 4):
        step.fill_(number)
        recording.replay()
        assert torch.equal(recording.outputs[0], x * (draw(key.at(torch.tensor(number)), (3,)) + 1))
    assert torch.equal(function()[0], recording.outputs[0])  # outside a recording, too


def test_a_large_draw_is_recorded_and_not_copied():
    step = torch.tensor(2)
    key = new_key(1)
    recording = record(lambda: [normal(key.at(step), (2**17,))], [step])
    step.fill_(5)
    recording.replay()
    assert len(recording) == 1
    assert torch.equal(recording.outputs[0], normal(key.at(torch.tensor(5)), (2**17,)))


def test_a_draw_that_no_input_decides_is_not_made_again():
    x = torch.ones(3)
    recording = record(lambda: [x * normal(new_key(1), (3,))], [x])
    assert len(recording) == 1


def test_writing_to_an_input_is_refused():
    x = torch.rand(3)
    assert refused(lambda: [x[1:].add_(1)], x).startswith(
        "it writes to memory that it did not make"
    )


def test_writing_to_what_was_there_before_is_refused():
    x, count = torch.rand(3), torch.zeros(3)
    assert refused(lambda: [x + count.add_(1)], x).startswith(
        "it writes to memory that it did not make"
    )


def test_large_results_that_would_be_copied_are_refused():
    x, weight = torch.randn(8, 3, 32, 32), torch.randn(16, 3, 5, 5)
    assert "copy large results: aten::convolution" in refused(
        lambda: [F.conv2d(x, weight)], x, weight
    )
    small = x[:1, :, :6, :6].clone()
    assert torch.equal(
        record(lambda: [F.conv2d(small, weight)], [small, weight]).outputs[0],
        F.conv2d(small, weight),
    )


def test_much_memory_is_refused():
    x = torch.zeros(2**18)
    assert "more than 4194304 bytes" in refused(lambda: [x + 1, x + 2, x + 3, x + 4], x)


def test_an_error_of_the_function_is_its_own():
    x = torch.zeros(3)
    with pytest.raises(ZeroDivisionError):
        record(lambda: [x * (1 / 0)], [x])
