"""The bytes of messages as they would travel, from their declaration.

A message leaves out what the receiver can put back: the lower half of a covariance, rows of weight
0, the same weight beside several fields. Sites send messages so (:mod:`fedtailor.deployment
.packing`); a simulation, where none travels, counts them so.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.devices import to_host
from fedtailor.core.message import BYTES_PER_SCALAR, Each, Mean, Messages, Sum, Upload, num_scalars


def tree_bytes(value: tree.Tree) -> int:
    """Return the bytes of the numbers of a tree, as if the default type were float32.

    Example:
        >>> tree_bytes({"w": torch.zeros(3), "bits": torch.zeros(2, dtype=torch.uint8)})
        14
    """
    return sum(leaf.numel() * _bytes_each(leaf) for leaf in tree.leaves(value))


def download_bytes(messages: Messages) -> int:
    """Return the bytes of a download, the values for single clients included."""
    return BYTES_PER_SCALAR * sum(field.scalars() for field in messages.values() if field.down)


def upload_bytes(upload: Upload, messages: Messages) -> int:
    """Return the bytes of a sound upload."""
    total = 0
    weights: dict[str, int] = {}
    masks = {name: sent_rows(entry) for name, entry in upload.items()}
    masks = to_host(masks, "the bytes of an upload")

    for name, entry in upload.items():
        field = messages[name]

        # Fields share the weights of their kind, which are sent once.
        if isinstance(entry, Mean) and field.weight != "equal":
            key = name if field.weight == "own" else f"shared {field.weight}"
            weights[key] = tree_bytes(entry.weight)

        if isinstance(entry, Sum) and isinstance(entry.rows, Tensor):
            total += bytes_of_rows(tuple(entry.rows.shape))

        mask = masks[name]
        num_rows = int(mask.count_nonzero())
        for leaf in tree.leaves(entry.value):
            row_shape = tuple(leaf.shape[mask.dim() :])
            total += num_rows * num_scalars(field.kind, row_shape) * _bytes_each(leaf)

    return total + sum(weights.values())


def bytes_of_rows(shape: tuple[int, ...]) -> int:
    """Return the bytes of the mask that says which rows a sum holds.

    A bit for each, in whole bytes.
    """
    if not shape:
        return 1
    return math.prod(shape[:-1]) * math.ceil(shape[-1] / 8)


def sent_rows(entry: Mean | Sum | Each) -> Tensor:
    """Return true for the rows that are sent; () if there is one weight for all of them."""
    if isinstance(entry, Mean):
        return entry.weight > 0
    if isinstance(entry, Sum) and isinstance(entry.rows, Tensor):
        return entry.rows > 0
    return torch.ones((), dtype=torch.bool)


def _bytes_each(leaf: Tensor) -> int:
    """Return the bytes of one number of a tensor, as if the default type were float32."""
    size = leaf.element_size()
    if leaf.is_floating_point():
        return size * BYTES_PER_SCALAR // torch.get_default_dtype().itemsize
    return size
