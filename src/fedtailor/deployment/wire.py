"""What server and sites say to each other: the heads of requests and answers, and trees as blobs.

A request names the run, the round, the site and the version of the site's state from which it goes
on. The blobs are the plan, what all sites receive (``shared``), and what one site receives
(``own``). An answer repeats what it answers. Everything that comes in is checked, on both sides:
neither trusts the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple

import torch

from fedtailor.core.codec import Limits, decode, encode
from fedtailor.core.errors import DataError, one_line
from fedtailor.core.options import show
from fedtailor.core.scores import BINS, SCORE_BINS, Scores
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
_LEAVES = 2**14
_LARGEST_ROUND = 10**9


class Work(NamedTuple):
    """A request of a round, as a site reads it."""

    request: Request
    run: str
    round: int
    client: int
    base: Version | None
    """The state from which the site goes on; None: the one before its first round."""
    keep: tuple[Version, ...]
    """States that the server may go back to."""


def head_of(
    request: Request,
    *,
    run: str,
    round: int,
    client: int,
    base: Version | None,
    keep: Collection[Version],
) -> dict[str, Any]:
    """Return the head of a request."""
    return {
        "kind": request.name,
        "run": run,
        "round": round,
        "client": client,
        "base": None if base is None else list(base),
        "keep": sorted(list(version) for version in keep),
        "options": asdict(request),
    }


def read_head(head: Mapping[str, Any]) -> Work:
    """Return what the head of a request asks for.

    Raises:
        DataError: it is not such a head.
    """
    kind = head.get("kind")
    if not isinstance(kind, str) or kind not in REQUESTS:
        raise wrong("kind", f"one of {', '.join(REQUESTS)}", kind)

    options = head.get("options")
    cls = REQUESTS[kind]
    if not isinstance(options, Mapping) or set(options) != {field.name for field in fields(cls)}:
        raise wrong("options", f"the options of a request to {kind}", options)

    for name, value in options.items():
        allowed = int if name == "attempt" else bool
        if type(value) is not allowed or not 0 <= value < 10**4:
            raise wrong(
                f"options.{name}",
                "a number of attempts" if allowed is int else "true or false",
                value,
            )

    run = head.get("run")
    if not isinstance(run, str) or not run.isalnum() or len(run) > 64:
        raise wrong("run", "the name of a run", run)

    base = head.get("base")
    keep = head.get("keep")
    if not isinstance(keep, list) or len(keep) > 16:
        raise wrong("keep", "a list of states", keep)

    return Work(
        request=cls(**options),
        run=run,
        round=whole("round", head.get("round"), _LARGEST_ROUND),
        client=whole("client", head.get("client"), 10**6),
        base=None if base is None else _version(base),
        keep=tuple(_version(each) for each in keep),
    )


def whole(name: str, value: Any, most: int) -> int:
    """Return a whole number from 0 to ``most``.

    Raises:
        DataError: it is something else.
    """
    if type(value) is not int or not 0 <= value <= most:
        raise wrong(name, f"a whole number from 0 to {most}", value)
    return value


def _version(value: Any) -> Version:
    if not isinstance(value, list) or len(value) != 2:
        raise wrong("base", "a round and an attempt", value)
    return Version(whole("base", value[0], _LARGEST_ROUND), whole("base", value[1], 10**4))


def wrong(name: str, allowed: str, got: object) -> DataError:
    """Return the error for a message that does not say what it must."""
    shown = show(got)
    return DataError(
        f"a message must say {allowed} in '{name}', got {shown}.",
        key=name,
        allowed=allowed,
        got=shown,
    )


def to_blob(value: Any, modules: Collection[str]) -> bytes:
    """Return a tree as bytes."""
    return encode(value, modules=modules, limits=Limits(LARGEST_BLOB, _LEAVES))


def from_blob(raw: bytes, modules: Collection[str]) -> Any:
    """Return the tree of a blob; see :func:`fedtailor.core.codec.decode`.

    Raises:
        DataError: the bytes are not such a tree.
    """
    return decode(raw, modules=modules, limits=Limits(LARGEST_BLOB, _LEAVES))


def problem_with_scores(scores: Any, num_classes: int) -> str:
    """Return why scores that a site sent cannot be used, in a sentence without its period; empty if
    they can be.
    """
    if not isinstance(scores, Scores):
        return "the scores are of another form"

    shapes = {
        "class_correct": (num_classes,),
        "class_total": (num_classes,),
        "loss_sum": (),
        "bin_count": (BINS,),
        "bin_confidence": (BINS,),
        "bin_correct": (BINS,),
        "confusion": (num_classes, num_classes),
        "pairs": (num_classes,),
        "pairs_won": (num_classes,),
    }

    for name, shape in shapes.items():
        value = getattr(scores, name)
        if (
            not isinstance(value, torch.Tensor)
            or tuple(value.shape) != shape
            or value.dtype != torch.float64
        ):
            return f"the scores have no {name} of shape {shape}"

        if not bool((value >= 0).all()) or (
            name != "loss_sum" and not bool(torch.isfinite(value).all())
        ):
            return f"the scores have an impossible {name}"

    histogram = scores.histogram
    if (
        not isinstance(histogram, torch.Tensor)
        or histogram.dtype != torch.int64
        or histogram.dim() != 2
    ):
        return "the scores have no histogram"

    if len(histogram) != 2 or (histogram.numel() and int(histogram.min()) < 0):
        return "the scores have an impossible histogram"
    if histogram.numel() and int(histogram[0].max()) >= 2 * num_classes * SCORE_BINS:
        return "the scores have a histogram of other classes"

    total = float(scores.class_total.sum())
    if (
        bool((scores.class_correct > scores.class_total).any())
        or float(scores.confusion.sum()) > total
    ):
        return "the scores count more examples than there are"

    return ""


def refusal(error: BaseException, *, with_text: bool) -> dict[str, Any]:
    """Return the head of an answer that says why there is no other one."""
    return {"failed": one_line(str(error)) if with_text else type(error).__name__}
