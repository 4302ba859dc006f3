"""Covariate shift: clients whose images are corrupted, each in its own way (CIFAR-S of pFedFDA)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np

from fedtailor.core.errors import ConfigError, DataError, find_name
from fedtailor.core.options import Range, build, check_options
from fedtailor.data.corruptions import CORRUPTIONS, SEVERITIES
from fedtailor.data.corruptions.batch import WHITE
from fedtailor.data.corruptions.blur import MOTION_NOTE
from fedtailor.data.corruptions.copies import corrupted_copies
from fedtailor.data.corruptions.pictures import APPROXIMATE_NOTE, draw_frost, load_frost
from fedtailor.data.dataset import Dataset
from fedtailor.data.partitions.text import read_expression

KEY = "data.shift"
"""The option that describes a shift."""


class Pair(NamedTuple):
    """A corruption and its severity."""

    kind: str
    severity: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.severity}"


NEW_PAIRS = tuple(Pair(kind, 3) for kind in CORRUPTIONS)
"""What is done to new clients where they are evaluated under every corruption."""


@dataclass(frozen=True)
class CifarS:
    """CIFAR-S (McLaughlin and Su 2024, NeurIPS, section 5.1): the first clients' images are corrupted, all of each.

    Client ``i`` gets, counting from 0, corruption ``i mod 10`` and severity ``i mod 5 + 1`` with the pairing
    ``release``. These are ten pairs only, as 5 divides 10. With ``unique``, as the paper says, it gets corruption
    ``i div 5``: 50 pairs, which start anew from client 50 on.
    """

    clients: Annotated[int, Range(ge=0)] = 50
    """The first so many clients are corrupted."""
    pairing: Literal["release", "unique"] = "release"
    new: Literal["clean", "all"] = "clean"
    """New clients: clean, or each evaluated clean and under every corruption at severity 3."""

    def __post_init__(self) -> None:
        check_options(self, owner="cifar_s")


def parse_shift(text: str) -> CifarS | None:
    """Read a shift such as ``cifar_s(clients=50, pairing='unique')``; empty: None.

    Raises:
        ConfigError: unknown name or option (with the nearest one), or a wrong value.
    """
    if not text.strip():
        return None
    name, options = read_expression(text, key=KEY, example="cifar_s(clients=50, pairing='release')")
    name = find_name("shift", name, ["cifar_s"], key=KEY)
    return build(CifarS, options, section=name)


def pairs(shift: CifarS, num_known: int) -> list[Pair | None]:
    """Return what is done to each client that takes part in training; None: nothing.

    Raises:
        ConfigError: more clients are to be corrupted than there are.

    Example:
        >>> [str(pair) for pair in pairs(CifarS(clients=2), num_known=3)]
        ['motion_blur-1', 'defocus_blur-2', 'None']
    """
    if shift.clients > num_known:
        allowed = f"at most {num_known}, the number of clients that are not new"
        raise ConfigError(
            f"cifar_s.clients must be {allowed}, got {shift.clients}.", key=KEY, allowed=allowed, got=shift.clients
        )
    kinds, levels = list(CORRUPTIONS), len(SEVERITIES)
    divisor = 1 if shift.pairing == "release" else levels
    done = [Pair(kinds[i // divisor % len(kinds)], SEVERITIES[i % levels]) for i in range(shift.clients)]
    return [*done, *[None] * (num_known - shift.clients)]


def apply_shift(
    dataset: Dataset,
    rows_by_client: Sequence[np.ndarray],
    pairs: Sequence[Pair | None],
    *,
    seed: int,
    frost_folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Dataset, list[np.ndarray]]:
    """Append corrupted copies of clients' examples to a data set.

    An example that two clients have under the same pair is copied once. ``num_official_train`` stays, as it counts
    among the published rows; copies, which come behind them, are neither official training nor test rows, so a data
    set is divided among clients before it gets any.

    Args:
        dataset: images as published.
        rows_by_client: each client's rows of the data set, (n,) each.
        pairs: what is done to each client; None: nothing.
        seed: of all that is random about corruptions.
        frost_folder: where photographs of frost may be; the texture that is drawn otherwise is an approximation.
        progress: called with the number of copies there are, and of all.

    Returns:
        The data set with its copies, and for each client the rows of its copies, in the order of ``rows_by_client``.

    Raises:
        DataError: not images of 8 bits, or a photograph of frost is missing or damaged.
    """
    check_images(dataset)
    used = {
        pair: np.unique(
            np.concatenate([rows for rows, other in zip(rows_by_client, pairs, strict=True) if other == pair])
        )
        for pair in dict.fromkeys(pair for pair in pairs if pair is not None)
    }
    if not used:
        return dataset, list(rows_by_client)
    sources, notes = dict(dataset.sources), list(dataset.notes)
    frost = _frost(used, frost_folder, sources, notes)
    x, first = _append(dataset, used, seed, frost, progress)
    origin = np.concatenate([np.arange(len(dataset.y)), *used.values()])
    annotations = dataset.annotations.take(origin)
    corrupted = dataclasses.replace(
        dataset,
        x=x,
        y=annotations.labels,
        subclasses=annotations.subclasses,
        domains=annotations.domains,
        partial=dataset.subset,  # copies do not count
        official_size=-1,
        sources=sources,
        notes=tuple(notes),
    )
    moved = [
        rows if pair is None else first[pair] + np.searchsorted(used[pair], rows)
        for rows, pair in zip(rows_by_client, pairs, strict=True)
    ]
    return corrupted, moved


def _frost(
    used: Mapping[Pair, np.ndarray], folder: Path, sources: dict[str, str], notes: list[str]
) -> list[np.ndarray]:
    """Return pictures of frost if they are used, and note what a reader of results should know of the corruptions."""
    kinds = {pair.kind for pair in used}
    if "motion_blur" in kinds:
        notes.append(MOTION_NOTE)
    if "frost" not in kinds:
        return []
    photographs = load_frost(folder, sources)
    if not photographs:
        notes.append(APPROXIMATE_NOTE)
    return photographs or draw_frost()


def _append(
    dataset: Dataset,
    used: Mapping[Pair, np.ndarray],
    seed: int,
    frost: Sequence[np.ndarray],
    progress: Callable[[int, int], None] | None,
) -> tuple[np.ndarray, dict[Pair, int]]:
    """Return all images, the published ones first, and where the copies of each pair begin."""
    total = sum(map(len, used.values()))
    x = np.empty((len(dataset.x) + total, *dataset.x.shape[1:]), np.uint8)
    x[: len(dataset.x)] = dataset.x
    first: dict[Pair, int] = {}
    start = len(dataset.x)
    for pair, rows in used.items():
        first[pair] = start
        report = partial(_report, progress, start - len(dataset.x), total) if progress else None
        x[start : start + len(rows)] = corrupted_copies(
            dataset.x, rows, *pair, digest=dataset.digest, seed=seed, frost=frost, progress=report
        )
        start += len(rows)
    return x, first


def _report(progress: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    progress(before + done, total)


def check_images(dataset: Dataset) -> None:
    """Check that a data set has images that can be corrupted.

    Raises:
        DataError: it has not.
    """
    allowed = "images of 8 bits, gray or RGB, with 255 for white"
    shape = dataset.x.shape
    if dataset.x.dtype != np.uint8 or len(shape) != 4 or shape[-1] not in (1, 3) or dataset.white != WHITE:
        got = f"examples of type {dataset.x.dtype} and shape {shape[1:]} with {dataset.white:g} for white"
        raise DataError(
            f"{KEY} needs {allowed}; data set '{dataset.name}' has {got}.", key=KEY, allowed=allowed, got=got
        )
