"""The contract on the stand-in device: what ``check_algorithm`` finds there that it does not find
on the CPU."""

from functools import partial

import pytest

import stand_in_device
from fedtailor.simulation.rounds import simulate
from fedtailor.testing import runs
from fedtailor.testing.check import check_algorithm

DEVICE = stand_in_device.register()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "pfedfda", "fedpac"])
def test_the_contract_holds_but_for_threads(method, monkeypatch):
    monkeypatch.setattr(runs, "simulate", partial(simulate, device=DEVICE))
    found = check_algorithm(method)
    assert len(found) == 1, found
    assert found[0].startswith(
        "Clients in threads get the same results, bit for bit: this could not be checked"
    )
    assert "stand_in:0" in found[0], "a thread has no part in the context of the device"
