"""Checks of the arrays of examples and labels that a site gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedtailor.data.own.findings import MAX_CLASSES, Place, show
from fedtailor.data.own.text_columns import SEVERAL_LABELS


class Block(NamedTuple):
    """One part of a site's examples, as given."""

    place: Place
    part: Literal["train", "test"]
    x: (
        np.ndarray
    )  # (rows, height, width), (rows, height, width, channels) or (rows, features), numbers
    y: np.ndarray  # (rows,), numbers

    @property
    def site(self) -> str:
        """Name of the site."""
        return self.place.site


def check_block(block: Block, class_names: Sequence[str]) -> Block | None:
    """Return the block with images channels last and labels as int64; None, with the problem added,
    if it is unusable.

    Labels are whole numbers from 0, below the number of ``class_names`` if there are any. Whole
    numbers stored as floats are accepted with a warning. Channels are the last axis, or, as in
    PyTorch, the second one if that has 1 or 3 entries and the last has neither 1 nor 3.
    """
    x = block.x
    y = block.y
    place = block.place
    if y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind in "buif":
        if ((y == 0) | (y == 1)).all() and (y.sum(axis=1) == 1).all():
            place.error(
                "wrong_shape",
                f"The labels y are one-hot, of shape {y.shape}: store y.argmax(axis=1).",
            )

            return None

        place.error("several_labels", f"The labels y have the shape {y.shape}. {SEVERAL_LABELS}")
        return None

    if y.ndim != 1 or x.ndim == 0 or len(x) != len(y):
        allowed = "y of shape (rows,) and x of shape (rows, ...) with the same number of rows"
        place.error(
            "wrong_shape", f"Expected {allowed}, got x of shape {x.shape} and y of shape {y.shape}."
        )

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
    if labels is None or images is None:
        return None

    return block._replace(x=images, y=labels)


def _check_labels(y: np.ndarray, place: Place, num_classes: int) -> np.ndarray | None:
    """Return the labels as int64, or None with the problem added."""
    if y.dtype.kind not in "buif":
        place.error(
            "wrong_type",
            f"Expected labels y of whole numbers, got type {y.dtype}; names go into class_names.",
        )

        return None

    if y.dtype.kind == "f":
        wrong = np.flatnonzero(y != np.floor(y))  # true for NaN too
        if len(wrong):
            row = int(wrong[0])
            message = (
                f"Labels must be whole numbers: {len(wrong)} are not, the first is {y[row]} at index {row}. "
                "Only classification is supported, not regression."
            )
            place.error("float_label", message, row)

            return None

    limit = num_classes or MAX_CLASSES
    wrong = np.flatnonzero((y < 0) | (y >= limit))
    if len(wrong):
        row = int(wrong[0])
        why = (
            f"there are {num_classes} class names"
            if num_classes
            else f"at most {MAX_CLASSES} classes are read"
        )
        kind = "negative_label" if y[row] < 0 else "label_out_of_range"
        message = f"Labels must be from 0 to {limit - 1} ({why}), got {y[row]} at index {row}."
        place.error(kind, message, row)

        return None

    if y.dtype.kind == "f":
        place.warning(
            "labels_as_floats", "Labels are whole numbers stored as floats; they are converted."
        )

    return y.astype(np.int64)


def _channels_last(x: np.ndarray, place: Place) -> np.ndarray | None:
    """Return images as (rows, height, width, channels), or None with the problem added."""
    if x.ndim == 3:
        return x[..., None]

    _, second, third, last = x.shape
    if last in (1, 3) or last <= min(second, third):
        return x

    if second in (1, 3) and third > 3:
        note = "Images stored channels first (rows, channels, height, width) were converted to channels last."
        if note not in place.findings.notes:
            place.findings.notes.append(note)
        return np.moveaxis(x, 1, 3)

    message = (
        f"The channels of images of shape {show(x.shape)} are unclear: store them in the last axis."
    )
    place.error("wrong_shape", message)

    return None


def check_alike(blocks: Sequence[Block]) -> bool:
    """Return whether all blocks have examples of one shape, and all whole numbers or all floats;
    add differences.
    """
    first = blocks[0]
    origin = show(first.place.path)
    alike = True
    for block in blocks[1:]:
        if block.x.shape[1:] != first.x.shape[1:]:
            expected = f"shape {first.x.shape[1:]} as in {origin}"
            block.place.error(
                "shape_differs", f"Expected examples of {expected}, got shape {block.x.shape[1:]}."
            )
            alike = False
        elif first.x.ndim == 4 and (block.x.dtype.kind == "f") != (first.x.dtype.kind == "f"):
            expected = f"type {first.x.dtype} as in {origin}"
            block.place.error(
                "type_differs", f"Expected examples of {expected}, got type {block.x.dtype}."
            )
            alike = False

    return alike
