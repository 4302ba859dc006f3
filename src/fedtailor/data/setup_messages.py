"""What is computed over all sites before the first round, as messages that a real federation would exchange."""

from __future__ import annotations

from typing import Literal, NamedTuple

from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions

MEDIAN_THRESHOLDS = 64
"""Thresholds until a median is exact: 32-bit numbers are found by 32 halvings, and two are in the middle."""


class SetupField(NamedTuple):
    """One value that every site sends before the first round. New clients send nothing."""

    name: str
    content: str
    """What it is, as the end of a sentence that begins with "Every site sends"."""
    shape: tuple[int, ...]
    """Its size: how many numbers, or texts."""
    reduction: Literal["each", "sum"]
    """each: somebody sees the value of every site; sum: only the sum over sites is needed."""


def setup_messages(dataset: Dataset, options: DataOptions) -> list[SetupField]:
    """Return what the sites exchange so that all have the same features, classes and scale.

    The simulation computes the same numbers from all examples at once. The median of a column needs no cells: counts of
    the cells up to a threshold, which add up over sites, give it exactly.

    Args:
        dataset: the data of a run, ``DividedData.dataset``.
        options: the ``[data]`` section.

    Example:
        >>> from fedtailor.data import load_dataset
        >>> [field.name for field in setup_messages(load_dataset("digits"), DataOptions(normalize="training"))]
        ['count', 'sums', 'squares']
    """
    fields = []
    if options.path:
        content = "the names of the classes of its examples"
        fields.append(SetupField("class names", content, (dataset.num_classes,), "each"))
    if dataset.columns is not None:
        fields += _of_columns(dataset)
    if dataset.groups is not None and len(dataset.domain_names) > 1:
        content = "the names of its groups (data.group), so that a group at several sites is on the same side at all"
        fields.append(SetupField("groups", content, (int(dataset.groups.max()) + 1,), "each"))
    if options.standardizes(is_table=dataset.x.ndim == 2):
        values = dataset.x.shape[-1]
        per = "feature" if dataset.x.ndim == 2 else "channel"
        fields.append(SetupField("count", "how many training examples it has", (1,), "sum"))
        fields.append(SetupField("sums", f"the sum over its training examples of every {per}", (values,), "sum"))
        squares = f"the sum over its training examples of the square of every {per}"
        fields.append(SetupField("squares", squares, (values,), "sum"))
    return fields


def _of_columns(dataset: Dataset) -> list[SetupField]:
    """Return what the columns of a table need."""
    assert dataset.columns is not None
    columns = dataset.columns.columns
    fields = [SetupField("columns", "the names of the columns of its table", (len(columns),), "each")]
    numbers = [column for column in columns if column.kind == "number"]
    if numbers:
        filled = "how many training cells of every column of numbers are not empty"
        fields.append(SetupField("filled cells", filled, (len(numbers),), "sum"))
        counts = (
            "how many training cells of every column of numbers are at most a threshold, for thresholds chosen one "
            "after the other until the median is known"
        )
        fields.append(SetupField("cells up to a threshold", counts, (MEDIAN_THRESHOLDS, len(numbers)), "sum"))
    categories = sum(len(column.categories) for column in columns)
    if categories:
        texts = "the categories in its training rows of every column of text"
        fields.append(SetupField("categories", texts, (categories,), "each"))
    return fields
