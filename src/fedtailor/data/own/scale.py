"""One type and one scale for the examples in the arrays of all sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.data.dataset import Normalization
from fedtailor.data.own.blocks import Block
from fedtailor.data.own.findings import Findings, counted

AS_THEY_ARE = Normalization(mean=(0.0,), std=(1.0,))
"""No normalization: values are used as they are stored."""


class Scale(NamedTuple):
    """The type in which all examples are stored, and their normalization."""

    kind: type[np.uint8] | type[np.float32]
    white: float
    normalize: Normalization


def find_scale(blocks: Sequence[Block]) -> Scale | None:
    """Return the scale that fits the examples of all blocks; None, with the problem added, if none
    does.

    * Tables: float32, as they are.
    * Images of whole numbers, none above 255: uint8, and 255 is white. None above 65,535: float32,
      and 65,535 is white. A warning is added if the largest value is far from white.
    * Images of floats within [0, 1]: float32, and 1 is white. Other floats are used as they are,
      with a warning.
    """
    if blocks[0].x.ndim == 2:
        return Scale(np.float32, 1.0, AS_THEY_ARE)

    lows = [float(block.x.min()) for block in blocks]
    highs = [float(block.x.max()) for block in blocks]
    low = min(lows)
    high = max(highs)
    least = blocks[lows.index(low)].place
    most = blocks[highs.index(high)].place
    offender = least if low < 0 else most

    if blocks[0].x.dtype.kind == "f":
        if low >= 0 and high <= 1:
            return Scale(np.float32, 1.0, Normalization())

        message = f"Images hold floats from {low:g} to {high:g}, not within [0, 1]: they are used as they are."
        offender.warning("values_unscaled", message)
        return Scale(np.float32, 1.0, AS_THEY_ARE)

    if low < 0 or high > 65535:
        message = f"Images of whole numbers must be from 0 to 255 or to 65535, got values from {low:g} to {high:g}."
        offender.error("value_out_of_range", message)
        return None

    warn_if_dark(high, 255.0 if high <= 255 else 65535.0, most.findings)
    if high <= 255:
        return Scale(np.uint8, 255.0, Normalization())

    most.findings.notes.append(
        f"Images hold whole numbers up to {high:g}: 65535 is white (16 bits)."
    )
    return Scale(np.float32, 65535.0, Normalization())


def warn_if_dark(peak: float, white: float, findings: Findings) -> None:
    """Warn if the largest value of all images, whole numbers, is below a quarter of white."""
    if 4 * (peak + 1) > white + 1:
        return

    bits = 8 if white == 255 else 16
    message = (
        f"The largest value of all {bits}-bit images is {peak:g}, and {white:g} is white: all images are "
        f"nearly black, and most of their contrast is lost. Scale the values so that white is {white:g}, "
        'or set data.normalize = "training".'
    )
    findings.add("warning", "dark_8_bit" if bits == 8 else "dark_16_bit", "", "", message)


def check_finite(block: Block) -> bool:
    """Return whether every value is finite as a 32-bit float; add the problem if not."""
    if block.x.dtype.kind != "f":
        return True

    with np.errstate(over="ignore"):
        finite = np.isfinite(block.x.astype(np.float32, copy=False)).reshape(len(block.x), -1)

    if finite.all():
        return True

    rows = np.flatnonzero(~finite.all(axis=1))
    values = counted(finite.size - int(finite.sum()), "value")
    examples = counted(len(rows), "example")
    message = f"{values} in {examples} cannot be used: not finite as 32-bit floats (NaN, infinite or too large)"
    block.place.error("not_finite", f"{message}; the first at index {rows[0]}.", int(rows[0]))

    return False
