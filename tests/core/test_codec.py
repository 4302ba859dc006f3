"""Trees of tensors as bytes and back: nothing is lost, nothing is executed, damage is an error of
ours."""

import contextlib
import json
import struct
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load, save

from fedtailor.core import tree
from fedtailor.core.codec import Limits, compact, decode, encode
from fedtailor.core.engine import PerExample
from fedtailor.core.errors import DataError

HERE = [__name__]


class State(NamedTuple):
    model: dict
    count: torch.Tensor
    nothing: tuple = ()


class Outer:
    class Inner(NamedTuple):
        x: torch.Tensor


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def dense(*shape, order=None, dtype=torch.float32):
    """Return a tensor whose axes lie in memory in the given order."""
    order = order or range(len(shape))
    values = torch.arange(torch.Size(shape).numel()).to(dtype)
    inverse = [list(order).index(axis) for axis in range(len(shape))]
    return values.view([shape[axis] for axis in order]).permute(inverse)


def assert_same(found, expected):
    """Check that two trees are equal in structure, types, bits and memory layout."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert found.stride() == expected.stride() and found.data_ptr() % 64 == 0
        assert found.contiguous().view(-1).view(torch.uint8).tolist() == (
            expected.contiguous().view(-1).view(torch.uint8).tolist()
        )
        return
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = tuple(found.values()), tuple(expected.values())
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


def test_a_tree_comes_back_with_types_order_and_layout():
    value = State(
        model={
            "z": dense(4, 3, 5, 5, order=(0, 2, 3, 1)),
            "a": {7: dense(2, 3, order=(1, 0)), "": torch.tensor(1.5, dtype=torch.float64)},
            "flags": torch.tensor([True, False]),
            "half": dense(3, dtype=torch.bfloat16),
            "odd": torch.tensor([float("nan"), -0.0, float("inf")]),
            "none": torch.empty(0, 3),
        },
        count=torch.tensor(3),
        nothing=((), PerExample(torch.ones(2, 1, 3)), Outer.Inner(dense(1, 4, 1, 1))),
    )
    assert_same(
        decode(encode(value, modules=[*HERE, "fedtailor"]), modules=[*HERE, "fedtailor"]), value
    )


@pytest.mark.parametrize(
    "value", [torch.arange(3), (), {}, (torch.ones(()),), {"__metadata__": torch.ones(1)}]
)
def test_small_trees(value):
    assert_same(decode(encode(value)), value)


def test_paths_that_look_alike_do_not_collide():
    value = {
        "a/b": torch.tensor(1),
        "a": {"b": torch.tensor(2), "b~": torch.tensor(3)},
        "a/b~": torch.tensor(4),
    }
    assert_same(decode(encode(value)), value)


def test_any_reader_of_safetensors_finds_the_leaves_under_their_paths():
    value = Pair(dense(2, 3, order=(1, 0)), torch.ones(2))
    found = load(encode(value))
    assert sorted(found) == ["first", "second"] and torch.equal(found["first"], value.first)


def test_the_same_tree_gives_the_same_bytes():
    value = {"b": torch.ones(3), "a": (torch.zeros(2, dtype=torch.int64),)}
    assert len({encode(value) for _ in range(5)}) == 1


def test_one_tensor_may_be_several_leaves_and_views_are_cut_out():
    whole = torch.arange(100.0)
    value = {"one": whole[1:4], "same": whole[1:4], "wide": torch.ones(3).expand(2, 3)}
    assert len(encode(value)) < 600
    assert_same(
        decode(encode(value)),
        {"one": whole[1:4].clone(), "same": whole[1:4].clone(), "wide": torch.ones(2, 3)},
    )


shapes = st.lists(st.integers(0, 3), max_size=4)


@settings(max_examples=60, deadline=None)
@given(shapes, st.data(), st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool]))
def test_every_dense_layout_survives(shape, data, dtype):
    leaf = dense(*shape, order=data.draw(st.permutations(range(len(shape)))), dtype=dtype)
    kept = compact(leaf)
    assert kept.stride() == leaf.stride() and kept.data_ptr() % 64 == 0
    assert_same(decode(encode(kept)), kept)


def test_compact_leaves_have_memory_of_their_own():
    whole = torch.arange(12.0)
    value = compact(
        {
            "part": whole[1:5],
            "rows": whole.view(3, 4)[:, 1],
            "wide": torch.ones(1).expand(3),
            "all": whole,
        }
    )
    assert value["all"].data_ptr() == whole.data_ptr(), "nothing is copied without need"
    for leaf in tree.leaves(value):
        assert leaf.untyped_storage().nbytes() == 4 * leaf.numel() and leaf.data_ptr() % 64 == 0
    assert value["rows"].tolist() == [1.0, 5.0, 9.0] and value["wide"].stride() == (1,)


def local_class():
    class Hidden(NamedTuple):
        x: torch.Tensor

    return Hidden(torch.ones(1))


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": {"b": 3.0}}, "'a/b' must be a tensor, got float"),
        ({"a": [torch.ones(1)]}, "'a' must be a tensor, got list"),
        (None, "'.' must be a tensor, got NoneType"),
        ({None: torch.ones(1)}, "key of type NoneType"),
        ({True: torch.ones(1)}, "key of type bool"),
        ({"a": torch.ones(2).to_sparse()}, "'a' is a tensor of layout torch.sparse_coo"),
        (
            {"a": torch.ones(1, dtype=torch.complex64)},
            "'a' is a tensor of layout torch.strided and type torch.complex64",
        ),
        ((local_class(),), "'0' is a .*Hidden, which cannot be read back"),
        ((PerExample(torch.ones(1)),), "PerExample, which cannot be read back"),
    ],
)
def test_what_cannot_be_read_back_is_not_written(value, where):
    with pytest.raises(TypeError, match=where):
        encode(value, modules=HERE)


def test_trees_are_limited_both_ways():
    deep = torch.ones(1)
    for _ in range(33):
        deep = (deep,)
    wide = {str(number): torch.ones(1) for number in range(20)}
    with pytest.raises(TypeError, match="more than 32 levels deep"):
        encode(deep)
    for limits, reason in (
        (Limits(leaves=10), "more than 10 leaves"),
        (Limits(size=100), "more than 100"),
    ):
        with pytest.raises(TypeError, match=reason):
            encode(wide, limits=limits)
        with pytest.raises(DataError, match=reason):
            decode(encode(wide), limits=limits)
    with pytest.raises(DataError, match="more than 32 levels"):
        decode(encode(deep, limits=Limits(depth=50)))
    with pytest.raises(TypeError, match="more than 10 leaves"):
        encode(((),) * 30, limits=Limits(leaves=10))


def test_only_allowed_classes_are_made():
    data = encode(Pair(torch.ones(1), torch.ones(1)))
    assert isinstance(decode(data, modules=HERE), Pair)
    for modules in ([], ["fedtailor"], [__name__[:-1]], [f"{__name__}.Pair"]):
        with pytest.raises(DataError, match="not allowed or does not exist"):
            decode(data, modules=modules)


def forged(structure, tensors=None, version=1):
    """Return bytes with a structure of one's own."""
    metadata = {
        "fedtailor": structure
        if isinstance(structure, str)
        else json.dumps({"version": version, "tree": structure})
    }
    return save(tensors or {"x": torch.ones(2, 3)}, metadata=metadata)


X = {"leaf": "x"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        struct.pack("<Q", 2**63) + b"{}",
        save({"x": torch.ones(1)}),
        forged("no json"),
        forged("[" * 100_000),
        forged("[]"),
        forged(X, version=2),
        forged({"leaf": "y"}),
        forged({"leaf": 3}),
        forged({"tuple": [X, X]}),
        forged({"tuple": []}),
        forged({"tuple": X}),
        forged({"tuple": [X], "more": 1}),
        forged({"dict": [["a", X], ["a", X]]}),
        forged({"dict": [[1.5, X]]}),
        forged({"dict": [[True, X]]}),
        forged({"dict": [["a"]]}),
        forged({"leaf": "x", "strides": [0, 0]}),
        forged({"leaf": "x", "strides": [1]}),
        forged({"leaf": "x", "strides": [1, 1]}),
        forged({"leaf": "x", "strides": [-3, 1]}),
        forged({"leaf": "x", "strides": [2**70, 1]}),
        forged({"leaf": "x", "strides": ["3", 1]}),
        forged({"leaf": "x", "strides": 3}),
        forged({"leaf": "x", "strides": [3, 1], "more": 0}),
        forged({"type": f"{__name__}:Pair", "fields": {"first": X}}),
        forged({"type": f"{__name__}:Pair", "fields": {"second": X, "first": X}}),
        forged({"type": f"{__name__}:Outer", "fields": {"x": X}}),
        forged({"type": f"{__name__}:forged", "fields": {"x": X}}),
        forged({"type": f"{__name__}:Outer.Missing.Deeper", "fields": {"x": X}}),
        forged({"type": __name__, "fields": {"x": X}}),
        forged({"type": "os:system", "fields": {"x": X}}),
        forged(None),
    ],
)
def test_hostile_bytes_are_an_error_of_ours(data):
    with pytest.raises(DataError, match="not a tree of tensors"):
        decode(data, modules=HERE)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_never_raise_anything_else(data):
    whole = encode(Pair(torch.ones(2, 3), torch.zeros(1)))
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), whole[:place], whole + b"x"):
        with contextlib.suppress(DataError):
            decode(damaged, modules=HERE)
