"""Robust reductions: means that a few clients with wrong or hostile numbers cannot move far.

They reduce the fields that a method declares as :class:`~fedtailor.core.message.Mean`; no method
knows of them. What clients send is compared as a change: the difference from what the server sent
them in the field of the same name, or the value itself if it sent none. Rows of weight 0, which
were not sent, do not count.

* ``norm_clip``: changes longer than the median of the cohort are shortened to it, field by field,
  and averaged by their weights. Norm bounding: Sun et al. 2019, "Can you really backdoor federated
  learning?", arXiv:1911.07963; the median as the bound needs no option.
* ``median``, ``trimmed_mean``: entry by entry, the median of the clients, or the mean without a
  share of the largest and of the smallest values. Each client counts once, whatever its weight. Yin
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
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.devices import to_host
from fedtailor.core.message import Field, Mean, Messages, Reduced, Upload, sent_rows, spread
from fedtailor.core.reduction import reduce_field, tree_sum

_CHUNK_NUMBERS = 2**23
"""Numbers of all clients that are sorted or multiplied at once (64 MiB)."""
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


# Clipping


def _mean_of_clipped(
    entries: Mapping[int, Mean], field: Field, sent: tree.Tree | None, share: float
) -> Reduced:
    """Shorten changes to the median length of those who sent something, and take the mean."""
    norms = {client: _norm(entry, sent) for client, entry in entries.items()}
    sent_any = {client: sent_rows(entry).any() for client, entry in entries.items()}
    sent_any = to_host(sent_any, "norm_clip")
    bound = _median_of([norms[client] for client in entries if sent_any[client]])

    clipped = {}
    for client, entry in entries.items():
        value = entry.value
        if norms[client] > bound:
            value = _shortened(value, sent, bound / norms[client])

        clipped[client] = Mean(value, entry.weight)

    return reduce_field(clipped)


def _norm(entry: Mean, sent: tree.Tree | None) -> float:
    """Return the length of a change."""
    sent_mask = sent_rows(entry)
    old = _paths(sent)
    squares = []
    for path, leaf in tree.paths(entry.value).items():
        # Flattened: the order of addition must not depend on how a leaf lies in memory.
        change = _change(leaf, old.get(path), spread(sent_mask, leaf)).flatten()
        squares.append(change.square().sum())
    return math.sqrt(sum(map(float, to_host(squares, "norm_clip"))))


def _change(leaf: Tensor, old: Tensor | None, is_sent: Tensor) -> Tensor:
    """Return a change in float64; 0 where nothing was sent."""
    change = leaf.double()
    if old is not None:
        change = change - old.double()
    return torch.where(is_sent, change, 0.0)


def _paths(sent: tree.Tree | None) -> dict[str, Tensor]:
    return {} if sent is None else tree.paths(sent)


def _median_of(values: list[float]) -> float:
    """Return the median of numbers; infinite if there are none."""
    ordered = sorted(values)
    if not ordered:
        return math.inf
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _shortened(value: tree.Tree, sent: tree.Tree | None, factor: float) -> tree.Tree:
    """Return a value whose change is shortened by a factor."""
    old = _paths(sent)

    def shorten(path: str, leaf: Tensor) -> Tensor:
        start = old[path].double() if path in old else torch.zeros((), dtype=torch.float64)
        return (start + factor * (leaf.double() - start)).to(leaf.dtype)

    leaves = [shorten(path, leaf) for path, leaf in tree.paths(value).items()]
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
    weights = {client: entries[client].weight.double() for client in ids}
    shape = max((weight.shape for weight in weights.values()), key=len)
    weights = {client: weight.expand(shape) for client, weight in weights.items()}
    columns = [tree.paths(entries[client].value) for client in ids]
    reduced = []

    for path, like in columns[0].items():
        # Values that were not sent are sorted behind all others.
        result = torch.zeros(like.shape, dtype=torch.float64)
        for start, stop in _chunks(like.shape, len(ids)):
            leaves = torch.stack([_rows(column[path], start, stop).double() for column in columns])
            sent = torch.stack(
                [_rows(spread(weights[client], like), start, stop) > 0 for client in ids]
            )
            ordered = leaves.masked_fill(~sent, math.inf).sort(dim=0).values
            _rows(result, start, stop).copy_(center(ordered, sent.sum(0)))

        if field.kind == "covariance":
            result = positive_definite(result)

        reduced.append(result.to(like.dtype))

    return Reduced(tree.rebuild(entries[ids[0]].value, iter(reduced)), tree_sum(weights))


def _chunks(shape: tuple[int, ...], clients: int) -> list[tuple[int, int]]:
    """Return ranges of rows of a tensor such that those of all clients fit into memory."""
    if not shape or math.prod(shape) == 0:
        return [(0, 1)]
    size = max(1, _CHUNK_NUMBERS // (clients * math.prod(shape[1:])))
    return [(start, min(start + size, shape[0])) for start in range(0, shape[0], size)]


def _rows(leaf: Tensor, start: int, stop: int) -> Tensor:
    """Return some rows of a leaf, or of a weight that is the same for all rows."""
    if leaf.dim() == 0 or leaf.shape[0] == 1:
        return leaf
    return leaf[start:stop]


def _median(ordered: Tensor, count: Tensor) -> Tensor:
    """Return the median of the first ``count`` values; 0 where there are none."""
    count = count.expand(ordered.shape[1:])
    lower = ordered.gather(0, ((count - 1).clamp(min=0) // 2)[None])[0]
    upper = ordered.gather(0, (count // 2).clamp(max=len(ordered) - 1)[None])[0]
    return torch.where(count > 0, (lower + upper) / 2, 0.0)


def _trimmed_mean(ordered: Tensor, count: Tensor, share: float) -> Tensor:
    """Return the mean of the first ``count`` values without a share at either end.

    0 where there are none.
    """
    count = count.expand(ordered.shape[1:])
    trimmed = (share * count).long()
    place = torch.arange(len(ordered)).view(-1, *(1 for _ in ordered.shape[1:]))
    is_inner = (place >= trimmed) & (place < count - trimmed)
    return torch.where(is_inner, ordered, 0.0).sum(0) / (count - 2 * trimmed).clamp(min=1)


def positive_definite(matrices: Tensor) -> Tensor:
    """Return the nearest symmetric matrices (..., d, d) whose eigenvalues are positive, in float64.

    Eigenvalues below 1e-6 of their mean become that; matrices without such eigenvalues stay as they
    are.
    """
    symmetric = (matrices + matrices.mT) / 2
    values, vectors = torch.linalg.eigh(symmetric)
    floor = _SMALLEST_EIGENVALUE * values.mean(-1, keepdim=True).clamp(min=0)
    projected = (vectors * values.clamp(min=floor)[..., None, :]) @ vectors.mT
    low = (values < floor).any(-1)[..., None, None]
    return torch.where(low, (projected + projected.mT) / 2, symmetric)


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
    num_left_out = math.floor(share * len(ids))
    if num_left_out == 0:
        return {}

    distances = _squared_distances([uploads[client] for client in ids], sent)
    num_nearest = len(ids) - num_left_out - 2
    nearest = distances.fill_diagonal_(math.inf).sort(dim=1).values[:, :num_nearest]
    lengths = to_host(nearest.sum(1).sqrt(), "krum").tolist()
    scores = dict(zip(ids, lengths, strict=True))
    typical = _median_of(list(scores.values()))

    # Rounded, so that equal uploads have equal scores whichever others took part. Of these the
    # lower ids stay.
    relative = {}
    for client, score in scores.items():
        ratio = score / typical if typical > 0 else score
        relative[client] = float(f"{ratio:.9g}")

    nearest_first = sorted(ids, key=lambda client: (relative[client], client))
    farthest = nearest_first[len(ids) - num_left_out :]
    return {client: relative[client] for client in sorted(farthest)}


def _squared_distances(uploads: list[Upload], sent: Mapping[str, tree.Tree | None]) -> Tensor:
    """Return the squared distances (clients, clients) between uploads, each taken as one vector."""
    products = torch.zeros(len(uploads), len(uploads), dtype=torch.float64)
    for name in uploads[0]:
        old = _paths(sent.get(name))
        masks = [sent_rows(upload[name]) for upload in uploads]
        columns = [tree.paths(upload[name].value) for upload in uploads]
        for path, like in columns[0].items():
            # Rows of a tensor at a time, so that those of all clients fit into memory.
            for start, stop in _chunks(like.shape, len(uploads)):
                before = _rows(old[path], start, stop) if path in old else None
                vectors = []
                for mask, column in zip(masks, columns, strict=True):
                    is_sent = _rows(spread(mask, like), start, stop)
                    change = _change(_rows(column[path], start, stop), before, is_sent)
                    vectors.append(change.flatten())

                rows = torch.stack(vectors)
                products += rows @ rows.mT

    squares = products.diagonal()
    return (squares[:, None] + squares[None, :] - 2 * products).clamp(min=0)


RULES: Mapping[str, RobustReduction] = {
    "norm_clip": RobustReduction(reduce=_mean_of_clipped),
    "median": RobustReduction(reduce=_median_of_entries),
    "trimmed_mean": RobustReduction(reduce=_trimmed_mean_of_entries),
    "krum": RobustReduction(leave_out=left_out_by_krum),
}
"""The rules by their names in ``federation.robust``, which knows ``none`` too."""
