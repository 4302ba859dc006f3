"""Robust reductions: means that a few clients with wrong or hostile numbers cannot move far.

They reduce the fields that a method declares as :class:`~fedtailor.core.message.Mean`; no method
knows of them. What clients send is compared as a change: the difference from what the server sent
them in the field of the same name, or the value itself if it sent none. Rows of weight 0, which
were not sent, do not count.

* ``norm_clip``: changes longer than the median of the cohort are shortened to it, field by field,
  and averaged by their weights. Norm bounding: Sun et al. 2019, "Can you really backdoor federated
  learning?", arXiv:1911.07963; the median as the bound needs no option.
* ``median``, ``trimmed_mean``: entry by entry, the median of the clients, or the mean without a
  share of the largest and of the smallest values. Each client counts once, without its weight. Yin
  et al. 2018, "Byzantine-robust distributed learning: towards optimal statistical rates", ICML.
* ``krum``: a share of the clients is left out: those whose whole upload is farthest from the
  uploads nearest to it. The others are averaged by their weights. Multi-Krum: Blanchard et al.
  2017, "Machine learning with adversaries: Byzantine tolerant gradient descent", NeurIPS.

All arithmetic is in float64, and its result depends on who sent what and on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.devices import to_host
from fedtailor.core.message import Field, Mean, Messages, Reduced, Upload, sent_rows, spread
from fedtailor.core.reduction import reduce_field, tree_sum

_CHUNK_NUMBERS = 2**23
"""Numbers of all clients that are sorted or multiplied at once (64 MiB)."""
_ROUNDING = 1e-9
"""A whole number of clients may come out a little too small, such as 0.29 * 100."""
_SMALLEST_EIGENVALUE = 1e-6
"""Of a covariance, relative to the mean of its eigenvalues."""


class RobustReduction(NamedTuple):
    """What a rule does with the uploads of a cohort: one of two ways."""

    reduce: Callable[[Mapping[int, Mean], Field, tree.Tree | None, float], Reduced] | None = None
    """``reduce(entries, field, sent, share)``: the mean of one field over the cohort, given by
    client. ``sent`` is what the server sent down in this field, None: nothing. ``share`` of the
    clients may be wrong."""
    leave_out: (
        Callable[[Mapping[int, Upload], Mapping[str, tree.Tree | None], float], dict[int, float]]
        | None
    ) = None
    """``leave_out(uploads, sent, share)``: the clients whose uploads do not count, and how far they
    are from the others, relative to the median of all."""

    def needs_every_value(self, field: Field) -> bool:
        """Return whether the rule compares what single clients sent in a field."""
        return self.reduce is None or field.reduction == "mean"

    def unprotected_fields(self, messages: Messages) -> list[str]:
        """Return the fields of uploads that the rule leaves as they are."""
        if self.reduce is None:
            return []
        return [name for name, field in messages.items() if field.reduction in ("sum", "each")]


# Changes: what a client sent, compared with what the server sent


def _change(leaf: Tensor, old: Tensor | None, is_sent: Tensor) -> Tensor:
    """Return a change in float64; 0 where nothing was sent."""
    change = leaf.double()
    if old is not None:
        change = change - old.double()
    return torch.where(is_sent, change, 0.0)


def _paths(sent: tree.Tree | None) -> dict[str, Tensor]:
    return {} if sent is None else tree.paths(sent)


# Clipping


def _mean_of_clipped(
    entries: Mapping[int, Mean], field: Field, sent: tree.Tree | None, share: float
) -> Reduced:
    """Shorten changes to the median length of those who sent something, and take the mean."""
    norms = {client: _norm(entry, sent) for client, entry in entries.items()}

    # Who sent nothing has a change of length 0, which must not lower the bound for the others.
    sent_any = {client: sent_rows(entry).any() for client, entry in entries.items()}
    sent_any = to_host(sent_any, "norm_clip")
    norms_of_senders = [norms[client] for client in entries if sent_any[client]]
    bound = median(norms_of_senders) if norms_of_senders else math.inf

    clipped = {}
    for client, entry in entries.items():
        value = entry.value
        if norms[client] > bound:
            factor = bound / norms[client]
            value = _shortened(value, sent, factor)

        clipped[client] = Mean(value, entry.weight)

    return reduce_field(clipped)


def _norm(entry: Mean, sent: tree.Tree | None) -> float:
    """Return the length of a change."""
    sent_mask = sent_rows(entry)
    old = _paths(sent)
    squares = []
    for path, leaf in tree.paths(entry.value).items():
        is_sent = spread(sent_mask, leaf)
        change = _change(leaf, old.get(path), is_sent)

        # Flattened: the order of addition must not depend on how a leaf lies in memory.
        squares.append(change.flatten().square().sum())

    numbers = to_host(squares, "norm_clip")
    return math.sqrt(sum(map(float, numbers)))


def _shortened(value: tree.Tree, sent: tree.Tree | None, factor: float) -> tree.Tree:
    """Return a value whose change is shortened by a factor."""
    old = _paths(sent)
    zero = torch.zeros((), dtype=torch.float64)
    leaves = []
    for path, leaf in tree.paths(value).items():
        start = old[path].double() if path in old else zero
        change = leaf.double() - start
        shortened = start + factor * change
        leaves.append(shortened.to(leaf.dtype))

    return tree.rebuild(value, iter(leaves))


# Median and trimmed mean


def _median_of_entries(
    entries: Mapping[int, Mean], field: Field, sent: tree.Tree | None, share: float
) -> Reduced:
    return _by_entry(entries, field, _median)


def _trimmed_mean_of_entries(
    entries: Mapping[int, Mean], field: Field, sent: tree.Tree | None, share: float
) -> Reduced:
    return _by_entry(entries, field, partial(_trimmed_mean, share=share))


_Center = Callable[[Tensor, Tensor], Tensor]
"""``center(ordered, count)``: a value of every column of ``ordered`` (clients, ...), whose first
``count`` count."""


def _by_entry(entries: Mapping[int, Mean], field: Field, center: _Center) -> Reduced:
    """Reduce every entry of a field by itself, over the clients that sent its row."""
    ids = sorted(entries)
    values = [tree.paths(entries[client].value) for client in ids]

    # One weight for the whole field, or one for each of its rows: the same form for all clients.
    weights = {client: entries[client].weight.double() for client in ids}
    shape = max((weight.shape for weight in weights.values()), key=len)
    weights = {client: weight.expand(shape) for client, weight in weights.items()}

    reduced = []
    for path, like in values[0].items():
        leaves = [value[path] for value in values]
        result = _reduce_leaf(leaves, list(weights.values()), center)

        # Entries that come from different clients need not form a covariance.
        if field.kind == "covariance":
            result = positive_definite(result)

        reduced.append(result.to(like.dtype))

    mean = tree.rebuild(entries[ids[0]].value, iter(reduced))
    return Reduced(mean, tree_sum(weights))


def _reduce_leaf(leaves: list[Tensor], weights: list[Tensor], center: _Center) -> Tensor:
    """Return the center of every entry of a leaf over the clients, in float64."""
    like = leaves[0]
    result = torch.zeros(like.shape, dtype=torch.float64)
    for start, stop in _chunks(like.shape, len(leaves)):
        parts = [_rows(leaf, start, stop).double() for leaf in leaves]
        masks = [_rows(spread(weight, like), start, stop) > 0 for weight in weights]
        values = torch.stack(parts)  # (clients, rows, ...)
        is_sent = torch.stack(masks)  # (clients, rows or 1, 1, ...)

        # Values that were not sent are sorted behind all others.
        ordered = values.masked_fill(~is_sent, math.inf).sort(dim=0).values
        centers = center(ordered, is_sent.sum(0))
        _rows(result, start, stop).copy_(centers)

    return result


def _chunks(shape: tuple[int, ...], clients: int) -> list[tuple[int, int]]:
    """Return ranges of rows of a tensor such that those of all clients fit into memory."""
    if not shape or math.prod(shape) == 0:
        return [(0, 1)]

    numbers_per_row = clients * math.prod(shape[1:])
    size = max(1, _CHUNK_NUMBERS // numbers_per_row)
    return [(start, min(start + size, shape[0])) for start in range(0, shape[0], size)]


def _rows(leaf: Tensor, start: int, stop: int) -> Tensor:
    """Return some rows of a leaf, or of a weight that is the same for all rows."""
    if leaf.dim() == 0 or leaf.shape[0] == 1:
        return leaf
    return leaf[start:stop]


def _median(ordered: Tensor, count: Tensor) -> Tensor:
    """Return the median of the first ``count`` values; 0 where there are none."""
    count = count.expand(ordered.shape[1:])
    last = len(ordered) - 1

    # The two ranks in the middle, which are the same where the count is odd.
    lower_rank = (count - 1).clamp(min=0) // 2
    upper_rank = (count // 2).clamp(max=last)
    lower = ordered.gather(0, lower_rank[None])[0]
    upper = ordered.gather(0, upper_rank[None])[0]

    median = (lower + upper) / 2
    return torch.where(count > 0, median, 0.0)


def _trimmed_mean(ordered: Tensor, count: Tensor, share: float) -> Tensor:
    """Return the mean of the first ``count`` values without a share at either end.

    0 where there are none.
    """
    count = count.expand(ordered.shape[1:])
    trimmed = (share * count.double() + _ROUNDING).long()

    rank = spread(torch.arange(len(ordered)), ordered)  # (clients, 1, ...)
    is_inner = (rank >= trimmed) & (rank < count - trimmed)

    total = torch.where(is_inner, ordered, 0.0).sum(0)
    num_inner = count - 2 * trimmed
    return total / num_inner.clamp(min=1)


def positive_definite(matrices: Tensor) -> Tensor:
    """Return the nearest symmetric matrices (..., d, d) whose eigenvalues are positive, in float64.

    Eigenvalues below 1e-6 of their mean become that; matrices without such eigenvalues stay as they
    are.
    """
    symmetric = (matrices + matrices.mT) / 2
    values, vectors = torch.linalg.eigh(symmetric)

    mean = values.mean(-1, keepdim=True)
    floor = _SMALLEST_EIGENVALUE * mean.clamp(min=0)
    raised = values.clamp(min=floor)

    # Rounding makes the product slightly asymmetric.
    projected = (vectors * raised[..., None, :]) @ vectors.mT
    projected = (projected + projected.mT) / 2

    needs_projection = (values < floor).any(-1)[..., None, None]
    return torch.where(needs_projection, projected, symmetric)


# Krum


def left_out_by_krum(
    uploads: Mapping[int, Upload], sent: Mapping[str, tree.Tree | None], share: float
) -> dict[int, float]:
    """Return the clients whose uploads are farthest from their nearest ones, and how far.

    Distances are relative to the median of all.

    Args:
        uploads: by client.
        sent: what the server sent down, by field; None: nothing.
        share: of the clients to leave out, rounded down.
    """
    ids = sorted(uploads)
    num_left_out = math.floor(share * len(ids) + _ROUNDING)
    if num_left_out == 0:
        return {}

    # The score of an upload: how far it is from those nearest to it, itself left out.
    distances = _squared_distances([uploads[client] for client in ids], sent)
    distances.fill_diagonal_(math.inf)
    num_nearest = len(ids) - num_left_out - 2
    nearest = distances.sort(dim=1).values[:, :num_nearest]
    scores = to_host(nearest.sum(1).sqrt(), "krum").tolist()

    # Rounded, so that equal uploads have equal scores whichever others took part.
    typical = median(scores)
    relative = {}
    for client, score in zip(ids, scores, strict=True):
        ratio = score / typical if typical > 0 else score
        relative[client] = float(f"{ratio:.9g}")

    # Of equal scores the lower ids stay.
    nearest_first = sorted(ids, key=lambda client: (relative[client], client))
    farthest = nearest_first[len(ids) - num_left_out :]
    return {client: relative[client] for client in sorted(farthest)}


def _squared_distances(uploads: list[Upload], sent: Mapping[str, tree.Tree | None]) -> Tensor:
    """Return the squared distances (clients, clients) between uploads, each taken as one vector."""
    # The products of all pairs of vectors: |u - v|^2 = u.u + v.v - 2 u.v.
    products = torch.zeros(len(uploads), len(uploads), dtype=torch.float64)
    for name in uploads[0]:
        old = _paths(sent.get(name))
        masks = [sent_rows(upload[name]) for upload in uploads]
        values = [tree.paths(upload[name].value) for upload in uploads]
        for path in values[0]:
            leaves = [value[path] for value in values]
            _add_products(products, leaves, masks, old.get(path))

    squares = products.diagonal()
    distances = squares[:, None] + squares[None, :] - 2 * products
    return distances.clamp(min=0)


def _add_products(
    products: Tensor, leaves: list[Tensor], masks: list[Tensor], old: Tensor | None
) -> None:
    """Add the products (clients, clients) of the changes of one leaf."""
    like = leaves[0]

    # Rows of a tensor at a time, so that those of all clients fit into memory.
    for start, stop in _chunks(like.shape, len(leaves)):
        before = None if old is None else _rows(old, start, stop)
        vectors = []
        for leaf, mask in zip(leaves, masks, strict=True):
            is_sent = _rows(spread(mask, like), start, stop)
            change = _change(_rows(leaf, start, stop), before, is_sent)
            vectors.append(change.flatten())

        stacked = torch.stack(vectors)  # (clients, numbers)
        products += stacked @ stacked.mT


RULES: Mapping[str, RobustReduction] = {
    "norm_clip": RobustReduction(reduce=_mean_of_clipped),
    "median": RobustReduction(reduce=_median_of_entries),
    "trimmed_mean": RobustReduction(reduce=_trimmed_mean_of_entries),
    "krum": RobustReduction(leave_out=left_out_by_krum),
}
"""The rules by their names in ``federation.robust``, which knows ``none`` too."""
