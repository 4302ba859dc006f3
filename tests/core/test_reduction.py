"""The order of addition over clients: a binary tree over their ids."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from fedtailor.core.reduction import ArrivingSum, tree_sum

laws = settings(max_examples=60, deadline=None)
populations = st.sets(st.integers(0, 300), min_size=1, max_size=40)


def numbers(clients, size=8):
    """Return numbers of very different size by client, so that every order of addition rounds
    differently."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(301, size, generator=generator, dtype=torch.float64)
    scale = 10.0 ** torch.randint(-8, 9, (301, 1), generator=generator).double()
    return {client: (drawn * scale)[client] for client in clients}


def by_halves(values, low, high):
    """Return the sum over ids from low to high - 1 by definition: of both halves, or of the one
    that is not empty."""
    present = [client for client in values if low <= client < high]
    if len(present) == 1:
        return values[present[0]]
    middle = (low + high) // 2
    halves = [
        by_halves(values, *half)
        for half in ((low, middle), (middle, high))
        if any_in(values, *half)
    ]
    return halves[0] + halves[1] if len(halves) == 2 else halves[0]


def any_in(values, low, high):
    return any(low <= client < high for client in values)


@laws
@given(populations)
def test_a_sum_follows_the_definition(clients):
    values = numbers(clients)
    expected = by_halves(values, 0, 512)
    assert torch.equal(tree_sum(values), expected)
    assert torch.equal(tree_sum(values), by_halves(values, 0, 4096)), (
        "the size of the population matters"
    )


@laws
@given(st.permutations(range(20)), populations)
def test_the_order_of_arrival_does_not_matter(order, clients):
    values = numbers(clients)
    shuffled = dict(sorted(values.items(), key=lambda item: (order[item[0] % 20], item[0])))
    assert torch.equal(tree_sum(values), tree_sum(shuffled))


def test_inputs_of_a_sum_stay_as_they_are():
    values = {client: torch.ones(3) for client in range(5)}
    assert tree_sum(values).tolist() == [5.0] * 3
    assert all(value.tolist() == [1.0] * 3 for value in values.values())


def arriving(values, expected, order):
    """Return the sum of values that come in an order, among clients who may have been expected in
    vain."""
    total = ArrivingSum(expected, torch.add)
    for client in order:
        if client in values:
            total.add(client, values[client])
        else:
            total.skip(client)
    return total


@laws
@given(populations, st.sets(st.integers(0, 300), max_size=40), st.randoms(use_true_random=False))
def test_clients_may_arrive_in_any_order_or_not_at_all(present, absent, random):
    values = numbers(present)
    order = sorted(present | absent)
    random.shuffle(order)
    total = arriving(values, present | absent, order)
    assert torch.equal(total.result(), tree_sum(values))
    assert len(total.parts()) == 1


def test_of_clients_in_order_few_sums_are_in_memory():
    total = ArrivingSum(range(1000), torch.add)
    for client in range(1000):
        total.add(client, torch.ones(()))
        assert len(total.parts()) <= 10
    assert total.result() == 1000


def test_one_late_client_keeps_one_sum_a_level_waiting():
    total = ArrivingSum(range(1024), torch.add)
    for client in range(1, 1024):
        total.add(client, torch.ones(()))
    assert len(total.parts()) == 10
    with pytest.raises(ValueError, match="1 clients may still come, client 0"):
        total.result()
    total.add(0, torch.ones(()))
    assert total.result() == 1024


def test_who_is_not_expected_is_refused():
    total = ArrivingSum([1, 2], torch.add)
    total.skip(1)
    for client in (0, 1):
        with pytest.raises(KeyError):
            total.add(client, torch.ones(()))
    total.skip(2)
    assert total.result() is None
    assert ArrivingSum([], torch.add).result() is None


def added(clients, values, expected):
    """Return the sum over some of those who are expected; the others may still come."""
    total = ArrivingSum(expected, torch.add)
    for client in clients:
        total.add(client, values[client])
    return total


def neighbors(clients, population):
    """Return clients with the one before and the one after each of them."""
    ids = sorted(population)
    places = {ids.index(client) + step for client in clients for step in (-1, 0, 1)}
    return {ids[place] for place in places if 0 <= place < len(ids)}


@laws
@given(populations, st.integers(1, 5), st.randoms(use_true_random=False), st.booleans())
def test_parts_made_in_several_places_give_the_same_bits(clients, num_places, random, knows_all):
    values = numbers(clients)
    place_of = {client: random.randrange(num_places) for client in clients}
    parts = {}
    for place in range(num_places):
        here = [client for client in clients if place_of[client] == place]
        expected = clients if knows_all else neighbors(here, clients)
        parts |= added(here, values, expected).parts()
    total = ArrivingSum(clients, torch.add)
    for client in random.sample(sorted(clients), len(clients)):
        if client in parts:
            total.add(client, parts[client])
        else:
            total.skip(client)
    assert torch.equal(total.result(), tree_sum(values))


def test_neighbors_below_one_node_give_one_part():
    values = numbers(range(64))
    assert list(added(range(8, 16), values, range(64)).parts()) == [8]
    assert list(added(range(8, 16), values, range(7, 17)).parts()) == [8]
    # 10 is below another node than 11, which is not here
    assert sorted(added([8, 9, 10], values, range(64)).parts()) == [8, 10]
