"""Steps with bounded examples: gradients as in a loop, batches drawn, noise of the right size."""

import math

import pytest
import torch

from fedtailor.core import rng
from fedtailor.core.federation import ExampleSet
from fedtailor.core.task import Batch, ExampleBound, LossOutput, Task, Training
from fedtailor.models import MODELS, build_model
from fedtailor.toolkit import classification_loss, train
from fedtailor.training.private_steps import counting_steps

CLIP = 0.3


def task_of(model, **training):
    shape = (6,) if model in ("linear", "mlp") else MODELS[model].shape
    classes = 3
    options = {"lr": 1.0, "steps": 1, "batch_size": 0, **training}
    training = Training(**options)
    return Task(build_model(model, shape, classes), classes, shape, training, bound_of(CLIP))


def bound_of(clip, noise=0.0):
    """A bound that any number of steps keeps to."""
    return ExampleBound(clip, noise, rate=1.0, steps=10**6)


def examples(task, count=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *task.input_shape, generator=generator)
    y = torch.randint(task.num_classes, (count,), generator=generator)
    return ExampleSet(x, y, torch.arange(count), torch.ones(count))


def vector_loss(task, params, context, batch, key):
    """The gradient of an example is the example."""
    products = (batch.x * params["w"]).sum(1)
    return LossOutput((products * batch.weight).sum() / batch.weight.sum())


def move(data, bound=None, key=None, start=None, **training):
    """Return where steps on the loss above lead."""
    options = {"lr": 1.0, "steps": 1, "batch_size": 0, **training}
    shape = tuple(data.x.shape[1:])
    model = build_model("linear", shape, 2)  # the loss does not use it
    task = Task(model, 2, shape, Training(**options), bound or bound_of(1.0))
    params = {"w": torch.zeros(data.x.shape[1]) if start is None else start}
    key = key or rng.new_key(0, purpose="move")
    return train(task, vector_loss, params, data=data, key=key).params["w"]


def clipped_sum_by_loop(task, params, data, key):
    total = {name: torch.zeros_like(leaf) for name, leaf in params.items()}
    for row in range(len(data.positions)):
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
        # An example draws by the key of the step, moved by its row.
        own = key.at(torch.tensor(2**32 * (row + 1)))
        batch = Batch(data.x[row : row + 1], data.y[row : row + 1], torch.ones(1))
        loss = classification_loss(task, leaves, {}, batch, own).loss
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        for name, gradient in zip(leaves, gradients, strict=True):
            total[name] += gradient * min(1.0, CLIP / norm)
    return total


@pytest.mark.parametrize("model", MODELS)
def test_a_step_is_the_sum_of_a_loop_over_examples(model):
    task = task_of(model)
    key = rng.new_key(3, purpose="test")
    params = task.initial(key)
    data = examples(task, 3)
    expected = clipped_sum_by_loop(task, params, data, key)
    trained = train(task, classification_loss, params, data=data, key=key)
    for name, leaf in params.items():
        moved = (leaf - trained.params[name]) * 3
        torch.testing.assert_close(moved, expected[name], atol=5e-6, rtol=1e-4)

    assert int(trained.steps) == 1


def test_gradients_in_chunks_are_the_same(monkeypatch):
    task = task_of("mlp")
    key = rng.new_key(3, purpose="test")
    params = task.initial(key)
    whole = train(task, classification_loss, params, data=examples(task), key=key)
    monkeypatch.setattr("fedtailor.training.private_steps._MOST_NUMBERS", 1)
    parts = train(task, classification_loss, params, data=examples(task), key=key)
    for name in params:
        torch.testing.assert_close(whole.params[name], parts.params[name])


def test_one_bound_holds_over_all_parameters_and_nothing_is_scaled_up():
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    data = ExampleSet(x, torch.zeros(2, dtype=torch.int64), torch.arange(2), torch.ones(2))
    torch.testing.assert_close(move(data), -torch.tensor([0.9, 1.2]) / 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38])
def test_an_example_without_a_finite_gradient_has_no_part(bad):
    x = torch.tensor([[bad, bad], [0.3, 0.4]])
    data = ExampleSet(x, torch.zeros(2, dtype=torch.int64), torch.arange(2), torch.ones(2))
    end = move(data)
    assert torch.isfinite(end).all() and float(end.norm()) <= 1.0


def test_every_example_is_in_a_batch_with_the_same_probability():
    # Example j adds 1 to entry j, so the sum over steps counts how often it was drawn.
    count, steps = 40, 1000
    data = ExampleSet(
        torch.eye(count),
        torch.zeros(count, dtype=torch.int64),
        torch.arange(count),
        torch.ones(count),
    )
    drawn = -move(data, steps=steps, batch_size=10) * 10
    rate = 0.25
    deviation = math.sqrt(steps * rate * (1 - rate))
    assert (drawn - steps * rate).abs().max() < 4.5 * deviation
    assert float(drawn.std()) == pytest.approx(deviation, rel=0.4)


def test_absent_examples_and_empty_batches():
    x = torch.eye(4)
    weight = torch.tensor([1.0, 0.0, 1.0, 0.0])
    data = ExampleSet(x, torch.zeros(4, dtype=torch.int64), torch.arange(4), weight)
    end = move(data, steps=50, batch_size=1)
    assert end[1] == end[3] == 0 and end[0] < 0 and end[2] < 0

    # With nobody there, nothing happens.
    nobody = data._replace(weight=torch.zeros(4))
    assert not move(nobody, steps=50, batch_size=1).any()


def test_noise_has_its_deviation_and_its_place():
    count, numbers = 5, 100_000
    data = ExampleSet(
        torch.zeros(count, numbers),
        torch.zeros(count, dtype=torch.int64),
        torch.arange(count),
        torch.ones(count),
    )
    bound = bound_of(0.5, noise=3.0)
    end = move(data, bound, steps=4)
    # Four steps of noise 3 times 0.5, divided by 5 examples.
    expected = 2.0 * 3.0 * 0.5 / count
    assert float(end.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * numbers))
    assert abs(float(end.mean())) < 4 * expected / math.sqrt(numbers)

    again = move(data, bound, steps=4)
    assert torch.equal(end, again), "noise follows from the key"
    other = move(data, bound, rng.new_key(0, round=1, purpose="move"), steps=4)
    assert abs(float(torch.corrcoef(torch.stack([end, other]))[0, 1])) < 0.02


def test_noise_of_steps_and_leaves_is_independent():
    numbers = 20_000
    data = ExampleSet(
        torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), torch.arange(2), torch.ones(2)
    )

    def loss(task, params, context, batch, key):
        return LossOutput(0.0 * (params["a"].sum() + params["b"].sum()) + batch.x.sum())

    ends = []
    for steps in (1, 2):
        training = Training(lr=1.0, steps=steps, batch_size=0)
        task = Task(build_model("linear", (3,), 2), 2, (3,), training, bound_of(1.0, noise=1.0))
        params = {"a": torch.zeros(numbers), "b": torch.zeros(numbers)}
        key = rng.new_key(0, purpose="x")
        ends.append(train(task, loss, params, data=data, key=key).params)

    first = ends[0]
    second = {name: ends[1][name] - first[name] for name in first}
    for one, other in ((first["a"], first["b"]), (first["a"], second["a"])):
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.03


def test_examples_have_their_own_draws():
    def drawing_loss(task, params, context, batch, key):
        noise = rng.normal(key.fold("noise"), (1, 2))
        return LossOutput((params["w"] * noise * batch.x).sum() / batch.weight.sum())

    data = ExampleSet(
        torch.ones(2, 2), torch.zeros(2, dtype=torch.int64), torch.arange(2), torch.ones(2)
    )
    training = Training(lr=1.0, steps=1, batch_size=0)
    task = Task(build_model("linear", (2,), 2), 2, (2,), training, bound_of(1e6))
    key = rng.new_key(0, purpose="x")
    both = train(task, drawing_loss, {"w": torch.zeros(2)}, data=data, key=key).params["w"]
    one = data._replace(positions=torch.arange(1), weight=torch.ones(1))
    alone = train(task, drawing_loss, {"w": torch.zeros(2)}, data=one, key=key).params["w"]
    assert not torch.allclose(both, alone)


def test_steps_are_counted_but_not_those_at_home():
    task = task_of("mlp", steps=0, epochs=2, batch_size=3)
    key = rng.new_key(0, purpose="x")
    with counting_steps() as taken:
        train(task, classification_loss, task.initial(key), data=examples(task), key=key)
        home = task.at_home()
        train(home, classification_loss, task.initial(key), data=examples(task), key=key)
    assert taken == [6]


@pytest.mark.parametrize(
    "bound", [ExampleBound(1.0, 1.0, 3 / 7, 5), ExampleBound(1.0, 1.0, 0.4, 6)]
)
def test_steps_that_would_tell_more_than_is_claimed_are_not_taken(bound):
    task = task_of("mlp", steps=0, epochs=2, batch_size=3)._replace(example_bound=bound)
    key = rng.new_key(0, purpose="x")
    with counting_steps(), pytest.raises(RuntimeError, match=r"6 steps with rate 0\.428571 would"):
        train(task, classification_loss, task.initial(key), data=examples(task), key=key)


def test_what_cannot_be_bounded_is_refused():
    task = task_of("mlp")
    key = rng.new_key(0, purpose="x")
    params = task.initial(key)
    with pytest.raises(TypeError, match="one batch"):
        train(task, classification_loss, params, data=examples(task), key=key, batches_per_step=2)

    def collecting(task, params, context, batch, key):
        loss = classification_loss(task, params, context, batch, key)
        return loss._replace(outputs=batch.x)

    with pytest.raises(TypeError, match="collected"):
        train(task, collecting, params, data=examples(task), key=key, collect="last")


@pytest.mark.parametrize("part", ["noise", "draws"])
def test_noise_and_draws_of_a_secret_cannot_be_told_from_the_key(part):
    """Whoever knows the key alone has other noise, and other examples in a batch."""
    data = ExampleSet(torch.eye(400), torch.zeros(400).long(), torch.arange(400), torch.ones(400))
    amount = {"batch_size": 200} if part == "draws" else {}
    bound = bound_of(1.0, noise=10.0 if part == "noise" else 0.0)
    key = rng.new_key(0, purpose="secret")
    moves = {
        secret: move(data, bound._replace(secret=secret), key, **amount)
        for secret in (b"", b"a" * 32, b"b" * 32)
    }
    for secret, one in moves.items():
        for other_secret, other in moves.items():
            related = float(torch.corrcoef(torch.stack((one, other)))[0, 1])
            assert (related > 0.99) == (secret == other_secret)
            assert secret == other_secret or abs(related) < 0.2
