"""Private inputs: the memory that a client's program receives belongs to it alone.

The clients of one program share a copy: a single client, or a stack. The table of a federation
holds the examples of all clients. In place of it, an algorithm sees a table of the training and
validation examples of these clients only. Test examples are not copied: models are scored on them,
but no algorithm sees them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedtailor.core import tree
from fedtailor.core.errors import RunError
from fedtailor.core.torch_private import count_writes
from fedtailor.simulation.programs import ClientInputs, SharedInputs, Tables
from fedtailor.training.batches import take

LARGEST_COPY = 2**29
"""Bytes of examples that are copied. Programs with more see the data themselves."""


class SpoiledData(RunError):
    """A program changed the data of all clients, of which there is no copy.

    The run cannot continue.
    """


def make_private(common: Any, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return copies of what some clients' programs receive: the common part, and one part each."""
    copies = [tree.copy(part) for part in inputs]
    if not isinstance(common, SharedInputs) or not all(
        isinstance(part, ClientInputs) for part in copies
    ):
        return common, copies

    # All but the data themselves, from which test examples are read.
    shared = SharedInputs(common.x, common.y, *(tree.copy(part) for part in common[2:]))
    positions = torch.cat([part.rows for client in copies for part in (client.train, client.val)])
    if len(positions) * common.x[:1].nbytes > LARGEST_COPY:
        # New tensors of the same memory: they count the writes through them, and no others.
        return shared._replace(visible=Tables(common.x.data, common.y.data)), copies

    if len(positions) == 0:
        return shared._replace(visible=Tables(common.x[:0].clone(), common.y[:0].clone())), copies

    visible = Tables(take(common.x, positions), common.y[positions])
    return shared._replace(visible=visible), _numbered_by_row(copies)


def _numbered_by_row(inputs: Sequence[ClientInputs]) -> list[ClientInputs]:
    """Replace positions in the data set by rows of the private table, client after client."""
    start = 0
    numbered = []
    for client in inputs:
        val_start = start + len(client.train.rows)
        end = val_start + len(client.val.rows)
        train = client.train._replace(rows=torch.arange(start, val_start))
        val = client.val._replace(rows=torch.arange(val_start, end))
        numbered.append(client._replace(train=train, val=val))
        start = end
    return numbered


def refuse_spoiled(common: Any) -> None:
    """Check that programs without a private table left the data of all clients as they were.

    Raises:
        SpoiledData: they did not.
    """
    if not isinstance(common, SharedInputs) or not common.visible:
        return

    x, y = common.visible
    if x.data_ptr() == common.x.data_ptr() and count_writes(x) + count_writes(y) > 0:
        raise SpoiledData(
            "a client's program changed its examples in place. They take more than "
            f"{LARGEST_COPY // 2**20} MiB, so it worked on the data of all clients, which are now "
            'changed. engine.name = "processes" protects them.',
            key="engine.name",
        )
