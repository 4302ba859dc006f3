"""Parts of a personal model with one row per training example, such as remembered features.

An engine may pad a client's examples. A model is kept and compared without the rows of the padding:
the program puts the rows of real examples first, and the engine cuts off the others once it has
separated the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree


class PerExample(NamedTuple):
    """Marks a part of a personal model.

    The first axis of every leaf is the client's training examples, in order.

    Rows of examples of weight 0 must not influence predictions; they are not kept.
    """

    value: tree.Tree


def present_first(value: Any, weight: Tensor) -> Any:
    """Move marked rows whose example has a positive weight (n,) to the front.

    Both kinds keep their order.
    """

    def reorder(leaf: Tensor) -> Tensor:
        return leaf[torch.argsort((weight <= 0).long(), stable=True)]

    return _map_marked(reorder, value)


def cut(value: Any, count: int) -> Any:
    """Keep the first ``count`` marked rows."""
    return _map_marked(lambda leaf: leaf[:count], value)


def holds_examples(value: Any) -> bool:
    """Return whether any part is marked."""
    if isinstance(value, PerExample):
        return True
    if isinstance(value, Mapping):
        return any(holds_examples(child) for child in value.values())
    return isinstance(value, tuple) and any(holds_examples(child) for child in value)


def _map_marked(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to the marked leaves.

    All other parts of a program's output stay as they are.
    """
    if isinstance(value, PerExample):
        return tree.map(function, value)
    if isinstance(value, Mapping):
        return {name: _map_marked(function, child) for name, child in value.items()}
    if isinstance(value, tuple):
        children = [_map_marked(function, child) for child in value]
        return type(value)(*children) if hasattr(value, "_fields") else tuple(children)
    return value
