"""What all tests share: one thread, enforced shapes, float64 on request, real data where it is."""

import os
import signal
from pathlib import Path

# Before the libraries of NumPy and PyTorch are loaded, here and in processes that tests start:
# threads of two tests at once would wait for each other, and take twice the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from jaxtyping import install_import_hook

# Before these modules are imported: their shape annotations are enforced while tests run. Not all
# of core, because the hook also guards the constructors of dataclasses, and bad options must reach
# `check_options` instead.
install_import_hook(
    [
        "fedtailor.statistics.diagonal",
        "fedtailor.statistics.gaussian",
        "fedtailor.algorithms._beta_search",
        "fedtailor.core.metrics",
    ],
    "beartype.beartype",
)

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

# Tests kill processes, never the machine: what the kernel has been given is not lost.
os.fsync = lambda descriptor: None

torch.set_num_threads(1)
# the same examples everywhere, and no limit of time per example: machines differ
settings.register_profile("fedtailor", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("fedtailor")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard():
    """Where tests run in the background, the shell lets them ignore it, and the processes that they
    start too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def usual_settings():
    """A test leaves PyTorch to those that follow as it is usually."""
    yield
    left = (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
    )
    if left == (torch.float32, 1, False):  # to set them again would import much
        return

    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)
    raise AssertionError(f"the test has left PyTorch with other settings: {left}")


@pytest.fixture
def float64(usual_settings):
    """Make float64 the default dtype for one test."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield torch.float64
    torch.set_default_dtype(before)


@pytest.fixture(scope="session")
def data_dir():
    """Return the folder of real data sets in torchvision's layout, or skip."""
    named = os.environ.get("FEDTAILOR_TEST_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no real data: set FEDTAILOR_TEST_DATA to a folder in torchvision's layout")
    return folder


@pytest.fixture(scope="session")
def _cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch, _cache_folder):
    """Keep a developer's own settings out of the tests, and what tests decode out of a developer's
    cache."""
    monkeypatch.delenv("FEDTAILOR_DATA", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)  # it would fold the tables
    monkeypatch.setenv("FEDTAILOR_CACHE", str(_cache_folder))
