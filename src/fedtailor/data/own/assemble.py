"""One data set made of the examples of several sites."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.own.report import Site


class SitePart(NamedTuple):
    """The examples of one site; the test arrays are None where the site does not come divided."""

    site: str
    """Name of the site; empty where the data have no sites, in which case this is the only part."""
    x_train: np.ndarray  # (rows, height, width, channels), uint8 or float32; or (rows, features), float32
    y_train: np.ndarray  # (rows,), whole numbers from 0
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None

    @property
    def rows(self) -> int:
        """Number of examples, for training and for testing."""
        return len(self.y_train) + (0 if self.y_test is None else len(self.y_test))


def assemble(
    name: str,
    parts: Sequence[SitePart],
    class_names: Sequence[str],
    *,
    sources: Mapping[str, str],
    notes: Sequence[str] = (),
    white: float = 255.0,
    normalize: Normalization = Normalization(),  # noqa: B008  # immutable
) -> Dataset:
    """Put the examples of all sites into one data set: the training rows of all sites in order, then their test rows.

    Sites without examples are left out of ``domain_names``.

    Raises:
        DataError: there is no example at all, shapes or types differ between sites, labels are out of range.
    """
    kept = [part for part in parts if part.rows]
    _check(name, kept)
    tests = [(part.x_test, part.y_test) for part in kept if part.x_test is not None and part.y_test is not None]
    x = np.concatenate([part.x_train for part in kept] + [x for x, _ in tests])
    y = np.concatenate([part.y_train for part in kept] + [y for _, y in tests])
    named = [part.site for part in kept] != [""]
    return Dataset(
        name=name,
        x=x,
        y=y,
        num_classes=len(class_names),
        class_names=tuple(class_names),
        domains=_domains(kept) if named else None,
        domain_names=tuple(part.site for part in kept) if named else (),
        normalize=normalize,
        white=white,
        num_official_train=sum(len(part.y_train) for part in kept),
        sources=sources,
        notes=tuple(notes),
    )


def describe_sites(parts: Sequence[SitePart], class_names: Sequence[str]) -> list[Site]:
    """Return how many examples of which class every site has; classes of which it has none are left out."""
    return [
        Site(part.site, train=_counts(part.y_train, class_names), test=_counts(part.y_test, class_names))
        for part in parts
    ]


def one_source(name: str, digests: Mapping[str, str]) -> dict[str, str]:
    """Return ``{name: digest}`` with one SHA-256 over the SHA-256 of all files by name, whatever their order."""
    listed = json.dumps(sorted(digests.items()))
    return {name: hashlib.sha256(listed.encode("ascii")).hexdigest()}


def _check(name: str, parts: Sequence[SitePart]) -> None:
    """Check that there are examples, and that all are of one shape and type."""
    if not parts:
        raise DataError(f"{name}: no site has an example.", key="data.path", allowed="at least one example", got=0)
    first, kind = parts[0].x_train.shape[1:], parts[0].x_train.dtype
    for part in parts:
        for x in (part.x_train, part.x_test):
            if x is not None and (x.shape[1:], x.dtype) != (first, kind):
                allowed = f"of shape {first} and type {kind}, as those of site '{parts[0].site}'"
                got = f"shape {x.shape[1:]} and type {x.dtype}"
                message = f"{name}: examples of site '{part.site}' must be {allowed}, got {got}."
                raise DataError(message, key="data.path", allowed=allowed, got=got)


def _domains(parts: Sequence[SitePart]) -> np.ndarray:
    """Return the number of the site of every row (rows,): training rows first, then test rows."""
    train = [len(part.y_train) for part in parts]
    test = [part.rows - len(part.y_train) for part in parts]
    return np.tile(np.arange(len(parts)), 2).repeat(train + test)


def _counts(y: np.ndarray | None, class_names: Sequence[str]) -> dict[str, int]:
    """Return the number of examples by class name."""
    if y is None:
        return {}
    labels, counts = np.unique(y, return_counts=True)
    return {class_names[int(label)]: int(count) for label, count in zip(labels, counts, strict=True)}
