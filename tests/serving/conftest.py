"""One folder for the runs of all tests of models in use."""

import pytest


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """Return a folder in which finished runs are kept for all tests."""
    return tmp_path_factory.mktemp("runs")
