"""The batches of a phase: normalized once or batch by batch, the same bits."""

import pytest
import torch

from fedtailor.core.federation import ExampleSet
from fedtailor.training import batches
from fedtailor.training.batches import Amount, Batches, gather, plan_batches


def images():
    """Return 8-bit images, of which a client has some, two of weight 0."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (30, 6, 5, 3), dtype=torch.uint8, generator=generator).permute(
        0, 3, 1, 2
    )
    rows, weight = torch.randperm(30, generator=generator)[:13], torch.ones(13)
    weight[3] = weight[7] = 0
    scale = torch.tensor([[255.0] * 3, [0.1, 0.5, 0.3], [0.2, 0.7, 0.9]])
    return ExampleSet(x, torch.arange(30) % 4, rows, weight, scale)


def features():
    return ExampleSet(torch.randn(9, 4), torch.arange(9), torch.tensor([8, 2, 5, 5]), torch.ones(4))


@pytest.mark.parametrize("data", [images, features])
@pytest.mark.parametrize(
    "amount", [Amount(2, 0, 4, False, 1), Amount(0, 2, 3, True, 1), Amount(1, 0, 0, False, 1)]
)
@pytest.mark.parametrize("most", [0, 2**24])
def test_batches_are_those_that_are_gathered_one_by_one(data, amount, most, monkeypatch):
    monkeypatch.setattr(batches, "_MOST_NUMBERS", most)
    data = data()
    plan = plan_batches(data.weight, (0, 1, 2, 0, 3), amount)
    found = Batches(data, plan)
    assert len(plan.batches) == len(found.columns) > 0
    for number, positions in enumerate(plan.batches):
        pair = (found[number], gather(data, positions))
        assert pair[0].class_weight == pair[1].class_weight == ()
        for one, other in zip(*(batch[:3] for batch in pair), strict=True):
            assert (
                torch.equal(one, other)
                and one.stride() == other.stride()
                and one.dtype == other.dtype
            )


def test_a_client_without_examples_has_no_batches():
    data = images()._replace(rows=torch.empty(0, dtype=torch.int64), weight=torch.empty(0))
    assert (
        Batches(data, plan_batches(data.weight, (0, 0, 0, 0, 0), Amount(1, 0, 4, False, 1))).columns
        == []
    )
