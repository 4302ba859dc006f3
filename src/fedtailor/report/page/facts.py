"""The parts of a page that are not figures: states, events, settings, environment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.experiment.config import flatten
from fedtailor.report.methods import in_words
from fedtailor.report.parts import Cell, ReportTable, Section
from fedtailor.report.records import MethodRecords, number
from fedtailor.report.statistics import mean

MOST_EVENTS = 500
"""Events that are listed; of more, only the first ones, and the counts of all."""


def runs_section(records: Sequence[MethodRecords]) -> Section:
    """Return the state of every run."""
    rows: list[list[Cell]] = []
    unfinished = []
    for method in records:
        for seed, of_seed in method.seeds.items():
            run = of_seed.run
            done = len(run.rounds)
            planned = run.config.get("federation", {}).get("rounds")
            state = str(run.status.get("state"))
            if run.result is None:
                progress = f"round {done} of {planned}, {state}"
                unfinished.append(f"{method.label}, seed {seed}: {progress}")

            parts = [value for line in run.rounds for value in line.get("seconds", {}).values()]
            seconds = math.fsum(number(value) or 0.0 for value in parts)
            row: list[Cell] = [method.label, seed, state, done, str(planned), round(seconds, 1)]
            rows.append([*row, str(run.path), str(run.status.get("reason", ""))])

    columns = ["method", "seed", "state", "rounds done", "of", "seconds", "folder", "reason"]
    table = ReportTable(name="runs", title="The runs of this report", columns=columns, rows=rows)
    notes = [f"Not finished: {'; '.join(unfinished)}."] if unfinished else []

    return Section(name="runs", title="Runs", notes=notes, tables=[table])


def events_section(records: Sequence[MethodRecords]) -> Section:
    """Return what happened to clients and uploads."""
    events: list[list[Cell]] = []
    counts: Counter[tuple[str, str]] = Counter()
    for method in records:
        for seed, of_seed in method.seeds.items():
            for event in of_seed.run.events:
                names = ("round", "client", "kind", "reason")
                cells = [str(event.get(name, "")) for name in names]
                if isinstance(event.get("client"), int):
                    cells[names.index("client")] = of_seed.name_of(event["client"])
                if "fold" in event:
                    cells[names.index("round")] += f" (fold {event['fold']})"

                counts[method.label, str(event.get("kind", ""))] += 1
                if len(events) < MOST_EVENTS:
                    events.append([method.label, seed, *cells])

    if not counts:
        notes = ["No client failed, and no upload was left out."]
        return Section(name="events", title="Events", notes=notes)

    total = sum(counts.values())
    title = "All events" if total <= MOST_EVENTS else f"The first {MOST_EVENTS} of {total:,} events"
    summary = ReportTable(
        name="event-counts",
        title="Number of events",
        columns=["method", "event", "number"],
        rows=[[label, kind, count] for (label, kind), count in counts.items()],
    )
    every = ReportTable(
        name="events",
        title=title,
        columns=["method", "seed", "round", "client", "event", "reason"],
        rows=events,
        is_open=False,
    )

    return Section(name="events", title="Events", tables=[summary, every])


def reported_section(records: Sequence[MethodRecords]) -> Section:
    """Return the numbers that methods report of their training and their models, over clients."""
    rows: list[list[Cell]] = []
    for method in records:
        by_name: dict[tuple[str, str], list[float]] = {}
        for seed in method.seeds.values():
            for metric, by_client in seed.last_training.items():
                by_name.setdefault(("training", metric), []).extend(by_client.values())

        for _, scores in method.scores():
            for name, value in scores.diagnostics.items():
                by_name.setdefault(("model", name), []).append(value)

        for (part, name), values in by_name.items():
            figures = [mean(values), min(values), max(values), len(values)]
            rows.append([method.label, part, name, *figures])

    table = ReportTable(
        name="reported",
        title="Numbers over clients and seeds: of the last training, and of the final models",
        columns=["method", "of", "number", "mean", "smallest", "largest", "values"],
        rows=rows,
        is_open=False,
    )
    title = "Numbers that the methods report"

    return Section(name="reported", title=title, tables=[table] if rows else [])


def configuration_section(records: Sequence[MethodRecords]) -> Section:
    """Return the configurations: in what the methods differ, and what they share."""
    configs = {method.label: flatten(method.method.config) for method in records}
    tables = _settings_tables("configuration", configs)

    return Section(name="configuration", title="Configuration", tables=tables)


def environment_section(records: Sequence[MethodRecords]) -> Section:
    """Return versions, machines and data of the runs, by the first run of every method."""
    facts = {}
    notes: dict[str, None] = {}  # in order, each once
    for method in records:
        runs = [seed.run for seed in method.seeds.values()]
        for run in runs:
            listed = run.provenance.get("notes")
            if isinstance(listed, list):
                notes.update(dict.fromkeys(map(str, listed)))

        # Sources of data are long lists of files with digests; the record holds them.
        if runs:
            settings = flatten(runs[0].provenance)
            facts[method.label] = {
                key: value
                for key, value in settings.items()
                if key != "notes" and not key.startswith("data.sources.")
            }

    return Section(
        name="environment",
        title="Environment and data",
        notes=list(notes),
        tables=_settings_tables("environment", facts),
    )


def _settings_tables(name: str, settings: Mapping[str, Mapping[str, Any]]) -> list[ReportTable]:
    """Return a table of what differs between methods, and one of what they share."""
    if not settings:
        return []

    differing: list[list[Cell]] = []
    shared: list[list[Cell]] = []
    for key in dict.fromkeys(key for of_method in settings.values() for key in of_method):
        values = [
            in_words(of_method[key]) if key in of_method else "" for of_method in settings.values()
        ]
        # An empty text is a setting, and no setting is another thing.
        is_shared = len(set(values)) == 1 and all(key in one for one in settings.values())
        if is_shared:
            shared.append([key, values[0]])
        else:
            differing.append([key, *values])

    tables = []
    if differing:
        tables.append(
            ReportTable(
                name=f"{name}-differences",
                title=f"{name.capitalize()}: where the methods differ",
                columns=["setting", *settings],
                rows=differing,
            )
        )

    whose = "the same for all" if len(settings) > 1 else "everything"
    tables.append(
        ReportTable(
            name=name,
            title=f"{name.capitalize()}: {whose}",
            columns=["setting", "value"],
            rows=shared,
            is_open=False,
        )
    )

    return tables
