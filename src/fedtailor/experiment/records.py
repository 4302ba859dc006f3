"""Run folders: written while a run goes on, and read back. No torch.

A run folder holds ``experiment.toml`` (resolved), ``provenance.json``, ``split.json``,
``status.json``, ``rounds.jsonl``, ``clients.jsonl``, ``events.jsonl``,
``models/CLIENT.safetensors`` with ``CLIENT.json``, ``checkpoints``
(:mod:`fedtailor.simulation.checkpoint`), and ``result.json`` once it has finished. A run of several
seeds holds one such folder per seed, ``seed-0`` and so on.

Files appear whole: written under a temporary name, synchronized, renamed. Lines are appended and
synchronized once per round, ``rounds.jsonl`` last. A round that is in it is therefore complete in
the other files. Anything that a killed run left beyond it is ignored on reading, and removed when
the run is resumed.

The state in ``status.json`` names the process that runs, so a run whose process has died reads as
interrupted. While it is written, the folder holds ``.reserve``, a file that is removed first when
the run ends: its space is for the last status on a full disk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from fedtailor.core.atomic import (
    append_lines,
    discard,
    safe_name,
    to_json,
    unwritable,
    write_folder_whole,
    write_whole,
)
from fedtailor.core.errors import (
    ConfigError,
    DataError,
    RunError,
    describe_error,
    did_you_mean,
    one_line,
)
from fedtailor.core.process import lives, this_process
from fedtailor.core.reading import (
    LARGEST_TOML,
    UnreadableError,
    damaged,
    is_missing,
    open_regular,
    parse_toml,
    read_file,
    read_lines,
    read_object,
)
from fedtailor.core.whole_folder import LockedError, lock, whole_folder

if TYPE_CHECKING:
    import numpy as np


SCHEMA_VERSION = 3
"""Of the records. A folder of another version is refused."""
_BLOCK = 2**20
"""Bytes of a file that are read at a time."""
_RESERVE = ".reserve"
_RESERVED_BYTES = 2**14
_LAST_MADE = "experiment.toml"
"""The file that makes a folder a run folder."""
_MADE_FIRST = frozenset({_RESERVE, "status.json", "provenance.json"})
"""What a folder holds before that."""
CHECKPOINTS = "checkpoints"
"""Folder in a run folder for checkpoints, and for what clients keep from round to round."""
COMPARISON_FILE = "comparison.json"
"""In the folder of several runs: names the folders of the runs."""
_LARGEST_MODEL = 2**33
_MOST_CLIENTS = 10
"""Names of clients in a message."""
NO_RUN = "'{path}' is not the folder of a run: it holds no experiment.toml."
"""What is said of any other folder."""
ACROSS_SITES = "sites"
"""Stands in place of an engine in the provenance of a run across sites."""
State = Literal["running", "finished", "failed", "interrupted"]
Record = Mapping[str, Any]


def refuse_existing(path: Path) -> None:
    """Check that a run folder can be made at ``path``: nothing is there, or an empty folder.

    Raises:
        ConfigError: something is there; it is never overwritten.
    """
    try:
        taken = os.path.lexists(path) and not (path.is_dir() and _is_free(path))
    except OSError as reason:
        raise ConfigError(
            f"cannot read '{path}': {reason.strerror or reason}.", key="out", got=str(path)
        ) from reason
    except ValueError as reason:  # a null character
        raise ConfigError(
            f"{str(path)!r} cannot be the name of a folder.", key="out", got=str(path)
        ) from reason

    if taken:
        raise ConfigError(
            f"'{path}' already exists, and is never overwritten. Choose another folder with --out.",
            key="out",
            allowed="a folder that does not exist, or is empty",
            got=str(path),
        )


def _is_free(folder: Path) -> bool:
    """Return whether a folder is empty, but for what a run leaves that was killed while it made its
    first files.
    """
    names = {path.name for path in folder.iterdir()}
    begun = {
        name
        for name in names
        if name in _MADE_FIRST or (name.startswith(".") and name.endswith(".tmp"))
    }
    return not names or (_RESERVE in names and names == begun)


def holds_run(path: Path) -> bool:
    """Return whether ``path`` is a run folder."""
    return os.path.isfile(path / _LAST_MADE)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Keep other processes out of a run folder while the block runs (not on Windows).

    Raises:
        ConfigError: another process has it.
    """
    try:
        descriptor = lock(path)
    except LockedError as reason:
        message = f"another process is writing to '{path}'. Wait until it ends, or choose another folder with --out."
        raise ConfigError(message, key="out", got=str(path)) from reason
    except OSError as reason:
        raise unwritable(path, reason) from reason

    try:
        yield
    finally:
        if descriptor is not None:
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
            with open_regular(self.path, within=self.path.parent) as file:
                while size and (block := file.read(min(size, _BLOCK))):
                    digest.update(block)
                    size -= len(block)
        except UnreadableError as reason:
            if is_missing(reason):
                return hashlib.sha256()
            raise RunError(reason.message, path=str(self.path)) from reason
        except DataError:  # it is no file with content
            return hashlib.sha256()

        return digest


class RunFolder:
    """The folder of one run, or of a run of several seeds, while it is written.

    As a context manager it keeps the state true: ``running`` in the block, and if it ends early,
    ``interrupted`` or ``failed``.
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
    def create(
        cls, path: Path, *, config: str, provenance: Record, several_seeds: bool = False
    ) -> RunFolder:
        """Make a folder with its configuration (TOML) and provenance; it appears whole or not at
        all.

        Raises:
            ConfigError: something is there already.
            RunError: the folder cannot be made.
        """
        refuse_existing(path)
        try:
            if path.is_dir():  # it may be the current folder, which must stay the same one
                with exclusive(path):
                    refuse_existing(path)
                    cls(path, several_seeds=several_seeds)._begin_here(config, provenance)
            else:
                with whole_folder(path) as unfinished:
                    cls(unfinished, several_seeds=several_seeds)._write_first_files(
                        config, provenance
                    )
        except OSError as reason:
            if reason.errno in (errno.EEXIST, errno.ENOTEMPTY):  # another process was faster
                refuse_existing(path)
            raise unwritable(path, reason) from reason

        return cls(path, several_seeds=several_seeds)

    def _begin_here(self, config: str, provenance: Record) -> None:
        """Write the first files into the folder; if that fails, none of them is left.

        If the process is killed meanwhile, the reserve tells whose they are.
        """
        try:
            self._reserve()
            self._write_first_files(config, provenance)
        except BaseException:
            for name in (_LAST_MADE, "provenance.json", "status.json"):
                discard(self.path / name)

            raise
        finally:
            discard(self.path / _RESERVE)

    def _write_first_files(self, config: str, provenance: Record) -> None:
        self.set_state("interrupted")  # until somebody runs it
        self.write_provenance(provenance)
        write_whole(self.path / _LAST_MADE, config)

    def __enter__(self) -> Self:
        """Say that this process runs it, and return the folder.

        Raises:
            RunError: the folder cannot be written.
        """
        try:
            self._reserve()
            self.set_state("running")
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write why the block ended early, if it did. If that fails, the error of the block is
        still the one raised.
        """
        if error is None:
            return

        state: State = "interrupted" if _was_interrupted(error) else "failed"
        reason = "" if state == "interrupted" else _reason_of(error)
        try:
            self._end(state, reason)
        except (RunError, OSError):
            discard(self.path / "status.json")  # it says that the run goes on, and takes space
            with contextlib.suppress(RunError, OSError):
                self.set_state(state, reason)

    def _reserve(self) -> None:
        """Take space for the last status, unless a killed run has left it."""
        path = self.path / _RESERVE
        if not path.exists():
            write_whole(path, os.urandom(_RESERVED_BYTES))  # no file system can make it smaller

    def _end(self, state: State, reason: str = "") -> None:
        """Write the last status, in the space that was reserved for it if there is no other."""
        discard(self.path / _RESERVE)
        self.set_state(state, reason)

    def set_state(self, state: State, reason: str = "") -> None:
        """Write ``status.json``: the state, why a run failed, and the process that runs it or the
        rounds done.
        """
        status: dict[str, Any] = {"state": state}
        if state == "running":
            status["process"] = this_process()
        elif not self._several_seeds:
            status["rounds_done"] = self.count_rounds()
        if reason:
            status["reason"] = reason
        write_whole(self.path / "status.json", to_json(status) + "\n")

    def count_rounds(self) -> int:
        """Count the lines in the file, since an interruption can come between writing a round and
        counting it.
        """
        try:
            with (self.path / "rounds.jsonl").open("rb") as file:
                return sum(line.endswith(b"\n") for line in file)
        except OSError:
            return 0

    def remove_temporary_files(self) -> None:
        """Remove what a killed process was writing; nobody else may write to the folder
        meanwhile.
        """
        with contextlib.suppress(OSError):
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

    def add_round(
        self, record: Record, *, clients: Sequence[Record] = (), events: Sequence[Record] = ()
    ) -> None:
        """Append a round: one line for it, one per client and evaluation, one per event."""
        self._clients.append(clients)
        self._events.append(events)
        self._rounds.append([record])

    def add_events(self, events: Sequence[Record]) -> None:
        """Append events: warnings, skipped clients, quarantines."""
        self._events.append(events)

    def bookmark(self) -> dict[str, tuple[int, str]]:
        """Return what the files of lines hold: the number of bytes and their SHA-256 by the name of
        the file.
        """
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
        return read_lines(self._rounds.path, within=self.path)

    def events(self) -> Iterator[dict[str, Any]]:
        """Read the events that have been written, one at a time."""
        return read_lines(self._events.path, within=self.path)

    def absences(self, after: int) -> list[dict[str, Any]]:
        """Return who gave no answer in rounds after a given one, as far as the file can be read.

        Its end may be torn: a killed process has not finished its last line.
        """
        found = []
        with contextlib.suppress(DataError):
            for event in read_lines(self._events.path, within=self.path):
                match event:
                    case {
                        "kind": "absent",
                        "round": int(round),
                        "client": int(),
                        "stage": str(),
                        "reason": str(),
                    }:
                        if round > after and isinstance(event.get("attempt", 0), int):
                            found.append(event)

        return found

    def provenance(self) -> dict[str, Any]:
        """Read ``provenance.json``."""
        found = read_object(self.path / "provenance.json", within=self.path)
        _check_schema(found, self.path)
        return found

    def result(self) -> dict[str, Any] | None:
        """Read ``result.json``; None if the run has not finished."""
        found = _read_result(self.path)
        return None if found is None else {**found, "run": str(self.path)}

    def _lines(self) -> tuple[_Lines, ...]:
        return self._rounds, self._clients, self._events

    def write_models(self, models: Iterable[tuple[str, bytes, Record]]) -> None:
        """Write the models of all clients in place of older ones; they appear together.

        Args:
            models: name of the client, its model, which is a safetensors file, and its card, one
                client at a time. The name of a file is the escaped name of the client.
        """
        write_folder_whole(self.path / "models", _model_files(models))

    def restart(self, config: str) -> None:
        """Make a folder of several seeds one that has not finished; the configuration may name more
        seeds.
        """
        path = self.path / "result.json"
        try:
            path.unlink(missing_ok=True)
        except OSError as reason:
            raise unwritable(path, reason) from reason
        write_whole(self.path / _LAST_MADE, config)

    def finish(self, result: Record) -> None:
        """Write ``result.json`` and the final state."""
        write_whole(self.path / "result.json", to_json(result, indent=2) + "\n")
        self._end("finished")

    def settle(self) -> None:
        """Remove what a killed process has left in the folder of a run that had finished."""
        self.remove_temporary_files()
        if (self.path / _RESERVE).exists() or _read_status(self.path).get("state") != "finished":
            self._end("finished")


def _check_schema(provenance: Record, path: Path) -> None:
    """Check that the records of a folder have the version that this program reads.

    Raises:
        DataError: they have another one.
    """
    version = provenance.get("schema")
    if version != SCHEMA_VERSION:
        raise DataError(
            f"'{path}' holds records of version {version!r:.40}; this fedtailor reads version"
            f" {SCHEMA_VERSION}.",
            path=str(path),
            allowed=SCHEMA_VERSION,
            got=version,
        )


def _reason_of(error: BaseException) -> str:
    """Return why a run failed, in one line."""
    try:
        return one_line(str(error)) or type(error).__name__
    except Exception:  # the error of a user's method
        return describe_error(error)


def _model_files(models: Iterable[tuple[str, bytes, Record]]) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files of models and cards."""
    for client, data, card in models:
        name = safe_name(client)
        file = {"file": f"{name}.safetensors", "sha256": hashlib.sha256(data).hexdigest()}
        yield f"{name}.safetensors", data
        yield f"{name}.json", to_json({"client": client, **card, **file}, indent=2).encode()


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether an interruption is the cause, even if a library turned it into another
    exception.
    """
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
    """The lines of ``rounds.jsonl``.

    With several seeds: those of all of them, each line with its ``seed``.
    """
    events: list[dict[str, Any]]
    """The lines of ``events.jsonl``, in the same way."""
    result: dict[str, Any] | None
    """What ``fedtailor run --json`` printed; None for a run that has not finished."""
    seeds: dict[int, Run]
    """The runs of the single seeds, where there are several."""

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """The lines of ``clients.jsonl``, in the same way. They are read when this is first used:
        they can be many.

        Raises:
            DataError: the file is damaged, or the folder is gone.
        """
        return list(self.iterate_clients())

    def iterate_clients(self) -> Iterator[dict[str, Any]]:
        """Read the lines of ``clients.jsonl`` one at a time, and keep none of them.

        Raises:
            DataError: the file is damaged, or the folder is gone.
        """
        for seed, run in self.seeds.items():
            for record in run.iterate_clients():
                yield {"seed": seed, **record}

        if self.seeds:
            return

        if not _is_there(self.path):  # a folder without the file has no lines
            raise DataError(
                f"The folder of the run, '{self.path}', is gone since it was read.",
                path=str(self.path),
            )

        done = {record["round"] for record in self.rounds}
        for record in _iterate_records(self.path, "clients.jsonl", needed="round"):
            if record["round"] in done:
                yield record

    def clients_of_round(self, number: int) -> list[dict[str, Any]]:
        """Return the lines of ``clients.jsonl`` of a round. They are read when they are first asked
        for, and kept.

        Raises:
            DataError: the file is damaged, or the folder is gone.
        """
        if number not in self._clients_by_round:
            self._clients_by_round[number] = [
                line for line in self.iterate_clients() if line["round"] == number
            ]
        return self._clients_by_round[number]

    @cached_property
    def _clients_by_round(self) -> dict[int, list[dict[str, Any]]]:
        """The lines of the rounds that were asked for."""
        return {}

    def model(
        self, client: str | int, *, seed: int | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return a client's tensors by path, and its model card.

        Args:
            client: name or number of the client.
            seed: which of several seeds.

        Raises:
            ConfigError: there are several seeds and none of them is named.
            DataError: there is no such model, or its file is damaged.
        """
        from fedtailor.experiment.arrays import to_arrays

        run = self.of_seed(seed)
        raw, card = run.model_file(client)
        return to_arrays(raw, run.path / "models" / str(card["file"])), card

    def model_file(self, client: str | int) -> tuple[bytes, dict[str, Any]]:
        """Return the content of a client's model file, and its card, in a run of one seed.

        Raises:
            DataError: there is no such model, or its file is damaged.
        """
        name = self._file_name(client)
        try:
            card = read_object(self.path / "models" / f"{name}.json", within=self.path)
        except UnreadableError as error:
            if is_missing(error):
                raise self._no_model_of(client) from error
            raise

        path = self.path / "models" / f"{name}.safetensors"
        raw = read_file(path, limit=_LARGEST_MODEL, within=self.path)
        if hashlib.sha256(raw).hexdigest() != card.get("sha256"):
            raise DataError(
                f"'{path}' is damaged: its SHA-256 does not match its card.", path=str(path)
            )

        if safe_name(str(card.get("client"))) != name:
            raise damaged(
                path.with_suffix(".json"), f"it is the card of client {card.get('client')!r:.80}"
            )

        return raw, {**card, "file": path.name}

    def _file_name(self, client: str | int) -> str:
        """Return the name of a client's files, without their endings; a number may stand for a
        name.
        """
        names = self._client_names()
        if str(client) in names:
            return safe_name(str(client))

        number = (
            int(client)
            if isinstance(client, int) or (client.isascii() and client.isdecimal())
            else -1
        )

        return safe_name(names[number] if 0 <= number < len(names) else str(client))

    def _client_names(self) -> list[str]:
        """Return the names of the clients; empty if they have none."""
        names = self.split.get("client_names")
        return [str(name) for name in names] if isinstance(names, list) else []

    @property
    def is_across_sites(self) -> bool:
        """Whether real sites trained in this run: their models stay with them."""
        return self.provenance.get("engine") == ACROSS_SITES

    def _no_model_of(self, client: str | int) -> DataError:
        """Return the error for a client that has no model; it lists those that have one."""
        stems = {file.stem for file in (self.path / "models").glob("*.json")}
        names = [name for name in self._client_names() if safe_name(name) in stems]
        names = names or sorted(stems, key=_in_reading_order)
        message = f"'{self.path}' holds no models: they are written after the last round."
        if self.is_across_sites:
            message = f"'{self.path}' holds no models: every site keeps its own, as 'model' in its folder."

        if names:
            known = ", ".join(names[:_MOST_CLIENTS])
            if len(names) > _MOST_CLIENTS:
                known += f" and {len(names) - _MOST_CLIENTS} more"

            hint = "." if str(client).isdecimal() else did_you_mean(str(client), names) or "."
            message = f"'{self.path}' holds no model of client {client!r:.80}{hint} It holds those of {known}."

        return DataError(message, key="client", path=str(self.path), allowed=names, got=str(client))

    def of_seed(self, seed: int | None) -> Run:
        """Return the run of one of several seeds, or this one if it has no others.

        Raises:
            ConfigError: there are several and none is named, or there is no such seed.
        """
        if not self.seeds and seed in (None, self.config.get("seed")):
            return self
        if seed is None or seed not in self.seeds:
            known = ", ".join(map(str, self.seeds)) or str(self.config.get("seed"))
            got = "none" if seed is None else seed
            message = f"seed must be one of those that '{self.path}' holds ({known}), got {got}."
            raise ConfigError(message, key="seed", allowed=list(self.seeds), got=got)
        return self.seeds[seed]


def refuse_inside_run(path: Path) -> None:
    """Check that nothing is written into the folder of a finished run.

    Raises:
        ConfigError: the path is a run folder, or lies in one.
    """
    resolved = Path(os.path.realpath(path))
    for folder in (resolved, *resolved.parents):
        if holds_run(folder):
            message = f"'{path}' lies in the folder of a run, '{folder}', which stays as it is: choose another --out."
            raise ConfigError(message, key="out", allowed="a path outside of runs", got=str(path))


def read_run(path: str | Path) -> Run:
    """Read a run folder, whatever state the run is in.

    The folder of several seeds holds a run per seed, in ``run.seeds``; its own rounds, clients and
    events are those of all seeds, each with its ``seed``.

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
    run = _read_one(path)
    if "seeds" not in run.config:
        return run

    seeds = {
        seed: _read_one(path / f"seed-{seed}")
        for seed in _seeds_of(run)
        if _is_there(path / f"seed-{seed}")
    }

    for seed, one in seeds.items():
        if "seeds" in one.config:
            raise damaged(one.path / _LAST_MADE, "it is that of several seeds")

        run.rounds.extend({"seed": seed, **record} for record in one.rounds)
        run.events.extend({"seed": seed, **record} for record in one.events)

    run.seeds.update(seeds)
    return run


def _read_one(path: Path) -> Run:
    """Read a run folder without those of its seeds."""
    config_file = path / _LAST_MADE
    try:
        text = read_file(config_file, limit=LARGEST_TOML, within=path)
    except UnreadableError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise DataError(NO_RUN.format(path=path), path=str(path)) from error
        raise

    provenance = RunFolder(path).provenance()  # before the records, for a folder of a newer version
    config = parse_toml(text, config_file)
    rounds = _read_records(path, "rounds.jsonl", needed="round")
    done = {record["round"] for record in rounds}
    events = _read_records(path, "events.jsonl")
    split = _read_optional(path / "split.json")
    result = _read_result(path)

    return Run(
        path=path,
        config=config,
        provenance=provenance,
        status=_true_status(path, result, None if "seeds" in config else len(rounds)),
        split={} if split is None else split,
        rounds=rounds,
        events=[record for record in events if record.get("round", 0) in done | {0}],
        result=result,
        seeds={},
    )


def is_running(path: Path) -> bool:
    """Return whether a process is running the run in a folder.

    Raises:
        DataError: its status cannot be read.
    """
    status = _read_status(path)
    return status["state"] == "running" and lives(status.get("process"))


def _true_status(path: Path, result: Record | None, rounds: int | None) -> dict[str, Any]:
    """Return the status of a run as it is, which may be other than what its process has written
    last.

    Args:
        path: the run folder.
        result: of the run.
        rounds: how many rounds were recorded; None: with several seeds, they are not counted.
    """
    status = _read_status(path)
    if status["state"] == "running" and not lives(status.get("process")):
        status = {"state": "interrupted" if result is None else "finished"}
    return status if rounds is None else {**status, "rounds_done": rounds}


def _read_status(path: Path) -> dict[str, Any]:
    """Read ``status.json``; a process that could not write the last one has removed it."""
    found = _read_optional(path / "status.json")
    if found is None:
        return {"state": "interrupted"}
    if found.get("state") not in get_args(State):
        raise damaged(
            path / "status.json", f"the state must be one of {', '.join(get_args(State))}"
        )
    return found


def _read_result(path: Path) -> dict[str, Any] | None:
    return _read_optional(path / "result.json")


def _read_optional(path: Path) -> dict[str, Any] | None:
    """Read an object in a run folder; None if there is no such file."""
    try:
        return read_object(path, within=path.parent)
    except UnreadableError as error:
        if is_missing(error):
            return None
        raise


def _read_records(path: Path, name: str, needed: str = "") -> list[dict[str, Any]]:
    """Read a file of lines in a run folder, as :func:`_iterate_records` does."""
    return list(_iterate_records(path, name, needed))


def _iterate_records(path: Path, name: str, needed: str = "") -> Iterator[dict[str, Any]]:
    """Yield the lines of a file in a run folder; ``round``, and what is ``needed``, must be a whole
    number.
    """
    for number, record in enumerate(read_lines(path / name, within=path), start=1):
        if type(record.get("round", None if needed else 0)) is not int:
            raise damaged(path / name, f"line {number} has no number of a round")
        yield record


def _seeds_of(run: Run) -> list[int]:
    """Return the seeds of a run of several."""
    seeds = run.config["seeds"]
    if not isinstance(seeds, list) or any(type(seed) is not int for seed in seeds):
        raise damaged(run.path / _LAST_MADE, "seeds must be a list of whole numbers")
    return seeds


def _in_reading_order(name: str) -> tuple[int, str]:
    """Return a key that sorts numbers by their value, and names after them."""
    return (int(name), "") if name.isdecimal() else (sys.maxsize, name)


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)
