"""The page of the commands: what ``--help`` says of each, from the program."""

from collections.abc import Iterator
from typing import Any

import typer

from fedtailor.cli.main import app
from fedtailor.core.text import markdown_table

INTRODUCTION = """# Commands

What `fedtailor COMMAND --help` says. Every command takes `--help`; an option may be given once,
unless it collects values. Results go to the standard output, and messages to the standard error.
The [exit code](run-folder.md#exit-codes) says how a command ended.
"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path below docs."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="fedtailor")
    parts = [INTRODUCTION]
    for name in root.list_commands(context):
        _, command, _ = root.resolve_command(context, [name])
        parts += sections(command, context, name, level=2)

    return {"reference/commands.md": "\n".join(parts)}


def sections(command: Any, parent: typer.Context, name: str, level: int) -> Iterator[str]:
    """Yield the parts about a command, and those of its own commands."""
    context = typer.Context(command, info_name=name, parent=parent)
    yield f"{'#' * level} `{context.command_path}`\n"
    yield plain(command.help) + "\n"

    inner = getattr(command, "commands", {})
    if not inner:
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        yield f"```text\n{usage}\n```\n"
        yield parameters(command, context)

    for below, one in inner.items():
        yield from sections(one, context, below, level + 1)


def parameters(command: Any, context: typer.Context) -> str:
    """Return the table of the arguments and options of a command."""
    rows = []
    for parameter in command.get_params(context):
        if parameter.name == "help":
            continue

        record = parameter.get_help_record(context)
        if record:
            name = record[0].strip().replace("|", r"\|")
            rows.append([f"`{name}`", plain(record[1])])

    return markdown_table(["argument or option", "meaning"], rows) + "\n" if rows else ""


def plain(text: str | None) -> str:
    """Return a text of the help on one line for each paragraph, with angle brackets as text."""
    paragraphs = (text or "").replace("\f", "").split("\n\n")
    joined = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return joined.replace("|", r"\|").replace("*", r"\*").replace("<", r"\<")
