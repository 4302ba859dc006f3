"""Options that several commands have, and values that they read."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor.core.errors import UsageError
from fedtailor.core.options import plain_type, wrong_value

if TYPE_CHECKING:
    from fedtailor.core.options import Flag
    from fedtailor.experiment.config import Config


def argument(metavar: str, help: str) -> Any:
    """Return the declaration of an argument whose default the help does not show."""
    return typer.Argument(metavar=metavar, show_default=False, help=help)


def switch(option: str, help: str) -> Any:
    """Return the declaration of an option without a value."""
    return typer.Option(option, metavar="", help=help)


def text_option(metavar: str, help: str, *names: str) -> Any:
    """Return the declaration of an option that takes text.

    Args:
        metavar: stands for the text.
        help: what it is.
        names: of the option; none: that of the command's parameter.
    """
    return typer.Option(*names, metavar=metavar, show_default=False, help=help)


def number_option(
    option: str,
    help: str,
    *,
    kind: type[int] | type[float] = int,
    at_least: int | None = None,
) -> Any:
    """Return the declaration of an option that takes a number.

    Args:
        option: as the user writes it.
        help: what it is.
        kind: of the number.
        at_least: smallest allowed value.
    """
    allowed = "a whole number" if kind is int else "a number"
    if at_least is not None:
        allowed += f", {at_least} or more"

    def read(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = None

        if number is None or (at_least is not None and number < at_least):
            raise wrong_value(option, allowed, text, kind=UsageError)

        return number

    return typer.Option(option, parser=read, metavar="NUMBER", help=help)


Json = Annotated[bool, switch("--json", "Print one JSON object to stdout, errors included.")]
Out = Annotated[str, text_option("FOLDER", "Folder to write (default: a new one under runs/).")]
NewFolder = Annotated[str, text_option("FOLDER", "Folder to write.")]
ConfigFile = Annotated[str, argument("CONFIG.toml", "Configuration file. Options override it.")]
Algorithm = Annotated[
    str,
    text_option(
        "NAME",
        "Algorithm (see: fedtailor list algorithms), or package.module:Class.",
        "--algorithm",
        "-a",
    ),
]
Methods = Annotated[
    list[str] | None,
    text_option(
        "METHOD",
        'Method, such as ditto or "fedavg_ft(finetune=head)". May be repeated.',
        "--algorithm",
        "-a",
    ),
]
Seed = Annotated[int | None, number_option("--seed", "Random seed of the run.")]
Assignments = Annotated[
    list[str] | None,
    text_option("KEY=VALUE", "Any option, such as training.lr=0.05. May be repeated.", "--set"),
]
Track = Annotated[
    list[str] | None,
    text_option(
        "NAME",
        "Also log the run with tensorboard, mlflow or wandb (offline), in its folder. "
        "May be repeated.",
        "--track",
    ),
]
CommandFunction = Callable[..., None]
Named = Mapping[str, Any]
"""The values of the flags of the configuration, by key."""
NOTHING_NAMED: Named = MappingProxyType({})


def with_config_flags(*keys: str) -> Callable[[CommandFunction], CommandFunction]:
    """Give a command options that set values of a configuration.

    The fields of the configuration declare them; see :class:`fedtailor.core.options.Flag`. They
    take the place of the command's parameter ``named``, which receives their values by key, such
    as ``data.clients``, and None for an option that is not there.

    Args:
        keys: of the options, in the order of the help; none: all.
    """
    from fedtailor.experiment.config import config_flags, option_annotations

    flags = config_flags()
    annotations = option_annotations()
    # The parameters of the command by the key of the configuration that they set.
    declared = {key: _make_parameter(key, flags[key], annotations[key]) for key in keys or flags}

    def decorate(command: CommandFunction) -> CommandFunction:
        @functools.wraps(command)
        def call(**values: Any) -> None:
            named = {key: values.pop(parameter.name) for key, parameter in declared.items()}
            command(named=named, **values)

        # typer reads the options from the signature.
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name == "named":
                parameters += declared.values()
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


def _make_parameter(key: str, flag: Flag, hint: Any) -> inspect.Parameter:
    """Return the parameter of a command that sets an option.

    Args:
        key: of the option.
        flag: how it is named on the command line.
        hint: the annotation of its field.
    """
    kind = plain_type(hint)
    word = flag.option.removeprefix("--")
    names = [flag.option, flag.short] if flag.short else [flag.option]
    if kind is bool:
        # Both ways, because the default or a file may say either.
        names[0] = f"{flag.option}/--no-{word}"
        option = typer.Option(*names, metavar="", help=flag.help)
        annotation: Any = Annotated[bool | None, option]
    else:
        parser = _parser_of(key, kind)
        option = typer.Option(*names, metavar=flag.metavar, help=flag.help, parser=parser)
        annotation = Annotated[str | None, option]

    name = f"flag_{word.replace('-', '_')}"
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _parser_of(key: str, kind: type | None) -> Callable[[str], Any] | None:
    """Return what reads the value of an option, as a file would have it; None: it is text."""
    from fedtailor.experiment.config import parse_value

    if key == "seeds":
        return lambda text: parse_value(f"[{text}]")

    return None if kind is str else parse_value


def read_assignments(texts: Sequence[str] | None, option: str = "--set") -> list[tuple[str, Any]]:
    """Read the values of ``--set``, or of an option like it: pairs of key and value.

    Raises:
        ConfigError: a text is not ``section.key=value``.
        UsageError: a key is given twice.
    """
    from fedtailor.experiment.config import parse_assignment

    pairs = [parse_assignment(text) for text in texts or []]
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise UsageError(f"{option} gives '{key}' twice; give it once.", key=option, got=key)

        seen.add(key)

    return pairs


def read_config(path: str, named: Mapping[str, Any], assignments: Sequence[str] | None) -> Config:
    """Build a configuration from a file, named options and assignments; later ones win.

    Args:
        path: of the file; empty: none.
        named: values by key, read from the options; None and empty texts are left out.
        assignments: the values of ``--set``.

    Raises:
        ConfigError: a value is wrong, or the file is.
        UsageError: options contradict each other.
    """
    from fedtailor.experiment.config import load_config, make_config

    overrides = read_overrides(named, assignments)
    settings = load_config(path, overrides) if path else make_config({}, overrides)
    refuse_missing_data(settings)
    return settings


def names_key(
    key: str, path: str, named: Mapping[str, Any], assignments: Sequence[str] | None
) -> bool:
    """Return whether a user has named an option: in a file, as an option, or with ``--set``.

    Args:
        key: of the option, such as ``data.seed``.
        path: as in :func:`read_config`.
        named: as there.
        assignments: as there.
    """
    from pathlib import Path

    from fedtailor.experiment.config import flatten, read_settings

    in_file = flatten(read_settings(Path(path))) if path else {}
    return key in in_file or key in dict(read_overrides(named, assignments))


def read_overrides(
    named: Mapping[str, Any], assignments: Sequence[str] | None
) -> list[tuple[str, Any]]:
    """Return named options and assignments as values by key; later ones win.

    Args:
        named: values by key, read from the options; None and empty texts are left out.
        assignments: the values of ``--set``.

    Raises:
        ConfigError: an assignment is not ``section.key=value``.
        UsageError: options contradict each other.
    """
    refuse_two_data_sets(named)
    overrides = [(key, value) for key, value in named.items() if value not in (None, "")]
    overrides += read_assignments(assignments)
    if {"seed", "seeds"} <= {key for key, _ in overrides}:
        raise UsageError("give --seed or --seeds, not both.", key="seeds")

    return overrides


def check_is_new(out: str) -> None:
    """Check that no file or folder has the name of a file to write; empty: none is written.

    Raises:
        ConfigError: there is one.
    """
    if out and os.path.lexists(out):
        raise wrong_value(
            "--out", "a name that does not exist", out, "A file is never overwritten."
        )


def refuse_missing_data(settings: Config) -> None:
    """Check that own data is there.

    Raises:
        DataError: it is not.
    """
    if settings.data.path:
        from fedtailor.data.own.layout import refuse_missing

        refuse_missing(settings.data.path)


def refuse_two_data_sets(named: Named) -> None:
    """Check that the options do not name both a known data set and own data.

    Raises:
        UsageError: they do.
    """
    if named["data.dataset"] and named["data.path"]:
        raise UsageError("give --dataset or --data, not both.", key="data")
