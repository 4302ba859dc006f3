"""The ways to a device and back, and the stand-in device itself."""

from typing import NamedTuple

import pytest
import torch

import stand_in_device
from fedtailor.core import rng
from fedtailor.core.devices import HOST, current, placed, to_device, to_host
from fedtailor.core.rng import new_key

DEVICE = stand_in_device.register()


class Pair(NamedTuple):
    first: object
    second: object


def values():
    images = torch.arange(48.0).view(2, 3, 2, 4).contiguous(memory_format=torch.channels_last)
    return {
        "bytes": torch.arange(3, dtype=torch.uint8),
        "pair": Pair(images, torch.tensor(True)),
        "list": [torch.arange(5)[::2], (torch.tensor(2.5, dtype=torch.float64), torch.empty(0, 3))],
        "word": "as it is",
    }


def test_new_tensors_lie_on_the_device_of_the_context():
    assert current() == HOST
    with placed(DEVICE):
        assert current() == DEVICE
        made = [
            torch.zeros(()),
            torch.eye(2),
            torch.arange(3),
            torch.tensor([1.0]),
            torch.full((2,), 0.5),
        ]
        assert {tensor.device for tensor in made} == {DEVICE}
        with placed(DEVICE):
            assert torch.ones(2).device == DEVICE
        assert torch.ones(2).device == DEVICE
        with placed(HOST):
            assert torch.ones(2).device == HOST == current()
    assert torch.zeros(()).device == HOST == current()


def test_keys_stay_on_the_host_and_what_is_drawn_does_not():
    key = new_key(1, round=2, client=3)
    expected = rng.normal(key, (4,))
    with placed(DEVICE):
        there = new_key(1, round=2, client=3)
        assert {word.device for word in (*there[:4], *there.common("x")[:4])} == {HOST}
        drawn = rng.normal(there, (4,))
        assert drawn.device == DEVICE
    assert torch.equal(to_host(drawn, "a test"), expected)


def test_values_come_back_as_they_were_by_one_copy():
    before = values()
    there = to_device(before, DEVICE)
    assert {leaf.device for leaf in (there["bytes"], *there["pair"], *there["list"][1])} == {DEVICE}
    with stand_in_device.host_copies() as copies:
        back = to_host(there, "a test")
    assert [(copy.operator, copy.why) for copy in copies] == [("to", "a test")]
    assert (
        back["word"] == "as it is"
        and isinstance(back["pair"], Pair)
        and isinstance(back["list"], list)
    )
    pairs = [
        (before["bytes"], back["bytes"]),
        *zip(before["pair"], back["pair"], strict=True),
        (before["list"][0], back["list"][0]),
        *zip(before["list"][1], back["list"][1], strict=True),
    ]
    for expected, found in pairs:
        assert (
            found.device == HOST and found.dtype == expected.dtype and torch.equal(found, expected)
        )
        assert found.untyped_storage().nbytes() == found.numel() * found.element_size(), (
            "in memory of its own"
        )
    assert back["pair"].first.stride() == before["pair"].first.stride()


def test_values_go_to_the_device_by_one_copy(monkeypatch):
    moves = []
    original = stand_in_device._run

    def watched(operator, arguments, options):
        if operator is torch.ops.aten.copy_.default and arguments[1].device == HOST:
            moves.append(arguments[1].shape)
        return original(operator, arguments, options)

    monkeypatch.setattr(stand_in_device, "_run", watched)
    there = to_device(values(), DEVICE)
    assert len(moves) == 1
    assert there["pair"].first.stride() == values()["pair"].first.stride()


def test_on_the_host_nothing_is_copied():
    before = values()
    assert to_host(before, "a test") is before
    assert to_device(before, HOST) is before


def test_the_stand_in_device_refuses_tensors_of_the_cpu():
    there = torch.ones(3, device=DEVICE)
    assert to_host(there * torch.tensor(2.0), "a test").tolist() == [2.0, 2.0, 2.0]
    assert to_host(there[torch.tensor([0, 2])], "a test").tolist() == [1.0, 1.0]
    here = torch.ones(3)
    for operation in (there.add, here.mul_, here.dot, lambda other: torch.cat([there, here])):
        with pytest.raises(RuntimeError, match="same device"):
            operation(here if operation == there.add else there)
    number = torch.tensor(2.0)
    for operation in (
        number.mul_,
        lambda other: torch.stack([other[0], number]),
        lambda other: other.dot(number),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            operation(there)
    with pytest.raises(RuntimeError, match="numpy"):
        there.numpy()


def test_the_stand_in_device_notes_every_look_at_values():
    there = torch.arange(3.0, device=DEVICE)
    looks = {
        "item": lambda: float(there.sum()),
        "to": there.cpu,
        "equal": lambda: torch.equal(there, there),
        "nonzero": there.nonzero,
        "index by a mask": lambda: there[there > 1],
        "copy_": lambda: torch.zeros(3).copy_(there),
    }
    for operator, look in looks.items():
        with stand_in_device.host_copies() as copies:
            look()
        assert [copy.operator for copy in copies] == [operator]
    with stand_in_device.host_copies() as copies:
        (there + 1).sum()
    assert copies == []
