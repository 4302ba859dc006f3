"""The copies to the host of a round: how many there are, and that each has a reason.
docs/reference/devices.md lists them."""

from collections import Counter

import pytest

import on_both_devices as both
import stand_in_device
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference

DEVICE = stand_in_device.register()

TRAINED = sum(size > 0 for size in both.SIZES)
SCORED = len(both.SIZES) + len(both.NEW_SIZES)
GROUPS = 2
"""The known clients, and the new ones."""
FEDAVG = {
    "the examples that count, from which batches are planned": TRAINED,
    "the check of an upload": TRAINED,
    "the bytes of an upload": TRAINED,
    "whether all numbers of a client's tree are finite": SCORED,
    "numbers and scores for reports": 1 + 2 * GROUPS,
}
PFEDFDA = {
    **FEDAVG,
    "whether all numbers of a client's tree are finite": TRAINED + SCORED,
}


def copies_of(method, engine):
    with stand_in_device.host_copies() as copies:
        both.reports(method, engine, DEVICE, rounds=1)
    assert [copy for copy in copies if not copy.why] == [], (
        "what looks at values in Python waits for a GPU"
    )
    return Counter(copy.why for copy in copies)


@pytest.mark.parametrize(
    ("method", "expected"),
    [("fedavg", FEDAVG), pytest.param("pfedfda", PFEDFDA, marks=pytest.mark.slow)],
)
def test_a_round_of_clients_one_by_one(method, expected):
    assert copies_of(method, Reference()) == expected


def test_a_round_of_stacked_clients():
    assert copies_of("fedavg", Batched(32)) == {
        **FEDAVG,
        "the examples that count, from which batches are planned": 1,
    }


def test_what_pfedgp_looks_at_has_a_reason():
    found = copies_of("pfedgp", Reference())
    assert set(found) - set(FEDAVG) == {
        "how many examples splits see",
        "whether two means have moved",
    }
