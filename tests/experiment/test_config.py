"""The configuration: strict, complete, and the same after writing and reading."""

import datetime
import functools
import json
import math
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.core.errors import ConfigError
from fedtailor.core.schedule import SCHEDULE_KEYS, Participation, Training, read_schedule
from fedtailor.data.options import DataOptions
from fedtailor.experiment.assembly import assemble, make_algorithm
from fedtailor.experiment.config import (
    SECTIONS,
    Config,
    ModelOptions,
    load_config,
    make_config,
    parse_assignment,
    to_toml,
)
from fedtailor.experiment.methods import with_methods
from fedtailor.experiment.run import run
from fedtailor.simulation.engines import EngineOptions

EXAMPLE = {
    "seeds": [3, 1],
    "data": {
        "dataset": "digits",
        "clients": 7,
        "partition": "classes(k=3)",
        "new_clients": 2,
        "val_fraction": 0.2,
        "seed": "run",
    },
    "model": {"name": "mlp", "options": {"hidden": 12}},
    "algorithm": {"name": "pfedfda", "preset": "paper", "beta": "multi", "lr": 0.5},
    "training": {"lr": 0.1, "epochs": 2},
    "federation": {"rounds": 4, "participation": "fixed(3)", "full_last_round": False},
    "engine": {"name": "batched", "block": 4},
    "evaluation": {"every": 2, "personalized_every": 1, "select": "best", "patience": 4},
}


def test_empty_means_defaults():
    assert make_config({}) == Config()
    assert tomllib.loads(to_toml(Config()))["seed"] == 0


@pytest.mark.parametrize("values", [{}, EXAMPLE, {"seed": 5, "federation": {"participation": 0.3}}])
def test_reading_what_was_written_gives_the_same(values, tmp_path):
    config = make_config(values)
    path = tmp_path / "experiment.toml"
    path.write_text(to_toml(config))
    assert load_config(path) == config


def test_resolved_configurations_are_complete_and_stable():
    config = make_config({**EXAMPLE, "seeds": [3]})
    parts = assemble(config, 3)
    written = tomllib.loads(to_toml(parts.config))
    for section in ("data", "training", "engine"):
        assert set(written[section]) == {field.name for field in fields(getattr(config, section))}
    for section, keys in SCHEDULE_KEYS.items():
        assert set(written[section]) == set(keys)

    given = {"rounds": 4, "participation": "fixed(3)", "full_last_round": False, "train": "cohort"}
    assert written["federation"].items() >= given.items()
    given = {"every": 2, "personalized_every": 1, "select": "best", "patience": 4}
    assert written["evaluation"].items() >= given.items()
    assert written["federation"]["server_lr"] == 1.0, "defaults are written"
    own = set(type(parts.algorithm).option_names())
    assert set(written["algorithm"]) == {"name", "preset"} | own
    assert written["algorithm"]["cov_ridge"] == 1e-4, "the preset's value is written"
    assert written["training"]["lr"] == 0.5, "the algorithm's override is written"
    again = assemble(make_config(written), 3)
    assert again.config == parts.config
    assert again.algorithm == parts.algorithm


def test_a_schedule_is_read_from_two_sections_and_written_to_them():
    sections = {
        "federation": {"participation": "bernoulli(0.3)", "min_clients": 2},
        "evaluation": {"every": 3},
    }
    schedule = make_config(sections).schedule
    assert schedule.participation == Participation(plan="bernoulli", probability=0.3, min_clients=2)
    assert (
        schedule.rounds,
        schedule.train,
        schedule.evaluate_every,
        schedule.personalized_every,
    ) == (30, "auto", 3, "auto")
    assert read_schedule(**schedule.sections()) == schedule
    for value, written in (
        (0.5, 0.5),
        ("0.5", 0.5),
        ("fixed(4)", "fixed(4)"),
        ("all", "all"),
        (1, 1.0),
    ):
        schedule = read_schedule({"participation": value}, {})
        assert schedule.sections()["federation"]["participation"] == written


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("evaluation.every", -1, "evaluation.every must be >= 0, got -1."),
        (
            "evaluation.personalized_every",
            1.5,
            "evaluation.personalized_every must be a whole number or 'auto', got 1.5.",
        ),
        (
            "federation.rounds",
            "5 rounds",
            "federation.rounds must be a whole number, got '5 rounds'.",
        ),
        ("federation.min_clients", 0, "federation.min_clients must be >= 1, got 0."),
        (
            "federation.full_last_round",
            1,
            "federation.full_last_round must be true or false, got 1.",
        ),
    ],
)
def test_errors_of_a_schedule_name_the_key_of_the_file(key, value, sentence):
    with pytest.raises(ConfigError) as caught:
        make_config({}, [(key, value)])
    assert caught.value.message == sentence
    assert caught.value.key == key


def test_values_that_toml_lacks_are_left_out():
    config = make_config(
        {"algorithm": {"knob": None, "other": 1}, "model": {"options": {"hidden": None, "deep": 2}}}
    )
    written = tomllib.loads(to_toml(config))
    assert written["algorithm"] == {"name": "pfedfda", "preset": "reference", "other": 1}
    assert written["model"]["options"] == {"deep": 2}


def test_auto_is_resolved():
    parts = assemble(make_config({"data": {"clients": 3}}), 0)
    assert parts.config.engine.name == "workers"
    assert parts.config.model.name == "mlp"


def test_an_algorithm_overrides_training():
    algorithm = make_algorithm(
        make_config({"training": {"lr": 0.1, "epochs": 3}, "algorithm": {"lr": 0.2}})
    )
    assert (algorithm.training.lr, algorithm.training.epochs) == (0.2, 3)


def test_options_win_over_a_preset():
    options = {"name": "pfedfda", "preset": "paper", "cov_ridge": 0.5}
    algorithm = make_algorithm(make_config({"algorithm": options}))
    assert (algorithm.cov_ridge, algorithm.cov_offset) == (0.5, 0.0)


def test_overrides_win_over_the_file(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text("seed = 4\n[training]\nlr = 0.5\nepochs = 2\n[model.options]\nhidden = 3\n")
    overrides = [("training.lr", 0.25), ("seeds", [1, 2]), ("model.options.hidden", 9)]
    config = load_config(path, overrides)
    assert (config.training.lr, config.training.epochs) == (0.25, 2)
    assert config.seeds == (1, 2)
    assert config.model.options == {"hidden": 9}


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("training.lr=0.05", ("training.lr", 0.05)),
        ("training.drop_last = true", ("training.drop_last", True)),
        ('data.partition="iid"', ("data.partition", "iid")),
        ("data.partition=dirichlet(alpha=0.1)", ("data.partition", "dirichlet(alpha=0.1)")),
        ("seeds=[1, 2]", ("seeds", [1, 2])),
        ("data.dir=", ("data.dir", "")),
        ("a.b=1\nc=2", ("a.b", "1\nc=2")),
    ],
)
def test_assignments(text, pair):
    assert parse_assignment(text) == pair


@pytest.mark.parametrize("text", ["", "=", "=3", "training.lr", "   = 1"])
def test_bad_assignments(text):
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        parse_assignment(text)


@given(st.text(max_size=30))
def test_any_value_is_read_or_kept_as_text(text):
    key, value = parse_assignment(f"data.partition={text}")
    assert key == "data.partition"
    assert value == text.strip() or not isinstance(value, str) or text.strip()[0] in "\"'"


_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers())
)
_NAMES = st.sampled_from(
    ["data", "training", "algorithm", "seed", "seeds", "lr", "clients", "name", "engine", "x"]
)


@given(st.dictionaries(_NAMES, _LEAVES | st.dictionaries(_NAMES, _LEAVES, max_size=3), max_size=4))
def test_any_mapping_is_a_configuration_or_a_config_error(values):
    try:
        config = make_config(values)
    except ConfigError as error:
        assert error.message.endswith(".")
    else:
        assert isinstance(config, Config)


OPTIONS = [f"{section}.{key}" for section, keys in SCHEDULE_KEYS.items() for key in keys]
OPTIONS += [f"data.{each.name}" for each in fields(DataOptions)] + [
    f"model.{each.name}" for each in fields(ModelOptions)
]
OPTIONS += [f"training.{each.name}" for each in fields(Training)]
OPTIONS += [f"engine.{each.name}" for each in fields(EngineOptions)]
OPTIONS += [
    "algorithm.name",
    "algorithm.preset",
    "algorithm.lr",
    "algorithm.beta",
    "seed",
    "seeds",
    *SECTIONS,
]
ODD = [
    [1, "x"],
    [[1]],
    {"a": [datetime.date(2020, 1, 2)]},
    datetime.date(2020, 1, 2),
    datetime.datetime(2020, 1, 2, 3, 4),
    datetime.time(1, 2),
    [datetime.date(2020, 1, 2)],
    1.5,
    -1,
    math.nan,
    math.inf,
    10**5000,
    True,
    "text",
    "\0",
    None,
    functools.reduce(lambda inner, _: [inner], range(300), 1),
]
WORDS_OF_LIBRARIES = re.compile(
    r"\w+Error\b|<class|<function|unhashable|iterable|attribute|argument|datetime|typing|Annotated|Literal|Union|"
    r"NoneType|\b(int|float|str|bool|dict|tuple|list)\(|\b(int|str|dict|tuple)\b|numpy|torch|tomllib"
)


@pytest.mark.parametrize("key", OPTIONS)
def test_values_of_a_wrong_type_are_refused_in_our_words(key):
    """Every option is given lists, tables, dates, texts and numbers: what it does not take is a
    ConfigError."""
    for value in ODD:
        try:
            make_algorithm(make_config({"data": {"clients": 3}}, [(key, value)]))
        except ConfigError as error:
            assert not WORDS_OF_LIBRARIES.search(error.message), error.message
            assert key.split(".")[0] in error.message or error.key.startswith(
                ("data.", "algorithm.")
            ), error.message
            assert len(error.message) < 1000
            json.dumps(error.as_record())


def test_values_are_shown_as_a_file_would_write_them():
    for value, shown in (
        ([datetime.date(2020, 1, 2)], "[2020-01-02]"),
        ({"a": (1, "x")}, "{a = [1, 'x']}"),
        (10**5000, "a whole number of many digits"),
        ([[[[[[1]]]]]], "[[[[...]]]]"),
    ):
        with pytest.raises(ConfigError) as caught:
            make_config({}, [("training.lr", value)])
        assert caught.value.message.startswith("training.lr must be a ")
        assert caught.value.message.endswith(f"number, got {shown}.")


@pytest.mark.parametrize("values", [5, None, "x.toml", Path("x.toml"), [1], Config()])
def test_what_is_no_mapping_is_no_configuration(values):
    with pytest.raises(ConfigError, match=r"sections .* load_config reads a file\.") as caught:
        make_config(values)
    assert caught.value.key == "config"


@pytest.mark.parametrize("config", [{"data": {"clients": 3}}, "x.toml", Path("x.toml"), 5])
def test_a_run_needs_a_configuration(config, tmp_path):
    with pytest.raises(
        ConfigError, match=r"made by make_config\(\.\.\.\) or load_config\(PATH\), got "
    ):
        run(config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_keys_must_be_text():
    for values in ({3: {}}, {"training": {3: 1}}):
        with pytest.raises(ConfigError, match=r"unknown .*3"):
            make_config(values)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"seed = " + b"1" * 5000, "is not valid TOML: a number in it is too long"),
        (b"seed = " + b"[" * 100_000, "nested too deep"),
        (b"[" + b"[" * 200 + b"{x = [" * 100, "is not valid TOML"),
        (b" " * (2**20 + 1), "has more than 1048576 bytes"),
        (b"seed = 1\n# \xff", "is not valid TOML: byte 11 is not UTF-8"),
        (b"seed =", "is not valid TOML: Invalid value"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, content, sentence):
    path = tmp_path / "experiment.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        load_config(path)
    with pytest.raises(ConfigError, match="cannot be the name of a file"):
        load_config("a\0b")


def test_a_known_data_set_takes_the_place_of_own_data():
    in_file = {"data": {"path": "my_tables"}}
    assert make_config(in_file, [("data.dataset", "digits")]).data.path == ""
    assert in_file == {"data": {"path": "my_tables"}}
    both = [("data.dataset", "digits"), ("data.path", "others")]
    assert make_config(in_file, both).data.path == "others"


@pytest.mark.parametrize("given", [{"finetune": "head"}, {"preset": "tuned"}])
def test_options_beside_named_methods_are_refused(given):
    config = make_config({"algorithm": {"name": "fed3r" if "preset" in given else "fedavg_ft"}})
    assert len(with_methods(config, ["fedavg_ft", "local"])) == 2
    with_options = make_config({"algorithm": {"name": config.algorithm.name, **given}})
    with pytest.raises(ConfigError, match="without options beside -a"):
        with_methods(with_options, ["fedavg_ft", "local"])


@pytest.mark.parametrize(
    ("key", "other", "note"),
    [
        ("federation.server_lr", ("federation.server_optimizer", "none"), "server_lr has no"),
        ("federation.server_beta2", ("federation.server_optimizer", "sgd"), "server_beta2 has no"),
        ("training.momentum", ("training.optimizer", "adam"), "momentum has no effect"),
    ],
)
def test_options_without_effect_are_said(key, other, note):
    settings = {"data": {"clients": 3, "fraction": 0.1}, "federation": {"rounds": 1}}
    quiet = assemble(make_config(settings), 0).notes
    said = assemble(make_config(settings, [(key, 0.5), other]), 0).notes
    assert not any("has no effect" in text for text in quiet)
    assert any(note in text for text in said)
