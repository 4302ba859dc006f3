"""What a user may import from the package, and that importing it is free."""

import subprocess
import sys

import pytest

import fedtailor
from fedtailor import toolkit

PUBLIC = {
    "Config",
    "FedtailorError",
    "__version__",
    "check_algorithm",
    "from_module",
    "load_config",
    "make_config",
    "read_run",
    "run",
    *toolkit.__all__,
}


def test_exported_names():
    assert set(fedtailor.__all__) == PUBLIC
    assert set(dir(fedtailor)) >= PUBLIC
    for name in PUBLIC:
        assert getattr(fedtailor, name) is not None


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedtailor.nothing  # noqa: B018


def test_every_public_name_has_a_docstring():
    constants = {
        "Adaptation",
        "Layers",
        "Messages",
        "Params",
        "ALL",
        "BODY",
        "TRAINED",
        "CLASS_FREQUENCIES",
        "CLOSED_FORM",
        "__version__",
    }
    for name in PUBLIC - constants:
        assert getattr(fedtailor, name).__doc__, name


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, fedtailor; print([m for m in ('torch', 'numpy', 'rich', 'typer') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
