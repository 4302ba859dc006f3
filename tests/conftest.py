"""What all tests share: one thread, enforced shapes, float64 on request, real data where it is."""

import os
from pathlib import Path

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

torch.set_num_threads(1)
# the same examples everywhere, and no limit of time per example: machines differ
settings.register_profile("fedtailor", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("fedtailor")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def usual_dtype():
    """A test leaves PyTorch's usual dtype to those that follow."""
    yield
    left = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    assert left == torch.float32


@pytest.fixture
def float64(usual_dtype):
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
