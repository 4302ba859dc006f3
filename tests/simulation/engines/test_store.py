"""The store of client states: what is read back, what is in memory, what is in files."""

from typing import NamedTuple

import pytest
import torch

from federations import make_federation, perceptron
from fedtailor.algorithms import load_algorithm
from fedtailor.core import tree
from fedtailor.core.errors import RunError
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Training
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.store import Store
from fedtailor.simulation.rounds import simulate
from fedtailor.testing.runs import assert_same_bits, run


class State(NamedTuple):
    model: dict
    count: torch.Tensor
    nothing: tuple


def state(seed, classes=3):
    """Return a state whose convolution lies channels last, and whose head is a view into something larger."""
    generator = torch.Generator().manual_seed(seed)
    convolution = torch.randn(4, 3, 5, 5, generator=generator).contiguous(memory_format=torch.channels_last)
    whole = torch.randn(1000, generator=generator)
    model = {"conv.weight": convolution, "head.bias": whole[10 : 10 + classes], "flags": torch.tensor([True, False])}
    return State(model, torch.tensor(seed), ())


def files(store):
    return sorted(int(path.stem) for path in store.folder.glob("*")) if store.folder.exists() else []


SIZE = 4 * (4 * 3 * 5 * 5 + 3) + 2 + 8


def test_what_comes_back_is_what_went_in(tmp_path):
    """From memory as from files: values, types, structure, and the order of the axes in memory."""
    store = Store(tmp_path / "states", in_memory=0)
    for client in (5, 2, 9):
        store[client] = state(client)
    assert files(store) == [2, 5] and list(store) == [5, 2, 9] and len(store) == 3
    for client in (5, 2, 9):
        found = store[client]
        expected = state(client)
        assert_same_bits(found, expected)
        assert isinstance(found, State) and found.nothing == ()
        assert found.model["conv.weight"].stride() == expected.model["conv.weight"].stride()


def test_the_most_recently_used_are_in_memory(tmp_path):
    store = Store(tmp_path, in_memory=2 * SIZE)
    store[1] = state(1)
    store[2] = state(2)
    assert files(store) == []
    assert int(store[1].count) == 1  # so that 2 is the least recent
    store[3] = state(3)
    assert files(store) == [2]
    assert int(store[2].count) == 2 and files(store) == [1, 2]
    store[1] = state(7)  # what lies in the file is old now
    last = state(8)
    store[4] = last
    store[5] = last
    assert int(store[1].count) == 7


def test_a_view_keeps_nothing_else_in_memory(tmp_path):
    store = Store(tmp_path)
    store[0] = state(0)
    assert store[0].model["head.bias"].untyped_storage().nbytes() == 12


def test_leaves_may_be_one_tensor_or_spread_over_less_memory(tmp_path):
    one = torch.arange(6.0).view(2, 3)
    store = Store(tmp_path, in_memory=0)
    store[0] = {"now": one, "before": one, "flat": torch.ones(3).expand(2, 3)}
    store[1] = ()
    assert files(store) == [0]
    assert_same_bits(store[0], {"now": one, "before": one, "flat": torch.ones(2, 3)})


def test_what_was_in_a_file_is_aligned_as_if_it_had_not_been(tmp_path):
    """Sums of one vector at two alignments may differ in the last bit."""
    store = Store(tmp_path, in_memory=0)
    store[0] = {"a": torch.ones(3), "b": torch.ones(5)}
    store[1] = ()
    assert [leaf.data_ptr() % 64 for leaf in store[0].values()] == [0, 0]


def test_clients_can_be_forgotten(tmp_path):
    store = Store(tmp_path / "a", in_memory=0)
    store.update({1: state(1), 2: state(2), 3: (), 4: state(4, classes=5)})
    del store[1], store[4]
    assert 1 not in store and list(store) == [2, 3] and store[3] == () and files(store) == [2]
    with pytest.raises(KeyError):
        store[1]
    store.close()
    assert len(store) == 0 and not store.folder.exists()


def test_what_cannot_be_written_or_read_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / "file" / "states", in_memory=0)
    store[1] = state(1)
    with pytest.raises(RunError, match=r"cannot write '.*1\.safetensors', which stores data of client 1"):
        store[2] = state(2)
    store = Store(tmp_path / "states", in_memory=0)
    store[1] = state(1)
    store[2] = state(2)
    (tmp_path / "states" / "1.safetensors").write_bytes(b"damaged")
    with pytest.raises(RunError, match=r"cannot read '.*1\.safetensors', which stores data of client 1"):
        store[1]


@pytest.mark.parametrize("name", ["fedrep", "fedpac", "scaffold", "knn_per", "pfedvem", "fedproto", "fedbabu"])
def test_runs_do_not_depend_on_it(tmp_path, float64, name):
    """States, the rows of FedPAC, and personal models, of which those of kNN-Per hold rows per example."""
    federation = make_federation(perceptron())
    algorithm = load_algorithm(name)(training=Training(lr=0.1, epochs=1, batch_size=5))
    expected = run(algorithm, Reference(), federation, rounds=3).reports[-1].personal
    stores = []

    def storage(what):
        stores.append(Store(tmp_path / what, in_memory=0))
        return stores[-1]

    schedule = Schedule(rounds=3, evaluate_every=1, personalized_every=1)
    *_, last = simulate(algorithm, federation, Reference(), schedule, seed=3, storage=storage)
    assert [store.folder.name for store in stores] == ["states", "per_client", "personal"]
    assert list(last.personal) == list(expected)
    for client, personal in expected.items():
        assert_same_bits(last.personal[client], personal)
        assert tree.paths(last.personal[client]).keys() == tree.paths(personal).keys()
