"""The exceptions a user can meet. Each names what, where, what was allowed and what was given.

::

    FedtailorError
    ├── UsageError    exit code 2   the command line
    ├── ConfigError   exit code 3   an option, a name, a combination of options
    ├── DataError     exit code 4   a file, a label, a partition that cannot be met
    └── RunError      exit code 5   a run that could not continue
        └── ClientError             the work of one client, with its round and stage
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class FedtailorError(Exception):
    """Base of all errors that are meant for the user."""

    exit_code = 1
    kind = "error"

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        path: str | Path | None = None,
        allowed: object = None,
        got: object = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.path = None if path is None else str(path)
        self.allowed = allowed
        self.got = got

    @property
    def page(self) -> str | None:
        """The page of the documentation that helps, such as ``howto/own-data``."""
        from fedtailor.core.help_pages import help_page

        return help_page(self.key)

    def as_record(self) -> dict[str, object]:
        """Return the error as a JSON-ready mapping; absent fields are left out."""
        record: dict[str, object] = {"kind": self.kind, "message": self.message}
        for name in ("key", "path", "page", "allowed", "got"):
            value = getattr(self, name)
            if value is not None:
                record[name] = value if isinstance(value, str | int | list) else str(value)
        return record


class UsageError(FedtailorError):
    """The command line cannot be understood."""

    exit_code = 2
    kind = "usage"


class ConfigError(FedtailorError):
    """An option has a wrong name, type, range or combination."""

    exit_code = 3
    kind = "config"


class DataError(FedtailorError):
    """Data is missing, damaged, or cannot be divided as asked."""

    exit_code = 4
    kind = "data"


class RunError(FedtailorError):
    """A run started and could not continue."""

    exit_code = 5
    kind = "run"


class ClientError(RunError):
    """The work of one client failed; carries round, client and stage, the cause is chained."""

    def __init__(
        self, message: str, *, client: int, stage: str, round: int | None = None, name: str = ""
    ) -> None:
        where = f"client {name or client}, {stage}" + ("" if round is None else f", round {round}")
        super().__init__(f"{where}: {message}", key=stage)
        self.client = client
        self.stage = stage
        self.round = round


LONGEST_REASON = 500
"""Characters of a reason that a run records."""
_MOST_NAMES = 50
"""Names that a message lists."""
MOST_LISTED = 5
"""Parts that a sentence lists; more are counted."""
WARNING = "Warning: "
"""The beginning of a note on what makes results mislead."""


def printable(text: str) -> str:
    """Return text without control characters, which could rewrite what a terminal shows.

    >>> printable("a" + chr(27) + "b")
    'a b'
    """
    return "".join(character if character.isprintable() else " " for character in text)


def one_line(text: str) -> str:
    """Return a text that can be recorded and printed.

    One line, at most ``LONGEST_REASON`` characters.

    >>> one_line("no   luck")
    'no luck'
    """
    # What follows is ignored, however long it is.
    start = text[: 4 * LONGEST_REASON]
    valid = start.encode(errors="replace").decode()
    line = " ".join(printable(valid).split())
    if len(line) > LONGEST_REASON or len(text) > len(start):
        return f"{line[: LONGEST_REASON - 4]} ..."
    return line


def describe_error(error: BaseException) -> str:
    """Return type and text of any exception in one line; never raises."""
    try:
        return one_line(f"{type(error).__name__}: {error}")
    except BaseException:
        # Its class may raise anything when it is asked for a text.
        return "an exception whose text cannot be read"


@contextmanager
def calling(
    call: str,
    *,
    key: str,
    got: str,
    allowed: object = None,
    kind: type[FedtailorError] = ConfigError,
) -> Iterator[None]:
    """Say what the code of a user raises in the block; our own errors pass.

    Args:
        call: as it is written, with its arguments.
        key: the option that names the function.
        got: its name.
        allowed: what it may return.
        kind: of the error.

    Raises:
        ConfigError: the code raised anything, which is the cause.
    """
    try:
        yield
    except FedtailorError:
        raise
    except (Exception, SystemExit) as reason:
        message = f"the call {call} raised {describe_error(reason).rstrip('.')}."
        raise kind(message, key=key, allowed=allowed, got=got) from reason


@contextmanager
def all_done(steps: Iterable[Callable[[], object]]) -> Iterator[None]:
    """Take every step when the block ends, even if the block or a step before raises.

    The first error is raised.
    """
    first: BaseException | None = None
    try:
        yield
    except BaseException as error:
        first = error

    for step in steps:
        try:
            step()
        except BaseException as error:
            first = first or error

    if first is not None:
        raise first


def joined(parts: Iterable[str], most: int = MOST_LISTED) -> str:
    """Return the first parts with commas between them, and the number of the others."""
    parts = list(parts)
    text = ", ".join(parts[:most])
    return f"{text} and {len(parts) - most} more" if len(parts) > most else text


def match_name(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that a name stands for.

    Case does not matter, and a hyphen is an underscore.

    Returns:
        None if there is no such choice.

    Example:
        >>> match_name("FedAvg-FT", ["fedavg", "fedavg_ft"])
        'fedavg_ft'
    """
    choices = list(choices)
    if name in choices:
        return name
    spelled = _plain(name)
    return next((choice for choice in choices if _plain(choice) == spelled), None)


def find_name(
    what: str,
    name: str,
    choices: Iterable[str],
    *,
    key: str = "",
    kind: type[FedtailorError] = ConfigError,
) -> str:
    """Return the choice that a name stands for, as :func:`match_name` does.

    Args:
        what: what it is the name of, such as ``model``, for the message.
        name: as the user wrote it.
        choices: the names that exist.
        key: the option that holds the name, for the record of the error.
        kind: of the error.

    Raises:
        ConfigError: there is no such choice.
    """
    choices = list(choices)
    choice = match_name(name, choices)
    if choice is None:
        raise unknown_name(what, name, sorted(choices), key=key, kind=kind)
    return choice


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest choice, or an empty string."""
    spelled = {_plain(choice): choice for choice in choices}
    close = difflib.get_close_matches(_plain(name), list(spelled), n=1)
    return f"; did you mean '{spelled[close[0]]}'?" if close else ""


def unknown_name(
    what: str,
    name: str,
    choices: Iterable[str],
    *,
    of: str = "",
    key: str = "",
    kind: type[FedtailorError] = ConfigError,
) -> FedtailorError:
    """Return the error for a name that is not in a table.

    It lists the names that are, and the nearest. ``of`` says whose names they are.
    """
    allowed = list(choices)
    hint = did_you_mean(name, allowed) or "."
    whose = f" of {of}" if of else ""
    names = [*allowed[:_MOST_NAMES], *(["..."] if len(allowed) > _MOST_NAMES else [])]
    message = f"unknown {what} '{name}'{whose}{hint} Known: {', '.join(names) or 'none'}."
    return kind(message, key=key or what, allowed=allowed, got=name)


def _plain(name: str) -> str:
    """Return a name in the spelling that names are compared in."""
    return name.lower().replace("-", "_")
