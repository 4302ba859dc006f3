"""Every check of the contract runs in float64, and ``batched`` must not fall back to a loop."""

import pytest

import fedtailor.simulation.engines.batched


@pytest.fixture(autouse=True)
def _exact(float64):
    """Compare in float64."""


@pytest.fixture(autouse=True)
def _no_fallback(monkeypatch):
    """Make a program that does not run under vmap fail, instead of running client by client."""

    def refuse(program, common, jobs):
        raise AssertionError("the program does not run stacked")

    monkeypatch.setattr(fedtailor.simulation.engines.batched, "run_one_by_one", refuse)
