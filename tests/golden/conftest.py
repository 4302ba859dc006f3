"""Golden tests run in float64, with a recorder of what the library was given."""

import pytest

pytest.register_assert_rewrite("golden.compare", "golden.harness")

from golden.harness import Recorder  # noqa: E402


@pytest.fixture(autouse=True)
def _float64(float64):
    """Compare with NumPy in its own precision."""


@pytest.fixture
def recorder(monkeypatch):
    """Return an engine that records downloads, orders of batches and folds."""
    return Recorder(monkeypatch)
