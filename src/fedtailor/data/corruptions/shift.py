"""Covariate shift: the corruptions of the clients' images (CIFAR-S of pFedFDA)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedtailor.core.errors import DataError, find_name
from fedtailor.core.options import NonNegativeInt, build, check_options, wrong_value
from fedtailor.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from fedtailor.data.corruptions.kinds import MOTION_NOTE, WHITE
from fedtailor.data.corruptions.pictures import APPROXIMATE_NOTE, load_frost
from fedtailor.data.dataset import Dataset
from fedtailor.data.partitions import read_expression

KEY = "data.shift"
"""The option that describes a shift."""

_CHUNK = 1000  # images between two reports of progress


class Pair(NamedTuple):
    """A corruption and its severity."""

    kind: str
    severity: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.severity}"


NEW_PAIRS = tuple(Pair(kind, 3) for kind in CORRUPTIONS)
"""The corruptions under which new clients are evaluated with ``new='all'``."""


@dataclass(frozen=True)
class CifarS:
    """CIFAR-S (McLaughlin and Su 2024, NeurIPS, section 5.1): images of the first clients change.

    All images of these clients are corrupted. With the pairing ``release`` client ``i``, counted
    from 0, gets corruption ``i mod 10`` and severity ``i mod 5 + 1``. These are only ten pairs,
    since 5 divides 10. With ``unique``, as in the paper, it gets corruption ``i div 5``: 50 pairs,
    which repeat from client 50 on.
    """

    clients: NonNegativeInt = 50
    """Number of clients, from the first on, whose images are corrupted."""
    pairing: Literal["release", "unique"] = "release"
    new: Literal["clean", "all"] = "clean"
    """New clients: clean, or each evaluated clean and under every corruption at severity 3."""

    def __post_init__(self) -> None:
        check_options(self, owner="cifar_s")


def parse_shift(text: str) -> CifarS:
    """Read a shift such as ``cifar_s(clients=50, pairing='unique')``.

    Raises:
        ConfigError: a name or an option is unknown (the message gives the nearest one), or a value
            is wrong.
    """
    name, options = read_expression(text, key=KEY, example="cifar_s(clients=50, pairing='release')")
    name = find_name("shift", name, ["cifar_s"], key=KEY)
    return build(CifarS, options, section=name)


def pairs(shift: CifarS, num_known: int) -> list[Pair | None]:
    """Return the corruption of each client that is not new; None: its images stay clean.

    Raises:
        ConfigError: more clients are to be corrupted than there are.

    Example:
        >>> [str(pair) for pair in pairs(CifarS(clients=2), num_known=3)]
        ['motion_blur-1', 'defocus_blur-2', 'None']
    """
    if shift.clients > num_known:
        allowed = f"at most {num_known}, the number of clients that are not new"
        raise wrong_value("cifar_s.clients", allowed, shift.clients)

    # Both pairings count severities by client; they differ in how fast corruptions change.
    kinds = list(CORRUPTIONS)
    divisor = 1 if shift.pairing == "release" else len(SEVERITIES)
    corruptions: list[Pair | None] = [None] * num_known
    for client in range(shift.clients):
        kind = kinds[client // divisor % len(kinds)]
        corruptions[client] = Pair(kind, SEVERITIES[client % len(SEVERITIES)])

    return corruptions


def apply_shift(
    dataset: Dataset,
    positions_by_client: Sequence[np.ndarray],
    pairs: Sequence[Pair | None],
    *,
    seed: int,
    frost_folder: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Dataset, list[np.ndarray]]:
    """Append corrupted copies of clients' examples to a data set.

    An example that two clients have under the same pair is copied once. ``num_official_train``
    stays, since it counts published examples. Copies come after these, and are neither official
    training nor test examples, so a data set must be divided among clients before it gets copies.

    Args:
        dataset: images as published.
        positions_by_client: of each client's examples, (n,) each.
        pairs: the corruption of each client; None: its images stay clean.
        seed: seed of everything random in the corruptions.
        frost_folder: folder for photographs of frost; without them a drawn texture approximates
            frost.
        progress: called with the number of copies made so far, and of all.

    Returns:
        The data set with its copies, and for each client the positions of its copies, in the order
        of ``positions_by_client``.

    Raises:
        DataError: the examples are not 8-bit images, or a photograph of frost is missing or
            damaged.
    """
    check_images(dataset)
    used = _positions_by_pair(positions_by_client, pairs)
    if not used:
        return dataset, list(positions_by_client)

    sources = dict(dataset.sources)
    notes = list(dataset.notes)
    frost = _frost(used, frost_folder, sources, notes)

    # The published images, then the copies of one pair after the other.
    published = len(dataset.y)
    total = sum(map(len, used.values()))
    x = np.empty((published + total, *dataset.x.shape[1:]), np.uint8)
    x[:published] = dataset.x
    first: dict[Pair, int] = {}
    end = published
    for corruption, positions in used.items():
        first[corruption] = end
        for start in range(0, len(positions), _CHUNK):
            part = positions[start : start + _CHUNK]
            copies = corrupt(dataset.x[part], *corruption, positions=part, seed=seed, frost=frost)
            x[end : end + len(part)] = copies
            end += len(part)
            progress(end - published, total)

    # Copies have the labels, groups, subclasses and domains of their originals.
    origin = np.concatenate([np.arange(published), *used.values()])
    annotations = dataset.annotations.take(origin)
    corrupted = dataclasses.replace(
        dataset,
        x=x,
        y=annotations.labels,
        subclasses=annotations.subclasses,
        groups=None if dataset.groups is None else dataset.groups[origin],
        domains=annotations.domains,
        partial=dataset.subset,  # copies do not count
        official_size=-1,
        sources=sources,
        notes=tuple(notes),
    )

    # Where the copies of a client's examples are, in the same order.
    moved = []
    for positions, pair in zip(positions_by_client, pairs, strict=True):
        if pair is not None:
            positions = first[pair] + np.searchsorted(used[pair], positions)
        moved.append(positions)

    return corrupted, moved


def _positions_by_pair(
    positions_by_client: Sequence[np.ndarray], pairs: Sequence[Pair | None]
) -> dict[Pair, np.ndarray]:
    """Return the positions that are corrupted by each pair, sorted and without repetition."""
    positions_of: dict[Pair, list[np.ndarray]] = {}
    for positions, pair in zip(positions_by_client, pairs, strict=True):
        if pair is not None:
            positions_of.setdefault(pair, []).append(positions)

    return {pair: np.unique(np.concatenate(parts)) for pair, parts in positions_of.items()}


def _frost(
    used: Mapping[Pair, np.ndarray], folder: Path, sources: dict[str, str], notes: list[str]
) -> list[np.ndarray]:
    """Return photographs of frost if they are used, and add the notes on the corruptions."""
    kinds = {pair.kind for pair in used}
    if "motion_blur" in kinds:
        notes.append(MOTION_NOTE)
    if "frost" not in kinds:
        return []

    pictures = load_frost(folder, sources)
    if not pictures:
        notes.append(APPROXIMATE_NOTE)

    return pictures


def check_images(dataset: Dataset) -> None:
    """Check that a data set has images that can be corrupted.

    Raises:
        DataError: it has other examples.
    """
    shape = dataset.x.shape
    is_image = dataset.x.dtype == np.uint8 and len(shape) == 4 and shape[-1] in (1, 3)
    if not is_image or dataset.white != WHITE:
        allowed = "8-bit images, gray or RGB, with 255 for white"
        values = f"examples of type {dataset.x.dtype} and shape {shape[1:]}"
        got = f"{values} with {dataset.white:g} for white"
        message = f"{KEY} needs {allowed}; data set '{dataset.name}' has {got}."
        raise DataError(message, key=KEY, allowed=allowed, got=got)
