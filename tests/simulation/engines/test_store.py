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
from marks import quick


class State(NamedTuple):
    model: dict
    count: torch.Tensor
    nothing: tuple


def state(seed, classes=3):
    """Return a state whose convolution lies channels last, and whose head is a view into something
    larger."""
    generator = torch.Generator().manual_seed(seed)
    convolution = torch.randn(4, 3, 5, 5, generator=generator).contiguous(
        memory_format=torch.channels_last
    )
    whole = torch.randn(1000, generator=generator)
    model = {
        "conv.weight": convolution,
        "head.bias": whole[10 : 10 + classes],
        "flags": torch.tensor([True, False]),
    }
    return State(model, torch.tensor(seed), ())


SIZE = 4 * (4 * 3 * 5 * 5 + 3) + 2 + 8
MODULES = [__name__]


def new_store(folder, **options):
    return Store(folder, "states", modules=MODULES, **options)


def files(store):
    """Return the numbers of the files in the folder of a store."""
    return sorted(int(path.stem.removeprefix("states-")) for path in store.folder.glob("*"))


def in_memory(store):
    return list(store._recent)


def test_what_comes_back_is_what_went_in(tmp_path):
    """From memory as from files: values, types, structure, and the order of the axes in memory."""
    store = new_store(tmp_path / "states", in_memory=0)
    for client in (5, 2, 9):
        store[client] = state(client)
    assert in_memory(store) == [9] and list(store) == [5, 2, 9] and len(store) == 3
    for client in (5, 2, 9):
        found = store[client]
        expected = state(client)
        assert_same_bits(found, expected)
        assert isinstance(found, State) and found.nothing == ()
        assert found.model["conv.weight"].stride() == expected.model["conv.weight"].stride()


def test_the_most_recently_used_are_in_memory(tmp_path):
    store = new_store(tmp_path, in_memory=2 * SIZE)
    store[1] = state(1)
    store[2] = state(2)
    assert files(store) == []
    assert int(store[1].count) == 1  # so that 2 is the least recent
    store[3] = state(3)
    assert in_memory(store) == [1, 3]
    assert int(store[2].count) == 2 and in_memory(store) == [3, 2]
    store[1] = state(7)  # what lies in the file is old now
    last = state(8)
    store[4] = last
    store[5] = last
    assert int(store[1].count) == 7


def test_a_view_keeps_nothing_else_in_memory(tmp_path):
    store = new_store(tmp_path)
    store[0] = state(0)
    assert store[0].model["head.bias"].untyped_storage().nbytes() == 12


def test_leaves_may_be_one_tensor_or_spread_over_less_memory(tmp_path):
    one = torch.arange(6.0).view(2, 3)
    store = new_store(tmp_path, in_memory=0)
    store[0] = {"now": one, "before": one, "flat": torch.ones(3).expand(2, 3)}
    store[1] = state(1)
    assert in_memory(store) == [1]
    assert_same_bits(store[0], {"now": one, "before": one, "flat": torch.ones(2, 3)})


def test_what_was_in_a_file_is_aligned_as_if_it_had_not_been(tmp_path):
    """Sums of one vector at two alignments may differ in the last bit."""
    store = new_store(tmp_path, in_memory=0)
    store[0] = {"a": torch.ones(3), "b": torch.ones(5)}
    store[1] = state(1)
    assert [leaf.data_ptr() % 64 for leaf in store[0].values()] == [0, 0]


def test_clients_can_be_forgotten(tmp_path):
    store = new_store(tmp_path / "a", in_memory=0)
    store.update({1: state(1), 2: state(2), 3: (), 4: state(4, classes=5), 5: state(5)})
    del store[1], store[4]
    assert (
        1 not in store and list(store) == [2, 3, 5] and store[3] == () and int(store[2].count) == 2
    )
    with pytest.raises(KeyError):
        store[1]
    store.close()
    assert len(store) == 0 and not store.folder.exists()


def test_files_whose_states_are_out_of_date_are_removed(tmp_path):
    """Otherwise the folder would grow with every round."""
    store = new_store(tmp_path, in_memory=0)
    for turn in range(20):
        for client in range(4):
            store[client] = state(turn)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 8 * 2 * SIZE
    assert [int(store[client].count) for client in range(4)] == [19] * 4


def test_what_is_committed_comes_back_and_what_came_later_does_not(tmp_path):
    store = new_store(tmp_path)
    store.update({client: state(client) for client in (3, 1, 2)})
    store[4] = ()
    first = store.commit()
    store[1] = state(11)
    second = store.commit()
    store[2] = state(12)
    store[9] = state(9)
    assert set(second.files) > set(first.files), "only what changed is written"
    assert second.files[max(second.files)].size < first.files[0].size / 2
    for committed, values in ((second, [3, 11, 2]), (first, [3, 1, 2])):
        again = new_store(tmp_path)
        again.reopen(committed)
        assert list(again) == [3, 1, 2, 4] and again[4] == ()
        assert [int(again[client].count) for client in (3, 1, 2)] == values
        assert_same_bits(again[3], state(3))
    assert files(again) == list(first.files)


def test_a_commit_without_changes_writes_nothing(tmp_path):
    store = new_store(tmp_path)
    store.update({1: state(1), 2: ()})
    first = store.commit()
    store[2] = ()
    assert store.commit() == first and files(store) == [0]


def test_committed_files_stay_until_they_are_not_needed(tmp_path):
    store = new_store(tmp_path)
    kept = []
    for turn in range(5):
        store.update({client: state(10 * turn + client) for client in range(3)})
        kept.append(store.commit())
        store.keep(number for committed in kept[-2:] for number in committed.files)
    assert files(store) == sorted({*kept[-1].files, *kept[-2].files}) == [3, 4]
    store.close()
    assert files(store) == [3, 4]


def test_the_few_that_are_up_to_date_move_out_of_a_file(tmp_path):
    store = new_store(tmp_path)
    store.update({client: state(client) for client in range(10)})
    store.commit()
    for client in range(6):
        store[client] = state(100 + client)
    committed = store.commit()
    assert {span.file for span in committed.spans.values()} == {1}, "the other four were copied"
    assert [int(store[client].count) for client in (5, 9)] == [105, 9]
    again = new_store(tmp_path)
    again.reopen(committed)
    assert files(again) == [1] and [int(again[client].count) for client in (5, 9)] == [105, 9]


def test_what_cannot_be_written_or_read_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = new_store(tmp_path / "file" / "states", in_memory=0)
    store[1] = state(1)
    with pytest.raises(
        RunError, match=r"cannot write '.*states-000000\.trees', which stores data of client"
    ):
        store[2] = state(2)
    store = new_store(tmp_path / "states", in_memory=0)
    store[1] = state(1)
    store[2] = state(2)
    path = tmp_path / "states" / "states-000000.trees"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(RunError, match=r"cannot read '.*', which stores data of client 1"):
        store[1]
    path.write_bytes(b"damaged")
    with pytest.raises(RunError, match=r"data of client 1: it ends too early"):
        store[1]


def test_a_state_that_could_not_be_read_back_is_refused_when_it_is_written(tmp_path):
    store = Store(tmp_path, "states", modules=["fedtailor"])
    store[7] = state(7)
    with pytest.raises(
        RunError, match=r"data of client 7 cannot be stored: .*State, which cannot be read back"
    ):
        store.commit()
    assert files(store) == []


@pytest.mark.parametrize(
    "name",
    quick(
        ["fedrep", "fedpac", "scaffold", "knn_per", "pfedvem", "fedproto", "fedbabu"],
        "fedpac",
        "knn_per",
    ),
)
def test_runs_do_not_depend_on_it(tmp_path, float64, name):
    """States, the rows of FedPAC, and personal models, of which those of kNN-Per hold rows per
    example."""
    federation = make_federation(perceptron())
    algorithm = load_algorithm(name)(training=Training(lr=0.1, epochs=1, batch_size=5))
    expected = run(algorithm, Reference(), federation, rounds=3).reports[-1].personal
    stores = []

    def storage(what):
        stores.append(Store(tmp_path / what, what, modules=["fedtailor"], in_memory=0))
        return stores[-1]

    schedule = Schedule(rounds=3, evaluate_every=1, personalized_every=1)
    *_, last = simulate(algorithm, federation, Reference(), schedule, seed=3, storage=storage)
    assert [store.name for store in stores] == ["states", "per_client", "personal", "trained"]
    assert list(last.personal) == list(expected)
    for client, personal in expected.items():
        assert_same_bits(last.personal[client], personal)
        assert tree.paths(last.personal[client]).keys() == tree.paths(personal).keys()
