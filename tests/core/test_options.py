"""Options: types, bounds, choices, sentences."""

import hashlib
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core.errors import ConfigError, did_you_mean
from fedtailor.core.options import Range, build, check_options, check_value
from fedtailor.core.schedule import Schedule
from fedtailor.core.targets import source_digest
from fedtailor.core.task import Training
from fedtailor.simulation.engines import EngineOptions

NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True, kw_only=True)
class Section:
    rate: Annotated[float, Range(gt=0, le=1)] = 0.5
    count: Annotated[int, Range(ge=1)] = 3
    flag: bool = True
    name: str = "x"
    kind: Literal["sgd", "adam"] = "sgd"
    level: Literal[1, 2] = 1
    limit: int | None = None
    bounded: Annotated[int, Range(ge=0)] | None = None
    either: int | str = 1
    numbers: tuple[float, ...] = (1.0,)
    anything: Any = None
    nested: Training = field(default_factory=Training)

    def __post_init__(self):
        check_options(self, owner="section")


GOOD = [
    ("rate", 1), ("rate", 0.25), ("count", 10**6), ("flag", False), ("name", ""), ("kind", "adam"), ("limit", None),
    ("limit", -3), ("bounded", 0), ("bounded", None), ("either", "a"), ("either", 0), ("numbers", ()),
    ("numbers", (1, 2.5)), ("anything", ...), ("nested", Training(lr=1.0)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), GOOD, ids=str)
def test_values_that_fit_are_kept(name, value):
    assert getattr(Section(**{name: value}), name) == value
    assert getattr(build(Section, {name: value}, section="section"), name) == value


BAD = [
    ("rate", True, "a number, got True"),
    ("rate", "0.5", "a number, got '0.5'"),
    ("rate", None, "a number, got None"),
    ("rate", 0, "> 0 and <= 1, got 0.0"),
    ("rate", 1.0000001, "> 0 and <= 1, got 1.0000001"),
    ("rate", NAN, "a finite number, got nan"),
    ("rate", INF, "a finite number, got inf"),
    ("rate", -INF, "a finite number, got -inf"),
    ("count", 0, ">= 1, got 0"),
    ("count", 2.0, "a whole number, got 2.0"),
    ("count", True, "a whole number, got True"),
    ("count", [1], "a whole number, got [1]"),
    ("flag", 1, "true or false, got 1"),
    ("flag", "False", "true or false, got 'False'"),
    ("flag", None, "true or false, got None"),
    ("name", 3, "text, got 3"),
    ("kind", "rmsprop", "one of 'sgd', 'adam', got 'rmsprop'"),
    ("kind", "SGDS", "one of 'sgd', 'adam', got 'SGDS'"),
    ("kind", 0, "one of 'sgd', 'adam', got 0"),
    ("level", True, "one of 1, 2, got True"),
    ("level", 2.0, "one of 1, 2, got 2.0"),
    ("limit", 1.5, "a whole number or nothing, got 1.5"),
    ("limit", False, "a whole number or nothing, got False"),
    ("either", None, "a whole number or text, got None"),
    ("numbers", (1.0, "x"), "got [1.0, 'x']"),
    ("numbers", (True,), "got [True]"),
    ("numbers", 1.0, "got 1.0"),
    ("nested", {"lr": 1.0}, "Training, got {lr = 1.0}"),
]


@pytest.mark.parametrize(("name", "value", "rest"), BAD, ids=str)
@pytest.mark.parametrize(
    "make", [lambda **values: build(Section, values, section="section"), Section]
)
def test_values_that_do_not_fit_are_refused(make, name, value, rest):
    with pytest.raises(ConfigError) as caught:
        make(**{name: value})
    assert caught.value.key == f"section.{name}"
    assert caught.value.message.startswith(
        f"section.{name} must be "
    ) and caught.value.message.endswith(f"{rest}.")


def test_another_spelling_of_a_choice_becomes_the_choice():
    assert (
        Section(kind="SGD").kind == build(Section, {"kind": "SGD"}, section="section").kind == "sgd"
    )


def test_a_bound_holds_within_a_choice_of_types():
    with pytest.raises(ConfigError, match=r"section.bounded must be >= 0, got -1"):
        Section(bounded=-1)


def test_numbers_in_a_tuple_are_finite():
    with pytest.raises(ConfigError, match=r"section.numbers"):
        Section(numbers=(1.0, NAN))


@pytest.mark.parametrize("name", ["rate", "count"])
def test_numbers_too_large_for_a_float_are_refused(name):
    with pytest.raises(ConfigError, match=f"section.{name}"):
        Section(**{name: 10**400})


def test_a_whole_number_becomes_a_float_where_one_is_due():
    assert type(Section(rate=1).rate) is float and type(Section(count=4).count) is int
    assert type(Section(either=1).either) is int


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "text"),
    [
        (Range(ge=0), (0, 5), (-1e-9, NAN), ">= 0"),
        (Range(gt=0), (1e-9,), (0, -1), "> 0"),
        (Range(le=1), (1, -7), (1.1,), "<= 1"),
        (Range(lt=1), (0.999,), (1, 2), "< 1"),
        (Range(ge=0, lt=1), (0, 0.5), (1, -0.1), ">= 0 and < 1"),
        (Range(), (0, -1e300), (NAN,), ""),
    ],
)
def test_ranges(bounds, inside, outside, text):
    assert all(bounds.holds(value) for value in inside) and not any(
        bounds.holds(value) for value in outside
    )
    assert str(bounds) == text


def test_unknown_options_name_the_nearest_and_what_there_is():
    with pytest.raises(ConfigError) as caught:
        build(Section, {"cuont": 3}, section="section")
    error = caught.value
    assert error.message.startswith(
        "unknown option 'cuont' of section; did you mean 'count'? Known: rate, "
    )
    assert (error.key, error.got) == ("section.cuont", "cuont") and "count" in error.allowed
    with pytest.raises(ConfigError, match=r"unknown option 'zzz' of section"):
        build(Section, {"zzz": 3}, section="section")


def test_sections_speak_in_their_own_name():
    for make, sentence in (
        (lambda: Training(lr=-1.0), "training.lr must be > 0, got -1.0."),
        (lambda: Training(momentum=1), "training.momentum must be >= 0 and < 1, got 1.0."),
        (lambda: Training(epochs=True), "training.epochs must be a whole number, got True."),
        (
            lambda: Training(optimizer="adma"),
            "training.optimizer must be one of 'sgd', 'adam', got 'adma'.",
        ),
        (lambda: Schedule(rounds=0), "federation.rounds must be >= 1, got 0."),
        (lambda: EngineOptions(block=0), "engine.block must be >= 1, got 0."),
        (lambda: EngineOptions(workers=-1), "engine.workers must be >= 0, got -1."),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.message == sentence


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_checks_its_options(name):
    cls = load_algorithm(name)
    for option in cls.option_names():
        with pytest.raises(ConfigError, match=rf"{cls.__name__}.{option} must be "):
            cls(**{option: object()})
    with pytest.raises(ConfigError, match=rf"{cls.__name__}.training must be Training"):
        cls(training={})
    with pytest.raises(ConfigError, match=r"unknown preset of .* 'papper'.*Known: "):
        cls.from_preset("papper")


def test_presets_can_be_overridden():
    cls = load_algorithm("pfedfda")
    assert cls.from_preset("paper").cov_ridge == 1e-4
    assert cls.from_preset("paper", cov_ridge=0.5) == cls(cov_ridge=0.5, cov_offset=0.0)


def test_did_you_mean():
    assert did_you_mean("fedavgg", ["fedavg", "local"]) == "; did you mean 'fedavg'?"
    assert did_you_mean("xyz", ["fedavg", "local"]) == "" == did_you_mean("a", [])


def test_check_value_alone():
    assert check_value(3, Annotated[float, Range(ge=0)], key="a.b") == 3.0
    with pytest.raises(ConfigError, match=r"a.b must be >= 0, got -1.0"):
        check_value(-1.0, Annotated[float, Range(ge=0)], key="a.b")


def test_the_file_of_a_partial_is_the_one_that_its_target_names(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "partial_network.py"
    path.write_text("from functools import partial\n\nnetwork = partial(dict, width=5)\n")
    digest = source_digest("partial_network:network", what="model", key="model.name")
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
