"""The order in which numbers of clients are added: a fixed binary tree over client ids.

The ids 0, 1, 2, ... are the leaves of a binary tree. Its lowest nodes add clients 0 and 1, 2 and 3,
and so on; the nodes above them add their sums in pairs, up to the root. A client that is absent is
skipped, and so is a node without clients. The bits of a sum therefore depend on who is present and
on nothing else: not on the order of arrival, not on how many clients there could be, and not on
whether the sums of parts of the tree were made elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

Part = TypeVar("Part")

REDUCTION_VERSION = 2
"""The order of addition, for provenance: 1 was the order of client ids, 2 is the tree."""


class _Segment(NamedTuple, Generic[Part]):
    """A part of the tree from whose clients nothing more can come.

    Neighbors among those who are expected.
    """

    start: int
    """The place of its first client among the ids of all who are expected."""
    end: int
    """The place of its last client."""
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
        self._place = {client: place for place, client in enumerate(self._ids)}
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

    @property
    def num_parts(self) -> int:
        """How many sums are in memory."""
        return sum(segment.part is not None for segment in self._by_start.values())

    def parts(self) -> dict[int, Part]:
        """Return the sums that are in memory, each by the lowest id of those who are in it."""
        segments = self._by_start.values()
        return {segment.lowest: segment.part for segment in segments if segment.part is not None}

    def result(self) -> Part | None:
        """Return the sum over those who came; None if nobody did.

        Raises:
            ValueError: somebody may still come.
        """
        if self._place:
            raise ValueError(
                f"{len(self._place)} clients may still come, client {min(self._place)} among them"
            )
        if not self._ids:
            return None
        return self._by_start[0].part

    def _settle(self, client: int, part: Part | None) -> None:
        place = self._place.pop(client)
        segment = _Segment(place, place, client, part)
        sibling = self._pop_sibling(segment)
        while sibling is not None:
            segment = self._joined(segment, sibling)
            sibling = self._pop_sibling(segment)
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

    def _level_before(self, place: int) -> int:
        """Return the level of the node that joins the client at a place with the one before."""
        if place == 0 or place == len(self._ids):
            return _ROOT
        return (self._ids[place - 1] ^ self._ids[place]).bit_length()

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
