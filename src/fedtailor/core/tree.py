"""Trees of tensors: nested dicts, NamedTuples and tuples whose leaves are tensors.

Leaves are tensors only; ``()`` is the empty tree. None, floats and lists are refused by name,
because they do not survive being stacked over clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any
"""A tensor, a mapping of trees, a NamedTuple of trees, or a tuple of trees."""


def paths(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """Return the leaves by path, such as ``body/conv1.weight``, in tree order.

    Raises:
        TypeError: a leaf is not a tensor; the message names its path.
    """
    if isinstance(tree, Tensor):
        return {prefix: tree}
    result: dict[str, Tensor] = {}
    for name, child in _children(tree, prefix):
        result.update(paths(child, f"{prefix}/{name}" if prefix else name))
    return result


def leaves(tree: Tree) -> list[Tensor]:
    """Return the leaves in tree order."""
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for _, child in _children(tree, "") for leaf in leaves(child)]


def rebuild(tree: Tree, new_leaves: Iterator[Any]) -> Tree:
    """Return a tree of the same structure with its leaves taken from ``new_leaves`` in order."""
    if isinstance(tree, Tensor):
        return next(new_leaves)

    # A short way, because every training step rebuilds a flat dict of parameters.
    if isinstance(tree, dict):
        return {
            name: next(new_leaves) if isinstance(child, Tensor) else rebuild(child, new_leaves)
            for name, child in tree.items()
        }

    if isinstance(tree, Mapping):
        return {name: rebuild(child, new_leaves) for name, child in tree.items()}

    children = [rebuild(child, new_leaves) for _, child in _children(tree, "")]
    return tuple_like(tree, children)


def tuple_like(value: tuple[Any, ...], children: Sequence[Any]) -> Any:
    """Return a tuple of other children; a NamedTuple keeps its class."""
    return type(value)(*children) if hasattr(value, "_fields") else tuple(children)


def map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply ``function`` leaf by leaf over trees of one structure; leaves are matched by path.

    Raises:
        ValueError: the trees have other paths.

    Example:
        >>> map(torch.add, {"w": torch.tensor(1)}, {"w": torch.tensor(2)})
        {'w': tensor(3)}
    """
    columns = [paths(tree), *(paths(other) for other in others)]
    if any(column.keys() != columns[0].keys() for column in columns):
        raise ValueError(
            f"trees differ in structure: {[len(column) for column in columns]} leaves, "
            f"{_difference(columns)}"
        )
    return rebuild(
        tree, iter([function(*(column[path] for column in columns)) for path in columns[0]])
    )


def copy(tree: Tree) -> Tree:
    """Return a tree whose leaves are in memory of their own."""
    return rebuild(tree, iter([leaf.clone() for leaf in leaves(tree)]))


def where(condition: Tensor, tree: Tree, other: Tree) -> Tree:
    """Return the first tree where a condition () holds, else the other one.

    Both are of one structure.
    """
    return map(lambda first, second: torch.where(condition, first, second), tree, other)


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack trees of one structure: every leaf gets a leading axis of ``len(trees)``."""
    return map(lambda *rows: torch.stack(rows), trees[0], *trees[1:])


def unstack(tree: Tree, count: int) -> list[Tree]:
    """Undo :func:`stack`: ``count`` trees, each leaf without its leading axis."""
    return [map(lambda leaf, row=row: leaf[row], tree) for row in range(count)]


def select(tree: Mapping[str, Any], keep: Callable[[str], bool]) -> dict[str, Any]:
    """Return the entries of a mapping whose name satisfies ``keep``."""
    return {name: child for name, child in tree.items() if keep(name)}


def split(
    tree: Mapping[str, Any], keep: Callable[[str], bool]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a mapping in two by name; ``{**first, **second}`` joins it again.

    Example:
        >>> split({"body.weight": 1, "fc.weight": 2}, lambda name: name.startswith("fc"))
        ({'fc.weight': 2}, {'body.weight': 1})
    """
    return select(tree, keep), select(tree, lambda name: not keep(name))


def _difference(columns: Sequence[Mapping[str, Tensor]]) -> str:
    """Name some paths that not every tree has."""
    everywhere = set.intersection(*(set(column) for column in columns))
    odd = sorted(set().union(*columns) - everywhere)
    return "not in all: " + ", ".join(repr(path) for path in odd[:3])


def _children(tree: Tree, prefix: str) -> list[tuple[str, Tree]]:
    if isinstance(tree, Mapping):
        return [(str(name), child) for name, child in tree.items()]
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", None) or [str(i) for i in range(len(tree))]
        return list(zip(names, tree, strict=True))
    raise TypeError(f"tree leaf '{prefix or '.'}' must be a tensor, got {type(tree).__name__}")
