"""The base class of all partitions, and how they group examples and hand them out."""

from __future__ import annotations

import ast
import dataclasses
import re
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedtailor.core.errors import ConfigError, DataError, find_name
from fedtailor.core.options import build, check_options
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions import PARTITIONS

KEY = "data.partition"
"""The option that names a partition."""


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """Base class of all partitions; the fields are the options.

    ``str`` gives the text form, such as ``dirichlet(alpha=0.5, min_size=10)``, which
    :func:`fedtailor.data.partitions.base.parse_partition` reads.
    """

    name: ClassVar[str]
    hands_out_all: ClassVar[bool] = True
    """Whether every example goes to a client; otherwise some may be left over."""
    by_domain: ClassVar[bool] = False
    """Whether every client has examples of one domain only."""

    def __post_init__(self) -> None:
        check_options(self, owner=self.name)

    def __str__(self) -> str:
        options = []
        for field in dataclasses.fields(self):
            options.append(f"{field.name}={as_text(getattr(self, field.name))}")

        return f"{self.name}({', '.join(options)})" if options else self.name

    def divide(self, annotations: Annotations, *, clients: int, seed: int) -> list[np.ndarray]:
        """Return the positions of each client's examples: disjoint, and seldom empty.

        A client may be without examples only if the partition allows it.

        Args:
            annotations: labels (rows,), subclasses and domains; only classes with examples count.
            clients: number of clients, 1 or more.
            seed: seed of the random generator, 0 or more.

        Raises:
            DataError: there are fewer examples than clients, or the options are impossible on this
                data.
        """
        rows = len(annotations.labels)
        if clients > rows:
            raise self.impossible(
                f"at most {rows} clients, one for each example", f"{clients} clients"
            )

        return self.draw(annotations, clients, seed)

    def default_clients(self, annotations: Annotations) -> int | None:
        """Return the number of clients that the partition defines on this data; None: any."""
        return None

    @abstractmethod
    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Return the positions of each client; arguments as in :meth:`divide`."""

    def impossible(self, allowed: str, got: str) -> DataError:
        """Return the error for data that this partition cannot divide."""
        message = f"partition {self}: needs {allowed}, got {got}."
        return DataError(message, key=KEY, allowed=allowed, got=got)


def as_text(value: float | bool) -> str:
    """Return an option as text that parses to the same value; whole numbers have no point."""
    is_whole = not isinstance(value, bool) and float(value).is_integer() and abs(value) < 1e15
    return str(int(value)) if is_whole else repr(value)


def positions_by_value(values: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the values (rows,) that occur, sorted, and the ascending positions of each."""
    order = np.argsort(values, kind="stable")
    present, starts = np.unique(values[order], return_index=True)
    return present, np.split(order, starts[1:])


def hand_out(
    pools: list[np.ndarray], classes: np.ndarray, owners: np.ndarray, clients: int
) -> list[np.ndarray]:
    """Give owner ``owners[i]`` the next unused position of the pool ``classes[i]``, for every i.

    Args:
        pools: positions of each class, in the order in which they are used.
        classes: (n,), index of the pool of each example that is handed out.
        owners: (n,), the client that gets it.
        clients: number of clients.
    """
    # Sorted by class, the examples come from the fronts of the pools.
    counts = np.bincount(classes, minlength=len(pools))
    used = [pool[:count] for pool, count in zip(pools, counts, strict=True)]
    positions = np.empty(len(classes), dtype=np.int64)
    positions[np.argsort(classes, kind="stable")] = np.concatenate(used)

    # Sorted by owner, they are the clients' parts.
    sizes = np.bincount(owners, minlength=clients)
    return np.split(positions[np.argsort(owners, kind="stable")], np.cumsum(sizes)[:-1])


_MAX_TEXT = 200


def parse_partition(text: str) -> Partition:
    """Read a partition such as ``dirichlet(alpha=0.5, min_size=10)``.

    Raises:
        ConfigError: a name or an option is unknown (the message gives the nearest one), or a value
            is missing or wrong.

    Example:
        >>> str(parse_partition("dirichlet(alpha=0.5)"))
        'dirichlet(alpha=0.5, min_size=10)'
    """
    name, options = read_expression(text, key=KEY, example="dirichlet(alpha=0.5) or iid")
    name = find_name("partition", name, PARTITIONS, key=KEY)
    cls = PARTITIONS[name].load()
    fields = {field.name: field for field in dataclasses.fields(cls)}

    # An unknown option is reported first, by build: it may be the absent one, misspelled.
    if set(options) <= set(fields):
        for field in fields.values():
            if field.default is dataclasses.MISSING and field.name not in options:
                key = f"{name}.{field.name}"
                message = f"{key} must be given, got '{text}'."
                raise ConfigError(message, key=key, allowed="a value", got=text)

    return build(cls, options, section=name)


def read_expression(
    text: str, *, key: str, example: str = "name(option=1)"
) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a text ``name`` or ``name(option=value, ...)``.

    Values are numbers, quoted texts, True and False. The error message shows ``key`` and
    ``example``.

    Raises:
        ConfigError: the text has another form.

    Example:
        >>> read_expression("cifar_s(clients=50, pairing='release')", key="data.shift")
        ('cifar_s', {'clients': 50, 'pairing': 'release'})
    """
    if len(text) > _MAX_TEXT:
        raise _unreadable(f"{text[:_MAX_TEXT]}...", key, example)

    try:
        node = _parse(text.strip())
        if isinstance(node, ast.Name):
            return node.id, {}

        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            options = {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
            if None not in options and len(options) == len(node.keywords):
                return node.func.id, {str(option): value for option, value in options.items()}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _unreadable(text, key, example) from error

    raise _unreadable(text, key, example)


def _parse(text: str) -> ast.expr:
    """Return the syntax tree, after hyphens in the name became underscores."""
    name, parenthesis, options = text.partition("(")
    spelled = re.sub(r"(?<=[a-zA-Z0-9])-(?=[a-zA-Z])", "_", name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Python only warns of strange numbers
        return ast.parse(spelled + parenthesis + options, mode="eval").body


def _literal(node: ast.expr) -> Any:
    """Return the value of a number, a text, True or False."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
        return node.value

    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if type(value) in (int, float):
            return -value

    raise ValueError("not a plain value")


def _unreadable(text: str, key: str, example: str) -> ConfigError:
    allowed = f"a name with named options, such as {example}"
    message = f"{key} must be {allowed}, got {text!r}."
    return ConfigError(message, key=key, allowed=allowed, got=text)
