"""What the tests of commands share."""

import signal

import pytest


@pytest.fixture(autouse=True)
def _ctrl_c_is_heard():
    """Where tests run in the background, the shell lets them ignore it, and the processes that they
    start too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
