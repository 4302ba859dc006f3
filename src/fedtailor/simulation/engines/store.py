"""Storage of client states between rounds: the most recently used in memory, the others in files.

A client that takes part in one of a hundred rounds needs no memory in between, so that a run of
100,000 clients with personal models fits where one of 100 does. A state that is read from a file
has the same bits and the same memory layout as the state that was stored.

A file holds the states of many clients one after the other, each in the form of
:mod:`fedtailor.core.codec`. It is written once and never changed, so a checkpoint is a list of
spans of files (:meth:`Store.commit`), and only states that changed since the last one are written.
States that are out of date stay in their file until it holds more of them than of others; then the
others are copied to a new file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core import tree
from fedtailor.core.atomic import discard, remove_file, writing
from fedtailor.core.codec import compact, decode, encode
from fedtailor.core.devices import to_host
from fedtailor.core.errors import DataError, RunError

IN_MEMORY = 2**30
"""Largest number of bytes of client states in memory."""
_FILE_BYTES = 2**28
"""Size at which a file is complete. Files are only replaced as a whole, so none is much larger."""
_SUFFIX = ".trees"


class StoreSpan(NamedTuple):
    """Where the state of a client is."""

    file: int
    """Number of the file."""
    start: int
    length: int


class FileDigest(NamedTuple):
    """What a file must be."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> FileDigest:
        """Return what a file with this content must be."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


class Committed(NamedTuple):
    """The content of a store at some moment; :meth:`Store.reopen` goes back to it."""

    spans: dict[int, StoreSpan]
    """By client, in order of arrival."""
    files: dict[int, FileDigest]
    """By number: every file that holds one of these states."""


@dataclass
class _File:
    """A file of a store."""

    digest: FileDigest
    in_use: int
    """Bytes of states that are not out of date."""
    durable: bool = False
    """Whether it would survive a crash of the machine."""


class Store(MutableMapping[int, Any]):
    """Trees of tensors by client; the most recently used are in memory."""

    def __init__(
        self, folder: Path, name: str, *, modules: Collection[str], in_memory: int = IN_MEMORY
    ) -> None:
        """Create an empty store.

        Args:
            folder: for the files; created when the first file is written.
            name: begins the names of the files, so that several stores can share a folder.
            modules: whose NamedTuples can be read back from a file, see
                :func:`fedtailor.core.codec.decode`.
            in_memory: largest number of bytes in memory; the most recently used tree is always in
                memory.
        """
        self.folder = folder
        self.name = name
        self.in_memory = in_memory
        self._modules = modules
        self._recent: OrderedDict[int, Any] = OrderedDict()
        """Trees in memory, the least recently used first."""
        self._spans: dict[int, StoreSpan | None] = {}
        """Of every client in the store, in order of arrival; None for a tree that is in memory
        only."""
        self._files: dict[int, _File] = {}
        self._needed: set[int] = set()
        """Files that a checkpoint needs."""
        self._next_file = 0
        self._bytes = 0

    def __getitem__(self, client: int) -> Any:
        if client in self._recent:
            self._recent.move_to_end(client)
            return self._recent[client]
        # It becomes one of the most recently used.
        span = self._spans[client]
        assert span is not None, "what is not in memory is in a file"
        value = self._read(client, span)
        self._remember(client, value)
        return value

    def __setitem__(self, client: int, value: Any) -> None:
        value = compact(value)
        if self._is_same_empty_tree(client, value):
            return

        self._forget(client)
        self._drop(client)
        self._spans[client] = None
        self._remember(client, value)

    def __delitem__(self, client: int) -> None:
        self._drop(client)
        del self._spans[client]
        self._forget(client)

    def __iter__(self) -> Iterator[int]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __contains__(self, client: object) -> bool:
        return client in self._spans

    def close(self) -> None:
        """Forget everything, and remove the files that no checkpoint needs.

        The folder goes if it is empty then.
        """
        self._recent.clear()
        self._spans.clear()
        for number in set(self._files) - self._needed:
            discard(self.path(number))
        self._files.clear()
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def commit(self) -> Committed:
        """Write what is in memory only, and return what the store holds.

        It survives a crash of the machine.

        The files that it names stay until :meth:`keep` says that they are not needed any more. The
        folder itself is not synchronized.

        Raises:
            RunError: a file cannot be written.
        """
        self._write(client for client, span in self._spans.items() if span is None)

        # Everything is in files now.
        spans = {client: span for client, span in self._spans.items() if span is not None}
        used = {span.file for span in spans.values()}
        for number in used:
            self._synchronize(number)
        self._needed |= used
        return Committed(spans, {number: self._files[number].digest for number in sorted(used)})

    def keep(self, files: Iterable[int]) -> None:
        """Say which files checkpoints need; others are removed once they are out of date."""
        self._needed = set(files)
        self._remove_outdated()

    def reopen(self, committed: Committed) -> None:
        """Go back to what the store held at a moment; its other files are removed.

        Args:
            committed: what it held. The caller has checked the files.

        Raises:
            RunError: a file cannot be removed.
        """
        self._recent.clear()
        self._bytes = 0
        self._spans = dict(committed.spans)
        self._files = {
            number: _File(file, 0, durable=True) for number, file in committed.files.items()
        }
        for span in committed.spans.values():
            self._files[span.file].in_use += span.length

        self._needed = set(self._files)
        self._next_file = max(self._files, default=-1) + 1
        paths = {self.path(number) for number in self._files}
        for path in self.folder.glob(f"{self.name}-*{_SUFFIX}*"):
            if path not in paths:
                remove_file(path)

    def path(self, number: int) -> Path:
        """Return the path of a file by its number."""
        return self.folder / f"{self.name}-{number:06d}{_SUFFIX}"

    def _remember(self, client: int, value: Any) -> None:
        """Keep a tree in memory, and move the least recently used to files until the rest fits."""
        self._recent[client] = value
        self._bytes += _size(value)
        if self._bytes <= self.in_memory or len(self._recent) == 1:
            return

        # All that are in memory only are written at once, so that files are few.
        self._write(
            other for other in self._recent if self._spans[other] is None and other != client
        )
        while self._bytes > self.in_memory and len(self._recent) > 1:
            self._forget(next(iter(self._recent)))

        self._remove_outdated()

    def _is_same_empty_tree(self, client: int, value: Any) -> bool:
        """Return whether a tree without leaves is stored again. It is not written again."""
        old = self._recent.get(client)
        if old is None or type(old) is not type(value) or tree.leaves(value) or tree.leaves(old):
            return False
        return bool(old == value)

    def _forget(self, client: int) -> None:
        """Drop the tree of a client from memory."""
        if client in self._recent:
            self._bytes -= _size(self._recent.pop(client))

    def _drop(self, client: int) -> None:
        """Count the state of a client that is in a file as out of date."""
        span = self._spans.get(client)
        if span is not None:
            self._files[span.file].in_use -= span.length

    def _write(self, clients: Iterable[int]) -> None:
        """Write the states of clients to new files."""
        waiting: list[tuple[int, StoreSpan | None]] = [(client, None) for client in clients]
        if not waiting:
            return

        # What is left of files that hold more outdated states than others moves to the new ones.
        sparse = {
            number for number, file in self._files.items() if 0 < 2 * file.in_use < file.digest.size
        }
        if sparse:
            for client, span in self._spans.items():
                if span is not None and span.file in sparse:
                    waiting.append((client, span))

        while waiting:
            waiting = self._write_file(waiting)

    def _write_file(
        self, waiting: list[tuple[int, StoreSpan | None]]
    ) -> list[tuple[int, StoreSpan | None]]:
        """Write states to one file, and return those that it had no room for."""
        number = self._next_file
        path = self.path(number)
        digest = hashlib.sha256()
        spans: dict[int, StoreSpan] = {}
        size = 0
        client = -1

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for done, (client, span) in enumerate(waiting):
                    if done and size >= _FILE_BYTES:
                        break

                    if span is None:
                        data = self._encode(client)
                    else:
                        data = self._read_bytes(client, span)

                    file.write(data)
                    digest.update(data)
                    spans[client] = StoreSpan(number, size, len(data))
                    size += len(data)
        except OSError as reason:
            discard(path)
            message = (
                f"cannot write '{path}', which stores data of client {client}: "
                f"{reason.strerror or reason}."
            )
            raise RunError(message, path=path) from reason
        except BaseException:
            discard(path)
            raise

        # Only now do the spans change: after an error, the store is what it was.
        self._next_file += 1
        self._files[number] = _File(FileDigest(size, digest.hexdigest()), size)
        for client, span in spans.items():
            self._drop(client)
            self._spans[client] = span

        return waiting[len(spans) :]

    def _encode(self, client: int) -> bytes:
        try:
            value = to_host(self._recent[client], "what a client keeps, for a file")
            return encode(value, modules=self._modules)
        except TypeError as reason:
            raise RunError(f"the data of client {client} cannot be stored: {reason}.") from reason

    def _read(self, client: int, span: StoreSpan) -> Any:
        data = self._read_bytes(client, span)
        try:
            return decode(data, modules=self._modules)
        except DataError as reason:
            raise self._unreadable(client, span, reason) from reason

    def _read_bytes(self, client: int, span: StoreSpan) -> bytes:
        path = self.path(span.file)
        try:
            with path.open("rb") as file:
                file.seek(span.start)
                data = file.read(span.length)
        except OSError as reason:
            raise self._unreadable(client, span, reason) from reason

        if len(data) < span.length:
            raise self._unreadable(client, span, EOFError("it ends too early"))

        return data

    def _unreadable(self, client: int, span: StoreSpan, reason: Exception) -> RunError:
        path = self.path(span.file)
        message = (
            f"cannot read '{path}', which stores data of client {client}: "
            f"{str(reason).rstrip('.')}."
        )
        return RunError(message, path=path)

    def _synchronize(self, number: int) -> None:
        file = self._files[number]
        if file.durable:
            return

        path = self.path(number)
        with writing(path), path.open("rb+") as opened:
            os.fsync(opened.fileno())

        file.durable = True

    def _remove_outdated(self) -> None:
        """Remove the files in which every state is out of date, unless a checkpoint needs them."""
        for number, file in list(self._files.items()):
            if file.in_use == 0 and number not in self._needed:
                del self._files[number]
                remove_file(self.path(number))


def _size(value: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(value))
