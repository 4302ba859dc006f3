"""The quota partition: every client has the same number of examples, with classes from its own
Dirichlet prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedtailor.core.options import Range
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions._dealing import hand_out, positions_by_value
from fedtailor.data.partitions.base import Partition

_MAX_CELLS = 4_000_000
"""Most numbers held at once while classes are drawn: examples times classes."""
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class DirichletQuota(Partition):
    """Every client has ``quota`` examples; their classes follow a prior drawn from a symmetric
    Dirichlet distribution.

    The distribution is that of FedLDA (2023, FL@FM workshop at NeurIPS; volumes of 500 to 2000) and
    of FedCR's second setting (Zhang et al. 2023, ICML; ``non-iid_2``: quota 0), but not the random
    stream of their code: one example at a time, a client is chosen at random among those that are
    not full, and a class from its prior, drawn again while no example of that class is left. The
    code of pFedFDA gives up after 1000 draws and starts again with a quota smaller by 50. Here
    drawing continues, so that every client has exactly its quota; the clients filled last differ
    from their priors as classes run out.
    """

    name = "dirichlet_quota"
    hands_out_all = False

    alpha: Annotated[float, Range(gt=0)]
    """Concentration: clients have fewer classes for smaller values."""
    quota: Annotated[int, Range(ge=0)] = 0
    """Examples of a client; 0: all examples are shared equally, and a remainder is left over."""

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Draw the order in which clients are served, then the classes, then hand out shuffled
        examples.
        """
        rows = len(annotations.labels)
        quota = self.quota or rows // clients
        if quota * clients > rows:
            raise self.impossible(
                f"at least {quota} x {clients} = {quota * clients} examples", str(rows)
            )

        generator = np.random.default_rng([seed])
        _, by_class = positions_by_value(annotations.labels)
        pools = [generator.permutation(positions) for positions in by_class]
        owners = draw_owners(clients, quota, generator)
        log_weights = draw_log_weights(self.alpha, (clients, len(pools)), generator)
        classes = draw_classes(owners, log_weights, [len(pool) for pool in pools], generator)

        return hand_out(pools, classes, owners, clients)


def draw_owners(clients: int, quota: int, generator: np.random.Generator) -> np.ndarray:
    """Return clients in the order in which they are served, (clients * quota,), each time one that
    is not full.

    To draw from all clients and drop those that are full gives the same distribution, and works for
    many at once.
    """
    needs = np.full(clients, quota)
    parts = []
    while needs.any():
        not_full = np.flatnonzero(needs)
        block = generator.choice(not_full, needs.sum())
        order = np.argsort(block, kind="stable")
        counts = np.bincount(block, minlength=clients)
        turns = np.empty_like(block)  # earlier occurrences of the same client
        turns[order] = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
        parts.append(block[turns < needs[block]])
        needs = needs - np.minimum(counts, needs)

    return np.concatenate(parts)


def draw_log_weights(
    alpha: float, shape: tuple[int, int], generator: np.random.Generator
) -> np.ndarray:
    """Return logarithms of gamma variables with shape ``alpha``: normalized rows follow a Dirichlet
    distribution.

    They are computed as G(alpha) = G(alpha + 1) U^(1 / alpha), so that a small alpha does not make
    a whole row zero.
    """
    uniform = 1.0 - generator.random(shape)  # in (0, 1]
    with np.errstate(over="ignore"):
        log_weights = np.log(generator.gamma(alpha + 1, size=shape)) + np.log(uniform) / alpha
    return np.maximum(log_weights, -1e300)


def draw_classes(
    owners: np.ndarray, log_weights: np.ndarray, sizes: list[int], generator: np.random.Generator
) -> np.ndarray:
    """Return the class of each example in the order of serving, (n,), from its owner's prior over
    the classes left.

    All classes are drawn at once. Then, for each class in the order in which they are used up, the
    examples that drew it later draw again. Examples that drew another class keep it, which gives
    the same distribution as drawing until a class with examples left is found.

    Args:
        owners: (n,), the client that gets each example.
        log_weights: (clients, classes), each row a prior up to a factor.
        sizes: number of examples of each class, at least 1 each and at least n together.
        generator: source of random numbers.
    """
    is_open = np.ones(len(sizes), dtype=bool)
    drawn = _choose(log_weights, owners, is_open, generator)
    times = [
        np.flatnonzero(drawn == each) for each in range(len(sizes))
    ]  # ascending, of the draws of each class
    ends = np.array([_end(*each) for each in zip(times, sizes, strict=True)])

    while ends.min() < _NEVER:
        used_up = int(ends.argmin())
        is_open[used_up] = False
        ends[used_up] = _NEVER
        late = times[used_up][sizes[used_up] :]
        if not len(late):
            continue

        again = _choose(log_weights, owners[late], is_open, generator)
        drawn[late] = again
        for each in np.unique(again).tolist():
            times[each] = np.sort(np.concatenate([times[each], late[again == each]]))
            ends[each] = _end(times[each], sizes[each])

    return drawn


def _end(times: np.ndarray, size: int) -> int:
    """Return the time at which a class is used up."""
    return int(times[size - 1]) if len(times) >= size else _NEVER


def _choose(
    log_weights: np.ndarray, owners: np.ndarray, is_open: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Return a class for each owner (n,) from its prior over the open classes."""
    classes = np.flatnonzero(is_open)
    chosen = np.empty(len(owners), dtype=np.int64)
    step = max(_MAX_CELLS // len(classes), 1)
    for start in range(0, len(owners), step):
        part = log_weights[owners[start : start + step]][:, classes]
        ends = np.cumsum(np.exp(part - part.max(axis=1, keepdims=True)), axis=1)
        points = generator.random((len(part), 1)) * ends[:, -1:]
        chosen[start : start + step] = classes[
            np.minimum((ends <= points).sum(axis=1), len(classes) - 1)
        ]

    return chosen
