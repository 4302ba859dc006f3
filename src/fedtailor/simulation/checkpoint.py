"""Checkpoints: the whole state of a run after a round, from which it can be resumed bit for bit.

A checkpoint is two files and what they name. ``000012.safetensors`` holds the server state, who
took part, and the spans of all client states in the files of the stores beside it. ``000012.json``
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
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, AnyAlgorithm
from fedtailor.core.atomic import (
    discard,
    remove_file,
    synchronize_folder,
    to_json,
    write_whole,
    writing,
)
from fedtailor.core.codec import LIMITS, decode, encode
from fedtailor.core.errors import DataError, RunError
from fedtailor.core.reading import (
    LARGEST_TEXT,
    UNEXPECTED,
    UnreadableError,
    content_of,
    damaged,
    is_missing,
    open_regular,
    parse_json,
    read_file,
)
from fedtailor.simulation.engines.store import Committed, FileDigest, Store, StoreSpan
from fedtailor.simulation.report import RunState, Selection

CHECKPOINT_VERSION = 1
"""Of the files. A checkpoint of another version is not used."""
_MOST_CHECKPOINTS = 2
StoreFiles = Mapping[str, dict[int, FileDigest]]
"""The files that a checkpoint needs, by store and number."""


class Checkpoint(NamedTuple):
    """What a checkpoint gives back."""

    state: RunState
    """The server's side of the run."""
    notes: Mapping[str, Any]
    """What :meth:`Checkpoints.save` was given."""
    stores: Mapping[str, Committed]
    """What the stores held."""


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
        self._files: dict[int, StoreFiles] = {}
        """By the round of a checkpoint."""

    def save(self, state: RunState, notes: Mapping[str, Any]) -> None:
        """Write a checkpoint, and remove all but the last two.

        Args:
            state: of the run after a round.
            notes: anything that is to come back with it, ready for JSON.

        Raises:
            RunError: a file cannot be written, or a state cannot be stored.
        """
        self._make_folder()
        # What clients keep is durable before a manifest names it.
        committed = {name: store.commit() for name, store in self._stores.items()}
        files = {name: content.files for name, content in committed.items()}
        try:
            spans = {name: _to_tensor(content.spans) for name, content in committed.items()}
            tensors = {**_tensors(state.on_host()), "stores": spans}
            data = encode(tensors, modules=self._modules)
        except TypeError as reason:
            raise RunError(
                f"the server state cannot be stored in a checkpoint: {reason}."
            ) from reason

        manifest = {
            "version": CHECKPOINT_VERSION,
            **_numbers(state),
            "content": FileDigest.of(data),
            "stores": files,
            "notes": notes,
        }

        # The manifest comes last: without it, there is no checkpoint.
        write_whole(self._path(state.round, ".safetensors"), data)
        try:
            write_whole(self._path(state.round, ".json"), _signed(manifest))
        except BaseException:
            discard(self._path(state.round, ".safetensors"))
            raise

        self._files[state.round] = files
        self.keep(_MOST_CHECKPOINTS)

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
            store.keep(number for files in self._files.values() for number in files[name])

    def close(self) -> None:
        """Remove files that no checkpoint needs, as far as possible, and close the stores."""
        with contextlib.suppress(RunError):
            self.keep(_MOST_CHECKPOINTS)

        for store in self._stores.values():
            store.close()

    def restore(
        self, objection: Callable[[Mapping[str, Any]], str]
    ) -> tuple[Checkpoint | None, list[str]]:
        """Go back to the last checkpoint that can be used, and remove the others.

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
        notes: list[str] = []
        unreadable = ""
        rounds = sorted(self._rounds(), reverse=True)
        for round in rounds:
            # The run's records must fit to it too.
            try:
                checkpoint = self._read(round)
                problem = objection(checkpoint.notes)
            except DataError as reason:
                problem = reason.message
                if isinstance(reason, UnreadableError):
                    unreadable = problem

            if not problem:
                self._use(round, checkpoint)
                return checkpoint, notes

            notes.append(f"checkpoint not used: {problem}")

        # What cannot be read may not be damaged.
        if unreadable:
            raise RunError(f"no checkpoint can be used: {unreadable}", path=self.folder)

        shutil.rmtree(self.folder, ignore_errors=True)
        return None, notes

    def _use(self, round: int, checkpoint: Checkpoint) -> None:
        """Fill the stores from a checkpoint, and remove all others."""
        self._files = {round: {name: content.files for name, content in checkpoint.stores.items()}}
        for other in self._rounds() - {round}:
            self._remove(other)

        for name, store in self._stores.items():
            store.reopen(checkpoint.stores[name])

    def _read(self, round: int) -> Checkpoint:
        """Read a checkpoint and check everything that it names.

        Raises:
            DataError: something is wrong with it.
        """
        path = self._path(round, ".json")
        manifest = _read_manifest(path)
        with content_of(path):
            if manifest["round"] != round:
                raise damaged(path, f"it is of round {manifest['round']!r:.40}")

            tensors = self._read_tensors(round, _digest(manifest["content"]))
            files = _files_of(manifest)
            stores = {}
            for name, store in self._stores.items():
                for number, digest in files[name].items():
                    _check_file(store.path(number), digest)

                stores[name] = Committed(
                    _to_spans(tensors["stores"][name], files[name]), files[name]
                )

            return Checkpoint(_state(manifest, tensors), dict(manifest["notes"]), stores)

    def _read_tensors(self, round: int, digest: FileDigest) -> Any:
        """Read the tensors of a checkpoint.

        Raises:
            DataError: something is wrong with them.
        """
        path = self._path(round, ".safetensors")
        _check_file(path, digest)
        raw = read_file(path, limit=LIMITS.size)
        try:
            return decode(raw, modules=self._modules)
        except DataError as reason:
            raise damaged(path, reason.message) from reason

    def _make_folder(self) -> None:
        if self.folder.is_dir():
            return
        with writing(self.folder):
            self.folder.mkdir(parents=True)
            synchronize_folder(self.folder.parent)

    def _rounds(self) -> set[int]:
        """Return the rounds of checkpoints of which there is a file."""
        return {int(path.stem) for path in self.folder.glob("*") if path.stem.isdecimal()}

    def _remove(self, round: int) -> None:
        for suffix in (".json", ".safetensors"):  # the manifest first
            remove_file(self._path(round, suffix))

    def _path(self, round: int, suffix: str) -> Path:
        return self.folder / f"{round:06d}{suffix}"


def read_final_state(folder: Path, *, modules: Collection[str]) -> RunState:
    """Read the server's side of the final models from the last checkpoint of a run.

    Nothing in the folder changes.

    Args:
        folder: of the checkpoints.
        modules: see :func:`readable_modules`.

    Raises:
        DataError: there is no checkpoint, or it is damaged.
    """
    rounds = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal()]
    if not rounds:
        message = (
            f"'{folder}' holds no checkpoint, so the state of the server is not known: set "
            "checkpoint.every to 1."
        )
        raise DataError(message, path=folder, allowed="a checkpoint", got="none")

    state = Checkpoints(folder, {}, modules=modules)._read(max(rounds)).state
    best = state.selection
    if best is None or not tree.leaves(best.state.server):
        return state  # the models are those after the last round
    return best.state


def readable_modules(algorithm: AnyAlgorithm) -> frozenset[str]:
    """Return the modules whose NamedTuples can be read back from a checkpoint.

    They are the package, the modules of the algorithm and of its bases, and the modules that those
    import.
    """
    names = {"fedtailor"}
    for cls in type(algorithm).__mro__:
        module = sys.modules.get(cls.__module__)
        if module is None or not issubclass(cls, Algorithm):
            continue

        names.add(cls.__module__)
        for value in vars(module).values():
            if isinstance(value, ModuleType):
                names.add(value.__name__)
            elif isinstance(value, type):
                names.add(value.__module__)

    return frozenset(names)


def _tensors(state: RunState) -> dict[str, Any]:
    """Return the tensors of a state on the host, and of the best round so far if it matters."""
    tensors = {
        "server": state.server,
        "participated": torch.tensor(sorted(state.participated), dtype=torch.int64),
    }
    if state.moments:
        tensors["moments"] = state.moments
    if state.selection is not None:
        tensors["selection"] = _tensors(state.selection.state)

    return tensors


def _numbers(state: RunState) -> dict[str, Any]:
    """Return what the manifest says of a state, and of the best round so far if it matters."""
    numbers: dict[str, Any] = {"round": state.round, "client_rounds": state.client_rounds}
    best = state.selection
    if best is not None:
        numbers["selection"] = {
            **_numbers(best.state),
            "accuracy": best.accuracy,
            "by_client": [*best.by_client.items()],
            "evaluations_since": best.evaluations_since,
        }

    return numbers


def _state(numbers: Mapping[str, Any], tensors: Mapping[str, Any]) -> RunState:
    """Return the state of which :func:`_numbers` and :func:`_tensors` were written."""
    selection = None
    if "selection" in numbers:
        best = numbers["selection"]
        selection = Selection(
            _state(best, tensors["selection"]),
            accuracy=float(best["accuracy"]),
            by_client={int(client): float(value) for client, value in best["by_client"]},
            evaluations_since=int(best["evaluations_since"]),
        )

    return RunState(
        server=tensors["server"],
        round=int(numbers["round"]),
        client_rounds=int(numbers["client_rounds"]),
        participated=frozenset(tensors["participated"].tolist()),
        selection=selection,
        moments=tensors.get("moments", {}),
    )


def _to_tensor(spans: Mapping[int, StoreSpan]) -> Tensor:
    """Return spans by client as rows (clients, 4): client, file, start, length."""
    rows = [(client, *span) for client, span in spans.items()]
    return torch.tensor(rows, dtype=torch.int64).view(-1, 4)


def _to_spans(rows: Tensor, files: Mapping[int, FileDigest]) -> dict[int, StoreSpan]:
    """Return the spans that :func:`_to_tensor` wrote.

    Raises:
        ValueError: a span is not in a file.
        KeyError: there is no such file.
    """
    spans = {}
    for client, *numbers in rows.tolist():
        span = StoreSpan(*numbers)
        if min(span) < 0 or span.start + span.length > files[span.file].size:
            raise ValueError(f"{span} is in no file")
        spans[client] = span

    return spans


def _signed(manifest: Mapping[str, Any]) -> str:
    """Return a manifest as JSON that ends with its own SHA-256."""
    plain = json.loads(to_json(manifest))
    return to_json({**plain, "sha256": hashlib.sha256(to_json(plain).encode()).hexdigest()}) + "\n"


def _read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest.

    Raises:
        DataError: it cannot be read, or is not what was written.
    """
    with _missing_is_damaged(path):
        raw = read_file(path, limit=LARGEST_TEXT)

    # The text must be the one that would be written again.
    manifest = parse_json(raw, path)
    try:
        del manifest["sha256"]
        if _signed(manifest).encode() != raw:
            raise ValueError("its SHA-256 does not match")
    except UNEXPECTED as reason:
        raise damaged(path, str(reason)) from reason

    version = manifest.get("version")
    if version != CHECKPOINT_VERSION:
        reads = f"this program reads version {CHECKPOINT_VERSION}"
        raise damaged(path, f"it is of version {version!r:.40}, and {reads}")

    return dict(manifest)


def _files_of(manifest: Mapping[str, Any]) -> StoreFiles:
    """Return the files of stores that a manifest names."""
    files = {}
    for name, digests in manifest["stores"].items():
        files[name] = {int(number): _digest(digest) for number, digest in digests.items()}
    return files


def _digest(record: Any) -> FileDigest:
    size, sha256 = record
    return FileDigest(int(size), str(sha256))


def _check_file(path: Path, digest: FileDigest) -> None:
    """Check a file against its size and SHA-256.

    Raises:
        DataError: it cannot be read, or is not what was written.
    """
    with _missing_is_damaged(path), open_regular(path) as file:
        # The size first: a file with holes can claim a terabyte, which takes hours to read.
        size = os.fstat(file.fileno()).st_size
        if size != digest.size:
            raise damaged(path, f"it has {size} bytes instead of {digest.size}")

        sha256 = hashlib.file_digest(file, "sha256").hexdigest()

    if sha256 != digest.sha256:
        raise damaged(path, "its SHA-256 does not match")


@contextlib.contextmanager
def _missing_is_damaged(path: Path) -> Iterator[None]:
    """Tell a file that is not there, which is damage, from one that cannot be read now."""
    try:
        yield
    except UnreadableError as error:
        if not is_missing(error):
            raise
        why = "it is missing: it was deleted, or the run was killed while it wrote the checkpoint"
        raise damaged(path, why) from error
