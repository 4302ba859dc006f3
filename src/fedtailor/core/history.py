"""The history of a federation whose clients come and go: who takes part in which round.

A change is a line such as ``"4 pause Oslo"``: from round 4 on, nothing is asked of Oslo. A client
keeps its number whatever happens, so the random numbers of all others stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

from fedtailor.core.errors import unknown_name
from fedtailor.core.options import wrong_value

ChangeKind = Literal["pause", "resume", "leave"]
KEY = "federation.history"
"""The option that holds a history."""
_LINE = re.compile(r"(\d{1,9}) (pause|resume|leave) (.+)")
_FORM = "lines such as '4 pause Oslo': a round from 1; pause, resume or leave; a client"
_BEFORE: dict[ChangeKind, frozenset[str]] = {
    "pause": frozenset({"there"}),
    "resume": frozenset({"paused"}),
    "leave": frozenset({"there", "paused"}),
}
"""What a client must be before each change."""
_AFTER: dict[ChangeKind, str] = {"pause": "paused", "resume": "there", "leave": "gone"}


class Change(NamedTuple):
    """A client comes or goes."""

    round: int
    """The first one that it concerns."""
    kind: ChangeKind
    client: str
    """Its name, or its number where clients have no names."""

    def __str__(self) -> str:
        return f"{self.round} {self.kind} {self.client}"


def read_change(line: str) -> Change:
    """Return the change that a line describes.

    Raises:
        ConfigError: the line has another form.

    Example:
        >>> read_change("4 pause Oslo")
        Change(round=4, kind='pause', client='Oslo')
    """
    match = _LINE.fullmatch(line)
    if match is None or int(match[1]) == 0:
        raise wrong_value(KEY, _FORM, line)
    return Change(int(match[1]), cast(ChangeKind, match[2]), match[3])


class History:
    """Who takes part in which round."""

    def __init__(self, lines: Sequence[str], names: Sequence[str]) -> None:
        """Read a history.

        Args:
            lines: the changes, in the order of their rounds.
            names: of all clients, by number.

        Raises:
            ConfigError: a line has another form, names no client, or says what cannot be.

        Example:
            >>> history = History(["2 pause b", "3 resume b", "3 leave a"], ["a", "b", "c"])
            >>> [history.members(round) for round in (1, 2, 3)]
            [[0, 1, 2], [0, 2], [1, 2]]
        """
        self._changes: list[tuple[int, ChangeKind, int]] = []
        self._standing = ["there"] * len(names)
        """What every client is after all changes."""
        latest = 0
        for line in lines:
            change = read_change(line)
            if change.client not in names:
                raise unknown_name("client", change.client, names, key=KEY)
            if change.round < latest:
                raise wrong_value(KEY, "in the order of rounds", line)

            client = names.index(change.client)
            standing = self._standing[client]
            if standing not in _BEFORE[change.kind]:
                raise wrong_value(KEY, f"what can be: the client is {standing} by then", line)

            latest = change.round
            self._standing[client] = _AFTER[change.kind]
            self._changes.append((change.round, change.kind, client))

        self._clients = range(len(names))

    @property
    def rounds(self) -> list[int]:
        """The rounds with changes."""
        return sorted({round for round, _, _ in self._changes})

    def standing(self, client: int) -> str:
        """Return what a client is after all changes: there, paused or gone."""
        return self._standing[client]

    def changes(self, round: int) -> list[tuple[ChangeKind, int]]:
        """Return the changes that concern a round first, with the number of the client."""
        return [(kind, client) for first, kind, client in self._changes if first == round]

    def members(self, round: int) -> list[int]:
        """Return the numbers of the clients that take part in a round."""
        away = set()
        for first, kind, client in self._changes:
            if first > round:
                break
            if kind == "resume":
                away.discard(client)
            else:
                away.add(client)

        return [client for client in self._clients if client not in away]
