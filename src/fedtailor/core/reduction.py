"""The order in which numbers of clients are added: a fixed binary tree over client ids.

The ids 0, 1, 2, ... are the leaves of a binary tree. Its lowest nodes add clients 0 and 1, 2 and 3, and so on; the
nodes above them add their sums in pairs, up to the root. A client that is absent is skipped, and so is a node without
clients. The bits of a sum therefore depend on who is present and on nothing else: not on the order of arrival, not on
how many clients there could be, and not on whether the sums of parts of the tree were made elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

REDUCTION_VERSION = 2
"""The order of addition, for provenance: 1 was the order of client ids, 2 is the tree."""


class TreeSum:
    """A sum over clients who come in the order of their ids; at most one value per level of the tree is in memory.

    The sum of an aligned block of 2^k ids (those that differ in their last k bits only) can be made apart, and added in
    place of its clients under any of their ids: the total has the same bits.

    Example:
        >>> import torch
        >>> total = TreeSum()
        >>> for client in (0, 3, 5):
        ...     total.add(client, torch.tensor(float(client)))
        >>> total.result()
        tensor(8.)
    """

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        """Of parts of the tree that are not joined yet, from left to right."""
        self._levels: list[int] = []
        """The level of the node that joins each of these parts with the next one."""
        self._last = -1

    def add(self, client: int, value: Tensor) -> None:
        """Add the value of a client, whose id is above those of all before; the sum is made in its memory.

        Raises:
            ValueError: the id is not above those before.
        """
        if client <= self._last:
            raise ValueError(f"client {client} comes after client {self._last}; ids must increase")
        if self._sums:
            level = (self._last ^ client).bit_length()
            self._join(below=level)
            self._levels.append(level)
        self._sums.append(value)
        self._last = client

    def result(self) -> Tensor:
        """Return the sum.

        Raises:
            ValueError: no client was added.
        """
        if not self._sums:
            raise ValueError("a sum over no clients")
        if self._levels:
            self._join(below=self._levels[0] + 1)  # levels decrease to the right
        return self._sums[0]

    def _join(self, below: int) -> None:
        """Add up the parts that nodes below a level join."""
        while self._levels and self._levels[-1] < below:
            self._levels.pop()
            right = self._sums.pop()
            self._sums[-1].add_(right)


def tree_sum(values: Mapping[int, Tensor]) -> Tensor:
    """Return the sum of tensors of one shape by client, in the order of the tree; they stay as they are."""
    total = TreeSum()
    for client in sorted(values):
        total.add(client, values[client].clone())
    return total.result()
