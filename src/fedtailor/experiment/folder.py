"""The folder of a run while it is written. No torch.

Files appear whole: written under a temporary name, synchronized, renamed. Lines are appended and
synchronized once per round, ``rounds.jsonl`` last. A round that is in it is therefore complete in
the other files. Anything that a killed run left beyond it is ignored on reading, and removed when
the run is resumed.

The state in ``status.json`` names the process that runs, so a run whose process has died reads as
interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedtailor.core.atomic import (
    append_lines,
    discard,
    remove_file,
    safe_name,
    to_json,
    unwritable,
    write_json,
    write_whole,
    writing,
)
from fedtailor.core.errors import ConfigError, DataError, RunError, describe_error, one_line
from fedtailor.core.folders import (
    LockedError,
    locked,
    this_process,
    whole_folder,
    write_folder_whole,
)
from fedtailor.core.reading import UnreadableError, is_missing, open_regular, read_lines
from fedtailor.experiment.reader import (
    CONFIG_FILE,
    PROVENANCE_FILE,
    SCHEMA_VERSION,
    State,
    read_result,
)

SPLIT_FILE = "split.json"
_BLOCK = 2**20
"""Bytes of a file that are read at a time."""


def refuse_existing(path: Path) -> None:
    """Check that a run folder can be made at ``path``: nothing is there, or an empty folder.

    Raises:
        ConfigError: something is there; it is never overwritten.
    """
    try:
        is_free = not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir()))
    except OSError as reason:
        message = f"cannot read '{path}': {reason.strerror or reason}."
        raise ConfigError(message, key="out", got=str(path)) from reason

    if not is_free:
        raise ConfigError(
            f"'{path}' already exists, and is never overwritten: choose another folder.",
            key="out",
            allowed="a folder that does not exist, or is empty",
            got=str(path),
        )


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Keep other processes out of a run folder while the block runs (not on Windows).

    Raises:
        ConfigError: another process has it.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path, wait=False))
        except LockedError as reason:
            message = (
                f"another process is writing to '{path}'. Wait until it ends, or choose another "
                "folder with --out."
            )
            raise ConfigError(message, key="out", got=str(path)) from reason
        except OSError as reason:
            raise unwritable(path, reason) from reason

        yield


class _Lines:
    """A file of lines, and the digest of what was written to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.digest = hashlib.sha256()

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append one line per record."""
        added = append_lines(self.path, records)
        self.size += len(added)
        self.digest.update(added)

    def begins_as(self, size: int, sha256: str) -> bool:
        """Return whether the file begins with ``size`` bytes of this digest."""
        return self._digest_of_beginning(size).hexdigest() == sha256

    def rewind(self, size: int) -> None:
        """Cut off everything after ``size`` bytes."""
        # An empty file is removed, as it was at the beginning.
        self.digest = self._digest_of_beginning(size)
        self.size = size
        with writing(self.path):
            if size:
                os.truncate(self.path, size)
            else:
                self.path.unlink(missing_ok=True)

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
            raise RunError(reason.message, path=self.path) from reason
        except DataError:  # it is not a file with content
            return hashlib.sha256()

        return digest


class RunFolder:
    """The folder of one run, or of a run of several seeds, while it is written.

    As a context manager it keeps the state true: ``running`` in the block, and if it ends early,
    ``interrupted`` or ``failed``.
    """

    def __init__(self, path: Path) -> None:
        """Write to a folder that :meth:`create` has made."""
        self.path = path
        self._rounds = _Lines(path / "rounds.jsonl")
        self._clients = _Lines(path / "clients.jsonl")
        self._events = _Lines(path / "events.jsonl")
        self._lines = (self._rounds, self._clients, self._events)

    @classmethod
    def create(cls, path: Path, *, config: str, provenance: Mapping[str, Any]) -> RunFolder:
        """Make a folder with its configuration (TOML) and provenance, whole or not at all.

        Raises:
            ConfigError: something is there already.
            RunError: the folder cannot be made.
        """
        refuse_existing(path)
        try:
            if path.is_dir():  # it may be the current folder, which must stay the same one
                with exclusive(path):
                    refuse_existing(path)
                    cls(path)._write_first_files(config, provenance)
            else:
                with whole_folder(path) as unfinished:
                    cls(unfinished)._write_first_files(config, provenance)
        except OSError as reason:
            if reason.errno in (errno.EEXIST, errno.ENOTEMPTY):  # another process was faster
                refuse_existing(path)
            raise unwritable(path, reason) from reason

        return cls(path)

    def _write_first_files(self, config: str, provenance: Mapping[str, Any]) -> None:
        """Write what makes a folder a run folder; the file that decides it comes last."""
        try:
            self._set_state("interrupted")  # until somebody runs it
            self.write_provenance(provenance)
            write_whole(self.path / CONFIG_FILE, config)
        except BaseException:
            for name in (CONFIG_FILE, PROVENANCE_FILE, "status.json"):
                discard(self.path / name)

            raise

    def __enter__(self) -> Self:
        """Say that this process runs it, and return the folder.

        Raises:
            RunError: the folder cannot be written.
        """
        try:
            self._set_state("running", process=this_process())
        except RunError as error:  # a full disk, which the status should say
            self.__exit__(RunError, error, None)
            raise

        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write why the block ended early, if it did; its error stays the one that is raised."""
        if error is None:
            return

        if _was_interrupted(error):
            details: dict[str, Any] = {"state": "interrupted"}
        else:
            details = {"state": "failed", "reason": _reason_of(error)}

        try:
            self._set_state(**details)
        except (RunError, OSError):  # a full disk
            # The old status says that the run continues. Without it, the run reads as interrupted.
            discard(self.path / "status.json")
            with contextlib.suppress(RunError, OSError):
                self._set_state(**details)

    def _set_state(self, state: State, **details: Any) -> None:
        write_json(self.path / "status.json", {"state": state, **details})

    def remove_temporary_files(self) -> None:
        """Remove what a killed process was writing; nobody else may write here meanwhile."""
        with contextlib.suppress(OSError):
            for folder in (self.path, *(path for path in self.path.iterdir() if path.is_dir())):
                for path in folder.glob(".*.tmp"):
                    discard(path)
                    shutil.rmtree(path, ignore_errors=True)

    def write_provenance(self, provenance: Mapping[str, Any]) -> None:
        """Write ``provenance.json``: where the results come from."""
        record = {"schema": SCHEMA_VERSION, **provenance}
        write_json(self.path / PROVENANCE_FILE, record, indent=2)

    def write_split(self, split: Mapping[str, Any]) -> None:
        """Write ``split.json``: which client has which examples."""
        write_json(self.path / SPLIT_FILE, split, compact=True)

    def add_round(
        self,
        record: Mapping[str, Any],
        *,
        clients: Iterable[Mapping[str, Any]] = (),
        events: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """Append a round: one line for it, one per client and evaluation, one per event."""
        # Rounds come last: a round that is there is complete in the other files.
        self._clients.append(clients)
        self._events.append(events)
        self._rounds.append([record])

    def add_events(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Append events: notes, skipped clients, quarantines."""
        self._events.append(events)

    def bookmark(self) -> dict[str, tuple[int, str]]:
        """Return the number of bytes of every file of lines and their SHA-256, by its name."""
        return {lines.path.name: (lines.size, lines.digest.hexdigest()) for lines in self._lines}

    def objection(self, bookmark: Any) -> str:
        """Return why the files cannot go back to a bookmark, or an empty string.

        Raises:
            RunError: a file cannot be read.
        """
        for lines in self._lines:
            try:
                size, sha256 = bookmark[lines.path.name]
                is_intact = lines.begins_as(int(size), str(sha256))
            except (KeyError, TypeError, ValueError):
                return f"it does not say what '{lines.path}' held."
            if not is_intact:
                return (
                    f"'{lines.path}' is damaged: it does not begin with what was written before "
                    "the checkpoint."
                )
        return ""

    def rewind(self, bookmark: Mapping[str, tuple[int, str]]) -> None:
        """Remove the lines that were written after a bookmark.

        Raises:
            RunError: a file cannot be written.
        """
        for lines in self._lines:
            lines.rewind(bookmark[lines.path.name][0])

    def clear(self) -> bool:
        """Remove all rounds, and what was made of them; return whether there were any.

        Raises:
            RunError: a file cannot be removed.
        """
        from fedtailor.experiment.predictions import PREDICTIONS_FILE  # it imports NumPy

        had_rounds = self._rounds.path.exists()
        for lines in self._lines:
            lines.rewind(0)
        shutil.rmtree(self.path / "models", ignore_errors=True)
        discard(self.path / PREDICTIONS_FILE)
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
        absences = []
        with contextlib.suppress(DataError):
            for event in self.events():
                match event:
                    case {
                        "kind": "absent",
                        "round": int(round),
                        "client": int(),
                        "stage": str(),
                        "reason": str(),
                    }:
                        # The final models may be those of an earlier round.
                        made_in = event.get("made_in", round)
                        numbers = (made_in, event.get("attempt", 0))
                        is_right = all(isinstance(number, int) for number in numbers)
                        if is_right and made_in > after:
                            absences.append(event)

        return absences

    def write_models(self, models: Iterable[tuple[str, bytes, Mapping[str, Any]]]) -> None:
        """Write the models of all clients in place of older ones; they appear together.

        Args:
            models: name of the client, its model, which is a safetensors file, and its card, one
                client at a time. The name of a file is the escaped name of the client.
        """
        write_folder_whole(self.path / "models", _model_files(models))

    def restart(self, config: str) -> None:
        """Make a folder of several seeds one that has not finished; ``config`` may name more seeds.

        Raises:
            RunError: the folder cannot be written.
        """
        # Without its result, the run reads as one that has not finished.
        remove_file(self.path / "result.json")
        write_whole(self.path / CONFIG_FILE, config)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write ``result.json`` and the final state."""
        write_json(self.path / "result.json", result, compact=True)
        self._set_state("finished")

    def finished_result(self) -> dict[str, Any] | None:
        """Return the result if the run has finished, and remove what a killed process has left."""
        # A killed process may have written the result, and not the state.
        result = read_result(self.path)
        if result is not None:
            self.remove_temporary_files()
            self._set_state("finished")
        return result


def _model_files(
    models: Iterable[tuple[str, bytes, Mapping[str, Any]]],
) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files of models and cards."""
    for client, data, card in models:
        name = safe_name(client)
        file = {"file": f"{name}.safetensors", "sha256": hashlib.sha256(data).hexdigest()}
        yield f"{name}.safetensors", data
        yield f"{name}.json", to_json({"client": client, **card, **file}, indent=2).encode()


def _reason_of(error: BaseException) -> str:
    """Return why a run failed, in one line."""
    try:
        return one_line(str(error)) or type(error).__name__
    except Exception:  # the error of a user's method
        return describe_error(error)


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C is the cause, even if a library turned it into another exception."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
