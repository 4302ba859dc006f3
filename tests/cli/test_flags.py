"""A ``Flag`` at a field is all that an option of the command line needs, whatever the field holds."""

import tomllib
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from fedtailor.cli.options import NOTHING_NAMED, Named, read_config, with_config_flags
from fedtailor.cli.parsing import Command, make_app
from fedtailor.core.errors import ConfigError
from fedtailor.core.options import Flag, Range
from fedtailor.core.schedule import Training
from fedtailor.experiment import config
from fedtailor.experiment.config import Config, flatten, option_annotations, to_toml


@dataclass(frozen=True, kw_only=True)
class Flagged(Training):
    """The section ``[training]`` with flags."""

    optimizer: Annotated[Literal["sgd", "adam"], Flag("--optimizer", "NAME", "Optimizer.")] = "sgd"
    lr: Annotated[float, Range(gt=0), Flag("--lr", "RATE", "Learning rate.")] = 0.01
    epochs: Annotated[int, Range(ge=0), Flag("--epochs", "COUNT", "Local epochs.")] = 5
    flip: Annotated[bool, Flag("--flip", "", "Mirror images.")] = False
    drop_last: Annotated[bool, Flag("--drop-last", "", "Leave out short batches.")] = True


@pytest.fixture
def read(monkeypatch):
    """Return a function that reads a command line; it returns the section ``[training]``."""
    monkeypatch.setitem(config._CLASSES, "training", Flagged)

    def read(*words):
        sections = []

        @with_config_flags()
        def command(named: Named = NOTHING_NAMED) -> None:
            sections.append(read_config("", named, None).training)

        app = make_app()
        app.command("command", cls=Command)(command)
        app(list(words), standalone_mode=False)
        return sections[0]

    return read


def test_flags_are_read_as_what_their_fields_hold(read):
    assert read() == Flagged()
    words = ["--optimizer", "adam", "--lr", "0.3", "--epochs", "2", "--flip", "--no-drop-last"]
    expected = Flagged(optimizer="adam", lr=0.3, epochs=2, flip=True, drop_last=False)
    assert read(*words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lr", "fast"], "training.lr must be a number, got 'fast'."),
        (["--epochs", "0.5"], "training.epochs must be a whole number, got 0.5."),
    ],
)
def test_other_values_are_refused(read, words, message):
    with pytest.raises(ConfigError) as caught:
        read(*words)
    assert caught.value.message == message


def test_every_option_can_have_a_flag():
    keys = flatten(tomllib.loads(to_toml(Config())))
    assert set(keys) - {"seed"} <= set(option_annotations())
