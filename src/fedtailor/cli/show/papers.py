"""What a person sees of the papers' experiments: tables on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.cli.show.results import percent, say, table


def show_papers(papers: Sequence[Mapping[str, Any]]) -> None:
    """Print the papers that have experiments."""
    rows = [
        [each["paper"], f"{each['title']} ({each['authors']} {each['year']}, {each['venue']})", *_counts(each)]
        for each in papers
    ]
    columns = ["paper", "title", "cells", "can\nbe run", "have\nrecords"]
    table("Experiments of papers", columns, rows, left=2, below="More: fedtailor experiments list PAPER")


def show_paper(paper: Mapping[str, Any]) -> None:
    """Print the tables of a paper, with their columns and methods, and what is missing."""
    rows = [
        [each["table"], each["title"], ", ".join(each["columns"]), ", ".join(each["methods"]), *_counts(each)]
        for each in paper["tables"]
    ]
    columns = ["table", "title", "columns", "methods", "cells", "can\nbe run", "have\nrecords"]
    table(f"{paper['paper']}: {paper['title']}", columns, rows, left=4)
    for sentence in paper["missing"]:
        say(f"missing: {sentence}")


def _counts(entry: Mapping[str, Any]) -> list[str]:
    return [str(entry[name]) for name in ("cells", "available", "recorded")]


def show_outcome(outcome: Mapping[str, Any]) -> None:
    """Say in one line what became of a cell."""
    cell = f"{outcome['column']}, {outcome['method']}, seed {outcome['seed']}"
    if outcome["state"] in ("done", "trial"):
        numbers = "; ".join(_number(score) for score in outcome["scores"].values())
        kept = f"record: {outcome['record']}" if outcome["record"] else "a trial, no record is kept"
        say(f"{cell}: {numbers} ({kept})")
    else:
        reason = "; ".join(outcome["reasons"])
        say(f"{cell}: {outcome['state']}{': ' if reason else ''}{reason}")


def _number(score: Mapping[str, Any]) -> str:
    ours = "-" if score["value"] is None else percent(score["value"])
    paper = "" if score["reference"] is None else f", paper {percent(score['reference'])}"
    return f"{score['label']} {ours} %{paper}"


def show_comparison(tables: Sequence[Mapping[str, Any]]) -> None:
    """Print the papers' numbers beside ours: the rows that have a record, and how many do not."""
    columns = ["column", "method", "score", "model", "figure", "clients", "seeds", "paper", "ours", "difference"]
    for each in tables:
        found = [row for row in each["rows"] if row["value"] is not None]
        lacking = len(each["rows"]) - len(found)
        below = f"{lacking} of {len(each['rows'])} numbers have no record yet." if lacking else ""
        if any(row["inferred"] for row in found):
            below += " Some settings are inferred: fedtailor experiments show says which."
        title = f"{each['paper']}, table {each['table']}: {each['title']}; accuracy in %"
        if found:
            table(title, columns, [_row(row) for row in found], left=5, below=below.strip())
        else:
            say(f"{title}: {below}")
        for note in each["notes"]:
            say(f"note: {note}")


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
    ]
