"""What server and sites say to each other: the heads of requests and answers, and trees as blobs.

A request names the run, the round, the site and the version of the state from which the site
continues. The blobs are the plan, what all sites receive (``shared``), and what one site receives
(``own``). An answer repeats what it answers. Both sides check everything that comes in: neither
trusts the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from fedtailor.core.codec import Limits, decode, encode
from fedtailor.core.errors import DataError, one_line
from fedtailor.core.message import Messages
from fedtailor.core.options import show
from fedtailor.core.scores import BINS, SCORE_BINS
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.limits import (
    LARGEST_FRAME,
    LARGEST_ROUND,
    LARGEST_TREE_HEADER,
    LONGEST_METRIC_NAME,
    MOST_ATTEMPTS,
    MOST_AXES,
    MOST_CLASSES,
    MOST_EXTRA_BYTES,
    MOST_LEAVES,
    MOST_NUMBERS,
    MOST_SITES,
)
from fedtailor.deployment.state import Version
from fedtailor.simulation.programs import PersonalizeRequest, Request, ScoreRequest, TrainRequest

REQUESTS: Mapping[str, type[Any]] = {
    request.name: request for request in (TrainRequest, PersonalizeRequest, ScoreRequest)
}
"""The requests of a round, by kind."""
_REPEATED = ("kind", "run", "round", "client", "attempt", "of", "first")
_TREE = Limits(size=LARGEST_FRAME, leaves=MOST_LEAVES, header=LARGEST_TREE_HEADER, axes=MOST_AXES)


class Work(NamedTuple):
    """A request of a round to one site."""

    request: Request
    run: str
    round: int
    client: int
    base: Version | None
    """The state from which the site continues; None: the one before its first round."""
    best: Version | None
    """The state to which the server may go back, however old it is; None: there is none."""
    rare_classes: tuple[int, ...] = ()
    """Of secure sums: classes of so few sites that a mean over them would tell too much."""
    numbers: tuple[str, ...] = ()
    """Of secure sums: names of what the method reports of its training."""

    def to_head(self) -> dict[str, Any]:
        """Return the head of the message; :func:`read_head` reads it."""
        return {
            **self._asdict(),
            "kind": self.request.name,
            "request": asdict(self.request),
        }


def repeated(head: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a request's head that its answer repeats, to show what it answers."""
    options = head.get("request")
    values = {**options, **head} if isinstance(options, Mapping) else head
    return {key: values[key] for key in _REPEATED if key in values}


def answers_to(requests: Mapping[int, Envelope]) -> Callable[[int, Envelope], bool]:
    """Return a function that says whether an answer of a site repeats the head of its request."""

    def is_answer(number: int, answer: Envelope) -> bool:
        return repeated(requests[number].head).items() <= answer.head.items()

    return is_answer


def refusal_in(head: Mapping[str, Any]) -> str | None:
    """Return why a site gives no other answer, in one line; None if it gives one."""
    for key in ("refused", "failed"):
        if key in head:
            return one_line(f"{head[key]!s:.500}")
    return None


def read_head(head: Mapping[str, Any]) -> Work:
    """Return what the head of a request asks for.

    Raises:
        DataError: it is not such a head.
    """
    kind = head.get("kind")
    if not isinstance(kind, str) or kind not in REQUESTS:
        raise wrong("kind", f"one of {', '.join(REQUESTS)}", kind)

    run = head.get("run")
    if not isinstance(run, str) or not run.isalnum() or len(run) > 64:
        raise wrong("run", "the name of a run", run)

    return Work(
        request=_read_options(REQUESTS[kind], head.get("request")),
        run=run,
        round=whole("round", head.get("round"), LARGEST_ROUND),
        client=whole("client", head.get("client"), MOST_SITES),
        base=_version("base", head.get("base")),
        best=_version("best", head.get("best")),
        rare_classes=_classes("rare_classes", head.get("rare_classes")),
        numbers=_names("numbers", head.get("numbers")),
    )


def _read_options(cls: type[Any], options: Any) -> Request:
    """Return a request with its options, which are flags and a number of attempts."""
    # No option may be missing or unknown.
    names = {field.name for field in fields(cls)}
    if not isinstance(options, Mapping) or set(options) != names:
        raise wrong("request", f"the options of a request to {cls.name}", options)

    for name, value in options.items():
        if name == "attempt":
            whole("request.attempt", value, MOST_ATTEMPTS)
        elif type(value) is not bool:
            raise wrong(f"request.{name}", "true or false", value)

    request: Request = cls(**options)
    return request


def whole(name: str, value: Any, most: int) -> int:
    """Return a whole number from 0 to ``most``.

    Raises:
        DataError: it is something else.
    """
    if type(value) is not int or not 0 <= value <= most:
        raise wrong(name, f"a whole number from 0 to {most}", value)
    return value


def _version(name: str, value: Any) -> Version | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise wrong(name, "a round and an attempt", value)
    round = whole(name, value[0], LARGEST_ROUND)
    return Version(round, whole(name, value[1], MOST_ATTEMPTS))


def _classes(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or len(value) > MOST_CLASSES:
        raise wrong(name, "numbers of classes", value)
    return tuple(whole(name, label, MOST_CLASSES - 1) for label in value)


def _names(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > MOST_NUMBERS:
        raise wrong(name, "names of numbers", value)

    for text in value:
        if not isinstance(text, str) or len(text) > LONGEST_METRIC_NAME:
            raise wrong(name, f"names of at most {LONGEST_METRIC_NAME} characters", text)
    return tuple(value)


def wrong(name: str, allowed: str, got: object) -> DataError:
    """Return the error for a message that does not say what it must."""
    text = show(got)
    message = f"a message must say {allowed} in '{name}', got {text}."
    return DataError(message, key=name, allowed=allowed, got=text)


def to_blob(value: Any, modules: Collection[str]) -> bytes:
    """Return a tree as bytes."""
    return encode(value, modules=modules, limits=_TREE)


def from_blob(raw: bytes, modules: Collection[str], *, size: int = LARGEST_FRAME) -> Any:
    """Return the tree of a blob; see :func:`fedtailor.core.codec.decode`.

    Args:
        raw: the bytes.
        modules: whose NamedTuples are allowed.
        size: the most bytes.

    Raises:
        DataError: the bytes are not such a tree.
    """
    return decode(raw, modules=modules, limits=_TREE._replace(size=size))


def largest_answer(messages: Messages, num_classes: int, sizes: Sequence[int]) -> int:
    """Return the most bytes of an honest answer: what is declared, twice scores, and metrics.

    Args:
        messages: the declaration of the method.
        num_classes: of the federation.
        sizes: how many test and validation examples the site has.
    """
    numbers = 0
    for field in messages.values():
        if field.reduction != "none":
            # A weight or a mask is at most as large as what it weighs.
            numbers += 2 * sum(map(math.prod, field.leaf_shapes().values()))

    # Of every example and class, the histogram has at most a place and a count, in 8 bytes each.
    scores = 0
    for count in sizes:
        cells = min(2 * num_classes * SCORE_BINS, num_classes * count)
        scores += 8 * (num_classes**2 + 4 * num_classes + 3 * BINS + 1 + 2 * cells)

    return 8 * numbers + scores + LARGEST_TREE_HEADER + MOST_EXTRA_BYTES
