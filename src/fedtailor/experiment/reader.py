"""Run folders read back, whatever state the run is in. No torch.

A run folder holds ``experiment.toml`` (resolved), ``provenance.json``, ``split.json``,
``status.json``, ``rounds.jsonl``, ``clients.jsonl``, ``events.jsonl``, ``checkpoints``
(:mod:`fedtailor.simulation.checkpoint`), ``models/CLIENT.safetensors`` with their cards, and
``result.json`` once it has finished. A run of several seeds holds one such folder per seed:
``seed-0`` and so on. A run with folds holds one per fold, ``fold-1`` and so on, and no models or
checkpoints of its own: its scores are those of all folds together.
:mod:`fedtailor.experiment.writer` writes it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from fedtailor.core.atomic import safe_name
from fedtailor.core.errors import ConfigError, DataError, did_you_mean, joined
from fedtailor.core.folders import lives
from fedtailor.core.options import wrong_value
from fedtailor.core.reading import (
    LARGEST_TOML,
    UnreadableError,
    content_of,
    damaged,
    is_missing,
    parse_toml,
    read_file,
    read_lines,
    read_object,
)
from fedtailor.core.text import counted

SCHEMA_VERSION = 3
"""Of the records. A folder of another version is refused."""
CONFIG_FILE = "experiment.toml"
"""The file that makes a folder a run folder; it is written last of the first files."""
PROVENANCE_FILE = "provenance.json"
"""Where the results of a run come from."""
SITE_DATA = "site_data"
"""Entry of the provenance of an onboarded or adapted model: the paths of what it was made from."""
FOR_NEW_SITES = "for_new_sites"
"""Entry of the provenance of a folder that holds no more of a run than new sites need."""
COMPARISON_FILE = "comparison.json"
"""In the folder of several runs: names the folders of the runs."""
MEMBERS_FILE = "members.json"
"""In the folder of an audit of members: how many trainings, and of which methods."""
LAST_ROUND = "the last round"
"""What decided which round the models of a run are of, if no choice did."""
LOST_WORK = ("quarantine", "failed", "absent")
"""Events by which the work of a client is lost."""
ACROSS_SITES = "sites"
"""Stands in place of an engine in the provenance of a run across sites."""

State = Literal["running", "finished", "failed", "interrupted"]
Record = dict[str, Any]

_LARGEST_MODEL = 2**33
_MOST_CLIENTS = 10
"""Names of clients in a message."""


def holds_run(path: Path) -> bool:
    """Return whether ``path`` is a run folder."""
    return os.path.isfile(path / CONFIG_FILE)


def why_no_run(path: Path) -> str:
    """Return in a sentence why ``path`` is no run folder."""
    if os.path.isdir(path):
        why = f"'{path}' is not the folder of a run: it holds no {CONFIG_FILE}."
        return why + name_runs(path)
    if os.path.lexists(path):
        return f"'{path}' is a file, not the folder of a run."

    # A misspelt name, most often.
    folders: list[str] = []
    with suppress(OSError):
        folders += [name for name in os.listdir(path.parent) if os.path.isdir(path.parent / name)]

    hint = did_you_mean(path.name, folders) or "."
    return f"there is no folder '{path}'{hint}"


def name_runs(path: Path) -> str:
    """Return how to name the runs in a folder of several, such as that of a comparison."""
    try:
        folders = list_runs(path) if (path / COMPARISON_FILE).is_file() else sorted(path.iterdir())
    except (OSError, DataError):
        return ""

    runs = [folder for folder in folders if holds_run(folder)]
    return f" It holds {counted(len(runs), 'run')}: name one, such as '{runs[0]}'." if runs else ""


def site_data_of(records: RunRecords) -> list[str]:
    """Return the paths of what an onboarded or adapted model was made from; none for others."""
    paths = records.provenance.get(SITE_DATA, [])
    if not isinstance(paths, list):
        return []

    return [path for path in paths if isinstance(path, str)]


def fold_folder(path: Path, number: int) -> Path:
    """Return the folder of a fold, from 1, in that of a run with folds."""
    return path / f"fold-{number}"


def list_runs(folder: Path) -> list[Path]:
    """Return the folders of the runs of a comparison, also of those that have not begun.

    Raises:
        DataError: the folder is that of no comparison, or the list is damaged.
    """
    path = folder / COMPARISON_FILE
    names = read_object(path, within=folder).get("runs")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise damaged(path, "'runs' must be a list of folders")
    if len(set(names)) < len(names):
        raise damaged(path, "'runs' names a folder twice")

    for name in names:
        if not _is_inside(name, folder):
            message = f"'runs' names {name!r:.80}, which is not a folder within '{folder}'"
            raise damaged(path, message)

    return [folder / name for name in names]


def _is_inside(name: str, folder: Path) -> bool:
    """Return whether a name stands for something in a folder, also after all links are followed."""
    try:
        target = Path(os.path.realpath(folder / name))
        inside = Path(os.path.realpath(folder))
    except (OSError, ValueError):  # a null character
        return False

    return target != inside and target.is_relative_to(inside)


@dataclass(frozen=True)
class RunRecords:
    """What a run folder says."""

    path: Path
    config: Record
    provenance: Record
    status: Record
    split: Record
    rounds: list[Record]
    """The lines of ``rounds.jsonl``; with several seeds those of all, each with its ``seed``."""
    events: list[Record]
    """The lines of ``events.jsonl``, in the same way."""
    result: Record | None
    """What ``fedtailor run --json`` printed; None for a run that has not finished."""
    seeds: dict[int, RunRecords]
    """The runs of the single seeds, where there are several."""

    @cached_property
    def clients(self) -> list[Record]:
        """The lines of ``clients.jsonl``, in the same way, read when this is first used.

        Raises:
            DataError: the file is damaged, or the folder is gone.
        """
        return list(self.iterate_clients())

    def iterate_clients(self) -> Iterator[Record]:
        """Read the lines of ``clients.jsonl`` one at a time, and keep none of them.

        Raises:
            DataError: the file is damaged, or the folder is gone.
        """
        for seed, run in self.seeds.items():
            for record in run.iterate_clients():
                yield {"seed": seed, **record}

        if self.seeds:
            return

        if not self.path.exists():  # a folder without the file has no lines
            message = f"The folder of the run, '{self.path}', is gone since it was read."
            raise DataError(message, path=self.path)

        # A killed run may have left lines of a round that is not complete.
        complete = {record["round"] for record in self.rounds}
        for record in _iterate_records(self.path, "clients.jsonl", needs_round=True):
            if record["round"] in complete:
                yield record

    @cached_property
    def client_names(self) -> list[str]:
        """The names of the clients; empty if they have none.

        Raises:
            DataError: ``split.json`` is damaged.
        """
        names = self.split.get("client_names")

        # New clients may appear several times; few runs have that, and others do without NumPy.
        conditions = self.split.get("conditions") or ()
        if len(conditions) > len(self.split.get("clients") or ()):
            from fedtailor.data.split import clients_of_run

            with content_of(self.path / "split.json"):
                return [name for _, name in clients_of_run(self.split)]

        return [str(name) for name in names] if isinstance(names, list) else []

    @property
    def has_folds(self) -> bool:
        """Whether this is a run of all folds of a cross-validation, which has no models."""
        data = self.config.get("data", {})
        return bool(data.get("folds")) and not data.get("fold")

    @property
    def is_across_sites(self) -> bool:
        """Whether real sites trained in this run: their models stay with them."""
        return self.provenance.get("engine") == ACROSS_SITES

    def of_seed(self, seed: int | None) -> RunRecords:
        """Return the run of one of several seeds, or this one if it has no others.

        Raises:
            ConfigError: there are several and none is named, or there is no such seed.
        """
        if not self.seeds and seed in (None, self.config.get("seed")):
            return self
        if seed in self.seeds:
            return self.seeds[seed]

        seeds = ", ".join(map(str, self.seeds)) or str(self.config.get("seed"))
        if seed is None:
            message = (
                f"'{self.path}' holds a run with the seeds {seeds}: say which one is meant, such "
                f"as --seed {seeds.split(',')[0]}."
            )
            raise ConfigError(message, key="seed", allowed=list(self.seeds), got=seed)

        raise wrong_value("seed", f"one of those that '{self.path}' holds ({seeds})", seed)

    def model_file(self, client: str | int) -> tuple[bytes, Record]:
        """Return the content of a client's model file, and its card, in a run of one seed.

        Raises:
            DataError: there is no such model, or its file is damaged.
        """
        self.refuse_folds()
        name = self._file_name(client)
        card_path = self.path / "models" / f"{name}.json"
        path = self.path / "models" / f"{name}.safetensors"

        try:
            card = read_object(card_path, within=self.path)
        except UnreadableError as error:
            if is_missing(error):
                raise self._no_model_of(client) from error
            raise

        raw = read_file(path, limit=_LARGEST_MODEL, within=self.path)

        # The card names the file that it belongs to by its digest.
        if hashlib.sha256(raw).hexdigest() != card.get("sha256"):
            raise damaged(path, "its SHA-256 does not match its card")
        if safe_name(str(card.get("client"))) != name:
            raise damaged(card_path, f"it is the card of client {card.get('client')!r:.80}")

        return raw, {**card, "file": path.name}

    def _file_name(self, client: str | int) -> str:
        """Return the name of a client's files, without endings; a number may stand for a name."""
        names = self.client_names
        if not isinstance(client, str) and 0 <= client < len(names):
            return safe_name(names[client])

        text = str(client)
        if text not in names and text.isascii() and text.isdecimal() and int(text) < len(names):
            text = names[int(text)]
        return safe_name(text)

    def refuse_folds(self) -> None:
        """Check that there are models, which a run of all folds has not.

        Raises:
            DataError: it is one; the message says how to get models.
        """
        if self.has_folds:
            import shlex

            config = shlex.quote(str(self.path / CONFIG_FILE))
            raise DataError(
                f"'{self.path}' is a cross-validation, which has no model to use. Train one "
                f"without folds: fedtailor run {config} --folds 0",
                path=self.path,
                allowed="a run without --folds",
                got="a run with folds",
            )

    def _no_model_of(self, client: str | int) -> DataError:
        """Return the error for a client without a model; it lists those that have one."""
        stems = {file.stem for file in (self.path / "models").glob("*.json")}
        names = [name for name in self.client_names if safe_name(name) in stems]

        # A run without its split has no names of clients.
        names = names or sorted(stems, key=_numbers_first)

        if names:
            hint = "." if str(client).isdecimal() else did_you_mean(str(client), names) or "."
            listing = joined(names, _MOST_CLIENTS)
            reason = f"no model of client {client!r:.80}{hint} It holds those of {listing}."
        elif self.is_across_sites:
            reason = "no models: every site keeps its own, as 'model' in its folder."
        elif FOR_NEW_SITES in self.provenance:
            reason = "what a new site needs of a run, and no models: fedtailor onboard makes one."
        else:
            reason = "no models: they are written after the last round."

        message = f"'{self.path}' holds {reason}"
        return DataError(message, key="client", path=self.path, allowed=names, got=str(client))


def read_run(path: str | Path) -> RunRecords:
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

    for seed in _seeds_of(run):
        folder = path / f"seed-{seed}"
        if not folder.exists():  # it has not begun
            continue

        single = _read_one(folder)
        if "seeds" in single.config:
            raise damaged(folder / CONFIG_FILE, "it is that of several seeds")

        run.seeds[seed] = single
        run.rounds.extend({"seed": seed, **record} for record in single.rounds)
        run.events.extend({"seed": seed, **record} for record in single.events)

    return run


def _read_one(path: Path) -> RunRecords:
    """Read a run folder without those of its seeds."""
    try:
        text = read_file(path / CONFIG_FILE, limit=LARGEST_TOML, within=path)
    except UnreadableError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise DataError(why_no_run(path), path=path) from error
        raise

    # First of all, because it says whether the version of the records is ours.
    provenance = read_provenance(path)
    config = parse_toml(text, path / CONFIG_FILE)

    # Events without a round, and those of complete rounds.
    rounds = list(_iterate_records(path, "rounds.jsonl", needs_round=True))
    complete = {0, *(record["round"] for record in rounds)}
    events = list(_iterate_records(path, "events.jsonl"))
    events = [record for record in events if record.get("round", 0) in complete]

    result = read_result(path)

    # The process may have died, before it wrote a state or after its result.
    status = _read_status(path)
    if status["state"] == "running" and not lives(status.get("process")):
        status = {"state": "interrupted" if result is None else "finished"}
    if "seeds" not in config:
        status["rounds_done"] = len(rounds)

    return RunRecords(
        path=path,
        config=config,
        provenance=provenance,
        status=status,
        split=_read_optional(path / "split.json") or {},
        rounds=rounds,
        events=events,
        result=result,
        seeds={},
    )


def read_provenance(path: Path) -> Record:
    """Read where the results in a run folder come from.

    Raises:
        DataError: it is damaged, or of another version of the records.
    """
    provenance = read_object(path / PROVENANCE_FILE, within=path)
    version = provenance.get("schema")
    if version != SCHEMA_VERSION:
        message = (
            f"'{path}' holds records of version {version!r:.40}; this fedtailor reads version "
            f"{SCHEMA_VERSION}."
        )
        raise DataError(message, path=path, allowed=SCHEMA_VERSION, got=version)
    return provenance


def read_result(path: Path) -> Record | None:
    """Read the result of a run, with the path of its folder now; None if it has not finished.

    Raises:
        DataError: it is damaged.
    """
    result = _read_optional(path / "result.json")
    return None if result is None else {**result, "run": str(path)}


def count_rounds(path: Path) -> int:
    """Count the complete lines of ``rounds.jsonl`` in a folder."""
    try:
        with (path / "rounds.jsonl").open("rb") as file:
            return sum(line.endswith(b"\n") for line in file)
    except OSError:
        return 0


def is_running(path: Path) -> bool:
    """Return whether a process is running the run in a folder.

    Raises:
        DataError: its status cannot be read.
    """
    status = _read_status(path)
    return status["state"] == "running" and lives(status.get("process"))


def refuse_inside_run(path: Path, option: str = "--out") -> None:
    """Check that nothing is written into the folder of a finished run.

    Args:
        path: to be written.
        option: that names it.

    Raises:
        ConfigError: the path is a run folder, or lies in one.
    """
    # Links count as what they lead to.
    resolved = Path(os.path.realpath(path))
    for folder in (resolved, *resolved.parents):
        if holds_run(folder):
            message = (
                f"'{path}' lies in the folder of a run, '{folder}', which stays as it is: choose "
                f"another {option}."
            )
            raise ConfigError(
                message, key=option.lstrip("-"), allowed="a path outside of runs", got=str(path)
            )


def _read_status(path: Path) -> Record:
    """Read ``status.json``; a process that could not write the last one has removed it."""
    status = _read_optional(path / "status.json")
    if status is None:
        return {"state": "interrupted"}

    states = get_args(State)
    if status.get("state") not in states:
        raise damaged(path / "status.json", f"the state must be one of {', '.join(states)}")
    return status


def _read_optional(path: Path) -> Record | None:
    """Read an object in a run folder; None if there is no such file."""
    try:
        return read_object(path, within=path.parent)
    except UnreadableError as error:
        if is_missing(error):
            return None
        raise


def _iterate_records(path: Path, name: str, *, needs_round: bool = False) -> Iterator[Record]:
    """Yield the lines of a file; the number of a round, which some need, must be whole."""
    for number, record in enumerate(read_lines(path / name, within=path), start=1):
        if type(record.get("round", None if needs_round else 0)) is not int:
            raise damaged(path / name, f"line {number} has no number of a round")
        yield record


def _seeds_of(run: RunRecords) -> list[int]:
    """Return the seeds of a run of several; none for a run of one."""
    seeds = run.config.get("seeds", [])
    if not isinstance(seeds, list) or any(type(seed) is not int for seed in seeds):
        raise damaged(run.path / CONFIG_FILE, "seeds must be a list of whole numbers")
    return seeds


def _numbers_first(name: str) -> tuple[int, str]:
    """Return a key that sorts numbers by their value, and names after them."""
    return (int(name), "") if name.isdecimal() else (sys.maxsize, name)


def chance_over_seeds(chances: Sequence[Record]) -> Record:
    """Return at which clients models are near chance in most seeds.

    Args:
        chances: ``chance`` of the results, at least one.
    """
    names = [name for chance in chances for name in chance["unclear"]]
    usual = [name for name in dict.fromkeys(names) if names.count(name) > len(chances) / 2]
    return {"asked": max(chance["asked"] for chance in chances), "unclear": usual}


def chance_warning(chance: Mapping[str, Any]) -> str:
    """Say at which clients models are no better than chance; empty: nowhere, or nobody asked."""
    unclear = chance.get("unclear", [])
    if not unclear:
        return ""

    names = joined(unclear, _MOST_CLIENTS)
    return (
        f"at {len(unclear)} of the {chance['asked']} clients with enough test examples ({names}) "
        "the balanced accuracy of the personalized model cannot be told from guessing: its 95 % "
        "interval includes that."
    )
