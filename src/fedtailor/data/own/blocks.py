"""Examples and labels that a site gives as arrays: what they may be, checked before they are put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedtailor.data.own.place import MAX_CLASSES, Place, show


class Block(NamedTuple):
    """One part of a site's examples, as given."""

    place: Place
    part: Literal["train", "test"]
    x: np.ndarray  # (rows, height, width), (rows, height, width, channels) or (rows, features), numbers
    y: np.ndarray  # (rows,), numbers

    @property
    def site(self) -> str:
        """Name of the site."""
        return self.place.site


def check_block(block: Block, class_names: Sequence[str]) -> Block | None:
    """Return the block with images channels last and labels as int64; None, with the problem added, if it is unusable.

    Labels are whole numbers from 0, below the number of ``class_names`` if there are any. Those stored as floats are
    accepted, with a warning, where all are whole. Channels are the last axis, or the second where that one
    has 1 or 3 entries and the last has neither 1 nor 3, as PyTorch orders them.
    """
    x, y, place = block.x, block.y, block.place
    if y.ndim != 1 or x.ndim == 0 or len(x) != len(y):
        allowed = "y of shape (rows,) and x of shape (rows, ...) with as many rows"
        place.error("wrong_shape", f"Expected {allowed}, got x of shape {x.shape} and y of shape {y.shape}.")
        return None
    if x.dtype.kind not in "buif" or (x.dtype.kind == "b" and x.ndim != 2):
        place.error("wrong_type", f"Expected x of whole numbers or floats, got type {x.dtype}.")
        return None
    if 0 in x.shape[1:] or x.ndim not in (2, 3, 4):
        allowed = "(rows, height, width), (rows, height, width, channels) or (rows, features)"
        place.error("wrong_shape", f"Expected x of shape {allowed}, got {x.shape}.")
        return None
    labels = _check_labels(y, place, len(class_names))
    images = x if x.ndim == 2 else _channels_last(x, place)
    return None if labels is None or images is None else block._replace(x=images, y=labels)


def _check_labels(y: np.ndarray, place: Place, num_classes: int) -> np.ndarray | None:
    """Return the labels as int64, or None with the problem added."""
    if y.dtype.kind not in "buif":
        place.error("wrong_type", f"Expected labels y of whole numbers, got type {y.dtype}; names go into class_names.")
        return None
    wrong = np.flatnonzero(y != np.floor(y)) if y.dtype.kind == "f" else np.empty(0, dtype=int)  # NaN is never equal
    if len(wrong):
        row = int(wrong[0])
        message = f"Labels must be whole numbers: {len(wrong)} are not, the first is {y[row]} at index {row}."
        place.error("float_label", message, row)
        return None
    limit = num_classes or MAX_CLASSES
    wrong = np.flatnonzero((y < 0) | (y >= limit))
    if len(wrong):
        row = int(wrong[0])
        why = f"the {num_classes} class names allow" if num_classes else f"no more than {MAX_CLASSES} classes are read:"
        kind = "negative_label" if y[row] < 0 else "label_out_of_range"
        message = f"Labels must be from 0 to {limit - 1} ({why.rstrip(':')}), got {y[row]} at index {row}."
        place.error(kind, message, row)
        return None
    if y.dtype.kind == "f":
        place.warning("labels_as_floats", "Labels are stored as floats; all are whole numbers and used as such.")
    return y.astype(np.int64)


def _channels_last(x: np.ndarray, place: Place) -> np.ndarray | None:
    """Return images as (rows, height, width, channels), or None with the problem added."""
    if x.ndim == 3:
        return x[..., None]
    last, second, third = x.shape[3], x.shape[1], x.shape[2]
    if last in (1, 3) or last <= min(second, third):
        return x
    if second in (1, 3) and third > 3:
        note = "Images stored channels first (rows, channels, height, width) were brought to channels last."
        if note not in place.findings.notes:
            place.findings.notes.append(note)
        return np.moveaxis(x, 1, 3)
    place.error(
        "wrong_shape", f"Cannot tell the channels of images of shape {show(x.shape)}: they go into the last axis."
    )
    return None


def check_alike(blocks: Sequence[Block]) -> bool:
    """Return whether all blocks have examples of one shape, and all whole numbers or all floats; add what differs."""
    first, alike = blocks[0], True
    for block in blocks[1:]:
        if block.x.shape[1:] != first.x.shape[1:]:
            got, expected = f"shape {block.x.shape[1:]}", f"shape {first.x.shape[1:]} as in {show(first.place.path)}"
            block.place.error("shape_differs", f"Expected examples of {expected}, got {got}.")
            alike = False
        elif first.x.ndim == 4 and (block.x.dtype.kind == "f") != (first.x.dtype.kind == "f"):
            got, expected = f"type {block.x.dtype}", f"type {first.x.dtype} as in {show(first.place.path)}"
            block.place.error("type_differs", f"Expected examples of {expected}, got {got}.")
            alike = False
    return alike
