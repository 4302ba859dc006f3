"""How jobs are dealt: all of them, each once, in blocks of the tree with the largest first."""

import hypothesis.strategies as st
from hypothesis import given, settings

from fedtailor.core.engine import Job
from fedtailor.simulation.engines.dealing import Deck

laws = settings(max_examples=60, deadline=None)
cohorts = st.dictionaries(st.integers(0, 5000), st.integers(0, 100), min_size=1, max_size=60)


def jobs_of(sizes):
    return [Job(client, None, (), size) for client, size in sizes.items()]


@laws
@given(cohorts, st.integers(1, 70))
def test_every_job_is_dealt_once(sizes, most):
    deck = Deck(jobs_of(sizes))
    dealt = []
    while deck:
        waiting = len(deck)
        block = deck.take(most)
        assert 1 <= len(block) <= most and len(deck) == waiting - len(block)
        dealt += block
    assert sorted(dealt) == list(range(len(sizes)))


@laws
@given(cohorts, st.integers(1, 20))
def test_neighbors_are_all_clients_below_a_node(sizes, most):
    jobs = jobs_of(sizes)
    deck = Deck(jobs)
    largest = 101
    while deck:
        block = deck.take(most)
        clients = [jobs[position].client for position in block]
        assert clients == sorted(clients)
        level = (clients[0] ^ clients[-1]).bit_length()
        assert clients == sorted(
            client for client in sizes if client >> level == clients[0] >> level
        )
        assert max(sizes[client] for client in clients) <= largest, "a larger one came later"
        largest = max(sizes[client] for client in clients)


def test_parts_of_one_clients_work_are_divided():
    deck = Deck([Job(0, None, (), size) for size in (4, 4, 2)])
    assert sorted(deck.take(1) + deck.take(2)) == [0, 1, 2] and not deck


def test_what_is_put_back_comes_by_itself():
    deck = Deck(jobs_of({3: 5, 4: 9, 5: 1}))
    first = deck.take(1)
    assert first == [1]
    deck.put_back(1)
    assert len(deck) == 3
    assert deck.take(1) == [1]
