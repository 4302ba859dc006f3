"""The order in which numbers of clients are added: a fixed binary tree over client ids.

The ids 0, 1, 2, ... are the leaves of a binary tree. Its lowest nodes add clients 0 and 1, 2 and 3,
and so on; the nodes above them add their sums in pairs, up to the root. A client that is absent is
skipped, and so is a node without clients. The bits of a sum therefore depend on who is present and
on nothing else: not on the order of arrival, not on how many clients there could be, and not on
whether the sums of parts of the tree were made elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.message import (
    Each,
    Mean,
    Messages,
    Reduced,
    Sum,
    Upload,
    spread,
    upload_bytes,
)
from fedtailor.core.upload_checks import Problem

if TYPE_CHECKING:
    from fedtailor.core.fixed_point import FixedField, FixedPoint

Part = TypeVar("Part")

REDUCTION_VERSION = 2
"""The order of addition, for provenance: 1 was the order of client ids, 2 is the tree."""


class _Segment(NamedTuple, Generic[Part]):
    """A run of expected clients, in the order of their ids, from whom nothing more can come."""

    start: int
    """The index of its first client among the ids of all who are expected."""
    end: int
    """The index of its last client."""
    lowest: int
    """The lowest id of the clients who are in its sum."""
    part: Part | None
    """Its sum; None if all of its clients are absent."""


class ArrivingSum(Generic[Part]):
    """A sum over clients who are known beforehand, and come in any order or not at all.

    Two parts of the tree are joined as soon as nothing more can come in either, and one of them is
    then dropped. If the clients come in the order of their ids, one part per level of the tree is
    in memory; if not, as many more as have to wait for others.

    The sum can be made in several places. Each of them expects the same clients, or its own and
    those next to them, and adds its own. Another sum then adds the :meth:`parts`, each under its
    id, and skips the others who are in them: the total has the same bits.

    Example:
        >>> import torch
        >>> total = ArrivingSum([0, 3, 5], torch.add)
        >>> total.add(5, torch.tensor(5.0))
        >>> total.add(0, torch.tensor(1.0))
        >>> total.skip(3)
        >>> total.result()
        tensor(6.)
    """

    def __init__(self, expected: Iterable[int], join: Callable[[Part, Part], Part]) -> None:
        """Begin a sum.

        Args:
            expected: the ids of the clients who may come.
            join: returns the sum of two parts, the one of lower ids first; it may use their memory
                for it.
        """
        self._ids = sorted(expected)
        self._index = {client: index for index, client in enumerate(self._ids)}
        """Where those who have not come yet stand among all."""
        self._join = join
        self._by_start: dict[int, _Segment[Part]] = {}
        self._by_end: dict[int, _Segment[Part]] = {}

    def add(self, client: int, part: Part) -> None:
        """Add the value of a client.

        Raises:
            KeyError: the client is not expected, or not any more.
        """
        self._settle(client, part)

    def skip(self, client: int) -> None:
        """Note that nothing will come from a client.

        Raises:
            KeyError: the client is not expected, or not any more.
        """
        self._settle(client, None)

    def parts(self) -> dict[int, Part]:
        """Return the sums that are in memory, each by the lowest id of those who are in it."""
        segments = self._by_start.values()
        return {segment.lowest: segment.part for segment in segments if segment.part is not None}

    def result(self) -> Part | None:
        """Return the sum over the clients that came; None if none did.

        Raises:
            ValueError: a client may still come.
        """
        if self._index:
            raise ValueError(
                f"{len(self._index)} clients may still come, client {min(self._index)} among them"
            )
        if not self._ids:
            return None
        return self._by_start[0].part

    def _settle(self, client: int, part: Part | None) -> None:
        index = self._index.pop(client)
        segment = _Segment(index, index, client, part)

        # A join can make the next one possible, up to the root.
        while (sibling := self._pop_sibling(segment)) is not None:
            segment = self._joined(segment, sibling)

        self._by_start[segment.start] = segment
        self._by_end[segment.end] = segment

    def _pop_sibling(self, segment: _Segment[Part]) -> _Segment[Part] | None:
        """Return the part with which one is joined, if nothing more can come in it either.

        A part is joined with the neighbor that branches off at the lower level. That neighbor is
        whole if it reaches as far as the next branch, whose level is higher.
        """
        left = self._level_before(segment.start)
        right = self._level_before(segment.end + 1)
        if min(left, right) == _ROOT:
            return None

        if left < right:
            sibling = self._by_end.get(segment.start - 1)
            is_whole = sibling is not None and self._level_before(sibling.start) > left
        else:
            sibling = self._by_start.get(segment.end + 1)
            is_whole = sibling is not None and self._level_before(sibling.end + 1) > right

        if sibling is None or not is_whole:
            return None

        del self._by_start[sibling.start]
        del self._by_end[sibling.end]
        return sibling

    def _level_before(self, index: int) -> int:
        """Return the level of the node that joins the client at an index with the one before."""
        if index == 0 or index == len(self._ids):
            return _ROOT
        return (self._ids[index - 1] ^ self._ids[index]).bit_length()

    def _joined(self, one: _Segment[Part], other: _Segment[Part]) -> _Segment[Part]:
        left, right = sorted((one, other), key=lambda segment: segment.start)
        if left.part is None:
            return right._replace(start=left.start)
        if right.part is None:
            return left._replace(end=right.end)
        return _Segment(left.start, right.end, left.lowest, self._join(left.part, right.part))


_ROOT = 2**16
"""A level above all nodes of the tree."""


def tree_sum(values: Mapping[int, Tensor]) -> Tensor:
    """Return the sum of tensors of one shape by client, in the order of the tree.

    They stay as they are.
    """
    total = ArrivingSum[Tensor](values, Tensor.add_)
    for client in sorted(values):
        total.add(client, values[client].clone())

    result = total.result()
    assert result is not None, "a sum over no clients"
    return result


class PartialSum(NamedTuple):
    """The sum of one field over some clients, in float64, or in whole numbers (int64).

    It can be sent, and added where the other clients are.
    """

    is_mean: bool
    """Whether the sum is divided by the weight in the end."""
    like: tree.Tree
    """The structure and the types of a value, without its numbers: of the lowest of the clients."""
    weight: Tensor
    """The sum of their weights."""
    leaves: dict[str, Tensor]
    """The weighted sums of their values, by path. Of one client without a weight, they are what it
    sent, in its type: a copy in float64 would take longer than the addition."""


class FieldSum(ArrivingSum[PartialSum]):
    """One field of a cohort's uploads, reduced while they arrive, in any order.

    It adds in float64, or exactly in whole numbers. No upload is kept. A leaf comes back in its own
    dtype.
    """

    def __init__(self, clients: Iterable[int], fixed: FixedField | None = None) -> None:
        """Begin a sum.

        Args:
            clients: ids of those who may send the field.
            fixed: how its values become whole numbers; None: they are added in float64.
        """
        super().__init__(clients, _join_parts)
        self._fixed = fixed

    def add(self, client: int, part: Mean | Sum | PartialSum) -> None:
        """Add what a client sent, or one of the :meth:`parts` of another sum under its id.

        What a client sent must not change afterwards. The memory of a part is used. The other
        clients that are in the part must be skipped.

        Raises:
            KeyError: the client is not expected, or not any more.
        """
        if not isinstance(part, PartialSum):
            part = _weighted(part) if self._fixed is None else encoded(part, self._fixed)
        super().add(client, part)

    def total(self) -> PartialSum:
        """Return the sum over those who sent the field, float64.

        Raises:
            ValueError: a client may still come, or none came.
        """
        part = self.result()
        if part is None:
            raise ValueError("no client sent the field")
        return part if self._fixed is None else _decoded(part, self._fixed)

    def reduced(self) -> Reduced:
        """Return the mean or sum over those who sent the field.

        Raises:
            ValueError: a client may still come, or none came.
        """
        part = self.total()
        divisor = torch.where(part.weight > 0, part.weight, 1.0)
        reduced = []
        for path, like in tree.paths(part.like).items():
            # Zero has one sign, so that rows of weight zero change nothing.
            result = part.leaves[path] + 0.0
            if part.is_mean:
                result /= spread(divisor, result)

            # The memory layout does not depend on who was first.
            plain = torch.empty(result.shape, dtype=like.dtype, device=like.device)
            reduced.append(plain.copy_(result))

        return Reduced(tree.rebuild(part.like, iter(reduced)), part.weight)


def _weighted(entry: Mean | Sum) -> PartialSum:
    """Return what one client sent as a sum."""
    leaves = tree.paths(entry.value)
    like = tree.map(lambda leaf: leaf.new_empty(0), entry.value)
    factor: Tensor | tuple[()] = entry.weight if isinstance(entry, Mean) else entry.mask
    if isinstance(factor, tuple):
        # A sum in float64 is made in place, and what a client sent stays as it is.
        for path, leaf in leaves.items():
            leaves[path] = leaf.clone() if leaf.dtype == torch.float64 else leaf
        return PartialSum(False, like, torch.ones((), dtype=torch.float64), leaves)

    factor = factor.to(torch.float64, copy=True)
    weighted = {}
    for path, leaf in leaves.items():
        copied = leaf.to(torch.float64, copy=True)
        weighted[path] = copied.mul_(spread(factor, copied))

    return PartialSum(isinstance(entry, Mean), like, factor, weighted)


def encoded(entry: Mean | Sum, fixed: FixedField) -> PartialSum:
    """Return what one client sends as a sum of whole numbers."""
    factor = torch.ones((), dtype=torch.float64)
    if isinstance(entry, Mean):
        factor = fixed.sent_weight(entry.weight.to(torch.float64))
    elif isinstance(entry.mask, Tensor):
        factor = entry.mask.to(torch.float64)

    leaves = {}
    for path, leaf in tree.paths(entry.value).items():
        leaves[path] = fixed.encode_value(leaf.to(torch.float64) * spread(factor, leaf))

    like = tree.map(lambda leaf: leaf.new_empty(0), entry.value)
    return PartialSum(isinstance(entry, Mean), like, fixed.encode_weight(factor), leaves)


def _decoded(part: PartialSum, fixed: FixedField) -> PartialSum:
    """Return a sum of whole numbers in float64."""
    leaves = {path: fixed.decode_value(leaf) for path, leaf in part.leaves.items()}
    return part._replace(weight=fixed.decode_weight(part.weight), leaves=leaves)


def _join_parts(left: PartialSum, right: PartialSum) -> PartialSum:
    """Return the sum of two parts, in the memory of the left one, whose ids are lower."""
    joined = {}
    for path, leaf in left.leaves.items():
        total = leaf.double() if leaf.dtype == torch.float32 else leaf
        joined[path] = total.add_(right.leaves[path])

    # Weights of kind ``own`` can be for different numbers of axes.
    shorter, longer = sorted((left.weight, right.weight), key=Tensor.dim)
    return left._replace(weight=longer + spread(shorter, longer), leaves=joined)


class Bounds(Protocol):
    """What bounds the contribution of a client to the sums of a round."""

    def bounded(self, upload: Upload, client: int) -> Upload:
        """Return the contribution of a sound upload of a client."""


class Reduction(NamedTuple):
    """What the server does with the uploads of a round before it aggregates."""

    summed: tuple[str, ...]
    """The fields of which it needs no more than a mean or sum."""
    cohort: tuple[int, ...]
    """The clients whose uploads count, in the order of their ids."""
    fixed: FixedPoint | None = None
    """How uploads become whole numbers; None: they are added in float64."""
    bounds: Bounds | None = None
    """What bounds the contribution of a client; None: uploads are added as they are."""

    def sums(self, clients: Iterable[int]) -> dict[str, FieldSum]:
        """Begin the sums of all fields over clients; return them by field."""
        ids = list(clients)
        by_field = self.fixed.fields if self.fixed is not None else {}
        return {name: FieldSum(ids, by_field.get(name)) for name in self.summed}

    def problem_with(self, upload: Upload, client: int) -> Problem | None:
        """Return why a sound upload does not fit into the sums, or None if it does."""
        if self.fixed is None:
            return None
        return self.fixed.problem_with(self.bounded(upload, client))

    def bounded(self, upload: Upload, client: int) -> Upload:
        """Return what of a sound upload goes into the sums."""
        return upload if self.bounds is None else self.bounds.bounded(upload, client)

    def bytes_of(self, upload: Upload, messages: Messages) -> int:
        """Return the bytes of a sound upload on its way into the sums."""
        if self.fixed is None:
            return upload_bytes(upload, messages)
        return self.fixed.num_bytes


def reduce_field(entries: Mapping[int, Mean | Sum | Each]) -> Reduced:
    """Reduce one field over the cohort, whose entries are given by client.

    Means and sums are what :class:`FieldSum` makes of them. :class:`Each` values are stacked along
    a new leading axis, in the order of ids.
    """
    ids = sorted(entries)
    if isinstance(entries[ids[0]], Each):
        values = [entries[client].value for client in ids]
        return Reduced(tree.stack(values), torch.tensor(float(len(ids))))

    total = FieldSum(ids)
    for client in ids:
        entry = entries[client]
        assert not isinstance(entry, Each)
        total.add(client, entry)

    return total.reduced()
