"""Storage of client states between rounds: the most recently used in memory, the others in files.

A client that takes part in one of a hundred rounds needs no memory in between, so that a run of 100,000 clients with
personal models fits where one of 100 does. A state that is read from a file has the same bits and the same memory
layout as the state that was stored.
"""

from __future__ import annotations

import shutil
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import RunError
from fedtailor.training.phase import structure

IN_MEMORY = 2**30
"""Largest number of bytes of client states in memory."""


class _TreeLayout(NamedTuple):
    """What a file does not contain: the structure of a tree, and the order of each leaf's axes in memory."""

    skeleton: Any
    orders: tuple[tuple[int, ...], ...]


class Store(MutableMapping[int, Any]):
    """Trees of tensors by client; the most recently used are in memory."""

    def __init__(self, folder: Path, in_memory: int = IN_MEMORY) -> None:
        """Create an empty store.

        Args:
            folder: for the files; created when the first file is written.
            in_memory: largest number of bytes in memory; the most recently used tree is always in memory.
        """
        self.folder = folder
        self.in_memory = in_memory
        self._recent: OrderedDict[int, Any] = OrderedDict()
        """Trees in memory, the least recently used first."""
        self._unwritten: set[int] = set()
        self._layouts: dict[int, _TreeLayout] = {}
        """Of every client in the store, in order of arrival."""
        self._known_layouts: dict[tuple[str, ...], _TreeLayout] = {}
        self._bytes = 0

    def __getitem__(self, client: int) -> Any:
        if client in self._recent:
            self._recent.move_to_end(client)
            return self._recent[client]
        value = self._read(client, self._layouts[client])
        self._remember(client, value)
        return value

    def __setitem__(self, client: int, value: Any) -> None:
        self._forget(client)
        value = tree.map(_compact, value)
        self._layouts[client] = self._layout(value)
        self._unwritten.add(client)
        self._remember(client, value)

    def __delitem__(self, client: int) -> None:
        del self._layouts[client]
        self._forget(client)
        self._unwritten.discard(client)
        self._path(client).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[int]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def __contains__(self, client: object) -> bool:
        return client in self._layouts

    def close(self) -> None:
        """Forget everything, and remove the files."""
        self._recent.clear()
        self._layouts.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remember(self, client: int, value: Any) -> None:
        """Keep a tree in memory, and move the least recently used to files until the rest fits."""
        self._recent[client] = value
        self._bytes += _size(value)
        while self._bytes > self.in_memory and len(self._recent) > 1:
            oldest, old = next(iter(self._recent.items()))
            if oldest in self._unwritten:
                self._write(oldest, old)
            self._forget(oldest)

    def _forget(self, client: int) -> None:
        if client in self._recent:
            self._bytes -= _size(self._recent.pop(client))

    def _write(self, client: int, value: Any) -> None:
        orders = self._layouts[client].orders
        if not orders:
            return
        leaves = {}
        for number, (leaf, order) in enumerate(zip(tree.leaves(value), orders, strict=True)):
            # the file format requires contiguous leaves that do not share memory
            leaves[str(number)] = leaf.permute(order).clone(memory_format=torch.contiguous_format)
        path = self._path(client)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(leaves, path)
        except (OSError, SafetensorError) as reason:
            message = f"cannot write '{path}', which stores data of client {client}: {reason}."
            raise RunError(message, path=str(path)) from reason
        self._unwritten.discard(client)

    def _read(self, client: int, layout: _TreeLayout) -> Any:
        if not layout.orders:
            return layout.skeleton
        path = self._path(client)
        try:
            leaves = load_file(path)
        except (OSError, SafetensorError) as reason:
            message = f"cannot read '{path}', which stores data of client {client}: {reason}."
            raise RunError(message, path=str(path)) from reason
        restored = []
        for number, order in enumerate(layout.orders):
            leaf = leaves[str(number)].permute(_inverse(order))
            # a copy: the last bit of a sum can depend on alignment, and a mapped file is aligned differently
            restored.append(leaf.clone())
        return tree.rebuild(layout.skeleton, iter(restored))

    def _path(self, client: int) -> Path:
        return self.folder / f"{client}.safetensors"

    def _layout(self, value: Any) -> _TreeLayout:
        """Return the layout of a tree; trees with equal layouts share one object."""
        orders = tuple(_order(leaf) for leaf in tree.leaves(value))
        layout = _TreeLayout(structure(value), orders)
        key = (_signature(value), *(str(order) for order in orders))
        return self._known_layouts.setdefault(key, layout)


def _compact(leaf: Tensor) -> Tensor:
    """Return a tensor that keeps no other memory alive: a head may be a view into a whole model."""
    leaf = leaf.detach()
    if leaf.untyped_storage().nbytes() > _size(leaf):
        return leaf.clone()
    return leaf


def _order(leaf: Tensor) -> tuple[int, ...]:
    """Return the axes of a tensor in memory order, the outermost first."""
    strides = leaf.stride()
    return tuple(sorted(range(leaf.dim()), key=lambda axis: (-strides[axis], axis)))


def _inverse(order: Sequence[int]) -> list[int]:
    return torch.argsort(torch.tensor(order, dtype=torch.int64)).tolist()


def _size(value: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(value))


def _signature(value: Any) -> str:
    """Return a text of the types and names of a tree, equal for trees with the same structure."""
    if isinstance(value, Tensor):
        return "."
    if isinstance(value, dict):
        items = list(value.items())
    else:
        names = getattr(value, "_fields", range(len(value)))
        items = list(zip(names, value, strict=True))
    children = ",".join(f"{name}:{_signature(child)}" for name, child in items)
    return f"{type(value).__module__}.{type(value).__qualname__}({children})"
