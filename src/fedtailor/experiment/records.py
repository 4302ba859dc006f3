"""Run folders: written while a run goes on, and read back. No torch.

A run folder holds ``experiment.toml`` (resolved), ``provenance.json``, ``split.json``, ``status.json``,
``rounds.jsonl``, ``clients.jsonl``, ``events.jsonl``, ``models/CLIENT.safetensors`` with ``CLIENT.json``, and
``result.json`` once it has finished. A run of several seeds holds one such folder per seed, ``seed-0`` and so on.

Files appear whole: written under a temporary name, synchronized, renamed. Lines are appended and synchronized
once per round, ``rounds.jsonl`` last. A round that is in it is therefore complete in the other files. Anything that a
killed run left beyond it is ignored on reading.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from fedtailor.core.atomic import append_lines, safe_name, to_json, unwritable, write_whole
from fedtailor.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

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
            f"'{path}' already exists; runs are never overwritten and cannot be resumed yet. "
            "Choose another folder with --out.",
            key="out",
            allowed="a folder that does not exist, or is empty",
            got=str(path),
        )


class RunFolder:
    """The folder of one run, or of a run of several seeds, while it is written.

    As a context manager it keeps the state true: if the block ends early, the state is ``interrupted`` or ``failed``.
    """

    def __init__(self, path: Path, *, config: str, provenance: Record, several_seeds: bool = False) -> None:
        """Make the folder with its configuration (TOML) and provenance.

        The folder of several seeds has no rounds, so its status does not count them.

        Raises:
            ConfigError: something is there already.
            RunError: the folder cannot be made.
        """
        refuse_existing(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as reason:
            raise unwritable(path, reason) from reason
        self.path = path
        self._several_seeds = several_seeds
        self.set_state("running")
        write_whole(path / "provenance.json", to_json(provenance, indent=2) + "\n")
        write_whole(path / "experiment.toml", config)

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

    def write_split(self, split: Record) -> None:
        """Write ``split.json``: which client has which examples."""
        write_whole(self.path / "split.json", to_json(split) + "\n")

    def add_round(self, record: Record, *, clients: Sequence[Record] = (), events: Sequence[Record] = ()) -> None:
        """Append a round: one line for it, one per client and evaluation, one per event."""
        append_lines(self.path / "clients.jsonl", clients)
        self.add_events(events)
        append_lines(self.path / "rounds.jsonl", [record])

    def add_events(self, events: Sequence[Record]) -> None:
        """Append events: warnings, skipped clients, quarantines."""
        append_lines(self.path / "events.jsonl", events)

    def write_model(self, client: str, tensors: Mapping[str, np.ndarray], card: Record) -> None:
        """Write a client's model and its card. The file name is the escaped name of the client."""
        from safetensors.numpy import save

        folder = self.path / "models"
        folder.mkdir(exist_ok=True)
        raw = save(dict(tensors))
        name = safe_name(client)
        write_whole(folder / f"{name}.safetensors", raw)
        file = {"file": f"{name}.safetensors", "sha256": hashlib.sha256(raw).hexdigest()}
        shapes = {path: list(tensor.shape) for path, tensor in tensors.items()}
        write_whole(folder / f"{name}.json", to_json({"client": client, **card, **file, "tensors": shapes}, indent=2))

    def finish(self, result: Record) -> None:
        """Write ``result.json`` and the final state."""
        write_whole(self.path / "result.json", to_json(result, indent=2) + "\n")
        self.set_state("finished")


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
    clients: list[dict[str, Any]]
    """The lines of ``clients.jsonl``, in the same way."""
    events: list[dict[str, Any]]
    """The lines of ``events.jsonl``, in the same way."""
    result: dict[str, Any] | None
    """What ``fedtailor run --json`` printed; None for a run that has not finished."""
    seeds: dict[int, Run]
    """The runs of the single seeds, where there are several."""

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
    text = _read(path / "experiment.toml")
    try:
        config = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as reason:
        raise _damaged(path / "experiment.toml", reason) from reason
    rounds = _read_lines(path / "rounds.jsonl")
    done = {record["round"] for record in rounds}
    clients = [record for record in _read_lines(path / "clients.jsonl") if record["round"] in done]
    events = [record for record in _read_lines(path / "events.jsonl") if record.get("round", 0) in done | {0}]
    folders = {int(seed): path / f"seed-{seed}" for seed in config.get("seeds", [])}
    seeds = {seed: read_run(folder) for seed, folder in folders.items() if folder.exists()}
    for seed, run in seeds.items():
        rounds += [{"seed": seed, **record} for record in run.rounds]
        clients += [{"seed": seed, **record} for record in run.clients]
        events += [{"seed": seed, **record} for record in run.events]
    return Run(
        path=path,
        config=config,
        provenance=_read_json(path / "provenance.json"),
        status=_read_json(path / "status.json"),
        split=_read_json(path / "split.json", default={}),
        rounds=rounds,
        clients=clients,
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


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Read lines of JSON; a last line without its end was being written when the run was killed."""
    if not path.exists():
        return []
    *whole, _ = _read(path).split(b"\n")
    try:
        return [json.loads(line) for line in whole]
    except ValueError as reason:
        raise _damaged(path, reason) from reason


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as reason:
        raise DataError(f"cannot read '{path}': {reason.strerror or reason}.", path=str(path)) from reason


def _damaged(path: Path, reason: Exception) -> DataError:
    return DataError(f"'{path}' is damaged: {reason}.", path=str(path))
