"""Arrays, pictures, paths and tables of users, as values that the training data hold."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.cell_rules import CellRules
from fedtailor.data.input_specification import InputSpecification
from fedtailor.data.own.cells import Cells
from fedtailor.data.own.decimals import rewrites
from fedtailor.data.own.like import LikeTable, read_frame_like, read_table_like

if TYPE_CHECKING:
    from PIL import Image

PICTURE_WHITE = 255.0
"""The value of white in a decoded picture."""


@dataclass(frozen=True)
class Stored:
    """Examples as :func:`fedtailor.serving.site_data.load_site` reads them.

    Those of tables are features, which must not be encoded again.
    """

    values: np.ndarray


def to_stored(inputs: Any, specification: InputSpecification) -> np.ndarray:
    """Return inputs as an array of stored values.

    Images are (n, height, width, channels), series (n, times, channels), tables (n, features).

    Args:
        inputs: an array or a tensor of one example or several; a picture of Pillow, a path of a
            picture, or a list of them; for tables also a data frame of pandas. :class:`Stored`
            values stay as they are.
        specification: of the model.

    Raises:
        DataError: the inputs are not what the model was trained for; the message says what differs.
    """
    if isinstance(inputs, Stored):
        return inputs.values
    if specification.kind == "table":
        return _to_table(inputs, specification)
    if specification.kind == "series":
        return _to_series(_to_array(inputs), specification)
    if _is_picture(inputs):
        inputs = [inputs]
    if isinstance(inputs, list | tuple) and inputs and all(_is_picture(one) for one in inputs):
        return _pictures(inputs, specification)
    return _to_images(_to_array(inputs), specification)


def _is_picture(value: Any) -> bool:
    """Return whether a value is a path, or a picture of Pillow."""
    if isinstance(value, str | os.PathLike):
        return True

    from PIL import Image

    return isinstance(value, Image.Image)


def _to_array(inputs: Any) -> np.ndarray:
    """Return inputs as an array of numbers.

    Raises:
        DataError: they are not numbers.
    """
    allowed = "numbers in an array, or pictures"
    try:
        array = np.asarray(inputs)
    except (TypeError, ValueError, RuntimeError) as reason:
        raise _refuse(allowed, f"{type(inputs).__name__} ({reason})") from reason

    if array.dtype.kind not in "iuf":
        raise _refuse(allowed, f"an array of type {array.dtype}")
    return array


def _to_table(inputs: Any, specification: InputSpecification) -> np.ndarray:
    """Return rows of features (n, features) as float32."""
    (features,) = specification.shape
    columns = specification.columns
    training = specification.training_tables
    table = None
    if training is not None and isinstance(inputs, str | os.PathLike):
        table = read_table_like(Path(inputs), training)
    elif training is not None and hasattr(inputs, "columns"):
        table = read_frame_like(inputs, training)

    if table is not None:
        x = features_of(table)
        for problem in table.problems:
            warnings.warn(f"{problem.path}: {problem.message}", UserWarning, stacklevel=4)
        return x

    # Without names of columns, numbers must come in their order: cells, where all columns hold
    # numbers, or else features.
    array = _to_array(inputs)
    are_cells = columns is not None and all(column.kind == "number" for column in columns.columns)
    if columns is not None and are_cells:
        features = len(columns.columns)

    # One row alone.
    if array.shape == (features,):
        array = array[None]
    if array.ndim != 2 or array.shape[1] != features:
        what = "cells" if are_cells else "features"
        raise _refuse(f"rows of {features} {what}", f"an array of shape {array.shape}")

    values = _finite(array)
    if columns is None or not are_cells:
        return values

    # What means missing in a table means it here.
    rewrite = rewrites(specification.cells or CellRules(), {})
    cells = {}
    for name, column in zip(columns.names, values.T, strict=True):
        cells[name] = Cells.of_numbers(column, rewrite.get(name)).numbers
    return columns.encode(cells).x


def features_of(table: LikeTable) -> np.ndarray:
    """Return the features of a table that was read (n, features).

    Raises:
        DataError: it cannot be used; the message has the first error.
    """
    if table.x is None:
        problem = next(problem for problem in table.problems if problem.severity == "error")
        where = f"'{problem.path}': " if problem.path else ""
        message = f"{where}{problem.message}"
        raise DataError(message, key="inputs", path=problem.path, got=problem.kind)
    return table.x


def _to_series(array: np.ndarray, specification: InputSpecification) -> np.ndarray:
    """Return series (n, times, channels), float32, from one series or several."""
    channels, times = specification.shape
    shape = array.shape
    if channels == 1 and shape[-1:] == (times,):
        array = array[..., None]
    if array.shape == (times, channels):
        array = array[None]

    if array.ndim != 3 or array.shape[1:] != (times, channels):
        allowed = f"series of {times} times and {channels} channels, as (n, times, channels)"
        raise _refuse(allowed, f"an array of shape {shape}")

    return _finite(array)


def _finite(array: np.ndarray) -> np.ndarray:
    """Return numbers as float32.

    Raises:
        DataError: one of them is not finite as such.
    """
    # A number too large for float32 becomes infinite, which is refused next.
    with np.errstate(over="ignore"):
        values: np.ndarray = array.astype(np.float32)

    _refuse_not_finite(values)
    return values


def _to_images(array: np.ndarray, specification: InputSpecification) -> np.ndarray:
    """Return images (n, height, width, channels) from one image or several in some layout."""
    channels, height, width = specification.shape
    image = (height, width, channels)
    shape = array.shape

    # One image; gray ones without channels; channels first, where that is unambiguous.
    if shape in {image, image[:2]} and (len(shape) == 3 or channels == 1):
        array = array.reshape(1, *image)
    elif shape[1:] == image[:2] and channels == 1:
        array = array[..., None]
    elif shape[1:] == (channels, height, width) and shape[1:] != image:
        array = np.moveaxis(array, 1, 3)

    if array.shape[1:] != image:
        size = f"{height} x {width} pixels and {channels} channel{'s' if channels > 1 else ''}"
        allowed = f"images of {size}, as (n, height, width, channels)"
        raise _refuse(allowed, f"an array of shape {shape}")

    return _with_stored_values(array, specification)


def _with_stored_values(array: np.ndarray, specification: InputSpecification) -> np.ndarray:
    """Return images in the type of the training data, if their values are on its scale."""
    white = specification.white
    if array.dtype.kind == "f":
        _refuse_not_finite(array)
    if array.size == 0:
        return array.astype(specification.stored)

    low = float(array.min())
    high = float(array.max())
    span = f"from {low:g} to {high:g}"
    if specification.stored == "uint8" and not 0 <= low <= high <= 255:
        raise _refuse("values from 0 to 255", f"values {span}")
    if array.dtype.kind == "f" and white == PICTURE_WHITE and 0 < high <= 1:
        allowed = "values from 0 to 255, where 255 is white"
        raise _refuse(allowed, f"floats {span}: multiply by 255")

    # With white 1, only the default normalization tells that the values in training were between
    # 0 and 1.
    is_default = bool((specification.mean == 0.5).all() and (specification.std == 0.5).all())
    has_range = specification.stored == "float32" and (white != 1 or is_default)
    if has_range and not 0 <= low <= high <= white:
        raise _refuse(f"values from 0 to {white:g}, where {white:g} is white", f"values {span}")

    # Whole numbers that came as floats.
    if specification.stored == "uint8" and array.dtype.kind == "f":
        array = np.rint(array)

    return array.astype(specification.stored, copy=False)


def _pictures(pictures: Sequence[Any], specification: InputSpecification) -> np.ndarray:
    """Return pictures, decoded if they are paths."""
    from fedtailor.data.own.decode import reading_images

    with reading_images():
        rows = [read_picture(picture, specification) for picture in pictures]
    return np.stack(rows)


def read_picture(
    picture: str | os.PathLike[str] | Image.Image, specification: InputSpecification
) -> np.ndarray:
    """Return a picture (height, width, channels) with stored values.

    Call it within ``reading_images``.

    Raises:
        DataError: it cannot be decoded, or has another size and the model's pictures are not
            resized.
    """
    from fedtailor.data.own.decode import decode, from_pillow
    from fedtailor.data.own.findings import Unusable
    from fedtailor.data.own.images import with_channels
    from fedtailor.data.pictures import square

    name = "a picture"
    try:
        if isinstance(picture, str | os.PathLike):
            name = f"'{os.fspath(picture)}'"
            pixels = decode(Path(picture)).pixels
        else:
            pixels = from_pillow(picture)
    except Unusable as reason:
        message = f"{name}: {reason.message}"
        raise DataError(message, key="inputs", path=name, got=reason.kind) from reason

    channels, height, width = specification.shape

    # As the pictures of the training data were made.
    if specification.image_size:
        pixels = square(pixels, specification.image_size)

    if pixels.shape[:2] != (height, width):
        size = f"{width} x {height} pixels"
        got = f"{pixels.shape[1]} x {pixels.shape[0]}"
        message = f"{name}: pictures must have {size}, got {got}."
        raise DataError(message, key="inputs", allowed=size, got=got)

    # Decoded values end at 255; those of the training data end at their own white.
    pixels = with_channels(pixels, channels)
    if specification.stored == "uint8":
        if specification.white == PICTURE_WHITE:
            return pixels
        return np.rint(pixels * (specification.white / PICTURE_WHITE)).astype(np.uint8)

    return (pixels.astype(np.float32) / np.float32(PICTURE_WHITE)) * np.float32(specification.white)


def _refuse_not_finite(values: np.ndarray) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argwhere(~finite)[0][0])
        raise _refuse("finite", f"NaN or infinity, first in row {row}")


def _refuse(allowed: str, got: str) -> DataError:
    message = f"inputs must be {allowed}, got {got}."
    return DataError(message, key="inputs", allowed=allowed, got=got)
