"""What a user may import from the package, and that importing it is free."""

import pytest

import api_page
import fedtailor

PUBLIC = {
    "Config",
    "FedtailorError",
    "PersonalModel",
    "Run",
    "Study",
    "__version__",
    "check_algorithm",
    "export_model",
    "from_dataset",
    "from_folder",
    "from_module",
    "load",
    "load_config",
    "make_config",
    "run",
    "sweep",
}


def test_exported_names():
    assert set(fedtailor.__all__) == PUBLIC
    assert set(dir(fedtailor)) >= PUBLIC
    for name in PUBLIC:
        assert getattr(fedtailor, name) is not None


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="nothing"):
        fedtailor.nothing  # noqa: B018


def test_every_public_name_has_a_docstring():
    names = api_page.public_names()
    assert {*names["fedtailor"], "__version__"} == PUBLIC
    without = [
        name
        for package in names
        for name in names[package]
        if not api_page.documentation(package, name)
    ]
    assert without == []
