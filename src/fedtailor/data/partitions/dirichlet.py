"""Partitions at random: equal parts, and two in which a Dirichlet distribution draws the shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedtailor.core.options import NonNegativeFloat, NonNegativeInt, PositiveFloat
from fedtailor.core.text import counted
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions.base import Partition, as_text, hand_out, positions_by_value

MAX_DRAWS = 50_000
"""Most draws of a Dirichlet partition."""
_FIRST_DRAWS = 20
_HOPELESS = 30
"""The draws stop early if each of the first ``_FIRST_DRAWS`` leaves more than ``_HOPELESS`` clients
with too few examples. With 11 such clients on average, independent of each other, only one draw in
50,000 succeeds."""
_MAX_CELLS = 4_000_000
"""Most numbers held at once while classes are drawn: examples times classes."""
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """Equal parts of all examples at random; sizes differ by at most one."""

    name = "iid"

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Cut one random order of all examples into equal parts."""
        generator = np.random.RandomState(seed % 2**32)
        return np.array_split(generator.permutation(len(annotations.labels)), clients)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Each class is shared in proportions from a symmetric Dirichlet distribution over clients.

    Clients that already hold an even share of all examples get no examples of further classes. All
    shares are drawn again until every client has ``min_size`` examples. The random stream is that
    of pFedFDA's released code (McLaughlin and Su 2024, NeurIPS): with seed 42 and ``min_size`` 62.5
    the result is its partition.
    """

    name = "dirichlet"

    alpha: PositiveFloat
    """Concentration: clients differ more for smaller values."""
    min_size: NonNegativeFloat = 10.0
    """Least number of examples of a client."""

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Draw until every client has enough examples."""
        generator = np.random.RandomState(seed % 2**32)
        _, by_class = positions_by_value(annotations.labels)
        rule = ShareRule(clients, self.alpha, self.min_size)
        return draw_shares(self, by_class, rule, generator)


class ShareRule(NamedTuple):
    """How classes are shared among clients."""

    clients: int
    """Number of clients."""
    alpha: float
    """Concentration."""
    min_size: float
    """Least number of examples of a client."""


def draw_shares(
    partition: Partition,
    by_class: list[np.ndarray],
    rule: ShareRule,
    generator: np.random.RandomState,
    where: str = "",
) -> list[np.ndarray]:
    """Return the positions of each client, drawn until every client has ``rule.min_size``.

    Args:
        partition: the partition that error messages name.
        by_class: positions of each class, in ascending order.
        rule: how classes are shared.
        generator: source of random numbers, used in the order of the release.
        where: the examples that error messages name, such as `` of domain 2``.

    Raises:
        DataError: a client has too few examples in every draw.
    """
    # Too few examples for any draw.
    rows = sum(map(len, by_class))
    needed = rule.min_size * rule.clients
    clients = counted(rule.clients, "client")
    least = f"at least {as_text(rule.min_size)} examples{where} for each of {clients}"
    if needed > rows:
        raise partition.impossible(f"{least}, together {as_text(needed)}", str(rows))

    # Draws that almost succeed may succeed later; hopeless ones stop early.
    fewest_short = rule.clients
    draws = 0
    while draws < MAX_DRAWS and (draws < _FIRST_DRAWS or fewest_short <= _HOPELESS):
        pieces, num_short = _draw_once(by_class, rule, generator)
        if not num_short:
            return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]

        fewest_short = min(fewest_short, num_short)
        draws += 1

    got = f"fewer for at least {fewest_short} of them in each of {draws} draws"
    raise partition.impossible(least, f"{got}; raise alpha, or lower min_size or clients")


def _draw_once(
    by_class: list[np.ndarray], rule: ShareRule, generator: np.random.RandomState
) -> tuple[list[list[np.ndarray]], int]:
    """Return the pieces of each class by client, and the number of clients with too few.

    There are no pieces if there are such clients. Random numbers are consumed in the released
    order: for every class a shuffle, then the proportions.
    """
    # The examples that each client has so far decide who takes part in the next class.
    sizes = np.zeros(rule.clients, dtype=np.int64)
    even_share = sum(map(len, by_class)) / rule.clients
    orders = []
    cuts = []
    for positions in by_class:
        order = positions.copy()
        generator.shuffle(order)

        # Zero or NaN if all clients that drew a share are full, or alpha is too small.
        drawn = generator.dirichlet(np.full(rule.clients, rule.alpha))
        shares = drawn * (sizes < even_share)
        total = shares.sum()
        if not total > 0:
            return [], rule.clients

        # Products in floating point, cut off, as in the release.
        ends = np.cumsum(shares / total) * len(order)
        cut = ends.astype(np.int64)[:-1]
        sizes += np.diff(cut, prepend=0, append=len(order))
        orders.append(order)
        cuts.append(cut)

    num_short = int(np.count_nonzero(sizes < rule.min_size))
    if num_short:
        return [], num_short
    return list(map(np.split, orders, cuts)), 0


@dataclass(frozen=True, kw_only=True)
class DirichletQuota(Partition):
    """Every client has ``quota`` examples, with classes from its own Dirichlet prior.

    The distribution is that of FedLDA (2023, FL@FM workshop at NeurIPS; volumes of 500 to 2000) and
    of FedCR's second setting (Zhang et al. 2023, ICML; ``non-iid_2``: quota 0), but not the random
    stream of their code: one example at a time, a client is chosen at random among those that are
    not full, and a class from its prior, drawn again while no example of that class is left. The
    code of pFedFDA gives up after 1000 draws and starts again with a quota smaller by 50. Here
    drawing continues, so that every client has exactly its quota; the clients filled last differ
    from their priors as classes run out.
    """

    name = "dirichlet_quota"

    alpha: PositiveFloat
    """Concentration: clients have fewer classes for smaller values."""
    quota: NonNegativeInt = 0
    """Examples of a client; 0: all examples are shared equally, and a remainder is left over."""

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Draw the order of serving, then the classes, then hand out shuffled examples."""
        rows = len(annotations.labels)
        quota = self.quota or rows // clients
        if quota * clients > rows:
            allowed = f"at least {quota} x {clients} = {quota * clients} examples"
            raise self.impossible(allowed, str(rows))

        # The order of these calls is that of the random numbers.
        generator = np.random.default_rng([seed])
        _, by_class = positions_by_value(annotations.labels)
        pools = [generator.permutation(positions) for positions in by_class]
        owners = draw_owners(clients, quota, generator)
        log_weights = draw_log_weights(self.alpha, (clients, len(pools)), generator)
        classes = draw_classes(owners, log_weights, [len(pool) for pool in pools], generator)
        return hand_out(pools, classes, owners, clients)


def draw_owners(clients: int, quota: int, generator: np.random.Generator) -> np.ndarray:
    """Return clients in the order in which they are served, (clients * quota,).

    Each time one that is not full is chosen. To draw from all clients and drop those that are full
    gives the same distribution, and works for many at once.
    """
    needs = np.full(clients, quota)
    parts = []
    while needs.any():
        block = generator.choice(np.flatnonzero(needs), needs.sum())
        counts = np.bincount(block, minlength=clients)

        # A client is full once it has occurred as often as it needs.
        turns = _earlier_occurrences(block, counts)
        parts.append(block[turns < needs[block]])
        needs = needs - np.minimum(counts, needs)

    return np.concatenate(parts)


def _earlier_occurrences(block: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return for each entry how often its value occurs before it, (n,).

    Args:
        block: (n,), whole numbers.
        counts: how often each number occurs.
    """
    # Sorted, equal values stand together: their turns are the ranks in their group.
    group_starts = np.cumsum(counts) - counts
    turns_in_groups = np.arange(len(block)) - np.repeat(group_starts, counts)

    turns = np.empty_like(block)
    turns[np.argsort(block, kind="stable")] = turns_in_groups
    return turns


def draw_log_weights(
    alpha: float, shape: tuple[int, int], generator: np.random.Generator
) -> np.ndarray:
    """Return logarithms of gamma variables: normalized rows follow a Dirichlet distribution.

    They are computed as G(alpha) = G(alpha + 1) U^(1 / alpha), so that a small alpha does not make
    a whole row zero.
    """
    uniform = 1.0 - generator.random(shape)  # in (0, 1]
    gamma = generator.gamma(alpha + 1, size=shape)
    with np.errstate(over="ignore"):
        log_weights = np.log(gamma) + np.log(uniform) / alpha

    # Finite, so that rows of log weights can be subtracted.
    return np.maximum(log_weights, -1e300)


def draw_classes(
    owners: np.ndarray, log_weights: np.ndarray, sizes: list[int], generator: np.random.Generator
) -> np.ndarray:
    """Return the class of each example in the order of serving, (n,).

    Each is drawn from its owner's prior over the classes that have examples left. All classes are
    drawn at once. Then, for each class in the order in which they are used up, the examples that
    drew it later draw again. Examples that drew another class keep it, which gives the same
    distribution as drawing until a class with examples left is found.

    Args:
        owners: (n,), the client that gets each example.
        log_weights: (clients, classes), each row a prior up to a factor.
        sizes: number of examples of each class, at least 1 each and at least n together.
        generator: source of random numbers.
    """
    # All examples at once, as if no class could be used up.
    is_open = np.ones(len(sizes), dtype=bool)
    classes = _choose(log_weights, owners, is_open, generator)

    # The times at which each class is drawn, ascending, and the time at which it is used up.
    times = [np.flatnonzero(classes == label) for label in range(len(sizes))]
    ends = np.array(list(map(_time_used_up, times, sizes)))
    while ends.min() < _NEVER:
        # The class that is used up first: whoever drew it later draws again.
        used_up = int(ends.argmin())
        is_open[used_up] = False
        ends[used_up] = _NEVER
        late = times[used_up][sizes[used_up] :]
        if not len(late):
            continue

        # Other classes are drawn at more times now, and may be used up earlier.
        redrawn = _choose(log_weights, owners[late], is_open, generator)
        classes[late] = redrawn
        for label in np.unique(redrawn).tolist():
            new_times = late[redrawn == label]
            times[label] = np.sort(np.concatenate([times[label], new_times]))
            ends[label] = _time_used_up(times[label], sizes[label])

    return classes


def _time_used_up(times: np.ndarray, size: int) -> int:
    """Return when a class of ``size`` examples is used up, if it is drawn at these times."""
    return int(times[size - 1]) if len(times) >= size else _NEVER


def _choose(
    log_weights: np.ndarray, owners: np.ndarray, is_open: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Return a class for each owner (n,) from its prior over the open classes."""
    classes = np.flatnonzero(is_open)
    chosen = np.empty(len(owners), dtype=np.int64)

    # In parts, since every example needs a number for every class.
    step = max(_MAX_CELLS // len(classes), 1)
    for start in range(0, len(owners), step):
        part = slice(start, start + step)

        # Cumulative weights, (examples, classes), relative to the largest of a row.
        logs = log_weights[owners[part]][:, classes]
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        ends = np.cumsum(weights, axis=1)

        # Their inverse at a uniform point, which rounding may put behind the last class.
        points = generator.random((len(logs), 1)) * ends[:, -1:]
        ranks = (ends <= points).sum(axis=1)
        chosen[part] = classes[np.minimum(ranks, len(classes) - 1)]

    return chosen
