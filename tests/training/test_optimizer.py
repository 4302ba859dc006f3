"""The optimizer: one pass for one client, step by step for a stack; both are the same
arithmetic."""

import pytest
import torch

from fedtailor.core.task import Training
from fedtailor.training.optimizer import Optimizer


def tensors(seed):
    """Return a convolution that lies channels last, a matrix and a vector."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (4, 3, 5, 5), (7, 6), (5,)
    drawn = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [drawn[0].contiguous(memory_format=torch.channels_last), *drawn[1:]]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.5, 0.01)]
)
def test_one_client_and_a_stack_take_the_same_steps(optimizer, momentum, weight_decay):
    training = Training(optimizer=optimizer, lr=0.1, momentum=momentum, weight_decay=weight_decay)
    one, stack = tensors(0), [leaf[None].clone() for leaf in tensors(0)]
    alone, together = Optimizer(training, one), Optimizer(training, stack)
    for step in range(3):
        gradients = tensors(step + 1)
        kept = [gradient.clone() for gradient in gradients]
        alone.update(one, gradients, step)
        together.update(stack, [gradient[None] for gradient in gradients], step, active=1)
        assert all(
            torch.equal(gradient, before) for gradient, before in zip(gradients, kept, strict=True)
        )
    for leaf, row in zip(one, stack, strict=True):
        assert torch.allclose(leaf, row[0], rtol=0, atol=1e-14)


def test_gradients_may_be_one_tensor():
    """That of a sum is the same for both summands, and may be the same memory."""
    params, gradient = [torch.ones(4), torch.ones(4)], torch.ones(4)
    Optimizer(Training(lr=0.5, weight_decay=1.0), params).update(params, [gradient, gradient], 0)
    assert [leaf.tolist() for leaf in params] == [[0.0] * 4] * 2


def test_nothing_to_train_is_no_error():
    for name in ("sgd", "adam"):
        Optimizer(Training(optimizer=name), []).update([], [], 0)
