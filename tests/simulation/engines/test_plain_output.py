"""What a program returns is copied into plain values, or refused with the place where it is
wrong."""

import threading
from typing import NamedTuple

import pytest
import torch

from fedtailor.core.engine import PerExample
from fedtailor.simulation.engines import containment
from fedtailor.simulation.engines.containment import plain


class Pair(NamedTuple):
    first: object
    second: object


def test_structures_stay_and_memory_is_new():
    weight = torch.arange(6.0).reshape(2, 3)
    value = Pair(
        {"w": weight, "n": ()}, (weight.t(), PerExample(weight[:1]), 3, "text", None, True)
    )
    found = plain(value)
    assert (
        type(found) is Pair
        and type(found.second[1]) is PerExample
        and found.second[2:] == (3, "text", None, True)
    )
    assert torch.equal(found.first["w"], weight) and torch.equal(found.second[0], weight.t())
    weight.zero_()
    assert (
        found.first["w"].sum() == 15
        and found.second[0].sum() == 15
        and found.second[1].value.sum() == 3
    )


def test_layouts_stay():
    images = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert plain(images).stride() == images.stride()
    assert plain(torch.randn(4, 5).t()).stride() == (1, 5)


def test_graphs_are_cut():
    leaf = torch.ones(2, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(2))
    for found in (plain(leaf * 2), plain(leaf), plain(parameter)):
        assert type(found) is torch.Tensor and not found.requires_grad


def test_a_small_tensor_that_repeats_its_values_is_written_out(monkeypatch):
    assert plain(torch.ones(()).expand(3, 4)).untyped_storage().nbytes() == 48
    monkeypatch.setattr(containment, "LARGEST_EXPANDED", 40)
    with pytest.raises(TypeError, match="repeats its values up to 48 bytes"):
        plain(torch.ones(()).expand(3, 4))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": {"b": threading.Lock()}}, "type lock at 'a/b'"),
        ({"a": [torch.ones(1)]}, "type list at 'a'"),
        (Pair((), torch.ones(2).to_sparse()), r"at 'second' that has the layout torch\.sparse_coo"),
        ((torch.ones(2).to("meta"),), "at '0' that is on the device meta"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, r"is of type torch\.complex64"),
        ({"a": {b"b": ()}}, "a name of type bytes at 'a'"),
        ({"a": {"\ud800": ()}}, "at 'a'"),
    ],
)
def test_the_place_is_named(value, words):
    with pytest.raises(TypeError, match=words):
        plain(value)
