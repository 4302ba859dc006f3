"""The engine ``ray`` where Ray is not installed, or not meant."""

import importlib.util

import pytest

from fedtailor.core.errors import ConfigError
from fedtailor.simulation.engines import EngineOptions
from fedtailor.simulation.engines.build import build_engine


def test_what_is_missing_is_named(monkeypatch):
    spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else spec(name)
    )
    with pytest.raises(
        ConfigError, match=r"engine 'ray' needs the package ray: python -m pip install 'ray"
    ):
        build_engine(EngineOptions(name="ray"))


def test_an_address_is_for_ray_only():
    with pytest.raises(ConfigError, match=r"engine\.ray_address must be empty with .*'workers'"):
        EngineOptions(name="workers", ray_address="auto")
    assert EngineOptions(name="ray", ray_address="auto").ray_address == "auto"
