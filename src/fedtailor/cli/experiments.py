"""The commands of ``fedtailor experiments``: list the tables of the papers, run them, compare with printed numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor.cli.options import DataDir, Debug, Json, whole_number
from fedtailor.cli.parsing import Command, Help, make_app, show_help
from fedtailor.cli.shell import Interrupted, guarded, print_json
from fedtailor.core.errors import ConfigError, DataError, FedtailorError, RunError

if TYPE_CHECKING:
    from fedtailor.papers.tables import Cell, Paper

experiments_app = make_app()

Results = Annotated[str, typer.Option(metavar="FOLDER", help="Folder of the records (default: experiments/results).")]
Seed = Annotated[
    int,
    typer.Option(parser=whole_number("--seed", at_least=0), metavar="NUMBER", help="Random seed of the run."),
]
PaperName = Annotated[str, typer.Argument(metavar="PAPER", help="Paper (see: fedtailor experiments list).")]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="Table (see: fedtailor experiments list PAPER).")]


@experiments_app.callback(invoke_without_command=True, add_help_option=False)
def _root(context: typer.Context, help_: Help = False) -> None:
    """Experiments of the papers: list their tables, show a configuration, run them, compare the numbers."""
    show_help(context, help_)


@experiments_app.command("list", cls=Command)
def list_(
    paper: Annotated[str, typer.Argument(metavar="PAPER", show_default=False, help="Paper (default: all).")] = "",
    data_dir: DataDir = "",
    results: Results = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the papers, or the tables of one: the number of cells, how many can run here, and how many have a record.

    A cell is one method on one data set and setting.
    """
    from fedtailor.cli.show.experiments import show_paper, show_papers
    from fedtailor.papers.tables import dataset_states, load_paper, paper_names

    states = dataset_states(data_dir)
    if paper:
        entry = _describe(load_paper(paper), states, results)
        if json:
            print_json(entry)
        else:
            show_paper(entry)
        return
    entries = [_describe(load_paper(name), states, results) for name in paper_names()]
    if json:
        print_json({"papers": entries})
    else:
        show_papers(entries)


@experiments_app.command(cls=Command)
def show(
    paper: PaperName,
    table: TableName,
    column: Annotated[str, typer.Argument(metavar="COLUMN", help="Column of the table.")],
    method: Annotated[str, typer.Argument(metavar="METHOD", help="Method of the table.")],
    seed: Seed = 0,
    data_dir: DataDir = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the configuration of a cell as TOML for fedtailor run, and which of its settings are inferred."""
    from fedtailor.papers.records import describe
    from fedtailor.papers.tables import dataset_states, expand, load_paper, missing

    cell = expand(load_paper(paper), table, column, method, seed)
    missing_parts = missing(cell, dataset_states(data_dir))
    if json:
        record = _place(cell)
        record["config"] = cell.values
        record["inferred"] = list(cell.inferred)
        record["missing"] = missing_parts
        record["scores"] = {reading.name: describe(reading, None) for reading in cell.readings}
        print_json(record)
    else:
        print(_to_toml(cell, missing_parts))  # noqa: T201  # what was asked for


@experiments_app.command(cls=Command)
def run(
    paper: PaperName,
    table: TableName,
    column: Annotated[str, typer.Option(metavar="NAME", help="Only this column.")] = "",
    method: Annotated[str, typer.Option(metavar="NAME", help="Only this method.")] = "",
    seed: Seed = 0,
    data_dir: DataDir = "",
    results: Results = "",
    rounds: Annotated[
        int | None,
        typer.Option(
            parser=whole_number("--rounds", at_least=1),
            metavar="NUMBER",
            help="Make a trial of this many rounds. No record is kept.",
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the cells of a table that have no record yet, one after the other, and write a record for each."""
    from fedtailor.cli.show.experiments import show_outcome
    from fedtailor.papers.tables import cells, dataset_states, load_paper

    chosen = cells(load_paper(paper), table, column=column, method=method, seed=seed)
    states = dataset_states(data_dir)
    outcomes = []
    for cell in chosen:
        outcome = _run_one(cell, states, data_dir, _results_folder(results), rounds)
        if not json:
            show_outcome(outcome)
        outcomes.append(outcome)
    if json:
        print_json({"cells": outcomes})
    found = {outcome["state"] for outcome in outcomes}
    if "failed" in found:
        raise typer.Exit(RunError.exit_code)
    if found == {"skipped"}:  # nothing has a record, and nothing could be run
        raise typer.Exit(DataError.exit_code)


@experiments_app.command("compare", cls=Command)
def compare_(
    paper: Annotated[str, typer.Argument(metavar="PAPER", show_default=False, help="Paper (default: all).")] = "",
    table: Annotated[str, typer.Argument(metavar="TABLE", show_default=False, help="Table (default: all).")] = "",
    results: Results = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare the numbers that the papers print with those of the records."""
    from fedtailor.cli.show.console import say
    from fedtailor.cli.show.experiments import show_comparison
    from fedtailor.papers.records import compare, read_records, unused
    from fedtailor.papers.tables import find_table, load_paper, paper_names

    compared = []
    stale = 0
    for paper_name in [paper] if paper else paper_names():
        loaded = load_paper(paper_name)
        records = read_records(_results_folder(results), loaded.name)
        stale += len(unused(loaded, records))
        for name in [find_table(loaded, table)] if table else loaded.tables:
            compared.append(
                {
                    "paper": loaded.name,
                    "table": name,
                    "title": loaded.tables[name].title,
                    "notes": list(loaded.tables[name].notes),
                    "rows": compare(loaded, name, records),
                }
            )
    if json:
        print_json({"tables": compared, "records_of_other_settings": stale})
        return
    show_comparison(compared)
    if stale:
        who = "1 record belongs" if stale == 1 else f"{stale} records belong"
        say(f"note: {who} to settings that are no longer in any table; not shown.")


@experiments_app.command("difference", cls=Command)
def difference_(
    paper: PaperName,
    table: TableName,
    column: Annotated[str, typer.Argument(metavar="COLUMN", help="Column of the table.")],
    first: Annotated[str, typer.Argument(metavar="METHOD", help="Method of the table.")],
    second: Annotated[str, typer.Argument(metavar="OTHER", help="Method whose accuracies are subtracted.")],
    results: Results = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare the accuracies of two methods client by client, over all seeds that have a record of both."""
    from fedtailor.cli.show.experiments import show_difference
    from fedtailor.papers.paired import difference
    from fedtailor.papers.records import read_records
    from fedtailor.papers.tables import expand, load_paper

    loaded = load_paper(paper)
    own = expand(loaded, table, column, first)
    other = expand(loaded, table, column, second)
    found = difference(own, other, read_records(_results_folder(results), loaded.name))
    record = {
        "paper": loaded.name,
        "table": own.table,
        "column": own.column,
        "methods": [own.method, other.method],
        "points": [own.readings[0].score.point, other.readings[0].score.point],
        "figure": found.figure,
        "clients": found.num_clients,
        "difference": found.value,
        "by_seed": found.by_seed,
        "interval_over_clients": found.over_clients and found.over_clients._asdict(),
        "interval_over_seeds": found.over_seeds and found.over_seeds._asdict(),
    }
    if json:
        print_json(record)
    else:
        show_difference(record)


@experiments_app.command(cls=Command)
def figures(
    paper: PaperName,
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Folder to make (default: figures-PAPER).")] = "",
    ending: Annotated[str, typer.Option(metavar="ENDING", help="Kind of the pictures: html, png or svg.")] = "html",
    results: Results = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw the figures of a paper that the records can give, and list the others."""
    from fedtailor.cli.show.experiments import show_figures
    from fedtailor.core.errors import find_name
    from fedtailor.papers.figures import FIGURES, MISSING, draw
    from fedtailor.papers.records import read_records, unused
    from fedtailor.papers.tables import load_paper

    loaded = load_paper(paper)
    ending = find_name("ending", ending, ("html", "png", "svg"), key="ending")
    folder = Path(out or f"figures-{loaded.name}")
    if os.path.lexists(folder):
        message = f"'{folder}' already exists and is never overwritten. Choose another folder with --out."
        raise ConfigError(message, key="out", allowed="a name that does not exist", got=str(folder))
    records = read_records(_results_folder(results), loaded.name)
    stale = unused(loaded, records)
    records = [record for record in records if record not in stale]
    entries = []
    for figure in FIGURES.get(loaded.name, ()):
        picture = draw(loaded, figure, records)
        path = folder / f"{figure.name}.{ending}"
        if picture is not None:
            from fedtailor.data.plot import save

            folder.mkdir(parents=True, exist_ok=True)
            save(picture, path)
        drawn = None if picture is None else str(path)
        entries.append({"figure": figure.number, "title": figure.title, "path": drawn})
    others = [{"figure": number, "shows": text} for number, text in MISSING.get(loaded.name, {}).items()]
    if json:
        print_json({"paper": loaded.name, "figures": entries, "not_from_records": others})
    else:
        show_figures(entries, others)


def _results_folder(given: str) -> Path:
    """Return the folder of the records."""
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

    records = read_records(_results_folder(results), paper.name)
    tables: list[dict[str, Any]] = []
    sentences: dict[str, None] = {}  # in the order in which they come up, each once
    for name, table in paper.tables.items():
        own = cells(paper, name)
        missing_parts = [missing(cell, states) for cell in own]
        for parts in missing_parts:
            sentences |= dict.fromkeys(parts)
        tables.append(
            {
                "table": name,
                "title": table.title,
                "columns": list(table.columns),
                "methods": list(table.reference),
                "cells": len(own),
                "available": sum(not parts for parts in missing_parts),
                "recorded": sum(bool(records_of(cell, records)) for cell in own),
            }
        )
    return {
        "paper": paper.name,
        "title": paper.source.title,
        "authors": paper.source.authors,
        "venue": paper.source.venue,
        "year": paper.source.year,
        "cells": sum(table["cells"] for table in tables),
        "available": sum(table["available"] for table in tables),
        "recorded": sum(table["recorded"] for table in tables),
        "seeds": paper.source.seeds,
        "tables": tables,
        "missing": list(sentences),
    }


def _run_one(cell: Cell, states: dict[str, str], data_dir: str, results: Path, rounds: int | None) -> dict[str, Any]:
    """Run a cell unless it has a record or something is missing; return the outcome."""
    from fedtailor.papers.records import read_records, records_of, write_record
    from fedtailor.papers.tables import missing

    outcome = _place(cell)
    reasons = missing(cell, states)
    if reasons:
        return {**outcome, "state": "skipped", "reasons": reasons}
    own = records_of(cell, read_records(results, cell.paper.name))
    if rounds is None and any(record["seed"] == cell.seed for record in own):
        return {**outcome, "state": "has a record", "reasons": []}

    from fedtailor.cli.show.progress import make_progress
    from fedtailor.papers.runs import default_folder, run_cell

    folder = default_folder(cell)
    try:
        with guarded(str(folder)):
            record = run_cell(cell, folder, data_dir=data_dir, rounds=rounds, progress=make_progress())
    except Interrupted:
        raise
    except FedtailorError as error:  # the other cells may run all the same
        return {**outcome, "state": "failed", "reasons": [error.message]}
    is_trial = rounds is not None
    outcome["state"] = "trial" if is_trial else "done"
    outcome["scores"] = record["scores"]
    outcome["record"] = None if is_trial else str(write_record(results, record))
    outcome["run"] = str(folder)
    return outcome


def _to_toml(cell: Cell, missing_parts: list[str]) -> str:
    """Return the configuration of a cell, below comments that say what it is and which settings are inferred."""
    import tomli_w

    from fedtailor.cli.show.console import printable

    source = cell.paper.source
    table = cell.paper.tables[cell.table]
    lines = [
        f"{source.title} ({source.authors} {source.year}, {source.venue})",
        f"Table {cell.table}, {table.title}: {cell.paper.columns[cell.column].label}; "
        f"{cell.paper.methods[cell.method].label}",
    ]
    for reading in cell.readings:
        printed = "no number" if reading.reference is None else f"{reading.reference:g}"
        lines.append(f"paper: {reading.score.label}: {printed} ({reading.score.point}, {reading.score.figure})")
    lines += [f"inferred (neither the paper nor its released code states it): {key}" for key in cell.inferred]
    lines += [f"missing: {sentence}" for sentence in missing_parts]
    return "".join(f"# {printable(line)}\n" for line in lines) + "\n" + tomli_w.dumps(cell.values).rstrip()
