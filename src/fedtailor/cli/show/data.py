"""Data sets and splits as tables, and the progress of downloads."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.filesize import decimal

from fedtailor.cli.show.console import line_of_note, say, shortened, table
from fedtailor.cli.show.progress import CountLine

_MOST_ROWS = 50
_MOST_CLASSES = 3
_MOST_PROBLEMS = 20
"""Problems of one kind that are printed."""

_HEADINGS = {
    "error": "Fix these first: the data cannot be used until you do.",
    "warning": "May mislead: look at these before you trust results.",
    "skipped": "Left out:",
}
"""What the problems of each severity mean, in the order of printing."""


def show_inventory(folder: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Print the known data sets."""
    rows = []
    for record in records:
        on_disk = decimal(record["bytes"]) if record["files"] else "-"
        words = [record["name"], record["description"], _state(record), _way_to_get(record)]
        rows.append([*words, record["license"], on_disk])

    below = "fetch: fedtailor data fetch NAME. by hand: fedtailor data fetch NAME tells you how. "
    below += "Citation: fedtailor data list NAME."
    synthetic = [record["name"] for record in records if record["tested_on"] == "synthetic"]
    if synthetic:
        below += f" Readers tested on synthetic files only: {', '.join(synthetic)}."

    columns = ["name", "description", "state", "get it", "license", "on disk"]
    table(f"Data sets, looked for in {folder}", columns, rows, left=5, below=below)


def _way_to_get(record: Mapping[str, Any]) -> str:
    """Return how to get a data set."""
    if record["fetchable"]:
        return "fetch"
    return "by hand" if record["elsewhere"] else "-"


def _state(record: Mapping[str, Any]) -> str:
    """Return whether a data set is there."""
    return "no files needed" if record["state"] == "included" else str(record["state"])


def show_dataset(folder: str, record: Mapping[str, Any]) -> None:
    """Print everything that is known about a data set."""
    name = record["name"]
    examples = record["examples"]
    files = f"{record['files']:,} ({decimal(record['bytes'])})" if record["files"] else "none"
    way = record["elsewhere"] or "nothing to get"
    if record["fetchable"]:
        way = f"fedtailor data fetch {name}"

    facts = {
        "description": record["description"],
        "examples": "not known" if examples is None else f"{examples:,}",
        "state": _state(record),
        "looked for in": folder,
        "files there": files,
        "get it": way,
        "published at": "\n".join(record["urls"]) or "-",
        "license": record["license"],
        "citation": record["citation"],
        "reader tested on": f"{record['tested_on']} files",
    }
    if record["fetchable"] and record["elsewhere"]:
        facts["by hand"] = record["elsewhere"]

    rows = []
    for what, text in facts.items():
        first, *others = text.split("\n")
        rows += [[what, first], *(["", line] for line in others)]

    table(name, ["what", "found"], rows, left=2)


def show_fetched(record: Mapping[str, Any]) -> None:
    """Print the files of a data set that are there."""
    rows = [[file["path"], decimal(file["bytes"])] for file in record["files"]]
    if rows:
        table(f"{record['dataset']}, in {record['folder']}", ["file", "size"], rows)
    else:
        say(f"{record['dataset']} needs no files.")
    if record["elsewhere"]:
        say(f"note: {record['elsewhere']}")


def show_embedded(record: Mapping[str, Any]) -> None:
    """Print what features were written."""
    rows = []
    for site, examples in list(record["sites"].items())[:_MOST_ROWS]:
        rows.append([shortened(site) or "(no sites)", f"{examples:,}"])

    hidden = len(record["sites"]) - len(rows)
    below = f"{hidden} more sites: --json lists all." if hidden else ""
    title = f"{record['out']}: {record['dimension']} features of {record['encoder']}"
    table(title, ["site", "examples"], rows, below=below)
    for note in record["notes"]:
        say(line_of_note(note))

    say(f"Train on them: fedtailor run --data {shlex.quote(record['out'])}")


def show_check(record: Mapping[str, Any]) -> None:
    """Print what was found in a user's data: a row per site, then the problems by kind."""
    rows = []
    for site in record["sites"][:_MOST_ROWS]:
        classes = set()
        for part in ("train", "test"):
            classes |= {name for name, count in site[part].items() if count}

        examples = [f"{sum(site[part].values()):,}" for part in ("train", "test")]
        name = shortened(site["name"]) or "(no sites)"
        rows.append([name, *examples, str(len(classes)), str(site["problems"])])

    hidden = len(record["sites"]) - len(rows)
    below = f"{hidden} more sites: --json lists all." if hidden else ""
    title = f"{record['path']}: {record['layout'] or 'no layout recognized'}"
    if rows:
        columns = ["site", "training\nexamples", "test\nexamples", "classes", "problems"]
        table(title, columns, rows, below=below)

    for severity, heading in _HEADINGS.items():
        groups = [group for group in record["problems"] if group["severity"] == severity]
        if groups:
            say(heading, style="bold")

        for group in groups:
            style = {"error": "bold red", "skipped": "yellow"}.get(severity, "")
            say(f"{severity}: {group['words']} ({group['count']})", style=style)
            for problem in group["problems"][:_MOST_PROBLEMS]:
                # A file or its row where there is one, else the site.
                where = problem["path"] or shortened(problem["site"])
                is_named = not where or where in problem["message"]
                say(f"  {problem['message']}" if is_named else f"  {where}: {problem['message']}")

            more = group["count"] - _MOST_PROBLEMS
            if more > 0:
                say(f"  and {more:,} more: --json lists them")

    if record["notes"]:
        say("Please note:", style="bold")

    for note in record["notes"]:
        say(line_of_note(note))

    say("The data can be used." if record["usable"] else "The data cannot be used as it is.")


def show_partition(record: Mapping[str, Any]) -> None:
    """Print how many examples of which classes each client has."""
    rows = []
    for client in record["clients"][:_MOST_ROWS]:
        counts = sorted(client["class_counts"].items(), key=lambda item: -item[1])
        largest = ", ".join(
            f"{shortened(name)} ({count:,})" for name, count in counts[:_MOST_CLASSES]
        )
        numbers = (f"{client[part]:,}" for part in ("train", "val", "test"))
        rows.append([shortened(client["name"]), largest, *numbers, str(len(counts))])

    hidden = len(record["clients"]) - len(rows)
    more = f"{hidden} more clients: --json lists all. " if hidden else ""
    sizes = record["sizes"]
    below = (
        f"{more}{len(record['clients'])} clients, {record['new_clients']} of them new; "
        f"training examples: {sizes['smallest']:,} to {sizes['largest']:,}, "
        f"mean {sizes['mean']:,.1f}. "
        f"SHA-256 of data: {record['data_sha256']}, of split: {record['split_sha256']}."
    )
    columns = ["client", "most frequent classes", "training", "validation", "test", "classes"]
    title = f"{record['dataset']}: {record['partition']}, seed {record['seed']}"
    table(title, columns, rows, left=2, below=below)
    for note in record["notes"]:
        say(line_of_note(note))

    if record["out"]:
        say(f"The split is in {record['out']}; use it with {record['use']}")


class FetchLine(CountLine):
    """The progress of downloads."""

    says_the_start = True

    def describe(self, what: str, done: int, total: int) -> str:
        """Return how much of a file there is."""
        if what.startswith("unpacking "):
            return what
        if not total:
            return f"{what}: {decimal(done)}"

        return f"{what}: {decimal(done)} of {decimal(total)}, {100 * done / total:.0f} %"
