"""The parts of a page that are not figures: states, events, settings, environment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedtailor.core.options import show
from fedtailor.experiment.reader import RunRecords
from fedtailor.report.figures.figure import Cell, Table
from fedtailor.report.figures.records import MethodRecords, number
from fedtailor.report.methods import settings_of
from fedtailor.report.page.section import NamedTable, Section

MOST_EVENTS = 500
"""Events that are listed; of more, only the first ones, and the counts of all."""


def runs_section(records: Sequence[MethodRecords]) -> Section:
    """Return the state of every run."""
    rows: list[list[Cell]] = []
    unfinished = []
    for method in records:
        for seed, found in method.seeds.items():
            run = found.run
            done = len(run.rounds)
            planned = run.config.get("federation", {}).get("rounds")
            state = str(run.status.get("state"))
            if run.result is None:
                unfinished.append(
                    f"{method.label}, seed {seed}: round {done} of {planned}, {state}"
                )

            seconds = [
                number(value) for line in run.rounds for value in line.get("seconds", {}).values()
            ]
            total = math.fsum(value for value in seconds if value is not None)
            reason = str(run.status.get("reason", ""))
            rows.append(
                [
                    method.label,
                    seed,
                    state,
                    done,
                    str(planned),
                    round(total, 1),
                    str(run.path),
                    reason,
                ]
            )

    columns = ["method", "seed", "state", "rounds done", "of", "seconds", "folder", "reason"]
    return Section(
        name="runs",
        title="Runs",
        notes=[f"Not finished: {'; '.join(unfinished)}."] if unfinished else [],
        tables=[
            NamedTable(name="runs", title="The runs of this report", table=Table(columns, rows))
        ],
    )


def events_section(records: Sequence[MethodRecords]) -> Section:
    """Return what happened to clients and uploads."""
    listed: list[list[Cell]] = []
    counts: Counter[tuple[str, str]] = Counter()
    for method in records:
        for seed, found in method.seeds.items():
            for event in found.run.events:
                kind = str(event.get("kind", ""))
                counts[method.label, kind] += 1
                if len(listed) < MOST_EVENTS:
                    place = [str(event.get(name, "")) for name in ("round", "client")]
                    listed.append([method.label, seed, *place, kind, str(event.get("reason", ""))])

    if not counts:
        return Section(
            name="events", title="Events", notes=["No client failed, and no upload was left out."]
        )

    total = sum(counts.values())
    title = "All events" if total <= MOST_EVENTS else f"The first {MOST_EVENTS} of {total:,} events"
    columns = ["method", "seed", "round", "client", "event", "reason"]
    summary: list[list[Cell]] = [[label, kind, count] for (label, kind), count in counts.items()]

    return Section(
        name="events",
        title="Events",
        tables=[
            NamedTable(
                name="event-counts",
                title="Number of events",
                table=Table(["method", "event", "number"], summary),
            ),
            NamedTable(name="events", title=title, table=Table(columns, listed), is_open=False),
        ],
    )


def reported_section(records: Sequence[MethodRecords]) -> Section:
    """Return the numbers that methods report of their training and their models, over clients."""
    rows: list[list[Cell]] = []
    for method in records:
        found: dict[tuple[str, str], list[float]] = {}
        for seed in method.seeds.values():
            for metric, by_client in seed.last_training.items():
                found.setdefault(("training", metric), []).extend(by_client.values())

        for _, scores in method.scores():
            for name, value in scores.diagnostics.items():
                found.setdefault(("model", name), []).append(value)

        for (part, name), values in found.items():
            mean = math.fsum(values) / len(values)
            rows.append([method.label, part, name, mean, min(values), max(values), len(values)])

    columns = ["method", "of", "number", "mean", "smallest", "largest", "values"]
    title = "Numbers over clients and seeds: of the last training, and of the final models"
    table = NamedTable(name="reported", title=title, table=Table(columns, rows), is_open=False)
    return Section(
        name="reported", title="Numbers that the methods report", tables=[table] if rows else []
    )


def configuration_section(records: Sequence[MethodRecords]) -> Section:
    """Return the configurations: in what the methods differ, and what they share."""
    configs = {method.label: _texts(settings_of(method.method.config)) for method in records}
    return Section(
        name="configuration", title="Configuration", tables=_settings("configuration", configs)
    )


def environment_section(records: Sequence[MethodRecords]) -> Section:
    """Return versions, machines and data of the runs."""
    found = {}
    for method in records:
        run = _first_run(method)
        if run is None:
            continue

        provenance = {name: value for name, value in run.provenance.items() if name != "notes"}
        facts = _texts(settings_of(provenance))
        found[method.label] = {
            key: value for key, value in facts.items() if not key.startswith("data.sources.")
        }

    notes = [
        str(note)
        for method in records
        for seed in method.seeds.values()
        for note in _notes(seed.run)
    ]

    return Section(
        name="environment",
        title="Environment and data",
        notes=list(dict.fromkeys(notes)),
        tables=_settings("environment", found),
    )


def _first_run(method: MethodRecords) -> RunRecords | None:
    """Return the run of the first seed; None if none has begun."""
    return next((seed.run for seed in method.seeds.values()), None)


def _settings(name: str, found: Mapping[str, Mapping[str, str]]) -> list[NamedTable]:
    """Return a table of what differs between methods, and one of what they share."""
    if not found:
        return []

    keys = list(dict.fromkeys(key for settings in found.values() for key in settings))
    shared = [key for key in keys if len({settings.get(key) for settings in found.values()}) == 1]
    first = next(iter(found.values()))
    tables = []
    if len(shared) < len(keys):
        rows: list[list[Cell]] = [
            [key, *(settings.get(key, "") for settings in found.values())]
            for key in keys
            if key not in shared
        ]
        table = Table(["setting", *found], rows)
        tables.append(
            NamedTable(
                name=f"{name}-differences",
                title=f"{name.capitalize()}: where the methods differ",
                table=table,
            )
        )

    title = f"{name.capitalize()}: {'the same for all' if len(found) > 1 else 'everything'}"
    common: list[list[Cell]] = [[key, first[key]] for key in shared]
    table = Table(["setting", "value"], common)
    tables.append(NamedTable(name=name, title=title, table=table, is_open=False))

    return tables


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return values as text."""
    return {
        key: value if isinstance(value, str) else show(value) for key, value in settings.items()
    }


def _notes(run: RunRecords) -> list[Any]:
    notes = run.provenance.get("notes")
    return notes if isinstance(notes, list) else []


SECTIONS: Sequence[Callable[[Sequence[MethodRecords]], Section]] = (
    runs_section,
    events_section,
    reported_section,
    configuration_section,
    environment_section,
)
"""The sections after the figures."""
