"""The specification of a model's inputs: how data becomes numbers.

It is stored beside the models of a run, as ``inputs.json`` and ``inputs.safetensors``, so that a
model can be used where the training data are not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
from safetensors.numpy import load, save

from fedtailor.core.atomic import to_json, write_json, write_whole
from fedtailor.core.errors import DataError, FedtailorError
from fedtailor.core.options import Range, check_options, check_value
from fedtailor.core.reading import damaged, read_file, read_object
from fedtailor.data.build import DividedData
from fedtailor.data.cell_rules import CellRules
from fedtailor.data.columns import Columns, Decimal
from fedtailor.data.dataset import Dataset, EncoderRecord, InputKind, Normalization
from fedtailor.data.options import DataOptions

if TYPE_CHECKING:
    from fedtailor.data.own.like import TrainingTables

INPUTS_VERSION = 1
"""Of the two files."""
_JSON = "inputs.json"
_TENSORS = "inputs.safetensors"
_LARGEST = 2**28
"""Bytes of the file of mean and deviation."""
_AXES: Mapping[str, int] = {"images": 3, "series": 2, "table": 1}
"""Of one input, by kind."""

T = TypeVar("T")
Color = Literal["auto", "gray", "rgb"]


@dataclass(frozen=True, kw_only=True)
class InputSpecification:
    """How examples become inputs of a model: a value p becomes ``(p / white - mean) / std``.

    Images are stored as (height, width, channels), and a model takes (channels, height, width);
    series as (times, channels), and a model takes (channels, times).
    """

    kind: InputKind
    shape: Annotated[tuple[int, ...], Range(ge=1, le=2**31)]
    """Of one input of a model: (channels, height, width), (channels, times) or (features,)."""
    stored: Literal["uint8", "float32"]
    """The type of the training data."""
    white: Annotated[float, Range(ge=1e-6, le=1e12)]
    """The stored value that becomes 1 before normalization. Pictures in files have 255."""
    mean: np.ndarray  # (1,), (channels,) or (features,), float64
    std: np.ndarray  # as mean
    num_classes: Annotated[int, Range(ge=1, le=100_000)]
    class_names: tuple[str, ...] = ()
    """Empty: classes are called by their numbers."""
    image_size: Annotated[int, Range(ge=0, le=1024)] = 0
    """Side of the square to which pictures are resized; 0: pictures must have the right size."""
    color: Color = "auto"
    """``data.color`` of the run."""
    dataset: str = ""
    """Name of the training data."""
    columns: Columns | None = None
    """Tables: how the cells of the columns become features; None if the data came as arrays."""
    cells: CellRules | None = None
    """Tables: how cells are read; None: in the usual way."""
    l2: bool = False
    """Whether rows of features are divided by their Euclidean norm first."""
    encoder: EncoderRecord | None = None
    """The frozen encoder that makes these inputs, which are features then."""

    @property
    def raw(self) -> InputSpecification:
        """What an encoder takes; this object, if there is none."""
        if self.encoder is None:
            return self

        return raw_inputs_of(self.encoder)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes; numbers where the data has no names."""
        return self.class_names or tuple(str(label) for label in range(self.num_classes))

    @property
    def training_tables(self) -> TrainingTables | None:
        """What is known of the tables in training; None if the data were none."""
        # A run without tables loads no reader of tables.
        from fedtailor.data.own.like import TrainingTables

        if self.columns is None:
            return None

        return TrainingTables(self.columns, self.cells, self.std)

    @property
    def digest(self) -> str:
        """SHA-256 of everything here."""
        numbers = self.mean.tobytes() + self.std.tobytes()
        return hashlib.sha256(to_json(self.to_record()).encode() + numbers).hexdigest()

    def for_site(self, name: str, decimal: Decimal = "auto") -> InputSpecification:
        """Return the inputs of the model of one site, see ``CellRules.for_site``."""
        if self.cells is None and decimal == "auto":
            return self

        return replace(self, cells=(self.cells or CellRules()).for_site(name, decimal))

    def to_record(self) -> dict[str, Any]:
        """Return everything but mean and deviation, ready for JSON."""
        record = {
            "version": INPUTS_VERSION,
            "kind": self.kind,
            "shape": list(self.shape),
            "stored": self.stored,
            "white": self.white,
            "image_size": self.image_size,
            "color": self.color,
            "dataset": self.dataset,
            "num_classes": self.num_classes,
            "class_names": list(self.class_names),
            "columns": None if self.columns is None else self.columns.to_record(),
        }
        if self.cells is not None:
            record["cells"] = self.cells.to_record()
        if self.l2:
            record["l2"] = True
        if self.encoder is not None:
            record["encoder"] = self.encoder._asdict()

        return record


def raw_inputs_of(encoder: EncoderRecord) -> InputSpecification:
    """Return what an encoder takes, which are values as they are stored.

    Raises:
        Exception: of many kinds, if the record is not one that was made here.
    """
    as_they_are = {"mean": np.zeros(1), "std": np.ones(1)}
    return specification_of(encoder.inputs, as_they_are)


def input_specification(divided: DividedData, normalize: Normalization) -> InputSpecification:
    """Return the specification of a run's inputs, from its data and their normalization."""
    inputs = inputs_of(divided.dataset, divided.division.options, normalize)
    return replace(inputs, cells=_cell_rules(divided))


def inputs_of(
    dataset: Dataset, options: DataOptions, normalize: Normalization
) -> InputSpecification:
    """Return the specification of inputs that are not the cells of a table."""
    return InputSpecification(
        kind=dataset.kind,
        shape=dataset.input_shape,
        stored="uint8" if dataset.x.dtype == np.uint8 else "float32",
        white=dataset.white,
        mean=np.array(normalize.mean, dtype=np.float64),
        std=np.array(normalize.std, dtype=np.float64),
        num_classes=dataset.num_classes,
        class_names=dataset.class_names,
        image_size=options.image_size,
        color=options.color,
        dataset=dataset.name,
        columns=dataset.columns,
        l2=normalize.l2,
        encoder=dataset.encoder,
    )


def _cell_rules(divided: DividedData) -> CellRules | None:
    """Return how cells are read, and what commas were at each site; None: in the usual way."""
    options = divided.division.options
    # Features have no cells, whatever they were made from.
    raw = divided.division.dataset.raw
    if divided.dataset.encoder is not None:
        return None
    if raw is None or options.decimal != "auto" or not raw.decimals:
        return options.cell_rules

    return CellRules(missing_values=options.missing_values, at_sites=raw.decimals)


def write_input_specification(folder: Path, inputs: InputSpecification) -> None:
    """Write a specification into a folder, the file of its numbers first."""
    numbers = save({"mean": inputs.mean, "std": inputs.std})
    write_whole(folder / _TENSORS, numbers)
    record = {**inputs.to_record(), "file": _TENSORS, "sha256": hashlib.sha256(numbers).hexdigest()}
    write_json(folder / _JSON, record, indent=2)


def read_input_specification(folder: Path) -> InputSpecification:
    """Read the specification that lies in a folder.

    Raises:
        DataError: there is none, or it is damaged, or a newer fedtailor has written it.
    """
    path = folder / _JSON
    record = read_object(path, within=folder)
    version = record.get("version")
    if type(version) is not int or version < 1:
        raise damaged(path, f"its version is {version!r:.40}")

    if version > INPUTS_VERSION:
        message = f"'{path}' is of version {version}; this fedtailor reads up to {INPUTS_VERSION}."
        raise DataError(message, path=path, allowed=INPUTS_VERSION, got=version)

    # The digest ties the two files together: a mix of two runs is refused.
    raw = read_file(folder / _TENSORS, limit=_LARGEST, within=folder)
    if hashlib.sha256(raw).hexdigest() != record.get("sha256"):
        raise damaged(folder / _TENSORS, f"its SHA-256 is not the one in {_JSON}")

    try:
        arrays = load(raw)
        return specification_of(record, arrays)
    except FedtailorError as reason:
        raise damaged(path, reason.message.rstrip(".")) from reason
    except Exception as reason:  # damaged content raises half a dozen kinds
        raise damaged(path, f"{type(reason).__name__}: {reason}") from reason


def specification_of(
    record: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> InputSpecification:
    """Return the specification of a record of ``to_record``, and of mean and deviation.

    Raises:
        ConfigError: something in it is not as it must be. Other exceptions of wrong types are
            possible.
    """
    # A peer may have sent this: refuse a long list before its numbers are checked one by one.
    if len(record["shape"]) > max(_AXES.values()):
        raise ValueError("the shape of inputs has too many axes")

    inputs = InputSpecification(
        kind=record["kind"],
        shape=tuple(record["shape"]),
        stored=record["stored"],
        white=record["white"],
        mean=np.asarray(arrays["mean"], dtype=np.float64),
        std=np.asarray(arrays["std"], dtype=np.float64),
        num_classes=record["num_classes"],
        class_names=tuple(record["class_names"]),
        image_size=record["image_size"],
        color=record["color"],
        dataset=record["dataset"],
        columns=_read(Columns.from_record, record["columns"]),
        cells=_read(CellRules.from_record, record.get("cells")),
        l2=bool(record.get("l2")),
        encoder=_read(encoder_of, record.get("encoder")),
    )

    check_options(inputs, owner="inputs")
    _check_shapes(inputs)
    are_finite = np.isfinite(inputs.mean).all() and np.isfinite(inputs.std).all()
    if not are_finite or inputs.std.min() <= 0:
        raise ValueError("a mean or deviation is not finite, or a deviation is not positive")

    if inputs.class_names and len(inputs.class_names) != inputs.num_classes:
        raise ValueError("the number of class names is impossible")

    return inputs


def _read(reader: Callable[[Any], T], record: Any) -> T | None:
    return None if record is None else reader(record)


def encoder_of(record: Mapping[str, Any]) -> EncoderRecord:
    """Return what a record says of an encoder, once it is checked.

    Raises:
        Exception: of many kinds, if the record is not one that was made here.
    """
    names = ("target", "digest", "license")
    texts = {name: check_value(record[name], str, key=name) for name in names}
    encoder = EncoderRecord(**texts, inputs=dict(record["inputs"]))
    raw_inputs_of(encoder)
    return encoder


def _check_shapes(inputs: InputSpecification) -> None:
    """Check that columns, mean and deviation fit the shape of an input."""
    if inputs.columns is not None:
        num_features = len(inputs.columns.feature_names)
        if (num_features,) != inputs.shape:
            raise ValueError(f"{num_features} features of columns for the shape {inputs.shape}")

    if len(inputs.shape) != _AXES[inputs.kind]:
        raise ValueError(f"the shape of {inputs.kind} is {inputs.shape}")

    # One value for all channels, or one for each.
    channels = inputs.shape[0]
    mean = inputs.mean.shape
    std = inputs.std.shape
    if mean != std or mean not in ((1,), (channels,)):
        raise ValueError(f"{mean} means and {std} deviations for {channels} channels")
