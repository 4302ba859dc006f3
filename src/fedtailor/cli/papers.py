"""The commands of ``fedtailor experiments``: what the papers' tables need, running it, comparing with their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor.cli.options import DataDir, Debug, Help, Json, show_help
from fedtailor.cli.shell import Interrupted, guarded, print_json
from fedtailor.core.errors import DataError, FedtailorError, RunError

if TYPE_CHECKING:
    from fedtailor.papers.tables import Cell, Paper

experiments_app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

Results = Annotated[str, typer.Option(help="Folder of the records (default: experiments/results).")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the run.")]
PaperName = Annotated[str, typer.Argument(help="Paper (see: fedtailor experiments list).")]
TableName = Annotated[str, typer.Argument(help="Table (see: fedtailor experiments list PAPER).")]


@experiments_app.callback(invoke_without_command=True, add_help_option=False)
def _root(
    context: typer.Context,
    help_: Help = False,
) -> None:
    """Experiments of the papers: list their tables, show a configuration, run, compare."""
    show_help(context, help_)
    if help_:
        raise typer.Exit


@experiments_app.command("list")
def list_(
    paper: Annotated[str, typer.Argument(metavar="[PAPER]", help="Paper; left out: all.")] = "",
    data_dir: DataDir = "",
    results: Results = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List papers, or the tables of one: how many cells, how many can be run here, how many have records."""
    from fedtailor.cli.show import papers as terminal_experiments
    from fedtailor.papers import tables as papers

    states = papers.dataset_states(data_dir)
    entries = [_describe(papers.load_paper(name), states, results) for name in [paper] * bool(paper) or _names()]
    if json:
        print_json(entries[0] if paper else {"papers": entries})
    elif paper:
        terminal_experiments.show_paper(entries[0])
    else:
        terminal_experiments.show_papers(entries)


@experiments_app.command()
def show(
    paper: PaperName,
    table: TableName,
    column: Annotated[str, typer.Argument(help="Column of the table.")],
    method: Annotated[str, typer.Argument(help="Method of the table.")],
    seed: Seed = 0,
    data_dir: DataDir = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the configuration of a cell as TOML that fedtailor run accepts, and say what in it is inferred."""
    from fedtailor.papers import tables as papers
    from fedtailor.papers.records import describe

    cell = papers.expand(papers.load_paper(paper), table, column, method, seed)
    lacking = papers.missing(cell, papers.dataset_states(data_dir))
    if json:
        scores = {reading.name: describe(reading, None) for reading in cell.readings}
        inferred = list(cell.inferred)
        print_json({**_place(cell), "config": cell.values, "inferred": inferred, "missing": lacking, "scores": scores})
    else:
        print(_to_toml(cell, lacking))  # noqa: T201  # what was asked for


@experiments_app.command()
def run(
    paper: PaperName,
    table: TableName,
    column: Annotated[str, typer.Option(help="Only this column.")] = "",
    method: Annotated[str, typer.Option(help="Only this method.")] = "",
    seed: Seed = 0,
    data_dir: DataDir = "",
    results: Results = "",
    rounds: Annotated[
        int | None, typer.Option(min=1, help="A trial of so many rounds, of which no record is kept.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the cells of a table that have no record yet, one after the other, and write a record as each ends."""
    from fedtailor.cli.show import papers as terminal_experiments
    from fedtailor.papers import tables as papers

    chosen = papers.cells(papers.load_paper(paper), table, column=column, method=method, seed=seed)
    states, outcomes = papers.dataset_states(data_dir), []
    for cell in chosen:
        outcome = _run_one(cell, states, data_dir, _results(results), rounds)
        if not json:
            terminal_experiments.show_outcome(outcome)
        outcomes.append(outcome)
    if json:
        print_json({"cells": outcomes})
    found = {outcome["state"] for outcome in outcomes}
    if "failed" in found:
        raise typer.Exit(RunError.exit_code)
    if found == {"skipped"}:  # nothing is there, and nothing could be run
        raise typer.Exit(DataError.exit_code)


@experiments_app.command()
def compare(
    paper: Annotated[str, typer.Argument(metavar="[PAPER]", help="Paper; left out: all.")] = "",
    table: Annotated[str, typer.Argument(metavar="[TABLE]", help="Table; left out: all.")] = "",
    results: Results = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare the numbers of the papers' tables with the records."""
    from fedtailor.cli.show import papers as terminal_experiments
    from fedtailor.cli.show import results as terminal
    from fedtailor.papers import records as paper_records
    from fedtailor.papers import tables as papers

    compared, stale = [], 0
    for each in map(papers.load_paper, [paper] if paper else _names()):
        records = paper_records.read_records(_results(results), each.name)
        stale += len(paper_records.unused(each, records))
        for name in [table] if table else each.tables:
            rows = paper_records.compare(each, name, records)
            notes = list(each.tables[name].notes)
            compared.append(
                {"paper": each.name, "table": name, "title": each.tables[name].title, "notes": notes, "rows": rows}
            )
    if json:
        print_json({"tables": compared, "records_of_other_settings": stale})
        return
    terminal_experiments.show_comparison(compared)
    if stale:
        terminal.say(f"note: {stale} records are of settings that no table has any more, and are not shown.")


def _names() -> list[str]:
    from fedtailor.papers.tables import paper_names

    return paper_names()


def _results(given: str) -> Path:
    from fedtailor.papers.records import DEFAULT_FOLDER

    return Path(given or DEFAULT_FOLDER)


def _place(cell: Cell) -> dict[str, Any]:
    """Return which cell it is."""
    return {
        "paper": cell.paper.name,
        "table": cell.table,
        "column": cell.column,
        "method": cell.method,
        "seed": cell.seed,
    }


def _describe(paper: Paper, states: dict[str, str], results: str) -> dict[str, Any]:
    """Return what ``list`` says of a paper."""
    from fedtailor.papers.records import read_records, records_of
    from fedtailor.papers.tables import cells, missing

    records = read_records(_results(results), paper.name)
    tables: list[dict[str, Any]] = []
    lacking: dict[str, None] = {}
    for name, table in paper.tables.items():
        own = cells(paper, name)
        needs = [missing(cell, states) for cell in own]
        lacking |= dict.fromkeys(sentence for sentences in needs for sentence in sentences)
        tables.append(
            {
                "table": name,
                "title": table.title,
                "columns": list(table.columns),
                "methods": list(table.reference),
                "cells": len(own),
                "available": sum(not sentences for sentences in needs),
                "recorded": sum(bool(records_of(cell, records)) for cell in own),
            }
        )
    source = paper.source
    about = {"title": source.title, "authors": source.authors, "venue": source.venue, "year": source.year}
    totals = {name: sum(table[name] for table in tables) for name in ("cells", "available", "recorded")}
    more = {"seeds": source.seeds, "tables": tables, "missing": list(lacking)}
    return {"paper": paper.name, **about, **totals, **more}


def _run_one(cell: Cell, states: dict[str, str], data_dir: str, results: Path, rounds: int | None) -> dict[str, Any]:
    """Run a cell unless it has a record or something is missing; return what became of it."""
    from fedtailor.cli.show.progress import make_progress
    from fedtailor.papers import records as paper_records
    from fedtailor.papers import tables as papers

    reasons = papers.missing(cell, states)
    if reasons:
        return {**_place(cell), "state": "skipped", "reasons": reasons}
    own = paper_records.records_of(cell, paper_records.read_records(results, cell.paper.name))
    if rounds is None and any(record["seed"] == cell.seed for record in own):
        return {**_place(cell), "state": "has a record", "reasons": []}
    from fedtailor.papers import runs as paper_runs

    folder = paper_runs.default_folder(cell)
    try:
        record = guarded(
            str(folder),
            lambda: paper_runs.run_cell(cell, folder, data_dir=data_dir, rounds=rounds, progress=make_progress()),
        )
    except Interrupted:
        raise
    except FedtailorError as error:  # the others may run all the same
        return {**_place(cell), "state": "failed", "reasons": [error.message]}
    path = "" if rounds is not None else str(paper_records.write_record(results, record))
    scores, state = record["scores"], "trial" if rounds is not None else "done"
    return {**_place(cell), "state": state, "scores": scores, "record": path or None, "run": str(folder)}


def _to_toml(cell: Cell, lacking: list[str]) -> str:
    """Return a cell's configuration, under comments on what it is and what in it is inferred."""
    import tomli_w

    from fedtailor.cli.show.results import printable

    source, table = cell.paper.source, cell.paper.tables[cell.table]
    lines = [
        f"{source.title} ({source.authors} {source.year}, {source.venue})",
        f"Table {cell.table}, {table.title}: {cell.paper.columns[cell.column].label}; "
        f"{cell.paper.methods[cell.method].label}",
    ]
    for reading in cell.readings:
        printed = "no number" if reading.reference is None else f"{reading.reference:g}"
        lines.append(f"paper: {reading.score.label}: {printed} ({reading.score.point}, {reading.score.figure})")
    lines += [f"inferred, stated neither by the paper nor by released code: {key}" for key in cell.inferred]
    lines += [f"missing: {sentence}" for sentence in lacking]
    return "".join(f"# {printable(line)}\n" for line in lines) + "\n" + tomli_w.dumps(cell.values).rstrip()
