"""Parsing of the command line: what typer does not check, and its errors in our words."""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from fedtailor.core.errors import UsageError, did_you_mean, match_name, unknown_name

Help = Annotated[bool, typer.Option("--help", metavar="", help="Show this message.")]
"""In place of typer's own option, which would import pydantic even for the help of a command."""


class Command(TyperCommand):
    """A command: options have values, and are given once unless they collect them."""

    def __init__(self, *args: Any, params: Sequence[Any] = (), **settings: Any) -> None:
        """Add ``--debug`` to the parameters: :mod:`fedtailor.cli.shell` reads it."""
        super().__init__(*args, params=[*params, _debug_option()], **settings)
        if self.help:
            # Lines of the source are no lines of the terminal.
            paragraphs = inspect.cleandoc(self.help).split("\n\n")
            self.help = "\n\n".join(" ".join(text.split()) for text in paragraphs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command.

        Raises:
            UsageError: a value is empty, an option is given twice, or an argument is one too many.
        """
        try:
            given, surplus, order = self.make_parser(ctx).parse_args(args=list(args))
        except Exception as error:
            # The parser's own error, which does not always know its command.
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]

            raise

        for parameter, count in Counter(order).items():
            if count > 1 and not parameter.multiple and not getattr(parameter, "is_flag", False):
                option = parameter.opts[0]
                raise UsageError(
                    f"{option} is given {count} times; give it once.{_see(ctx)}", key=option
                )

        # As of a variable of the shell that is not set: the default would be another experiment.
        for parameter in order:
            values = given[parameter.name]
            texts = values if isinstance(values, list | tuple) else [values]
            if any(isinstance(text, str) and not text.strip() for text in texts):
                name = parameter.opts[0]
                if not name.startswith("-"):
                    name = parameter.metavar or name.upper()

                raise UsageError(f"the value of {name} is empty.{_see(ctx)}", key=name)

        asks_for_help = any(parameter.name == "help" for parameter in order)
        if surplus and not asks_for_help:
            raise UsageError(f"unexpected argument '{surplus[0]}'.{_see(ctx)}", got=surplus[0])

        return super().parse_args(ctx, args)

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option ``--help``, which takes no value."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.metavar = ""
            option.help = "Show this message."
        return option


def _debug_option() -> Any:
    """Return the option ``--debug``, whose value no command gets."""

    def command(
        debug: Annotated[
            bool, typer.Option("--debug", metavar="", help="Show the traceback of an error.")
        ] = False,
    ) -> None:
        pass

    app = typer.Typer(add_completion=False)
    app.command()(command)
    (option,) = typer.main.get_command(app).params
    option.expose_value = False
    return option


class CommandGroup(TyperGroup):
    """A group of commands; their names may be spelled with capitals, hyphens or underscores."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names.

        Raises:
            UsageError: there is no such command.
        """
        name = args[0]
        commands = self.list_commands(ctx)
        command = match_name(name, commands)
        if command is None and not name.startswith("-"):
            raise unknown_name("command", name, commands, kind=UsageError)

        return super().resolve_command(ctx, [command or name, *args[1:]])


class LazyGroup(CommandGroup):
    """The group of all commands. A module is imported for its command, or for the help of all."""

    commands_by_name: ClassVar[Mapping[str, str]]
    """``module:name`` below ``fedtailor.cli`` for each command, in the order of the help."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands_by_name)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, imported; None if there is none of that name."""
        target = self.commands_by_name.get(cmd_name)
        return None if target is None else _load(cmd_name, target)


def _load(name: str, target: str) -> Any:
    """Import a command, or a group of commands.

    Args:
        name: of the command.
        target: as in :attr:`LazyGroup.commands_by_name`.
    """
    module, _, attribute = target.partition(":")
    loaded = getattr(importlib.import_module(f"fedtailor.cli.{module}"), attribute)
    if not isinstance(loaded, typer.Typer):
        app = make_app()
        app.command(name, cls=Command)(loaded)
        loaded = app

    command = typer.main.get_command(loaded)
    command.name = name
    return command


def make_app(cls: type[CommandGroup] = CommandGroup) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(
        cls=cls, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False
    )


def make_group(summary: str) -> typer.Typer:
    """Return an empty group of commands that prints its help if none of them is named.

    Args:
        summary: the beginning of the help.
    """
    app = make_app()

    @app.callback(invoke_without_command=True, add_help_option=False, help=summary)
    def root(context: typer.Context, help_: Help = False) -> None:
        show_help(context, help_)

    return app


def show_help(context: typer.Context, asked: bool) -> None:
    """Print the help of a group, if the user asked for it or gave no command."""
    if asked or context.invoked_subcommand is None:
        text = context.get_help()
        # Empty where rich has printed it.
        if text:
            print(text)  # noqa: T201

    if asked:
        raise typer.Exit


def translate(error: Any) -> UsageError:
    """Return an error of the parser in our words."""
    option = getattr(error, "option_name", None)
    parameter = getattr(error, "param", None)
    where = _see(getattr(error, "ctx", None))
    if option is not None and hasattr(error, "possibilities"):
        hint = _nearest_option(option, error.possibilities or [])
        return UsageError(f"unknown option '{option}'{hint}{where}", key=option, got=option)

    if option is not None and "does not take" in error.message:
        return UsageError(f"{option} takes no value.{where}", key=option)
    if option is not None:
        return UsageError(f"{option} needs a value.{where}", key=option)

    if parameter is not None and type(error).__name__ == "MissingParameter":
        name = parameter.metavar or parameter.name.upper()
        if parameter.param_type_name == "option":
            name = f"{parameter.opts[0]} {name}"
        return UsageError(f"{name} is missing.{where}", key=parameter.name)

    return UsageError(f"the command line cannot be understood: {error.format_message()}{where}")


def _nearest_option(option: str, options: Sequence[str]) -> str:
    """Return ``"; did you mean '--x'?"`` for the nearest option, or a full stop."""
    names = {other.lstrip("-"): other for other in options}
    hint = did_you_mean(option.lstrip("-"), names)

    # Options are compared without their hyphens, and shown with them.
    for name, other in names.items():
        hint = hint.replace(f"'{name}'", f"'{other}'")

    return hint or "."


def _see(context: Any) -> str:
    """Return which command tells more."""
    path = getattr(context, "command_path", None) or "fedtailor"
    return f" See: {path} --help"
