"""What clients keep between rounds: the most recently used in memory, the others in files.

A client that takes part once in a hundred rounds needs no memory in between, so that a run of 100,000 clients with
models of their own fits where one of 100 does. What comes back from a file has the bits and the memory layout of what
went in.
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
"""Bytes of what the clients of a run keep that are in memory at most."""


class _Form(NamedTuple):
    """What a file does not hold: the structure of a tree, and the order of each leaf's axes in memory."""

    skeleton: Any
    orders: tuple[tuple[int, ...], ...]


class Store(MutableMapping[int, Any]):
    """Trees of tensors by client, of which those used last are in memory."""

    def __init__(self, folder: Path, in_memory: int = IN_MEMORY) -> None:
        """Start empty.

        Args:
            folder: for files; made when the first is written.
            in_memory: bytes in memory at most; the tree that was used last is always there.
        """
        self.folder, self.in_memory = folder, in_memory
        self._recent: OrderedDict[int, Any] = OrderedDict()  # the least recently used comes first
        self._unwritten: set[int] = set()
        self._forms: dict[int, _Form] = {}  # of every client that is here, in the order in which they came
        self._known: dict[tuple[str, ...], _Form] = {}
        self._bytes = 0

    def __getitem__(self, client: int) -> Any:
        if client in self._recent:
            self._recent.move_to_end(client)
            return self._recent[client]
        value = self._read(client, self._forms[client])
        self._remember(client, value)
        return value

    def __setitem__(self, client: int, value: Any) -> None:
        self._forget(client)
        value = tree.map(_compact, value)
        self._forms[client] = self._form(value)
        self._unwritten.add(client)
        self._remember(client, value)

    def __delitem__(self, client: int) -> None:
        del self._forms[client]
        self._forget(client)
        self._unwritten.discard(client)
        self._path(client).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[int]:
        return iter(self._forms)

    def __len__(self) -> int:
        return len(self._forms)

    def __contains__(self, client: object) -> bool:
        return client in self._forms

    def close(self) -> None:
        """Forget everything, and remove the files."""
        self._recent.clear()
        self._forms.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remember(self, client: int, value: Any) -> None:
        """Put a tree into memory, and the least recently used into files until they fit."""
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
        orders = self._forms[client].orders
        if not orders:
            return
        pairs = enumerate(zip(tree.leaves(value), orders, strict=True))
        whole = torch.contiguous_format  # and of their own, which is what the format of the files asks for
        leaves = {str(n): leaf.permute(order).clone(memory_format=whole) for n, (leaf, order) in pairs}
        path = self._path(client)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(leaves, path)
        except (OSError, SafetensorError) as reason:
            message = f"cannot write '{path}', which holds what client {client} keeps: {reason}."
            raise RunError(message, path=str(path)) from reason
        self._unwritten.discard(client)

    def _read(self, client: int, form: _Form) -> Any:
        if not form.orders:
            return form.skeleton
        path = self._path(client)
        try:
            leaves = load_file(path)
        except (OSError, SafetensorError) as reason:
            message = f"cannot read '{path}', which holds what client {client} keeps: {reason}."
            raise RunError(message, path=str(path)) from reason
        # copied: memory of a mapped file is not aligned as that of others, on which the last bit of a sum can depend
        laid_out = [leaves[str(n)].permute(_inverse(order)).clone() for n, order in enumerate(form.orders)]
        return tree.rebuild(form.skeleton, iter(laid_out))

    def _path(self, client: int) -> Path:
        return self.folder / f"{client}.safetensors"

    def _form(self, value: Any) -> _Form:
        """Return the form of a tree; those of one form share it."""
        found = _Form(structure(value), tuple(_order(leaf) for leaf in tree.leaves(value)))
        return self._known.setdefault((_words(value), *map(str, found.orders)), found)


def _compact(leaf: Tensor) -> Tensor:
    """Return a tensor that keeps no other ones in memory: a head may be a view into a whole model."""
    whole = leaf.untyped_storage().nbytes() <= leaf.numel() * leaf.element_size()
    return leaf.detach() if whole else leaf.detach().clone()


def _order(leaf: Tensor) -> tuple[int, ...]:
    """Return the axes of a tensor as they lie in memory, the outermost first."""
    strides = leaf.stride()
    return tuple(sorted(range(leaf.dim()), key=lambda axis: (-strides[axis], axis)))


def _inverse(order: Sequence[int]) -> list[int]:
    return torch.argsort(torch.tensor(order, dtype=torch.int64)).tolist()


def _size(value: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(value))


def _words(value: Any) -> str:
    """Return the types and names of a tree: trees of one structure have the same words."""
    if isinstance(value, Tensor):
        return "."
    names = value if isinstance(value, dict) else getattr(value, "_fields", range(len(value)))
    children = value.values() if isinstance(value, dict) else value
    inner = ",".join(f"{name}:{_words(child)}" for name, child in zip(names, children, strict=True))
    return f"{type(value).__module__}.{type(value).__qualname__}({inner})"
