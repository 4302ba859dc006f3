"""Private inputs: the memory that a client's program receives belongs to it alone, and its writes
reach no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.devices import are_equal
from fedtailor.core.engine import ExampleIndices
from fedtailor.core.errors import RunError
from fedtailor.simulation.programs import ClientInputs, SharedInputs, Tables
from fedtailor.training.batches import take

LARGEST_COPY = 2**29
"""Bytes of examples that are copied. Programs with more see the data themselves."""


class SpoiledData(RunError):
    """A program changed the data of all clients, of which there is no copy: the run cannot
    continue.
    """


class PrivateInputs:
    """Copies of what some clients' programs receive: their states, their download, and the examples
    they may see.

    The clients of one program share a copy: a single client, or a stack. The table of a federation
    holds the examples of all clients. In place of it, an algorithm sees a table of the training and
    validation examples of these clients only. Test examples are not copied: models are scored on
    them, but no algorithm sees them.
    """

    def __init__(self, common: Any, inputs: Sequence[Any]) -> None:
        """Copy the inputs of clients, and those that they share."""
        self.common = common
        """What the program receives that is the same for all clients."""
        self.inputs = [copy_of(each) for each in inputs]
        """What it receives of every client."""
        self._rows = torch.empty(0, dtype=torch.int64)
        self._resident: Tables | None = None
        self._untouched: Tables | None = None
        """A second copy of the examples that the programs may see, which no program reaches."""

        if isinstance(common, SharedInputs) and all(
            isinstance(each, ClientInputs) for each in inputs
        ):
            self._resident = Tables(common.x, common.y)
            self.common = self._with_private_tables(common)

    def _with_private_tables(self, common: SharedInputs) -> SharedInputs:
        """Return what clients share, with copies of all but the table, of which an algorithm sees
        their examples.
        """
        self._rows = torch.cat(
            [part.rows for each in self.inputs for part in (each.train, each.val)]
        )
        table = Tables(common.x, common.y)
        common = SharedInputs(*table, *(copy_of(each) for each in common[len(table) :]))
        if len(self._rows) == 0:
            return common._replace(visible=self._no_examples())

        if self._is_too_large(common.x):
            # a new tensor of the same memory counts the writes through it, and those of no other
            # program
            return common._replace(visible=Tables(common.x.data, common.y.data))

        self._number_rows_anew()
        visible = Tables(take(common.x, self._rows), common.y[self._rows])
        # rows that lie scattered in a large table take twice as long to read again as a copy that
        # lies together
        self._untouched = Tables(visible.x.clone(), visible.y.clone())
        return common._replace(visible=visible)

    def _is_too_large(self, x: Tensor) -> bool:
        return len(self._rows) * x[0].numel() * x.element_size() > LARGEST_COPY

    def _number_rows_anew(self) -> None:
        """Make the positions of the examples those in the private table, where they lie one after
        the other.
        """
        start = 0
        numbered = []
        for each in self.inputs:
            parts = {}
            for name in ("train", "val"):
                part: ExampleIndices = getattr(each, name)
                end = start + len(part.rows)
                parts[name] = part._replace(rows=torch.arange(start, end))
                start = end

            numbered.append(each._replace(**parts))

        self.inputs = numbered

    def _no_examples(self) -> Tables:
        return Tables(torch.empty_like(self.common.x[:0]), torch.empty_like(self.common.y[:0]))

    def check(self) -> None:
        """Check that the program left the examples as they were.

        Raises:
            TypeError: it changed its private copy, so that no other program is affected.
            SpoiledData: it changed the data themselves.
        """
        if self._resident is None or len(self._rows) == 0:
            return

        visible = self.common.visible
        if self._is_too_large(self._resident.x):
            if visible.x._version > 0 or visible.y._version > 0:
                raise SpoiledData(
                    "a client's program changed its examples in place. They take more than "
                    f"{LARGEST_COPY // 2**20} MiB, so it worked on the data of all clients, which are now changed. "
                    'engine.name = "processes" protects them.',
                    key="engine.name",
                )

            return

        assert self._untouched is not None
        if not _same_bytes(visible, self._untouched):
            raise TypeError(
                "the program changed its examples in place; write `value + change` to a new tensor"
            )


def copy_of(value: Any) -> Any:
    """Return a copy of a tree.

    Raises:
        TypeError: a leaf is not a tensor.
    """
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {name: copy_of(child) for name, child in value.items()}
    if isinstance(value, tuple):
        children = [copy_of(child) for child in value]
        return type(value)(*children) if hasattr(value, "_fields") else tuple(children)
    raise TypeError(f"a tree leaf must be a tensor, got {type(value).__name__}")


def _same_bytes(tables: Tables, others: Tables) -> bool:
    """Return whether tables of the same layout hold the same bytes."""
    pairs = []
    for first, second in zip(tables, others, strict=True):
        if (
            first.shape != second.shape
            or first.dtype != second.dtype
            or first.stride() != second.stride()
        ):
            return False

        pairs.append((_bytes_of(first), _bytes_of(second)))

    return are_equal(pairs, "whether a program changed its examples")


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor as they lie in memory, as the widest integers, which compare
    fastest.
    """
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    column = tensor.permute(order).contiguous().view(-1).view(torch.uint8)
    return column.view(torch.int64) if column.numel() % 8 == 0 else column
