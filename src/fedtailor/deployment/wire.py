"""What server and sites say to each other: the heads of requests and answers, and trees as blobs.

A request names the run, the round, the site and the version of the state from which the site
continues. The blobs are the plan, what all sites receive (``shared``), and what one site receives
(``own``). An answer repeats what it answers. Both sides check everything that comes in: neither
trusts the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.codec import Limits, decode, encode
from fedtailor.core.errors import DataError, one_line
from fedtailor.core.options import show
from fedtailor.core.scores import SCORE_BINS, Scores, score
from fedtailor.deployment.state import Version
from fedtailor.simulation.programs import PersonalizeRequest, Request, ScoreRequest, TrainRequest

REQUESTS: Mapping[str, type[Any]] = {
    TrainRequest.name: TrainRequest,
    PersonalizeRequest.name: PersonalizeRequest,
    ScoreRequest.name: ScoreRequest,
}
"""The requests of a round, by kind."""
LARGEST_BLOB = 2**33
"""Bytes of a tree."""
MOST_SITES = 10**6
_REPEATED = ("kind", "run", "round", "client", "attempt")
_MOST_LEAVES = 2**14
_MOST_ATTEMPTS = 10**4
_LARGEST_ROUND = 10**9


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
        round=whole("round", head.get("round"), _LARGEST_ROUND),
        client=whole("client", head.get("client"), MOST_SITES),
        base=_version("base", head.get("base")),
        best=_version("best", head.get("best")),
    )


def _read_options(cls: type[Any], options: Any) -> Request:
    """Return a request with its options, which are flags and a number of attempts."""
    # No option may be missing or unknown.
    names = {field.name for field in fields(cls)}
    if not isinstance(options, Mapping) or set(options) != names:
        raise wrong("request", f"the options of a request to {cls.name}", options)

    for name, value in options.items():
        if name == "attempt":
            whole("request.attempt", value, _MOST_ATTEMPTS)
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
    round = whole(name, value[0], _LARGEST_ROUND)
    return Version(round, whole(name, value[1], _MOST_ATTEMPTS))


def wrong(name: str, allowed: str, got: object) -> DataError:
    """Return the error for a message that does not say what it must."""
    text = show(got)
    message = f"a message must say {allowed} in '{name}', got {text}."
    return DataError(message, key=name, allowed=allowed, got=text)


def to_blob(value: Any, modules: Collection[str]) -> bytes:
    """Return a tree as bytes."""
    return encode(value, modules=modules, limits=Limits(LARGEST_BLOB, _MOST_LEAVES))


def from_blob(raw: bytes, modules: Collection[str]) -> Any:
    """Return the tree of a blob; see :func:`fedtailor.core.codec.decode`.

    Raises:
        DataError: the bytes are not such a tree.
    """
    return decode(raw, modules=modules, limits=Limits(LARGEST_BLOB, _MOST_LEAVES))


def check_scores(scores: Any, num_classes: int) -> Scores:
    """Return the scores that a site sent.

    Raises:
        DataError: they cannot be used.
    """
    if not isinstance(scores, Scores):
        raise DataError("the scores are of another form.", key="scores")

    # Those of no example have the shapes and types of all.
    nothing = torch.zeros(0)
    template = score(nothing.view(0, num_classes), nothing.long(), nothing, num_classes, rank=False)
    for name in Scores._fields[:-1]:
        expected = getattr(template, name)
        value = getattr(scores, name)
        is_tensor = isinstance(value, Tensor) and value.dtype == expected.dtype
        if not is_tensor or value.shape != expected.shape:
            shape = tuple(expected.shape)
            raise DataError(f"the scores have no {name} of shape {shape}.", key="scores")

        # An infinite loss is that of a prediction which is not a number.
        is_possible = bool((value >= 0).all())
        if not is_possible or (name != "loss_sum" and not bool(torch.isfinite(value).all())):
            raise DataError(f"the scores have an impossible {name}.", key="scores")

    _check_histogram(scores.histogram, num_classes)

    # Counts of examples must agree with each other, or accuracy could exceed 1.
    total = float(scores.class_total.sum())
    has_too_many = bool((scores.class_correct > scores.class_total).any())
    if has_too_many or float(scores.confusion.sum()) > total:
        raise DataError("the scores count more examples than there are.", key="scores")

    return scores


def _check_histogram(histogram: Any, num_classes: int) -> None:
    """Check a packed histogram (2, n): places in a table, and their values."""
    is_tensor = isinstance(histogram, Tensor) and histogram.dtype == torch.int64
    if not is_tensor or histogram.dim() != 2 or len(histogram) != 2:
        raise DataError("the scores have no histogram.", key="scores")

    if histogram.numel():
        places = int(histogram[0].max())
        if int(histogram.min()) < 0 or places >= 2 * num_classes * SCORE_BINS:
            raise DataError("the scores have an impossible histogram.", key="scores")
