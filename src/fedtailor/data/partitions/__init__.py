"""Partitions, which divide examples among clients: their table, and how their texts are read.

A module of this package is imported when one of its partitions is used, so that listing is
immediate.
"""

from __future__ import annotations

import ast
import dataclasses
import pkgutil
import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fedtailor.core.errors import FedtailorError, find_name
from fedtailor.core.options import build, wrong_value

if TYPE_CHECKING:
    from fedtailor.data.partitions.base import Partition

_KEY = "data.partition"
_MAX_TEXT = 200


class PartitionEntry(NamedTuple):
    """A row of the table of partitions."""

    target: str
    """``module:class`` within this package."""
    description: str

    def load(self) -> type[Partition]:
        """Import the module and return the class."""
        return cast("type[Partition]", pkgutil.resolve_name(f"{__name__}.{self.target}"))


PARTITIONS: Mapping[str, PartitionEntry] = {
    "classes": PartitionEntry(
        "classes:Classes",
        "every client holds k classes, each class shared evenly: classes(k=2)",
    ),
    "cyclic_classes": PartitionEntry(
        "classes:CyclicClasses",
        "client i holds classes i to i+k-1, equal sizes (FedCR): cyclic_classes(k=5)",
    ),
    "dirichlet": PartitionEntry(
        "dirichlet:Dirichlet",
        "shares of each class drawn from a Dirichlet: dirichlet(alpha=0.5, min_size=10)",
    ),
    "dirichlet_quota": PartitionEntry(
        "dirichlet:DirichletQuota",
        "every client has `quota` examples, whose classes are drawn from a Dirichlet (FedLDA): "
        "dirichlet_quota(alpha=0.5, quota=500)",
    ),
    "domain_labels": PartitionEntry(
        "domains:DomainLabels",
        "every client has one domain and k of its labels (pFedVEM): domain_labels(k=5)",
    ),
    "domains": PartitionEntry(
        "domains:Domains",
        "clients within every domain, divided by a Dirichlet: domains(per_domain=4, alpha=0.5)",
    ),
    "iid": PartitionEntry("dirichlet:Iid", "equal parts of all examples at random: iid"),
    "label_slices": PartitionEntry(
        "slices:LabelSlices",
        "every client has k labels, each label cut at random places (pFedVEM): label_slices(k=5); "
        "as released (bug): labels share their cut points, unless shared_cuts=false",
    ),
    "natural": PartitionEntry(
        "domains:Natural", "one client per writer, site or domain of the data: natural"
    ),
    "subclass_slices": PartitionEntry(
        "slices:SubclassSlices",
        "every client has one subclass of every label, cut at random places (pFedVEM): "
        "subclass_slices; as released (bug): see label_slices",
    ),
}
"""Partitions by name."""


def parse_partition(text: str) -> Partition:
    """Read a partition such as ``dirichlet(alpha=0.5, min_size=10)``.

    Raises:
        ConfigError: a name or an option is unknown (the message gives the nearest one), or a value
            is missing or wrong.

    Example:
        >>> str(parse_partition("dirichlet(alpha=0.5)"))
        'dirichlet(alpha=0.5, min_size=10)'
    """
    name, options = read_expression(text, key=_KEY, example="dirichlet(alpha=0.5) or iid")
    name = find_name("partition", name, PARTITIONS, key=_KEY)
    cls = PARTITIONS[name].load()
    fields = {field.name: field for field in dataclasses.fields(cls)}

    # An unknown option is reported first, by build: it may be the absent one, misspelled.
    if set(options) <= set(fields):
        for field in fields.values():
            if field.default is dataclasses.MISSING and field.name not in options:
                raise wrong_value(f"{name}.{field.name}", "given", text)

    return build(cls, options, section=name)


def read_expression(
    text: str, *, key: str, example: str = "name(option=1)"
) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a text ``name`` or ``name(option=value, ...)``.

    Values are written as in Python; ``true`` and ``false`` are read too, as in configuration files.
    The error message shows ``key`` and ``example``.

    Raises:
        ConfigError: the text has another form.

    Example:
        >>> read_expression("cifar_s(clients=50, pairing='release')", key="data.shift")
        ('cifar_s', {'clients': 50, 'pairing': 'release'})
    """
    if len(text) > _MAX_TEXT:
        raise _unreadable(f"{text[:_MAX_TEXT]}...", key, example)

    # A bare name, or a call with named options: Python's own grammar, and nothing is run.
    try:
        node = _parse(text.strip())
        if isinstance(node, ast.Name):
            return node.id, {}

        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            options = {keyword.arg: _value_of(keyword.value) for keyword in node.keywords}
            if None not in options and len(options) == len(node.keywords):
                return node.func.id, {str(option): value for option, value in options.items()}
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise _unreadable(text, key, example) from error

    raise _unreadable(text, key, example)


def _value_of(node: ast.expr) -> Any:
    """Return the value of an option."""
    if isinstance(node, ast.Name) and node.id in ("true", "false"):
        return node.id == "true"
    return ast.literal_eval(node)


def _parse(text: str) -> ast.expr:
    """Return the syntax tree, after hyphens in the name became underscores."""
    # A name may have hyphens, as in label-slices.
    name, parenthesis, options = text.partition("(")
    spelled = re.sub(r"(?<=[a-zA-Z0-9])-(?=[a-zA-Z])", "_", name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Python only warns of strange numbers
        return ast.parse(spelled + parenthesis + options, mode="eval").body


def _unreadable(text: str, key: str, example: str) -> FedtailorError:
    return wrong_value(key, f"a name with named options, such as {example}", text)
