"""Options of all methods: bounds, words, and marks of what a released code does wrong."""

import dataclasses
import typing

import pytest

from docstrings import field_docstrings
from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core.errors import ConfigError
from fedtailor.core.options import AsReleased, Range, marks_of

METHODS = {name: load_algorithm(name) for name in ALGORITHMS}


def test_numbers_have_bounds_and_options_have_words():
    for name, cls in METHODS.items():
        hints = typing.get_type_hints(cls, include_extras=True)
        words = field_docstrings(cls)
        for field in dataclasses.fields(cls):
            if field.name == "training":
                continue

            assert words[field.name], f"{field.name} of {name} lacks a docstring"
            if field.type in (int, float) or isinstance(field.default, int | float):
                extras = typing.get_args(hints[field.name])[1:]
                bounded = any(isinstance(extra, Range) for extra in extras)
                has_bounds = bounded or isinstance(field.default, bool)
                assert has_bounds, f"{field.name} of {name} has no bounds"


def test_values_out_of_bounds_are_refused_by_name():
    for cls in METHODS.values():
        hints = typing.get_type_hints(cls, include_extras=True)
        for option in cls.option_names():
            bounds = [extra for extra in typing.get_args(hints[option]) if isinstance(extra, Range)]
            if bounds:
                with pytest.raises(ConfigError, match=rf"{cls.__name__}\.{option}"):
                    cls(**{option: -1})


def test_presets_are_options_and_bugs_of_released_codes_are_marked():
    marked = {}
    for name in ALGORITHMS:
        cls = load_algorithm(name)
        marked[name] = set(marks_of(cls, AsReleased))
        for preset, values in cls.presets.items():
            assert cls.from_preset(preset) == cls(**values)
    assert marked["pfedfda"] == {"cov_offset", "evaluate_drop_last"}
    assert marked["fedsr"] == {"squared_norm"}
    assert not marked["fedavg"]
