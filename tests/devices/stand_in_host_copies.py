"""The copies to the host of a round: each has a reason. docs/reference/devices.md lists them."""

import pytest

import on_both_devices as both
import stand_in_device
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference

DEVICE = stand_in_device.register()


@pytest.mark.parametrize("engine", [Reference(), Batched(32)])
@pytest.mark.parametrize("method", ["fedavg", "fedpac", "pfedgp"])
def test_what_looks_at_values_has_a_reason(method, engine):
    """What looks at values in Python waits for a GPU."""
    with stand_in_device.host_copies() as copies:
        both.reports(method, engine, DEVICE, rounds=1)
    assert copies
    assert [copy for copy in copies if not copy.why] == []
