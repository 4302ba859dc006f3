"""The page of the leaderboard's records: options, scores, and the command of each. No torch."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.core.text import NOTHING
from fedtailor.experiment.leaderboard import LOCAL, Cell, Record
from fedtailor.report.leaderboard import (
    ALONE,
    BASELINES,
    Accuracies,
    client_name,
    clients_below,
    count_clients,
    federations_of,
    known_of,
    seconds_of_trial,
)
from fedtailor.report.statistics import mean

_AGAIN = "again.jsonl"
"""A file that has no records yet."""


def records_page_of(records: Mapping[str, Record]) -> str:
    """Return the page of all records: options, scores, harmed clients, and how to repeat them.

    Every row of a table on the page of the leaderboard has a heading here.
    """
    parts = [
        "# Records of the leaderboard",
        "Each command runs one cell again, with the options to choose from, and writes its record "
        f"into `{_AGAIN}`. On the same processor and versions, all of its numbers are the same to "
        "the bit, but those of time. The data are in the folder of `FEDTAILOR_DATA`, or that of "
        "`--data-dir`. Federations on features run in the root of a clone of the repository, with "
        "`.venv/bin/fedtailor`, after `make encoder`.",
    ]
    for federation in federations_of(records):
        there = [one for one in records.values() if one["federation"] == federation]
        of_local = {one["repetition"]: one for one in there if one["method"] == LOCAL}
        parts.append(f"## {federation}")
        for name in sorted({one["method"] for one in there}):
            rows = [one for one in there if one["method"] == name]
            rows.sort(key=lambda record: record["repetition"])
            parts.append(f"### {_heading(federation, name)}")
            parts += [_record_in_words(row, of_local.get(row["repetition"])) for row in rows]

        for name in BASELINES:
            parts.append(f"### {_heading(federation, name)}")
            parts.append(_baseline_in_words(name, there))

    return "\n\n".join(parts) + "\n"


def _heading(federation: str, row: str) -> str:
    return f"{federation} {row}"


def anchor_of(federation: str, row: str) -> str:
    """Return the address of a row on the page, as GitHub and MyST make it.

    >>> anchor_of("skew-0.1", "fedavg_ft"), anchor_of("digits", "my.methods:Mine")
    ('skew-01-fedavg_ft', 'digits-mymethodsmine')
    """
    heading = _heading(federation, row)
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _record_in_words(record: Record, local: Record | None) -> str:
    """Return a record as a list of facts and the command that repeats it."""
    trials = record["trials"]
    failed = sum(trial["validation"] is None for trial in trials)
    which = f"{len(trials)}, of which {failed} failed" if failed else f"{len(trials)}"
    facts = [
        f"accuracy {_mean_percent(record['accuracies'])} % (validation "
        f"{100 * record['validation']:.2f} %)",
        f"chosen {_options(record['chosen'])} among {which}",
        _verdicts_in_words(record),
    ]
    if local is not None and local is not record:
        below = clients_below(record, local["accuracies"])
        facts.append(f"less accurate than local at {_clients(below)}")

    below = clients_below(record, record["baselines"][ALONE])
    facts.append(f"less accurate than alone at {_clients(below)}")
    seconds = seconds_of_trial(record)
    time = NOTHING if seconds is None else round(seconds, 1)
    commit = record["commit"] or NOTHING  # an installed package has none
    machine = record["machine"]
    facts.append(
        f"{record['engine']}, {machine['processor']} ({machine['torch_cpu_capability']}), {time} "
        f"core seconds a trial, commit {_short(commit)}, protocol {record['protocol']}, split "
        f"{record['split_sha256'][:12]}"
    )
    facts = [f"* {fact}" for fact in facts]
    title = f"**Repetition {record['repetition']}**"
    return "\n".join([title, "", *facts, "", "```sh", command_of(record), "```"])


def _short(commit: str) -> str:
    """Return the beginning of a commit's name, and whether files were changed after it."""
    name, changes, _ = commit.partition("+")
    return f"{name[:8]} with changes" if changes else name[:8]


def _verdicts_in_words(record: Record) -> str:
    counts = count_clients([record])
    if not counts:
        return "no verdicts"

    worse = []
    for client, verdict in enumerate(record["verdicts"]):
        if verdict == "worse":
            worse.append(client_name(record, client))

    text = ", ".join(f"{verdict} at {number}" for verdict, number in counts.items())
    return f"than alone: {text}" + (f" (worse: {_clients(worse)})" if worse else "")


def _clients(names: Sequence[str]) -> str:
    return "no client" if not names else f"{len(names)}: {', '.join(names)}"


def _options(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in values.items())


def _mean_percent(accuracies: Accuracies) -> str:
    return f"{100 * mean(known_of(accuracies)):.2f}"


def _baseline_in_words(name: str, there: Sequence[Record]) -> str:
    """Return the accuracies of a baseline by repetition, and the command that trains it again."""
    by_repetition = {record["repetition"]: record for record in there}
    parts = []
    for repetition, record in sorted(by_repetition.items()):
        own = record["baselines"]
        models = own["pooled_model"] if name != ALONE else _counted(own["alone_models"])
        accuracies = f"accuracy {_mean_percent(own[name])} % ({models})"
        parts.append(f"* **Repetition {repetition}**: {accuracies}; trained once for all methods")

    first = by_repetition[min(by_repetition)]
    return "\n".join([*parts, "", "```sh", command_of(first), "```"])


def _counted(names: Sequence[str | None]) -> str:
    known = [name for name in names if name is not None]
    return ", ".join(f"{name} at {known.count(name)}" for name in sorted(set(known)))


def command_of(record: Record) -> str:
    """Return the command that makes a record again, in a file that does not have it yet."""
    name = shlex.quote(record["name"])
    method = shlex.quote(record["method"])
    where = f"--only {name} --engine {record['engine']} --records {_AGAIN}"
    tried = {key: list(values) for key, values in record["tried"].items()}
    words = []
    if tried != Cell(record["federation"], record["method"], record["repetition"]).tried:
        for key, values in tried.items():
            words += ["--values", shlex.quote(f"{key}={json.dumps(values)}")]

    verb = "add" if words or ":" in record["method"] else "run"
    return " ".join([f"fedtailor leaderboard {verb}", method, *words, where])
