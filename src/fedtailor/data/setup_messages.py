"""What sites exchange before the first round, so that all have the same features."""

from __future__ import annotations

from typing import NamedTuple

from fedtailor.data.columns import Columns
from fedtailor.data.input_specification import InputSpecification
from fedtailor.data.options import DataOptions
from fedtailor.data.quantiles import FIRST_INTERVALS, RANK_ERROR


class SetupField(NamedTuple):
    """One value that every site sends before the first round; new clients send none.

    The server sees that of each site.
    """

    name: str
    content: str
    """What it is, as the end of a sentence that begins with "Every site sends"."""
    shape: tuple[int, ...]
    """Its size: how many numbers, or texts."""


def setup_messages(inputs: InputSpecification, options: DataOptions) -> list[SetupField]:
    """Return what the sites exchange so that all have the same features, classes and scale.

    Names of groups, such as those of patients, are not among it: sites divide theirs by themselves.

    The simulation computes them client by client, and merges them as a server does, to the same
    bits (:mod:`fedtailor.data.column_summaries`, :mod:`fedtailor.data.moments`).

    Args:
        inputs: how the examples of the run become inputs.
        options: the ``[data]`` section.
    """
    fields = []
    if options.path:
        content = "the names of the classes of its examples"
        fields.append(SetupField("class names", content, (inputs.num_classes,)))

    if inputs.encoder is not None:
        content = "target, digest and license of the frozen encoder that made its features"
        fields.append(SetupField("encoder", content, (3,)))

    if inputs.columns is not None:
        fields += _of_columns(inputs.columns, options)

    # Mean and deviation of all training examples are merged from those of the sites.
    if options.standardizes(inputs.kind, is_embedded=inputs.encoder is not None):
        width = inputs.shape[0]
        values = "every feature" if inputs.kind == "table" else "every channel"
        content = f"how many values of {values} its training examples have"
        fields.append(SetupField("count", content, (1,)))
        content = f"the mean over its training examples of {values}"
        fields.append(SetupField("means", content, (width,)))
        content = f"the sum of the squared differences from this mean, of {values}"
        fields.append(SetupField("squares", content, (width,)))

    return fields


def _of_columns(plan: Columns, options: DataOptions) -> list[SetupField]:
    """Return what the columns of a table need."""
    columns = plan.columns
    width = (len(columns),)
    fields = [
        SetupField("columns", "the names of the columns of its table", width),
        SetupField("filled cells", "how many training cells of every column have a value", width),
        SetupField("empty cells", "whether a training cell of every column is empty", width),
    ]
    numbers = sum(column.kind == "number" for column in columns)
    if numbers:
        content = "the median of its training cells of every column of numbers"
        fields.append(SetupField("medians", content, (numbers,)))
    if numbers and options.numbers != "standard":
        content = (
            "how many of its training cells of every column of numbers lie in each of some "
            "intervals, which are the same for all data; then in parts of those that hold more "
            f"than {100 * RANK_ERROR:g} % of the cells of all sites and a quantile"
        )
        fields.append(SetupField("counts of intervals", content, (numbers, FIRST_INTERVALS)))

    categories = sum(len(column.categories) for column in columns)
    if categories:
        content = "the categories in its training rows of every column of text"
        fields.append(SetupField("categories", content, (categories,)))

    return fields
