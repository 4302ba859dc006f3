"""What tests of several commands use."""

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty folder, and work in it, without colors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path
