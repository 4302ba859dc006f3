"""Every client has the same number of examples, of classes drawn from its own Dirichlet prior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedtailor.core.options import Range
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions.base import Partition
from fedtailor.data.partitions.dealing import hand_out, positions_by_value

_MAX_CELLS = 4_000_000
"""Numbers held at once while classes are drawn: examples times classes."""
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class DirichletQuota(Partition):
    """Every client has ``quota`` examples; their classes follow a prior drawn from a symmetric Dirichlet distribution.

    The law is that of FedLDA (2023, FL@FM workshop at NeurIPS; volumes of 500 to 2000) and of FedCR's second setting
    (Zhang et al. 2023, ICML; ``non-iid_2``: quota 0), not the random stream of their codes: an example at a time, a
    client is chosen at random among those that are not full, and a class from its prior, drawn again while no example
    of that class is left. The code of pFedFDA gives up after 1000 such drawings and starts anew with a quota
    smaller by 50. Here drawing goes on, so that every client has exactly its quota; the clients filled last differ
    from their priors as far as classes have run out.
    """

    name = "dirichlet_quota"
    hands_out_all = False

    alpha: Annotated[float, Range(gt=0)]
    """Concentration: the smaller, the fewer classes a client has."""
    quota: Annotated[int, Range(ge=0)] = 0
    """Examples of a client; 0: all examples shared equally, what the number of clients does not divide is left over."""

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Draw who is served when, then the classes, then hand out shuffled examples."""
        rows = len(annotations.labels)
        quota = self.quota or rows // clients
        if quota * clients > rows:
            raise self.impossible(f"at least {quota} x {clients} = {quota * clients} examples", str(rows))
        generator = np.random.default_rng([seed])
        _, by_class = positions_by_value(annotations.labels)
        pools = [generator.permutation(positions) for positions in by_class]
        owners = draw_owners(clients, quota, generator)
        log_weights = draw_log_weights(self.alpha, (clients, len(pools)), generator)
        classes = draw_classes(owners, log_weights, [len(pool) for pool in pools], generator)
        return hand_out(pools, classes, owners, clients)


def draw_owners(clients: int, quota: int, generator: np.random.Generator) -> np.ndarray:
    """Return clients in the order they are served, (clients * quota,): each time one of those not full.

    Drawing among all and leaving out who is full is the same law, and can be done for many at once.
    """
    needs = np.full(clients, quota)
    parts = []
    while len(not_full := np.flatnonzero(needs)):
        block = generator.choice(not_full, needs.sum())
        order = np.argsort(block, kind="stable")
        counts = np.bincount(block, minlength=clients)
        turns = np.empty_like(block)  # how often the same client occurred before
        turns[order] = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
        parts.append(block[turns < needs[block]])
        needs = needs - np.minimum(counts, needs)
    return np.concatenate(parts)


def draw_log_weights(alpha: float, shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Return logarithms of gamma variables with shape ``alpha``: normalized rows follow a Dirichlet distribution.

    By G(alpha) = G(alpha + 1) U^(1 / alpha), so that a small alpha does not make all of a row zero.
    """
    uniform = 1.0 - generator.random(shape)  # in (0, 1]
    with np.errstate(over="ignore"):
        log_weights = np.log(generator.gamma(alpha + 1, size=shape)) + np.log(uniform) / alpha
    return np.maximum(log_weights, -1e300)


def draw_classes(
    owners: np.ndarray, log_weights: np.ndarray, sizes: list[int], generator: np.random.Generator
) -> np.ndarray:
    """Return the class of each example in the order of serving, (n,): from its owner's prior over classes not used up.

    All are drawn at once; then, for each class in the order in which they are used up, what drew it afterwards draws
    again. An example that drew another class keeps it, which is the law of drawing until a class is left.

    Args:
        owners: (n,), the client that gets each example.
        log_weights: (clients, classes), each row a prior up to a factor.
        sizes: examples of each class, 1 or more each, n or more together.
        generator: source of random numbers.
    """
    is_open = np.ones(len(sizes), dtype=bool)
    drawn = _choose(log_weights, owners, is_open, generator)
    times = [np.flatnonzero(drawn == each) for each in range(len(sizes))]  # ascending, when each class is wanted
    ends = np.array([_end(*each) for each in zip(times, sizes, strict=True)])
    while ends.min() < _NEVER:
        used_up, size = int(ends.argmin()), sizes[ends.argmin()]
        is_open[used_up], ends[used_up] = False, _NEVER
        late = times[used_up][size:]
        if not len(late):
            continue
        drawn[late] = again = _choose(log_weights, owners[late], is_open, generator)
        for each in np.unique(again).tolist():
            times[each] = np.sort(np.concatenate([times[each], late[again == each]]))
            ends[each] = _end(times[each], sizes[each])
    return drawn


def _end(times: np.ndarray, size: int) -> int:
    """Return when a class is used up."""
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
        chosen[start : start + step] = classes[np.minimum((ends <= points).sum(axis=1), len(classes) - 1)]
    return chosen
