"""The history of a federation whose clients come and go: who takes part in which round.

A change is a line such as ``"4 pause Oslo"``: from round 4 on, nothing is asked of Oslo. A client
keeps its number whatever happens, and those that join come after all others, so the random numbers
of the others stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

from fedtailor.core.errors import unknown_name
from fedtailor.core.options import wrong_value

ChangeKind = Literal["join", "pause", "resume", "leave"]
KEY = "federation.history"
"""The option that holds a history."""
_LINE = re.compile(r"(\d{1,9}) (join|pause|resume|leave) (.+)")
_FORM = "lines such as '4 pause Oslo': a round from 1; join, pause, resume or leave; a client"
_BEFORE: dict[ChangeKind, frozenset[str]] = {
    "join": frozenset({"expected"}),
    "pause": frozenset({"there"}),
    "resume": frozenset({"paused"}),
    "leave": frozenset({"there", "paused"}),
}
"""What a client must be before each change."""
_AFTER: dict[ChangeKind, str] = {
    "join": "there",
    "pause": "paused",
    "resume": "there",
    "leave": "gone",
}


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

    def __init__(self, lines: Sequence[str], names: Sequence[str], num_new: int = 0) -> None:
        """Read a history.

        Args:
            lines: the changes, in the order of their rounds.
            names: of all clients, by number.
            num_new: how many clients, the last ones, never take part in training.

        Raises:
            ConfigError: a line has another form, names no client, or says what cannot be.

        Example:
            >>> history = History(["2 pause b", "3 resume b", "3 leave a"], ["a", "b", "c"])
            >>> [history.members(round) for round in (1, 2, 3)]
            [[0, 1, 2], [0, 2], [1, 2]]
        """
        self._population = len(names) - num_new
        self._changes: list[tuple[int, ChangeKind, int]] = []
        for line in lines:
            change = read_change(line)
            if change.client not in names:
                raise unknown_name("client", change.client, names, key=KEY)
            self._changes.append((change.round, change.kind, names.index(change.client)))

        joining = [client for _, kind, client in self._changes if kind == "join"]
        if joining != list(range(self._population - len(joining), self._population)):
            allowed = "such that clients join in the order of their numbers, after all others"
            raise wrong_value(KEY, allowed, [names[client] for client in joining])

        self._first = ["there"] * len(names)
        """What every client is before all changes."""
        for client in joining:
            self._first[client] = "expected"
        self._check_order(lines)

    def _check_order(self, lines: Sequence[str]) -> None:
        """Check that every change can be when it comes."""
        standing = list(self._first)
        latest = 0
        for line, (round, kind, client) in zip(lines, self._changes, strict=True):
            if round < latest:
                raise wrong_value(KEY, "in the order of rounds", line)
            if standing[client] not in _BEFORE[kind]:
                raise wrong_value(KEY, f"what can be: the client is {standing[client]} then", line)

            latest = round
            standing[client] = _AFTER[kind]

    @property
    def rounds(self) -> list[int]:
        """The rounds with changes."""
        return sorted({round for round, _, _ in self._changes})

    @property
    def joins(self) -> bool:
        """Whether a client joins."""
        return "expected" in self._first

    def standing(self, round: int) -> list[str]:
        """Return what every client is in a round: expected, there, paused or gone."""
        standing = list(self._first)
        for first, kind, client in self._changes:
            if first <= round:
                standing[client] = _AFTER[kind]

        return standing

    def changes(self, round: int) -> list[tuple[ChangeKind, int]]:
        """Return the changes that concern a round first, with the number of the client."""
        return [(kind, client) for first, kind, client in self._changes if first == round]

    def members(self, round: int) -> list[int]:
        """Return the numbers of the clients that take part in a round."""
        return [client for client, now in enumerate(self.standing(round)) if now == "there"]

    def population(self, round: int) -> int:
        """Return how many clients have joined by a round, of those that can train.

        Those who are paused or have left count.
        """
        return self._population - self.standing(round)[: self._population].count("expected")
