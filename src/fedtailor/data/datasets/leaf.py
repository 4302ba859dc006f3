"""Data of LEAF's preprocessing: FEMNIST by writer, and the plays of Shakespeare by role.

Caldas et al. 2018, "LEAF: a benchmark for federated settings", arXiv:1812.01097. A file is a JSON
object with ``users`` (names of writers or roles) and ``user_data``: lists ``x`` and ``y`` for each
user. Its third part, ``num_samples``, is not used: LEAF's scripts leave out test texts that overlap
with training, and count them there.

FEMNIST's ``x`` are lists of 784 numbers from 0 (black) to 1 (white), and ``y`` labels from 0 to 61:
digits, uppercase letters, lowercase letters. Shakespeare's ``x`` are texts of 80 characters, and
``y`` the character that follows.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.data.dataset import AS_THEY_ARE, Dataset, check_labels
from fedtailor.data.files import Files, check_count, wrong_content

_SIDE = 28
_CLASSES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
_MOST_BYTES = 2**33
_TEXT = 80
_CONTEXT = 10
"""How many characters of a text become features."""
_ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, in its order."""
_PLACES = {character: place for place, character in enumerate(_ALPHABET)}

Convert = Callable[[Path, str, list[Any], list[Any]], tuple[np.ndarray, np.ndarray]]
"""From file, user and its lists ``x`` and ``y`` to examples (rows, ...) and labels (rows,)."""


def load_femnist(files: Files) -> Dataset:
    """Load FEMNIST from femnist/{train,test}/*.json, or the same in femnist/data.

    A pixel p becomes the whole part of 255 p (in float64), as in pFedFDA's experiments: dark
    strokes on white. See :func:`_load`.
    """
    return _load(files, _images, _CLASSES)


def load_shakespeare(files: Files) -> Dataset:
    """Load Shakespeare from shakespeare/{train,test}/*.json, or the same in shakespeare/data.

    A text becomes 800 features: for each of its last ten characters, which of LEAF's 80 characters
    it is (one-hot, from the tenth-last to the last). A character that is not among them counts as
    the last of them, as LEAF does for labels. See :func:`_load`.
    """
    return _load(files, _characters, tuple(_ALPHABET), normalize=AS_THEY_ARE, white=1.0)


def _load(
    files: Files, convert: Convert, class_names: tuple[str, ...], **properties: Any
) -> Dataset:
    """Load all files of a data set of LEAF.

    There is one domain per user, in the order of the files (all_data_2 before all_data_10) and of
    ``users`` within each. A user may be in one part only; a user without examples is left out.
    Reading FEMNIST takes about eight times the size of the largest file in memory, Shakespeare
    about 80 times the size of all files.

    Args:
        files: of the data set.
        convert: makes examples and labels of the lists ``x`` and ``y`` of a user.
        class_names: of the labels.
        properties: of the data set.

    Raises:
        DataError: a file is missing or damaged, or all examples together are too large; the message
            names file and user.
    """
    users: dict[str, int] = {}
    num_bytes = 0
    examples: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    domains: list[np.ndarray] = []
    num_train = 0
    for part in ("train", "test"):
        # A user is one domain in both parts, but may appear once in each.
        names: set[str] = set()
        for path in _paths(files, part):
            for user, x, y in _read(files.read(path), path, convert):
                if user in names:
                    raise wrong_content(path, "every user once in a part", f"'{user}' again")

                names.add(user)
                num_bytes += x.nbytes
                if num_bytes > _MOST_BYTES:
                    allowed = "a smaller sample (LEAF's option --sf)"
                    raise wrong_content(path, allowed, f"examples of more than {_MOST_BYTES} bytes")

                if len(y):
                    domain = users.setdefault(user, len(users))
                    examples.append(x)
                    labels.append(y)
                    domains.append(np.full(len(y), domain, np.int64))

        if part == "train":
            num_train = sum(map(len, labels))
        if not num_train:
            raise wrong_content(files.folder / files.dataset, "an example for training", "none")

    return Dataset(
        name=files.dataset,
        x=np.concatenate(examples),
        y=np.concatenate(labels),
        num_classes=len(class_names),
        class_names=class_names,
        domains=np.concatenate(domains),
        domain_names=tuple(users),
        num_official_train=num_train,
        sources=files.sources,
        **properties,
    )


def _paths(files: Files, part: str) -> list[Path]:
    """Return the files of a part in the order in which LEAF wrote them."""
    candidates = (files.dataset, f"{files.dataset}/data")
    for candidate in candidates:
        paths = (files.folder / candidate / part).glob("[!.]*.json")
        ordered = sorted(paths, key=_natural)
        if ordered:
            return ordered

    raise files.missing(*(f"{candidate}/{part}/*.json" for candidate in candidates))


def _natural(path: Path) -> list[str | int]:
    """Return a key that sorts numbers within names by size."""
    key: list[str | int] = []
    for piece in re.split("([0-9]+)", path.name):
        key.append(int(piece) if piece.isdecimal() else piece)

    return key


def _read(raw: bytes, path: Path, convert: Convert) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield name, examples (rows, ...) and labels (rows,) of every user of a file."""
    content = json.loads(raw)
    users = list(map(str, content["users"]))
    entries = content["user_data"]
    for user in users:
        entry = entries[user]
        x = entry.get("x") if isinstance(entry, dict) else None
        y = entry.get("y") if isinstance(entry, dict) else None
        if not isinstance(x, list) or not isinstance(y, list):
            raise wrong_content(path, f"lists x and y of '{user}'", "others")

        examples, labels = convert(path, user, x, y)
        yield user, examples, labels


def _images(path: Path, writer: str, x: list[Any], y: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows, 28, 28, 1) and labels (rows,) of a writer."""
    pixels = np.asarray(x)
    labels = np.asarray(y)

    # Empty lists have no shape to check.
    if not pixels.size and not labels.size:
        return np.empty((0, _SIDE, _SIDE, 1), np.uint8), np.empty(0, np.int64)

    is_valid = pixels.dtype.kind in "iuf" and pixels.shape[1:] == (_SIDE**2,)
    if not is_valid or not ((pixels >= 0) & (pixels <= 1)).all():
        raise wrong_content(
            path, f"images of {_SIDE**2} numbers from 0 to 1 of '{writer}'", "others"
        )

    check_count(path, labels, pixels)
    images = (pixels.astype(np.float64) * 255).astype(np.uint8).reshape(-1, _SIDE, _SIDE, 1)
    return images, check_labels(labels, len(_CLASSES), where=f"{path}, writer '{writer}'")


def _characters(path: Path, role: str, x: list[Any], y: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return features (rows, 800) and labels (rows,) of a role."""
    if not _are_texts(x, _TEXT) or not _are_texts(y, 1):
        raise wrong_content(
            path, f"texts of {_TEXT} characters, and the next one, of '{role}'", "others"
        )

    check_count(path, y, x)
    context = [_places(text[-_CONTEXT:]) for text in x]
    places = np.asarray(context, np.int64).reshape(-1, _CONTEXT)
    features = np.eye(len(_ALPHABET), dtype=np.float32)[places]
    features = features.reshape(len(x), _CONTEXT * len(_ALPHABET))
    return features, np.asarray(_places(y), np.int64)


def _are_texts(values: list[Any], length: int) -> bool:
    """Return whether these are texts of so many characters."""
    return all(isinstance(value, str) and len(value) == length for value in values)


def _places(characters: Iterable[str]) -> list[int]:
    """Return the places of characters in the alphabet; the last one for any other."""
    return [_PLACES.get(character, len(_ALPHABET) - 1) for character in characters]
