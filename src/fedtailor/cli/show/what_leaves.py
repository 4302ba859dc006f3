"""The output of ``fedtailor what-leaves``."""

from __future__ import annotations

from rich.console import Console
from rich.markdown import Markdown


def show_page(text: str, *, as_text: bool) -> None:
    """Print a page of Markdown to stdout, as it is or laid out for reading."""
    if as_text:
        print(text, end="")  # noqa: T201  # data on stdout
    else:
        Console(highlight=False).print(Markdown(text))
