"""The tables of the papers, and our numbers beside theirs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.cli.show.console import duration, percent, say, table

_CELLS = "A cell is one method on one data set and setting."


def show_papers(papers: Sequence[Mapping[str, Any]]) -> None:
    """Print the papers that have experiments."""
    rows = [
        [
            each["paper"],
            f"{each['title']} ({each['authors']} {each['year']}, {each['venue']})",
            *_counts(each),
        ]
        for each in papers
    ]
    columns = ["paper", "title", "cells", "can\nrun", "have\nrecords"]
    table(
        "Experiments of the papers",
        columns,
        rows,
        left=2,
        below=f"{_CELLS} More: fedtailor experiments list PAPER",
    )


def show_paper(paper: Mapping[str, Any]) -> None:
    """Print the tables of a paper with their columns and methods, and what is missing."""
    rows = [
        [
            each["table"],
            each["title"],
            ", ".join(each["columns"]),
            ", ".join(each["methods"]),
            *_counts(each),
        ]
        for each in paper["tables"]
    ]
    columns = ["table", "title", "columns", "methods", "cells", "can\nrun", "have\nrecords"]
    table(f"{paper['paper']}: {paper['title']}", columns, rows, left=4, below=_CELLS)
    for sentence in paper["missing"]:
        say(f"missing: {sentence}")


def _counts(entry: Mapping[str, Any]) -> list[str]:
    return [str(entry[name]) for name in ("cells", "available", "recorded")]


def show_agenda(runs: Sequence[Mapping[str, Any]]) -> None:
    """Print the runs of a table or plan in their order: state, time, and what the time is derived
    from.
    """
    columns = ["", "paper", "table", "column", "method", "state", "time from", "seed", "time"]
    rows = [
        [
            str(number),
            *(str(each[name]) for name in ("paper", "table", "column", "method", "state")),
            each["basis"] or "not known",
            str(each["seed"]),
            "-" if each["seconds"] is None else duration(each["seconds"]),
        ]
        for number, each in enumerate(runs, start=1)
    ]
    states = ("has a record", "to run", "too long", "skipped")
    sums = [_sum(state, [each for each in runs if each["state"] == state]) for state in states]
    sentence = "Times are for a machine that does nothing else; those not measured are estimates."
    below = f"{'; '.join(text for text in sums if text)}. {sentence}"
    table("Runs in their order", columns, rows, left=7, below=below)
    for sentence in dict.fromkeys(reason for each in runs for reason in each["reasons"]):
        say(f"missing: {sentence}")


def _sum(state: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of runs in a state and their time; nothing if there are none."""
    if not runs:
        return ""
    return f"{state}: {len(runs)} ({_total_time(runs)})"


def _total_time(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the time of some runs together, and for how many it is not known."""
    known = [each["seconds"] for each in runs if each["seconds"] is not None]
    unknown = len(runs) - len(known)
    if not known:
        return "time not known"
    more = f", {unknown} not known" if unknown else ""
    return f"{duration(math.fsum(known))}{more}"


def show_start(run: Mapping[str, Any], later: Sequence[Mapping[str, Any]]) -> None:
    """Print which run starts, how long it will take, and how long those after it will."""
    cell = f"{run['paper']}, table {run['table']}: {run['column']}, {run['method']}, seed {run['seed']}"
    time = (
        "time not known"
        if run["seconds"] is None
        else f"about {duration(run['seconds'])}, judged by {run['basis']}"
    )
    to_run = [each for each in later if each["state"] == "to run"]
    rest = f"; then {len(to_run)} more ({_total_time(to_run)})" if to_run else ""
    say(f"{cell}: {time}{rest}")


def show_outcome(outcome: Mapping[str, Any]) -> None:
    """Print the outcome of a cell in one line."""
    cell = f"{outcome['column']}, {outcome['method']}, seed {outcome['seed']}"
    state = outcome["state"]
    if state in ("done", "trial"):
        numbers = "; ".join(_number(score) for score in outcome["scores"].values())
        kept = f"record: {outcome['record']}" if outcome["record"] else "a trial: no record is kept"
        say(f"{cell}: {numbers} ({kept})")
    elif state == "too long":
        say(
            f"{cell}: left out, would take about {duration(outcome['seconds'])} (judged by {outcome['basis']})"
        )
    else:
        reason = "; ".join(outcome["reasons"])
        say(f"{cell}: {state}{': ' if reason else ''}{reason}")


def _number(score: Mapping[str, Any]) -> str:
    ours = "-" if score["value"] is None else percent(score["value"])
    paper = "" if score["reference"] is None else f", paper {percent(score['reference'])}"
    return f"{score['label']} {ours} %{paper}"


def show_comparison(tables: Sequence[Mapping[str, Any]]) -> None:
    """Print the papers' numbers beside ours where there is a record, and how many numbers have
    none.
    """
    columns = [
        "column",
        "method",
        "score",
        "model",
        "figure",
        "clients",
        "seeds",
        "paper",
        "ours",
        "difference",
    ]
    columns += ["tolerance", "verdict"]

    for each in tables:
        found = [row for row in each["rows"] if row["value"] is not None]
        missing = len(each["rows"]) - len(found)
        sentences = []
        if missing:
            sentences.append(f"{missing} of {len(each['rows'])} numbers have no record yet.")
        if any(row["inferred"] for row in found):
            sentences.append("Some settings are inferred: fedtailor experiments show says which.")

        sentences += _splits(found)
        below = " ".join(sentences)
        title = f"{each['paper']}, table {each['table']}: {each['title']}; accuracy in %"
        if found:
            table(title, columns, [_row(row) for row in found], left=5, below=below)
        else:
            say(f"{title}: {below}")

        for note in each["notes"]:
            say(f"note: {note}")


def show_difference(record: Mapping[str, Any]) -> None:
    """Print the difference between two methods: of each seed, and the mean with its intervals."""
    place = f"{record['paper']}, table {record['table']}, {record['column']}"
    methods = [
        f"{name} ({point})" for name, point in zip(record["methods"], record["points"], strict=True)
    ]
    rows = [[f"seed {seed}", _points(value), "", ""] for seed, value in record["by_seed"].items()]
    intervals = [_interval(record[f"interval_over_{what}"]) for what in ("clients", "seeds")]
    rows.append(["mean", _points(record["difference"]), *intervals])
    title = f"{place}: accuracy of {' minus '.join(methods)}, in points"
    weights = (
        "weighted by their test examples"
        if record["figure"] == "pooled"
        else "all with the same weight"
    )
    below = (
        f"{record['clients']} clients, {weights}. 95 % intervals: over clients, for the models of these seeds; over "
        "seeds, for these clients."
    )
    columns = ["", "difference", "interval\nover clients", "interval\nover seeds"]
    table(title, columns, rows, below=below)


def _points(value: float) -> str:
    return f"{100 * value:+.2f}"


def _interval(interval: Mapping[str, float] | None) -> str:
    return "-" if interval is None else f"{_points(interval['low'])} to {_points(interval['high'])}"


def _splits(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence on the splits of the seeds, where there are means over seeds."""
    shared = {row["shared_split"] for row in rows if len(row["seeds"]) > 1}
    if not shared:
        return []
    if shared == {True}:
        return ["Means over seeds: the same split in all."]
    if shared == {False}:
        return ["Means over seeds: a different split for each seed."]
    return ["Means over seeds: the same split in some, a different split for each seed in others."]


def _row(row: Mapping[str, Any]) -> list[str]:
    scored = row["scored_clients"]
    seeds = ", ".join(map(str, row["seeds"]))
    error = "" if row["sem"] is None else f" ± {percent(row['sem'])}"
    return [
        row["column"],
        row["method"],
        row["label"],
        row["point"],
        row["figure"],
        "all" if not scored or row["point"].endswith("_complete") else f"{scored:.0f}",
        seeds,
        "-" if row["reference"] is None else percent(row["reference"]),
        f"{percent(row['value'])}{error}",
        "-" if row["difference"] is None else f"{100 * row['difference']:+.1f}",
        "-" if row["verdict"] is None else percent(row["tolerance"]),
        row["verdict"] or "-",
    ]
