"""Partitions: who has which example.

A partition is a value with checked options and a text form, ``dirichlet(alpha=0.5, min_size=10)``, that
:func:`parse_partition` reads strictly and ``str`` gives back.
"""

from __future__ import annotations

import ast
import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedtailor.core.errors import ConfigError, DataError, unknown_name
from fedtailor.core.options import Range, build, check_options
from fedtailor.data import PARTITIONS

MAX_DRAWS = 50_000
"""Draws of a Dirichlet partition before it is given up."""

_KEY = "data.partition"
_MAX_TEXT = 200


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """Base of all partitions; the fields are the options."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_options(self, owner=self.name)

    def __str__(self) -> str:
        values = ((each.name, getattr(self, each.name)) for each in dataclasses.fields(self))
        options = ", ".join(f"{name}={_number(value)}" for name, value in values)
        return f"{self.name}({options})" if options else self.name

    def divide(self, labels: np.ndarray, *, clients: int, seed: int) -> list[np.ndarray]:
        """Return the positions that each client gets: disjoint, all of them, in the order of drawing.

        Args:
            labels: labels (rows,); a class is what has an example.
            clients: how many clients.
            seed: seed of the numpy generator, taken modulo 2^32.

        Raises:
            DataError: there are fewer examples than clients, or the options cannot be met.
        """
        if clients > len(labels):
            raise self.impossible(f"at most {len(labels)} clients, one for each example", f"{clients} clients")
        generator = np.random.RandomState(seed % 2**32)
        return self.draw(labels, clients, generator)

    @abstractmethod
    def draw(self, labels: np.ndarray, clients: int, generator: np.random.RandomState) -> list[np.ndarray]:
        """Return the positions of each client; arguments as in :meth:`divide`."""

    def impossible(self, allowed: str, got: str) -> DataError:
        """Return the error for data that cannot be divided as asked."""
        return DataError(f"partition {self}: needs {allowed}, got {got}.", key=_KEY, allowed=allowed, got=got)


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """Examples dealt out at random; sizes differ by one at most."""

    name = "iid"

    def draw(self, labels: np.ndarray, clients: int, generator: np.random.RandomState) -> list[np.ndarray]:
        """Cut one random order of all examples in equal parts."""
        return np.array_split(generator.permutation(len(labels)), clients)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Each class is shared in proportions drawn from a symmetric Dirichlet distribution over clients.

    Clients that hold their even share of all examples already get nothing of further classes. The whole is
    drawn again until every client has ``min_size`` examples. The random stream is that of pFedFDA's released
    code (McLaughlin and Su 2024, NeurIPS): with seed 42 and ``min_size`` 62.5 the result is its partition.
    """

    name = "dirichlet"

    alpha: Annotated[float, Range(gt=0)]
    """Concentration: the smaller, the more the clients differ."""
    min_size: Annotated[float, Range(ge=0)] = 10.0
    """Least number of examples of a client."""

    def draw(self, labels: np.ndarray, clients: int, generator: np.random.RandomState) -> list[np.ndarray]:
        """Draw until every client has enough examples."""
        if self.min_size * clients > len(labels):
            wanted = f"{_number(self.min_size)} x {clients} = {_number(self.min_size * clients)} examples"
            raise self.impossible(f"at least {wanted} for {clients} clients", f"{len(labels)}")
        by_class = [np.flatnonzero(labels == each) for each in np.unique(labels)]
        for _ in range(MAX_DRAWS):
            pieces = self._draw_once(by_class, clients, generator)
            if pieces is not None:
                return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
        allowed = f"at least {_number(self.min_size)} examples for each of {clients} clients"
        got = f"fewer for some client in all of {MAX_DRAWS} draws; raise alpha, or lower min_size or clients"
        raise self.impossible(allowed, got)

    def _draw_once(
        self, by_class: list[np.ndarray], clients: int, generator: np.random.RandomState
    ) -> list[list[np.ndarray]] | None:
        """Return the pieces of each class by client; None if some client has too few.

        Random numbers are consumed in the released order: for every class a shuffle, then the proportions.
        """
        sizes = np.zeros(clients, dtype=np.int64)
        even_share = sum(map(len, by_class)) / clients
        orders, cuts = [], []
        for positions in by_class:
            order = positions.copy()
            generator.shuffle(order)
            shares = generator.dirichlet(np.full(clients, self.alpha)) * (sizes < even_share)
            total = shares.sum()
            if not total > 0:  # all clients that drew a share are full, or alpha is so small that the draw is NaN
                return None
            ends = (np.cumsum(shares / total) * len(order)).astype(np.int64)[:-1]
            sizes += np.diff(ends, prepend=0, append=len(order))
            orders.append(order)
            cuts.append(ends)
        if sizes.min() < self.min_size:
            return None
        return [np.split(order, ends) for order, ends in zip(orders, cuts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Classes(Partition):
    """Every client holds ``k`` classes; a class is shared evenly by the clients that hold it.

    Classes are dealt from shuffled packs of all classes, so that each is held by equally many clients, give
    or take one.
    """

    name = "classes"

    k: Annotated[int, Range(ge=1)]
    """Classes of a client."""

    def draw(self, labels: np.ndarray, clients: int, generator: np.random.RandomState) -> list[np.ndarray]:
        """Deal the classes, then cut each class evenly among its holders."""
        counts = np.bincount(labels)
        present = np.flatnonzero(counts)
        if self.k > len(present):
            raise self.impossible(f"k <= {len(present)}, the number of classes with examples", f"k={self.k}")
        if self.k * clients < len(present):
            allowed = f"k x clients >= {len(present)}, so that every class is held by some client"
            raise self.impossible(allowed, f"{self.k} x {clients}")
        hands = self._deal(present, clients, generator)
        pieces: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for each in present:
            holders = [client for client, hand in enumerate(hands) if each in hand]
            if counts[each] < len(holders):
                allowed = f"at least {len(holders)} examples of class {each}, one for each client that holds it"
                raise self.impossible(allowed, str(counts[each]))
            order = generator.permutation(np.flatnonzero(labels == each))
            for client, piece in zip(holders, np.array_split(order, len(holders)), strict=True):
                pieces[client].append(piece)
        return [np.concatenate(parts) for parts in pieces]

    def _deal(self, present: np.ndarray, clients: int, generator: np.random.RandomState) -> list[list[int]]:
        """Return ``k`` different classes for each client."""
        pack: list[int] = []
        hands = []
        for _ in range(clients):
            hand, pack = pack[: self.k], pack[self.k :]
            if len(hand) < self.k:
                fresh = generator.permutation(present).tolist()
                fresh.sort(key=lambda each, held=tuple(hand): each in held)  # stable: those not in hand come first
                missing = self.k - len(hand)
                hand, pack = hand + fresh[:missing], fresh[missing:]
            hands.append(hand)
        return hands


def parse_partition(text: str) -> Partition:
    """Read a partition such as ``dirichlet(alpha=0.5, min_size=10)``; nothing in the text is run.

    Raises:
        ConfigError: unknown name or option (with the nearest one), missing or wrong value.

    Example:
        >>> str(parse_partition("dirichlet(alpha=0.5)"))
        'dirichlet(alpha=0.5, min_size=10)'
    """
    name, options = _read(text)
    if name not in PARTITIONS:
        raise unknown_name("partition", name, PARTITIONS, key=_KEY)
    cls: type[Partition] = PARTITIONS[name].resolve()
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for field in fields.values():
        if field.default is dataclasses.MISSING and field.name not in options and set(options) <= set(fields):
            key = f"{name}.{field.name}"
            raise ConfigError(f"{key} must be given, got '{text}'.", key=key, allowed="a value", got=text)
    return build(cls, options, section=name)


def _read(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a text ``name`` or ``name(option=value, ...)``."""
    try:
        node = ast.parse(text.strip(), mode="eval").body if len(text) <= _MAX_TEXT else None
        if isinstance(node, ast.Name):
            return node.id, {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            names = [keyword.arg for keyword in node.keywords]
            if None not in names and len(set(names)) == len(names):
                return node.func.id, {str(each.arg): _literal(each.value) for each in node.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _unreadable(text) from error
    raise _unreadable(text)


def _literal(node: ast.expr) -> Any:
    """Return the value of a number or a text."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if type(value) in (int, float):
            return -value
    raise ValueError("not a plain value")


def _unreadable(text: str) -> ConfigError:
    allowed = "a name with named options, such as dirichlet(alpha=0.5) or iid"
    shown = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
    return ConfigError(f"{_KEY} must be {allowed}, got {shown!r}.", key=_KEY, allowed=allowed, got=shown)


def _number(value: float) -> str:
    """Return a number without a needless fraction, such that reading it gives the same value."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)
