"""FEMNIST by writer: the JSON files that LEAF's preprocessing writes, in femnist/train and
femnist/test.

Caldas et al. 2018, "LEAF: a benchmark for federated settings", arXiv:1812.01097. A file is an
object with ``users`` (names of writers), ``num_samples`` (a count for each) and ``user_data``: for
each writer ``x``, lists of 784 numbers from 0 (black) to 1 (white), and ``y``, labels from 0 to 61:
digits, uppercase letters, lowercase letters.

Refused are pixels that are not numbers, not finite or outside 0 to 1, rows of other lengths, labels
out of range, counts that differ, a writer in ``users`` but not in ``user_data`` or the reverse, and
a writer who appears twice in a part, in one file or in two. A writer may be in one part only; a
writer without examples is left out.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset
from fedtailor.data.readers import files

_SIDE = 28
_CLASSES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
_KEYS = ("users", "num_samples", "user_data")
_MAX_NAME = 80


class _Part(NamedTuple):
    """The examples of a part: lists with one array per writer."""

    images: list[np.ndarray]  # (rows, 28, 28, 1), uint8
    labels: list[np.ndarray]  # (rows,), int64
    domains: list[np.ndarray]  # (rows,), int64


def load_femnist(folder: Path) -> Dataset:
    """Load FEMNIST from ``folder``/femnist/{train,test}/*.json, or the same in
    ``folder``/femnist/data.

    There is one domain per writer, in the order of the files (all_data_2 before all_data_10) and of
    ``users`` within each. A pixel p becomes the whole part of 255 p (in float64), as in pFedFDA's
    experiments: dark strokes on white. Reading takes about eight times the size of the largest file
    in memory.

    Raises:
        DataError: a file is missing or damaged; the message names it and the writer.
    """
    sources: dict[str, str] = {}
    writers: dict[str, int] = {}
    place = next(
        (found for found in _places(folder) if (found / "train").is_dir()), folder / "femnist"
    )
    train = _read_part(place / "train", writers, sources, folder)
    test = _read_part(place / "test", writers, sources, folder)
    if not train.labels:
        raise files.damaged(place / "train", "an example of a writer", "none")

    return Dataset(
        name="femnist",
        x=np.concatenate(train.images + test.images),
        y=np.concatenate(train.labels + test.labels),
        num_classes=len(_CLASSES),
        class_names=_CLASSES,
        domains=np.concatenate(train.domains + test.domains),
        domain_names=tuple(writers),
        num_official_train=sum(map(len, train.labels)),
        sources=sources,
    )


def _places(folder: Path) -> list[Path]:
    return [folder / "femnist", folder / "femnist" / "data"]


def _read_part(
    place: Path, writers: dict[str, int], sources: dict[str, str], folder: Path
) -> _Part:
    """Return all examples of a folder and give the next number to every writer that is not yet in
    ``writers``.
    """
    paths = sorted(place.glob("[!.]*.json"), key=_natural)
    if not paths:
        raise files.missing(
            "femnist", folder, [found / place.name / "*.json" for found in _places(folder)]
        )

    part = _Part([], [], [])
    seen: dict[str, str] = {}
    for path in paths:
        content = _parse(path, files.read_bytes(path, sources, folder=folder))
        for writer, count, entry in _writers_of(path, content):
            if writer in seen:
                got = f"writer '{writer}' a second time (first in {seen[writer]})"
                raise files.damaged(path, "every writer once in a part", got)

            seen[writer] = path.name
            images, labels = _examples(path, writer, count, entry)
            if len(labels):
                domain = writers.setdefault(writer, len(writers))
                part.images.append(images)
                part.labels.append(labels)
                part.domains.append(np.full(len(labels), domain, np.int64))

    return part


def _natural(path: Path) -> list[str | int]:
    """Return a key that sorts numbers within names by size: the order in which LEAF wrote the
    files.
    """
    pieces = re.split("([0-9]+)", path.name)  # text and numbers in turn
    return [int(piece) if index % 2 else piece for index, piece in enumerate(pieces)]


def _parse(path: Path, raw: bytes) -> Any:
    """Return the content of a JSON file; repeated keys and NaN are refused."""
    try:
        return json.loads(raw, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise files.damaged(
            path, "JSON as LEAF writes it", f"{type(error).__name__}: {error!s:.200}"
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object repeats a key")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _writers_of(path: Path, content: Any) -> Iterator[tuple[str, int, Any]]:
    """Yield name, announced number of examples and entry of every writer of a file."""
    if not isinstance(content, dict) or not all(key in content for key in _KEYS):
        got = (
            f"the keys {sorted(content)!s:.200}"
            if isinstance(content, dict)
            else type(content).__name__
        )
        raise files.damaged(path, f"an object with {', '.join(_KEYS)}", got)

    users = content["users"]
    counts = content["num_samples"]
    entries = content["user_data"]
    if (
        not isinstance(users, list)
        or not all(map(_is_name, users))
        or len(set(users)) != len(users)
    ):
        raise files.damaged(
            path,
            f"'users' to be different names of at most {_MAX_NAME} characters",
            f"{users!r:.200}",
        )

    if not isinstance(counts, list) or len(counts) != len(users):
        raise files.damaged(
            path,
            f"'num_samples' to have {len(users)} numbers, one for each user",
            f"{counts!r:.200}",
        )

    if not isinstance(entries, dict) or entries.keys() != set(users):
        different = (
            sorted(entries.keys() ^ set(users))
            if isinstance(entries, dict)
            else type(entries).__name__
        )
        raise files.damaged(
            path, "'user_data' to have an entry for each user and no other", f"{different!s:.200}"
        )

    for writer, count in zip(users, counts, strict=True):
        yield writer, count, entries[writer]


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME and value.isprintable()


def _examples(path: Path, writer: str, count: Any, entry: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows, 28, 28, 1) and labels (rows,) of a writer."""

    def wrong(allowed: str, got: object) -> DataError:
        return files.damaged(path, f"of writer '{writer}' {allowed}", f"{got!s:.200}")

    if not isinstance(entry, dict):
        raise wrong("lists 'x' and 'y'", type(entry).__name__)

    rows = entry.get("x")
    labels = entry.get("y")
    if not isinstance(rows, list) or not isinstance(labels, list):
        raise wrong("lists 'x' and 'y'", sorted(entry))

    if type(count) is not int or not len(rows) == len(labels) == count:
        got = f"{len(rows)} images, {len(labels)} labels, 'num_samples' {count!r:.40}"
        raise wrong("as many images and labels as 'num_samples' announces", got)

    for row, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < len(_CLASSES):
            raise wrong(f"labels from 0 to {len(_CLASSES) - 1}", f"{label!r:.40} at row {row}")

    images = np.empty((count, _SIDE * _SIDE), np.uint8)
    for row, pixels in enumerate(rows):
        values = _pixels(pixels)
        if isinstance(values, str):
            raise wrong(f"images of {_SIDE * _SIDE} numbers from 0 to 1", f"{values} at row {row}")

        images[row] = values

    return images.reshape(-1, _SIDE, _SIDE, 1), np.array(labels, np.int64)


def _pixels(row: Any) -> np.ndarray | str:
    """Return the pixels (784,) of an image as bytes, or a description of the problem."""
    if not isinstance(row, list):
        return type(row).__name__
    if len(row) != _SIDE * _SIDE:
        return f"{len(row)} numbers"
    if not set(map(type, row)) <= {int, float}:
        return "a value that is not a number"

    low = min(row)
    high = max(row)
    if not 0 <= low <= high <= 1:
        return f"a pixel of {low if low < 0 else high!r:.40}"

    return (np.array(row, np.float64) * 255).astype(np.uint8)
