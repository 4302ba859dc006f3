"""The order of addition over clients: a binary tree over their ids."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from fedtailor.core.reduction import TreeSum, tree_sum

laws = settings(max_examples=60, deadline=None)
populations = st.sets(st.integers(0, 300), min_size=1, max_size=40)


def numbers(clients, size=8):
    """Return numbers of very different size by client, so that every order of addition rounds differently."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(301, size, generator=generator, dtype=torch.float64)
    scale = 10.0 ** torch.randint(-8, 9, (301, 1), generator=generator).double()
    return {client: (drawn * scale)[client] for client in clients}


def by_halves(values, low, high):
    """Return the sum over ids from low to high - 1 by definition: of both halves, or of the one that is not empty."""
    present = [client for client in values if low <= client < high]
    if len(present) == 1:
        return values[present[0]]
    middle = (low + high) // 2
    halves = [by_halves(values, *half) for half in ((low, middle), (middle, high)) if any_in(values, *half)]
    return halves[0] + halves[1] if len(halves) == 2 else halves[0]


def any_in(values, low, high):
    return any(low <= client < high for client in values)


@laws
@given(populations)
def test_a_sum_follows_the_definition(clients):
    values = numbers(clients)
    expected = by_halves(values, 0, 512)
    assert torch.equal(tree_sum(values), expected)
    assert torch.equal(tree_sum(values), by_halves(values, 0, 4096)), "the size of the population matters"


@laws
@given(populations, st.integers(0, 8))
def test_sums_of_blocks_that_are_made_apart_give_the_same_bits(clients, level):
    values = numbers(clients)
    total = TreeSum()
    for block in sorted({client >> level for client in clients}):
        within = {client: value for client, value in values.items() if client >> level == block}
        total.add(max(within), tree_sum(within))
    assert torch.equal(total.result(), tree_sum(values))


@laws
@given(st.permutations(range(20)), populations)
def test_the_order_of_arrival_does_not_matter(order, clients):
    values = numbers(clients)
    shuffled = dict(sorted(values.items(), key=lambda item: (order[item[0] % 20], item[0])))
    assert torch.equal(tree_sum(values), tree_sum(shuffled))


def test_few_sums_are_in_memory_at_a_time():
    total = TreeSum()
    for client in range(1000):
        total.add(client, torch.ones(()))
        assert len(total._sums) <= 11
    assert total.result() == 1000


def test_inputs_of_a_sum_stay_as_they_are():
    values = {client: torch.ones(3) for client in range(5)}
    assert tree_sum(values).tolist() == [5.0] * 3
    assert all(value.tolist() == [1.0] * 3 for value in values.values())


def test_ids_must_increase():
    total = TreeSum()
    with pytest.raises(ValueError, match="no clients"):
        total.result()
    total.add(4, torch.ones(()))
    for client in (4, 3):
        with pytest.raises(ValueError, match=f"client {client} comes after client 4"):
            total.add(client, torch.ones(()))
