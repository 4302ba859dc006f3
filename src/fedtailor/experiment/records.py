"""Run folders: written while a run goes on, and read back. No torch.

A run folder holds ``experiment.toml`` (resolved), ``provenance.json``, ``split.json``, ``status.json``,
``rounds.jsonl``, ``clients.jsonl``, ``events.jsonl``, ``models/CLIENT.safetensors`` with ``CLIENT.json``,
``checkpoints`` (:mod:`fedtailor.simulation.checkpoint`), and ``result.json`` once it has finished. A run of several
seeds holds one such folder per seed, ``seed-0`` and so on.

Files appear whole: written under a temporary name, synchronized, renamed. Lines are appended and synchronized
once per round, ``rounds.jsonl`` last. A round that is in it is therefore complete in the other files. Anything that a
killed run left beyond it is ignored on reading, and removed when the run is resumed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from fedtailor.core.atomic import (
    append_lines,
    discard,
    safe_name,
    synchronize_folder,
    to_json,
    unwritable,
    write_folder_whole,
    write_whole,
)
from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.experiment.schema import SCHEMA_VERSION, schema_of

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    import numpy as np

_BLOCK = 2**20
"""Bytes of a file that are read at a time."""
State = Literal["running", "finished", "failed", "interrupted"]
Record = Mapping[str, Any]


def refuse_existing(path: Path) -> None:
    """Check that a run folder can be made at ``path``: nothing is there, or an empty folder.

    Raises:
        ConfigError: something is there; it is never overwritten.
    """
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        raise ConfigError(
            f"'{path}' already exists, and is never overwritten. Choose another folder with --out.",
            key="out",
            allowed="a folder that does not exist, or is empty",
            got=str(path),
        )


def holds_run(path: Path) -> bool:
    """Return whether ``path`` is a run folder."""
    return (path / "experiment.toml").is_file()


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Keep other processes out of a run folder while the block runs (not on Windows).

    Raises:
        ConfigError: another process has it.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as reason:
            message = (
                f"another process is writing to '{path}'. Wait until it ends, or choose another folder with --out."
            )
            raise ConfigError(message, key="out", got=str(path)) from reason
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


class _Lines:
    """A file of lines, and the digest of what was written to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.digest = hashlib.sha256()

    def append(self, records: Sequence[Record]) -> None:
        """Append one line per record."""
        added = append_lines(self.path, records)
        self.size += len(added)
        self.digest.update(added)

    def begins_as(self, size: int, sha256: str) -> bool:
        """Return whether the file begins with ``size`` bytes of this digest."""
        return self._digest_of_beginning(size).hexdigest() == sha256

    def rewind(self, size: int) -> None:
        """Cut off everything after ``size`` bytes."""
        self.digest = self._digest_of_beginning(size)
        self.size = size
        try:
            if size:
                os.truncate(self.path, size)
            else:
                self.path.unlink(missing_ok=True)
        except OSError as reason:
            raise unwritable(self.path, reason) from reason

    def _digest_of_beginning(self, size: int) -> hashlib._Hash:
        digest = hashlib.sha256()
        if size == 0:
            return digest
        try:
            with self.path.open("rb") as file:
                while size and (block := file.read(min(size, _BLOCK))):
                    digest.update(block)
                    size -= len(block)
        except FileNotFoundError:
            return hashlib.sha256()
        except OSError as reason:
            raise RunError(f"cannot read '{self.path}': {reason.strerror or reason}.", path=str(self.path)) from reason
        return digest


class RunFolder:
    """The folder of one run, or of a run of several seeds, while it is written.

    As a context manager it keeps the state true: if the block ends early, the state is ``interrupted`` or ``failed``.
    """

    def __init__(self, path: Path, *, several_seeds: bool = False) -> None:
        """Write to a folder that :meth:`create` has made.

        The folder of several seeds has no rounds, so its status does not count them.
        """
        self.path = path
        self._several_seeds = several_seeds
        self._rounds = _Lines(path / "rounds.jsonl")
        self._clients = _Lines(path / "clients.jsonl")
        self._events = _Lines(path / "events.jsonl")

    @classmethod
    def create(cls, path: Path, *, config: str, provenance: Record, several_seeds: bool = False) -> RunFolder:
        """Make a folder with its configuration (TOML) and provenance; it appears whole or not at all.

        Raises:
            ConfigError: something is there already.
            RunError: the folder cannot be made.
        """
        refuse_existing(path)
        target = path.resolve()
        unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        folder = cls(unfinished, several_seeds=several_seeds)
        try:
            unfinished.mkdir(parents=True, exist_ok=True)
            folder.set_state("running")
            folder.write_provenance(provenance)
            write_whole(unfinished / "experiment.toml", config)
            refuse_existing(path)
            if target.is_dir():  # it may be the current folder, which must stay the same one
                for name in ("status.json", "provenance.json", "experiment.toml"):
                    os.replace(unfinished / name, target / name)
            else:
                os.rename(unfinished, target)
            synchronize_folder(target.parent)
        except OSError as reason:
            raise unwritable(path, reason) from reason
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return cls(path, several_seeds=several_seeds)

    def __enter__(self) -> Self:
        """Return the folder."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write why the block ended early, if it did."""
        if _was_interrupted(error):
            self.set_state("interrupted")
        elif error is not None:
            self.set_state("failed", str(error) or type(error).__name__)

    def set_state(self, state: State, reason: str = "") -> None:
        """Write ``status.json``: the state, the rounds done, and why a run failed."""
        status: dict[str, Any] = {"state": state}
        if not self._several_seeds:
            status["rounds_done"] = self._count_rounds()
        if reason:
            status["reason"] = reason
        write_whole(self.path / "status.json", to_json(status) + "\n")

    def _count_rounds(self) -> int:
        """Count the lines in the file, since an interruption can come between writing a round and counting it."""
        path = self.path / "rounds.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def remove_temporary_files(self) -> None:
        """Remove what a killed process was writing; nobody else may write to the folder meanwhile."""
        for folder in (self.path, *(path for path in self.path.iterdir() if path.is_dir())):
            for path in folder.glob(".*.tmp"):
                discard(path)
                shutil.rmtree(path, ignore_errors=True)

    def write_provenance(self, provenance: Record) -> None:
        """Write ``provenance.json``: where the results come from."""
        record = {"schema": SCHEMA_VERSION, **provenance}
        write_whole(self.path / "provenance.json", to_json(record, indent=2) + "\n")

    def write_split(self, split: Record) -> None:
        """Write ``split.json``: which client has which examples."""
        write_whole(self.path / "split.json", to_json(split) + "\n")

    def add_round(self, record: Record, *, clients: Sequence[Record] = (), events: Sequence[Record] = ()) -> None:
        """Append a round: one line for it, one per client and evaluation, one per event."""
        self._clients.append(clients)
        self._events.append(events)
        self._rounds.append([record])

    def add_events(self, events: Sequence[Record]) -> None:
        """Append events: warnings, skipped clients, quarantines."""
        self._events.append(events)

    def bookmark(self) -> dict[str, tuple[int, str]]:
        """Return what the files of lines hold: the number of bytes and their SHA-256 by the name of the file."""
        return {lines.path.name: (lines.size, lines.digest.hexdigest()) for lines in self._lines()}

    def objection(self, bookmark: Any) -> str:
        """Return why the files cannot go back to a bookmark, or an empty string.

        Raises:
            RunError: a file cannot be read.
        """
        for lines in self._lines():
            try:
                size, sha256 = bookmark[lines.path.name]
                if not lines.begins_as(int(size), str(sha256)):
                    return f"'{lines.path}' is damaged: it does not begin with what was written before the checkpoint."
            except (KeyError, TypeError, ValueError):
                return f"it does not say what '{lines.path}' held."
        return ""

    def rewind(self, bookmark: Mapping[str, tuple[int, str]]) -> None:
        """Remove the lines that were written after a bookmark.

        Raises:
            RunError: a file cannot be written.
        """
        for lines in self._lines():
            lines.rewind(bookmark[lines.path.name][0])

    def clear(self) -> bool:
        """Remove all rounds, and what was made of them; return whether there were any.

        Raises:
            RunError: a file cannot be removed.
        """
        had_rounds = self._rounds.path.exists()
        for lines in self._lines():
            lines.rewind(0)
        shutil.rmtree(self.path / "models", ignore_errors=True)
        return had_rounds

    def rounds(self) -> Iterator[dict[str, Any]]:
        """Read the rounds that have been written, one at a time."""
        return _read_lines(self._rounds.path)

    def events(self) -> Iterator[dict[str, Any]]:
        """Read the events that have been written, one at a time."""
        return _read_lines(self._events.path)

    def absences(self, after: int) -> list[dict[str, Any]]:
        """Return who gave no answer in rounds after a given one, as far as the file can be read.

        Its end may be torn: a killed process has not finished its last line.
        """
        found = []
        for line in self._events.path.read_bytes().splitlines() if self._events.path.exists() else []:
            try:
                event = json.loads(line)
                if event["kind"] == "absent" and event["round"] > after:
                    found.append(event)
            except (ValueError, TypeError, KeyError, RecursionError):
                break
        return found

    def provenance(self) -> dict[str, Any]:
        """Read ``provenance.json``."""
        path = self.path / "provenance.json"
        found = _read_json(path)
        if not isinstance(found, dict):
            raise _damaged(path, TypeError("it holds no object"))
        schema_of(found, self.path)
        return found

    def result(self) -> dict[str, Any] | None:
        """Read ``result.json``; None if the run has not finished."""
        found = _read_json(self.path / "result.json", default=None)
        return None if found is None else {**found, "run": str(self.path)}

    def _lines(self) -> tuple[_Lines, ...]:
        return self._rounds, self._clients, self._events

    def write_models(self, models: Iterable[tuple[str, bytes, Record]]) -> None:
        """Write the models of all clients in place of older ones; they appear together.

        Args:
            models: name of the client, its model, which is a safetensors file, and its card, one client at a time. The
                name of a file is the escaped name of the client.
        """
        write_folder_whole(self.path / "models", _model_files(models))

    def restart(self, config: str) -> None:
        """Make a folder of several seeds one that is running, with a configuration that may name more seeds."""
        (self.path / "result.json").unlink(missing_ok=True)
        write_whole(self.path / "experiment.toml", config)
        self.set_state("running")

    def finish(self, result: Record) -> None:
        """Write ``result.json`` and the final state."""
        write_whole(self.path / "result.json", to_json(result, indent=2) + "\n")
        self.set_state("finished")


def _model_files(models: Iterable[tuple[str, bytes, Record]]) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files of models and cards."""
    for client, data, card in models:
        name = safe_name(client)
        file = {"file": f"{name}.safetensors", "sha256": hashlib.sha256(data).hexdigest()}
        yield f"{name}.safetensors", data
        yield f"{name}.json", to_json({"client": client, **card, **file}, indent=2).encode()


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether an interruption is the cause, even if a library turned it into another exception."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


@dataclass(frozen=True)
class Run:
    """A run folder read back."""

    path: Path
    config: dict[str, Any]
    provenance: dict[str, Any]
    status: dict[str, Any]
    split: dict[str, Any]
    rounds: list[dict[str, Any]]
    """The lines of ``rounds.jsonl``. With several seeds: those of all of them, each line with its ``seed``."""
    events: list[dict[str, Any]]
    """The lines of ``events.jsonl``, in the same way."""
    result: dict[str, Any] | None
    """What ``fedtailor run --json`` printed; None for a run that has not finished."""
    seeds: dict[int, Run]
    """The runs of the single seeds, where there are several."""

    @property
    def schema(self) -> int:
        """The version of the records, see :mod:`fedtailor.experiment.schema`."""
        return schema_of(self.provenance, self.path)

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """The lines of ``clients.jsonl``, in the same way. They are read when this is first used: they can be many.

        Raises:
            DataError: the file is damaged.
        """
        if self.seeds:
            return [{"seed": seed, **record} for seed, run in self.seeds.items() for record in run.clients]
        done = {record["round"] for record in self.rounds}
        return [record for record in _read_lines(self.path / "clients.jsonl") if record["round"] in done]

    def model(self, client: str | int, *, seed: int | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return a client's tensors by path, and its model card.

        Args:
            client: name or number of the client.
            seed: which of several seeds.

        Raises:
            ConfigError: there are several seeds and none of them is named.
            DataError: there is no such model, or its file is damaged.
        """
        if self.seeds or seed not in (None, self.config.get("seed")):
            return self._run_of(seed).model(client)

        from safetensors.numpy import load

        name = safe_name(str(client))
        card = _read_json(self.path / "models" / f"{name}.json")
        path = self.path / "models" / f"{name}.safetensors"
        raw = _read(path)
        if hashlib.sha256(raw).hexdigest() != card.get("sha256"):
            raise DataError(f"'{path}' is damaged: its SHA-256 does not match its card.", path=str(path))
        return load(raw), card

    def _run_of(self, seed: int | None) -> Run:
        """Return the run of one of several seeds.

        Raises:
            ConfigError: none is named, or there is no such seed.
        """
        if seed is None or seed not in self.seeds:
            known = ", ".join(map(str, self.seeds)) or str(self.config.get("seed"))
            got = "none" if seed is None else seed
            message = f"seed must be one of those that '{self.path}' holds ({known}), got {got}."
            raise ConfigError(message, key="seed", allowed=list(self.seeds), got=got)
        return self.seeds[seed]


def read_run(path: str | Path) -> Run:
    """Read a run folder, whatever state the run is in.

    The folder of several seeds holds a run per seed, in ``run.seeds``; its own rounds, clients and events are those of
    all seeds, each with its ``seed``.

    Raises:
        DataError: the folder is not a run, or one of its files is damaged.

    Example:
        >>> import fedtailor
        >>> config = fedtailor.make_config({"data": {"clients": 3}, "federation": {"rounds": 2}})
        >>> result = fedtailor.run(config, out="runs/example")
        >>> [record["round"] for record in read_run("runs/example").rounds]
        [1, 2]
    """
    path = Path(path)
    provenance = RunFolder(path).provenance()
    text = _read(path / "experiment.toml")
    try:
        config = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as reason:
        raise _damaged(path / "experiment.toml", reason) from reason
    rounds = list(_read_lines(path / "rounds.jsonl"))
    done = {record["round"] for record in rounds}
    events = [record for record in _read_lines(path / "events.jsonl") if record.get("round", 0) in done | {0}]
    folders = {int(seed): path / f"seed-{seed}" for seed in config.get("seeds", [])}
    seeds = {seed: read_run(folder) for seed, folder in folders.items() if folder.exists()}
    for seed, run in seeds.items():
        rounds += [{"seed": seed, **record} for record in run.rounds]
        events += [{"seed": seed, **record} for record in run.events]
    return Run(
        path=path,
        config=config,
        provenance=provenance,
        status=_read_json(path / "status.json"),
        split=_read_json(path / "split.json", default={}),
        rounds=rounds,
        events=events,
        result=_read_json(path / "result.json", default=None),
        seeds=seeds,
    )


_MISSING: Any = object()


def _read_json(path: Path, default: Any = _MISSING) -> Any:
    if default is not _MISSING and not path.exists():
        return default
    raw = _read(path)
    try:
        return json.loads(raw)
    except ValueError as reason:
        raise _damaged(path, reason) from reason


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read lines of JSON, one at a time; a last line without its end was being written when the run was killed."""
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)
    except OSError as reason:
        raise _unreadable(path, reason) from reason
    except ValueError as reason:
        raise _damaged(path, reason) from reason


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as reason:
        raise _unreadable(path, reason) from reason


def _unreadable(path: Path, reason: OSError) -> DataError:
    return DataError(f"cannot read '{path}': {reason.strerror or reason}.", path=str(path))


def _damaged(path: Path, reason: Exception) -> DataError:
    return DataError(f"'{path}' is damaged: {reason}.", path=str(path))
