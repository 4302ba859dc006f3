"""What is computed over all sites before the first round, as messages that a real federation would
exchange.
"""

from __future__ import annotations

from typing import NamedTuple

from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions


class SetupField(NamedTuple):
    """One value that every site sends before the first round. The server sees that of each; new
    clients send none.
    """

    name: str
    content: str
    """What it is, as the end of a sentence that begins with "Every site sends"."""
    shape: tuple[int, ...]
    """Its size: how many numbers, or texts."""


def setup_messages(dataset: Dataset, options: DataOptions) -> list[SetupField]:
    """Return what the sites exchange so that all have the same features, classes and scale.

    The simulation computes them client by client, and merges them as a server does, to the same
    bits (:mod:`fedtailor.data.column_summaries`, :mod:`fedtailor.data.moments`).

    Args:
        dataset: the data of a run, ``DividedData.dataset``.
        options: the ``[data]`` section.

    Example:
        >>> from fedtailor.data import load_dataset
        >>> [field.name for field in setup_messages(load_dataset("digits"), DataOptions(normalize="training"))]
        ['count', 'means', 'squares']
    """
    fields = []
    if options.path:
        content = "the names of the classes of its examples"
        fields.append(SetupField("class names", content, (dataset.num_classes,)))

    if dataset.columns is not None:
        fields += _of_columns(dataset)

    if dataset.groups is not None and len(dataset.domain_names) > 1:
        content = "the names of its groups (data.group), so that a group at several sites is on the same side at all"
        fields.append(SetupField("groups", content, (int(dataset.groups.max()) + 1,)))

    if options.standardizes(is_table=dataset.x.ndim == 2):
        values = dataset.x.shape[-1]
        per = "feature" if dataset.x.ndim == 2 else "channel"
        fields.append(
            SetupField("count", f"how many values of every {per} its training examples have", (1,))
        )
        fields.append(
            SetupField("means", f"the mean over its training examples of every {per}", (values,))
        )
        squares = f"the sum over its training examples of the squared difference from this mean, of every {per}"
        fields.append(SetupField("squares", squares, (values,)))

    return fields


def _of_columns(dataset: Dataset) -> list[SetupField]:
    """Return what the columns of a table need."""
    assert dataset.columns is not None
    columns = dataset.columns.columns
    fields = [SetupField("columns", "the names of the columns of its table", (len(columns),))]
    numbers = [column for column in columns if column.kind == "number"]
    content = "how many training cells of every column have a value"
    fields.append(SetupField("filled cells", content, (len(columns),)))
    content = "whether a training cell of every column is empty"
    fields.append(SetupField("empty cells", content, (len(columns),)))

    if numbers:
        content = "the median of its training cells of every column of numbers"
        fields.append(SetupField("medians", content, (len(numbers),)))

    categories = sum(len(column.categories) for column in columns)
    if categories:
        texts = "the categories in its training rows of every column of text"
        fields.append(SetupField("categories", texts, (categories,)))

    return fields
