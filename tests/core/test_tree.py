"""Trees of tensors: laws on random trees, and refusals."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from fedtailor.core import tree
from fedtailor.core.federation import ClientInfo
from fedtailor.core.task import Batch

names = st.text(st.characters(codec="ascii", exclude_characters="/"), min_size=1, max_size=6)
shapes = st.lists(st.integers(0, 3), max_size=3)
tensors = shapes.map(lambda shape: torch.arange(torch.Size(shape).numel()).reshape(shape))


def nodes(children):
    dicts = st.dictionaries(names, children, max_size=3)
    pairs = st.builds(ClientInfo, children, children)
    return dicts | st.lists(children, max_size=3).map(tuple) | pairs


trees = st.recursive(tensors | st.just(()), nodes, max_leaves=8)
laws = settings(max_examples=60, deadline=None)


def equal(first, second):
    one, two = tree.paths(first), tree.paths(second)
    return list(one) == list(two) and all(
        torch.equal(leaf, two[path]) for path, leaf in one.items()
    )


@laws
@given(trees)
def test_map_of_the_identity_changes_nothing(value):
    same = tree.map(lambda leaf: leaf, value)
    assert equal(same, value) and type(same) is type(value)


@laws
@given(trees)
def test_map_composes(value):
    once = tree.map(lambda leaf: (leaf + 1) * 2, value)
    assert equal(once, tree.map(lambda leaf: leaf * 2, tree.map(lambda leaf: leaf + 1, value)))


@laws
@given(trees)
def test_rebuild_undoes_leaves(value):
    assert equal(tree.rebuild(value, iter(tree.leaves(value))), value)
    assert len(tree.leaves(value)) == len(list(tree.paths(value)))


@laws
@given(trees, st.integers(1, 4))
def test_unstack_undoes_stack(value, count):
    rows = [tree.map(lambda leaf, shift=shift: leaf + shift, value) for shift in range(count)]
    stacked = tree.stack(rows)
    assert all(leaf.shape[0] == count for leaf in tree.leaves(stacked))
    for row, again in zip(rows, tree.unstack(stacked, count), strict=True):
        assert equal(row, again)


@laws
@given(st.dictionaries(names, tensors), st.sets(names))
def test_split_parts_join_again(value, chosen):
    kept, rest = tree.split(value, lambda name: name in chosen)
    assert not set(kept) & set(rest) and set(kept) <= chosen
    joined = {**kept, **rest}
    assert set(joined) == set(value) and all(joined[name] is value[name] for name in value)
    assert tree.select(value, lambda name: name in chosen).keys() == kept.keys()


def test_paths_name_every_level():
    one, two, three = (torch.tensor(number) for number in (1, 2, 3))
    value = {"a": (one, {"b.weight": two}), "c": ClientInfo(three, ()), "empty": {}}
    assert tree.paths(value) == {"a/0": one, "a/1/b.weight": two, "c/num_train": three}
    assert tree.paths(one) == {"": one} and tree.paths(()) == {}


def test_types_are_kept():
    value = {
        "batch": Batch(torch.zeros(1), torch.zeros(1), torch.zeros(1)),
        "pair": (torch.zeros(1), ()),
    }
    mapped = tree.map(torch.clone, value)
    assert (
        type(mapped["batch"]) is Batch and type(mapped["pair"]) is tuple and mapped["pair"][1] == ()
    )


@pytest.mark.parametrize(
    "leaf", [None, 1.0, 3, "text", [torch.zeros(1)], {1, 2}], ids=lambda leaf: type(leaf).__name__
)
@pytest.mark.parametrize("function", [tree.paths, tree.leaves])
def test_leaves_that_are_no_tensors_are_refused(leaf, function):
    with pytest.raises(TypeError, match=f"must be a tensor, got {type(leaf).__name__}"):
        function({"a": (torch.zeros(1), leaf)})
    with pytest.raises(TypeError, match=r"tree leaf 'a/1' must be a tensor"):
        tree.paths({"a": (torch.zeros(1), leaf)})


def test_trees_of_other_structure_are_refused():
    with pytest.raises(ValueError, match=r"trees differ in structure: \[2, 1\] leaves"):
        tree.map(torch.add, {"a": torch.zeros(1), "b": torch.zeros(1)}, {"a": torch.zeros(1)})
    with pytest.raises(ValueError, match="trees differ in structure"):
        tree.map(torch.add, {"a": torch.zeros(1)}, {"b": torch.zeros(1)})


def test_entries_are_matched_by_name():
    """Two mappings with the same names in another order are the same tree."""
    one, two = (
        {"a": torch.tensor(1), "b": torch.tensor(10)},
        {"b": torch.tensor(20), "a": torch.tensor(2)},
    )
    assert tree.map(torch.add, one, two) == {"a": torch.tensor(3), "b": torch.tensor(30)}
    stacked = tree.stack([one, two])
    assert stacked["a"].tolist() == [1, 2] and stacked["b"].tolist() == [10, 20]


@laws
@given(trees)
def test_where_takes_one_tree_or_the_other(value):
    other = tree.map(lambda leaf: leaf + 1, value)
    assert equal(tree.where(torch.tensor(True), value, other), value)
    assert equal(tree.where(torch.tensor(False), value, other), other)
