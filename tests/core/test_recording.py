"""A recording gives what its function gives, bit for bit, for whatever its inputs hold; or there is none."""

import pytest
import torch
import torch.nn.functional as F

from fedtailor.core.recording import CannotRecord, host_call, record

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
    return [torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, None, 0, 0))(weight, bias, x, y)]


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


def solves(weight, bias, x, y):
    matrix = weight @ weight.T + torch.eye(4)
    return [torch.linalg.solve(matrix, bias), torch.linalg.cholesky(matrix), torch.linalg.eigh(matrix)[0]]


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
    solves,
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
    ],
    ids=["float", "bool", "item", "tolist", "numpy", "array", "int"],
)
def test_looking_at_values_is_refused(look):
    x = torch.randn(3)
    message = refused(lambda: [x * look(x) if not isinstance(look(x), list) else x], x)
    assert "values" in message


@pytest.mark.parametrize(
    "choose", [lambda x: x[x > 0], lambda x: x.nonzero(), lambda x: x.masked_select(x > 0), torch.unique]
)
def test_results_whose_size_depends_on_values_are_refused(choose):
    x = torch.randn(3)
    assert "values" in refused(lambda: [choose(x)], x)


@pytest.mark.parametrize("draw", [torch.rand_like, F.dropout, torch.bernoulli, lambda x: x + torch.randn(3)])
def test_random_numbers_are_refused(draw):
    x = torch.rand(3)
    assert "generator" in refused(lambda: [draw(x)], x)


def test_a_call_on_the_host_is_made_again():
    x, number = torch.ones(3), torch.tensor(2)

    def function():
        drawn = host_call(lambda value: torch.full((3,), float(value)).sqrt_(), [number])
        return [x * drawn.add_(1)]

    recording = record(function, [x, number])
    assert recording.reads(number)
    assert len(recording) == 3
    for value in (9, 4, 4):
        number.fill_(value)
        recording.replay()
        assert torch.equal(recording.outputs[0], x * (value**0.5 + 1))
    assert torch.equal(function()[0], recording.outputs[0])  # outside a recording, too


def test_writing_to_an_input_is_refused():
    x = torch.rand(3)
    assert refused(lambda: [x[1:].add_(1)], x).startswith("it writes to one of its inputs")


def test_large_results_that_would_be_copied_are_refused():
    x, weight = torch.randn(8, 3, 32, 32), torch.randn(16, 3, 5, 5)
    assert "copy large results: aten::convolution" in refused(lambda: [F.conv2d(x, weight)], x, weight)
    small = x[:1, :, :6, :6].clone()
    assert torch.equal(record(lambda: [F.conv2d(small, weight)], [small, weight]).outputs[0], F.conv2d(small, weight))


def test_much_memory_is_refused():
    x = torch.zeros(2**18)
    assert "more than 4194304 bytes" in refused(lambda: [x + 1, x + 2, x + 3, x + 4], x)


def test_an_error_of_the_function_is_its_own():
    x = torch.zeros(3)
    with pytest.raises(ZeroDivisionError):
        record(lambda: [x * (1 / 0)], [x])
