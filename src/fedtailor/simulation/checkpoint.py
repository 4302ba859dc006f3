"""Checkpoints: the whole state of a run after a round, from which it can be resumed bit for bit.

A checkpoint is two files and what they name. ``000012.safetensors`` holds the server state, who
took part, and the places of all client states in the files of the stores beside it. ``000012.json``
is its manifest: the counters of the run, the size and SHA-256 of every file, and its own. The
manifest comes last; it is written under a temporary name, synchronized and renamed, so a checkpoint
is there whole or not at all. The last two are kept. Before one is used, everything that it names is
checked; if anything is wrong with it, the one before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.algorithm import Algorithm
from fedtailor.core.atomic import discard, synchronize_folder, to_json, unwritable, write_whole
from fedtailor.core.codec import LIMITS, decode, encode
from fedtailor.core.errors import DataError, RunError
from fedtailor.core.reading import (
    LARGEST_TEXT,
    UnreadableError,
    damaged,
    is_missing,
    open_regular,
    parse_json,
    read_file,
)
from fedtailor.simulation.engines.store import Committed, FileDigest, Place, Store
from fedtailor.simulation.report import RunState, Selection

CHECKPOINT_VERSION = 1
"""Of the files. A checkpoint of another version is not used."""
_KEPT = 2
_SELECTION_NUMBERS = ("round", "accuracy", "client_rounds", "evaluations_since")
"""What the manifest says of the best round so far; its tensors are with those of the checkpoint."""
_BLOCK = 2**20
"""Bytes of a file that are read at a time."""
_UNEXPECTED = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)
"""What the content of a file raises if it is not what was written."""


class Restored(NamedTuple):
    """What a checkpoint gives back, besides the content of the stores."""

    state: RunState
    """The server's side of the run."""
    notes: Mapping[str, Any]
    """What :meth:`Checkpoints.save` was given."""


class _Checkpoint(NamedTuple):
    """A checkpoint as it was read."""

    restored: Restored
    stores: dict[str, Committed]


class Checkpoints:
    """The checkpoints of a run, in one folder with the files of its stores."""

    def __init__(
        self, folder: Path, stores: Mapping[str, Store], *, modules: Collection[str]
    ) -> None:
        """Use a folder, which may hold checkpoints of an earlier process.

        Args:
            folder: created when the first checkpoint is written; the stores write into it too.
            stores: what the clients keep, by name.
            modules: whose NamedTuples the server state may hold, see :func:`readable_modules`.
        """
        self.folder = folder
        self._stores = stores
        self._modules = modules
        self._files: dict[int, dict[str, set[int]]] = {}
        """By the round of a checkpoint: the numbers of the files of each store that it needs."""
        self._is_open = False
        """Whether it is known which checkpoints there are."""

    def save(self, state: RunState, notes: Mapping[str, Any]) -> None:
        """Write a checkpoint, and remove all but the last two.

        Args:
            state: of the run after a round.
            notes: anything that is to come back with it, ready for JSON.

        Raises:
            RunError: a file cannot be written, or a state cannot be stored.
        """
        self._make_folder()
        committed = {name: store.commit() for name, store in self._stores.items()}
        try:
            data = encode(_content(state, committed), modules=self._modules)
        except TypeError as reason:
            raise RunError(
                f"the server state cannot be stored in a checkpoint: {reason}."
            ) from reason

        _write_synchronized(self._content_path(state.round), data)
        manifest = {
            "version": CHECKPOINT_VERSION,
            "round": state.round,
            "client_rounds": state.client_rounds,
            "content": FileDigest(len(data), hashlib.sha256(data).hexdigest()),
            "stores": {name: content.files for name, content in committed.items()},
            "notes": notes,
        }

        if state.selection is not None:
            manifest["selection"] = {
                name: getattr(state.selection, name) for name in _SELECTION_NUMBERS
            }

        try:
            write_whole(self.manifest_path(state.round), _signed(manifest))
        except BaseException:
            discard(self._content_path(state.round))
            raise

        self._files[state.round] = {name: set(content.files) for name, content in committed.items()}
        self.keep(_KEPT)

    def keep(self, count: int) -> None:
        """Remove all but the last checkpoints.

        Raises:
            RunError: a file cannot be removed.
        """
        rounds = sorted(self._files)
        for round in rounds[: len(rounds) - count]:
            del self._files[round]
            self._remove(round)
        for name, store in self._stores.items():
            store.keep([number for files in self._files.values() for number in files[name]])

    def close(self) -> None:
        """Remove files that no checkpoint needs, as far as possible, and close the stores."""
        if self._is_open:
            with contextlib.suppress(RunError):
                self.keep(_KEPT)
                self._remove_unfinished()
        for store in self._stores.values():
            store.close()

    def restore(
        self, objection: Callable[[Mapping[str, Any]], str]
    ) -> tuple[Restored | None, list[str]]:
        """Go back to the last checkpoint that can be used, and remove what came after it.

        Args:
            objection: is given the notes of a checkpoint; returns why it cannot be used, or an
                empty string.

        Returns:
            What the checkpoint gives back, or None if none can be used, and sentences about what
            was wrong.

        Raises:
            RunError: a file cannot be removed, or what is left of the checkpoints cannot be read at
                the moment.
        """
        notes = []
        unreadable = ""
        rounds = sorted(self._found(".json") | self._found(".safetensors"), reverse=True)
        for position, round in enumerate(rounds):
            try:
                checkpoint = self._read(round)
                problem = objection(checkpoint.restored.notes)
            except UnreadableError as reason:
                problem = reason.message
                unreadable = problem
            except DataError as reason:
                problem = reason.message

            if problem:
                notes.append(f"checkpoint not used: {problem}")
                continue

            self._use(round, checkpoint, rounds[position + 1 :])
            self._is_open = True
            return checkpoint.restored, notes

        if unreadable:  # what cannot be read may not be damaged
            raise RunError(f"no checkpoint can be used: {unreadable}", path=str(self.folder))

        shutil.rmtree(self.folder, ignore_errors=True)
        self._is_open = True
        return None, notes

    def forget(self) -> None:
        """Go back to a run that has not begun: remove all checkpoints, and empty the stores.

        Raises:
            RunError: a file of a store cannot be removed.
        """
        for store in self._stores.values():
            store.reopen(Committed({}, {}), {})
        shutil.rmtree(self.folder, ignore_errors=True)
        self._files = {}

    def _found(self, suffix: str) -> set[int]:
        """Return the rounds of checkpoints of which there is a file."""
        return {int(path.stem) for path in self.folder.glob(f"*{suffix}") if path.stem.isdecimal()}

    def _use(self, round: int, checkpoint: _Checkpoint, older: Iterable[int]) -> None:
        """Fill the stores from a checkpoint, and keep one older checkpoint that seems whole."""
        also: dict[str, dict[int, FileDigest]] = {name: {} for name in self._stores}
        self._files = {
            round: {name: set(content.files) for name, content in checkpoint.stores.items()}
        }
        for other in older:
            try:
                manifest = _read_manifest(self.manifest_path(other))
                also = {name: _files_of(manifest, name) for name in self._stores}
            except (DataError, *_UNEXPECTED):
                continue

            self._files[other] = {name: set(files) for name, files in also.items()}
            break

        for name, store in self._stores.items():
            store.reopen(checkpoint.stores[name], also[name])

        self._remove_unfinished()
        self.keep(_KEPT)

    def _read(self, round: int) -> _Checkpoint:
        """Read a checkpoint and check everything that it names.

        Raises:
            DataError: something is wrong with it.
        """
        path = self.manifest_path(round)
        manifest = _read_manifest(path)
        try:
            content = self.read_content(round, _digest(manifest["content"]))
            stores = {}
            for name, store in self._stores.items():
                files = _files_of(manifest, name)
                for number, digest in files.items():
                    _check_file(store.path(number), digest)

                stores[name] = Committed(_to_places(content["stores"][name], files), files)

            state = RunState(
                server=content["server"],
                round=round,
                client_rounds=int(manifest["client_rounds"]),
                participated=frozenset(content["participated"].tolist()),
                selection=_selection(manifest, content),
            )
            if manifest["round"] != round:
                raise damaged(path, f"it is of round {manifest['round']!r:.40}")

            return _Checkpoint(Restored(state, dict(manifest["notes"])), stores)
        except _UNEXPECTED as reason:
            raise damaged(path, f"{type(reason).__name__}: {reason}") from reason

    def read_content(self, round: int, digest: FileDigest) -> Any:
        """Read the tensors of a checkpoint.

        Raises:
            DataError: something is wrong with them.
        """
        path = self._content_path(round)
        _check_file(path, digest)
        raw = read_file(path, limit=LIMITS.size)
        try:
            return decode(raw, modules=self._modules)
        except DataError as reason:
            raise damaged(path, reason.message) from reason

    def _make_folder(self) -> None:
        if self.folder.is_dir():
            return
        try:
            self.folder.mkdir(parents=True)
            synchronize_folder(self.folder.parent)
        except OSError as reason:
            raise unwritable(self.folder, reason) from reason

    def _remove_unfinished(self) -> None:
        """Remove checkpoints that were not written to their end, or cannot be used."""
        found = {int(path.stem) for path in self.folder.glob("*") if path.stem.isdecimal()}
        for round in found.difference(self._files):
            self._remove(round)

    def _remove(self, round: int) -> None:
        """Remove the two files of a checkpoint, the manifest first."""
        for path in (self.manifest_path(round), self._content_path(round)):
            try:
                path.unlink(missing_ok=True)
            except OSError as reason:
                raise unwritable(path, reason) from reason

    def manifest_path(self, round: int) -> Path:
        """Return the file of a checkpoint's manifest."""
        return self.folder / f"{round:06d}.json"

    def _content_path(self, round: int) -> Path:
        return self.folder / f"{round:06d}.safetensors"


class FinalState(NamedTuple):
    """What the server has after a run: enough to make models for further clients."""

    server: Any
    round: int
    client_rounds: int
    """Rounds of all clients whose work was used."""


def read_final_state(folder: Path, *, modules: Collection[str]) -> FinalState:
    """Read the server state of the final models from the last checkpoint of a run.

    Nothing in the folder changes.

    Args:
        folder: of the checkpoints.
        modules: see :func:`readable_modules`.

    Raises:
        DataError: there is no checkpoint, or it is damaged.
    """
    rounds = sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())
    if not rounds:
        message = (
            f"'{folder}' holds no checkpoint, so the state of the server is not known: set "
            "checkpoint.every to 1."
        )
        raise DataError(message, path=str(folder), allowed="a checkpoint", got="none")

    checkpoints = Checkpoints(folder, {}, modules=modules)
    manifest = _read_manifest(checkpoints.manifest_path(rounds[-1]))
    try:
        content = checkpoints.read_content(rounds[-1], _digest(manifest["content"]))
        chosen = _selection(manifest, content)
        if chosen is not None and not (isinstance(chosen.server, tuple) and chosen.server == ()):
            return FinalState(chosen.server, chosen.round, chosen.client_rounds)

        return FinalState(content["server"], rounds[-1], int(manifest["client_rounds"]))
    except _UNEXPECTED as reason:
        raise damaged(
            checkpoints.manifest_path(rounds[-1]), f"{type(reason).__name__}: {reason}"
        ) from reason


def readable_modules(algorithm: Algorithm[Any, Any, Any]) -> frozenset[str]:
    """Return the modules whose NamedTuples can be read back from a checkpoint.

    They are the package, the modules of the algorithm and of its bases, and the modules that those
    import.
    """
    found = {"fedtailor"}
    for cls in type(algorithm).__mro__:
        module = sys.modules.get(cls.__module__)
        if module is None or not issubclass(cls, Algorithm):
            continue

        found.add(cls.__module__)
        for value in vars(module).values():
            if isinstance(value, ModuleType):
                found.add(value.__name__)
            elif isinstance(value, type):
                found.add(value.__module__)

    return frozenset(found)


def _content(state: RunState, committed: Mapping[str, Committed]) -> dict[str, Any]:
    """Return the tensors of a checkpoint, on the host."""
    state = state.on_host()
    content = {
        "server": state.server,
        "participated": _ids(state.participated),
        "stores": {name: _to_tensor(content.places) for name, content in committed.items()},
    }

    if state.selection is not None:
        chosen = state.selection
        content["selection"] = {"server": chosen.server, "participated": _ids(chosen.participated)}

    return content


def _selection(manifest: Mapping[str, Any], content: Mapping[str, Any]) -> Selection | None:
    """Return the best round so far, if the checkpoint has one."""
    if "selection" not in manifest:
        return None

    numbers = manifest["selection"]
    tensors = content["selection"]
    return Selection(
        round=int(numbers["round"]),
        accuracy=float(numbers["accuracy"]),
        server=tensors["server"],
        client_rounds=int(numbers["client_rounds"]),
        participated=frozenset(tensors["participated"].tolist()),
        evaluations_since=int(numbers["evaluations_since"]),
    )


def _ids(clients: Iterable[int]) -> Tensor:
    return torch.tensor(sorted(clients), dtype=torch.int64)


def _to_tensor(places: Mapping[int, Place]) -> Tensor:
    """Return places by client as rows (clients, 4): client, file, start, length."""
    return torch.tensor(
        [(client, *place) for client, place in places.items()], dtype=torch.int64
    ).view(-1, 4)


def _to_places(rows: Tensor, files: Mapping[int, FileDigest]) -> dict[int, Place]:
    """Return the places that :func:`_to_tensor` wrote.

    Raises:
        ValueError: a place is not in a file.
    """
    places = {client: Place(file, start, length) for client, file, start, length in rows.tolist()}
    for place in places.values():
        if (
            place.file not in files
            or min(place) < 0
            or place.start + place.length > files[place.file].size
        ):
            raise ValueError(f"{place} is in no file")

    return places


def _signed(manifest: Mapping[str, Any]) -> str:
    """Return a manifest as JSON that ends with its own SHA-256."""
    plain = json.loads(to_json(manifest))
    return to_json({**plain, "sha256": hashlib.sha256(to_json(plain).encode()).hexdigest()}) + "\n"


def _read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest.

    Raises:
        DataError: it cannot be read, or is not what was written.
    """
    try:
        raw = read_file(path, limit=LARGEST_TEXT)
    except UnreadableError as error:
        if is_missing(error):
            raise damaged(
                path,
                "it is missing. Either it was deleted, or the run was killed while it wrote this "
                "checkpoint",
            ) from error

        raise

    manifest = parse_json(raw, path)
    try:
        del manifest["sha256"]
        if _signed(manifest).encode() != raw:
            raise ValueError("its SHA-256 does not match")
    except _UNEXPECTED as reason:
        raise damaged(path, str(reason)) from reason

    if manifest.get("version") != CHECKPOINT_VERSION:
        found = f"{manifest.get('version')!r:.40}"
        raise damaged(
            path, f"it is of version {found}, and this program reads version {CHECKPOINT_VERSION}"
        )

    return dict(manifest)


def _files_of(manifest: Mapping[str, Any], name: str) -> dict[int, FileDigest]:
    """Return the files of a store that a manifest names."""
    return {int(number): _digest(digest) for number, digest in manifest["stores"][name].items()}


def _digest(record: Any) -> FileDigest:
    size, sha256 = record
    return FileDigest(int(size), str(sha256))


def _check_file(path: Path, digest: FileDigest) -> None:
    """Check a file against its size and SHA-256.

    Raises:
        DataError: it cannot be read, or is not what was written.
    """
    found = hashlib.sha256()
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != digest.size:
                raise damaged(path, f"it has {size} bytes instead of {digest.size}")

            while block := file.read(_BLOCK):
                found.update(block)
    except UnreadableError as error:
        if is_missing(error):
            raise damaged(path, "it is missing") from error
        raise

    if found.hexdigest() != digest.sha256:
        raise damaged(path, "its SHA-256 does not match")


def _write_synchronized(path: Path, data: bytes) -> None:
    """Write a file that nothing refers to yet, and synchronize it."""
    try:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as reason:
        discard(path)
        raise unwritable(path, reason) from reason
    except BaseException:
        discard(path)
        raise
