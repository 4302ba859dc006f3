"""One type and one scale for the examples that all sites give as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.data.dataset import Normalization
from fedtailor.data.own.blocks import Block
from fedtailor.data.own.report import Findings

AS_THEY_ARE = Normalization(mean=(0.0,), std=(1.0,))
"""Values are used as they are stored."""


class Scale(NamedTuple):
    """What all examples are stored as, and how they are normalized."""

    kind: type[np.uint8] | type[np.float32]
    white: float
    normalize: Normalization


def find_scale(blocks: Sequence[Block]) -> Scale | None:
    """Return the scale that fits the examples of all blocks; None, with the problem added, if none does.

    * Tables: float32, as they are.
    * Images of whole numbers, none above 255: uint8, and 255 is white. None above 65,535: float32, and 65,535 is white.
      A warning tells where even the largest value is far from white.
    * Images of floats within [0, 1]: float32, and 1 is white. Other floats are used as they are, with a warning.
    """
    if blocks[0].x.ndim == 2:
        return Scale(np.float32, 1.0, AS_THEY_ARE)
    lows, highs = [float(block.x.min()) for block in blocks], [float(block.x.max()) for block in blocks]
    low, high = min(lows), max(highs)
    least, most = blocks[lows.index(low)].place, blocks[highs.index(high)].place
    if blocks[0].x.dtype.kind == "f":
        if low >= 0 and high <= 1:
            return Scale(np.float32, 1.0, Normalization())
        message = f"Images hold floats from {low:g} to {high:g}, not within [0, 1]: they are used as they are."
        (least if low < 0 else most).warning("values_unscaled", message)
        return Scale(np.float32, 1.0, AS_THEY_ARE)
    if low < 0 or high > 65535:
        message = f"Images of whole numbers must be from 0 to 255 or to 65535, got values from {low:g} to {high:g}."
        (least if low < 0 else most).error("value_out_of_range", message)
        return None
    warn_if_dark(high, 255.0 if high <= 255 else 65535.0, most.findings)
    if high <= 255:
        return Scale(np.uint8, 255.0, Normalization())
    most.findings.notes.append(f"Images hold whole numbers up to {high:g}: they are scaled as 16-bit, 65535 is white.")
    return Scale(np.float32, 65535.0, Normalization())


def warn_if_dark(peak: float, white: float, findings: Findings) -> None:
    """Warn if the largest value of all images, whole numbers, is below a quarter of white."""
    if 4 * (peak + 1) > white + 1:
        return
    bits = 8 if white == 255 else 16
    message = (
        f"The largest value of all images read as {bits} bits is {peak:g}, and {white:g} is white: all are "
        f"nearly black, and most of their contrast is lost. Scale the values so that white is {white:g}, "
        'or set data.normalize = "training".'
    )
    findings.add("warning", "dark_8_bit" if bits == 8 else "dark_16_bit", "", "", message)


def check_finite(block: Block) -> bool:
    """Return whether every value is finite as a 32-bit float; add the problem where one is not."""
    if block.x.dtype.kind != "f":
        return True
    with np.errstate(over="ignore"):
        finite = np.isfinite(block.x.astype(np.float32, copy=False)).reshape(len(block.x), -1)
    if finite.all():
        return True
    rows = np.flatnonzero(~finite.all(axis=1))
    message = (
        f"{finite.size - int(finite.sum())} values of {len(rows)} examples are NaN, infinite or beyond 32-bit floats"
    )
    block.place.error("not_finite", f"{message}; the first at index {rows[0]}.", int(rows[0]))
    return False
