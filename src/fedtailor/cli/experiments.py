"""The commands of ``fedtailor experiments``: list the tables of the papers, run them, compare with
printed numbers.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor.cli.options import DataDir, Debug, Json, whole_number
from fedtailor.cli.parsing import Command, Help, make_app, show_help
from fedtailor.cli.shell import Interrupted, guarded, print_json
from fedtailor.core.errors import DataError, FedtailorError, RunError, UsageError

if TYPE_CHECKING:
    from fedtailor.papers.tables import Cell, Paper

experiments_app = make_app()

Results = Annotated[
    str,
    typer.Option(metavar="FOLDER", help="Folder of the records (default: experiments/results)."),
]
Seed = Annotated[
    int,
    typer.Option(
        parser=whole_number("--seed", at_least=0), metavar="NUMBER", help="Random seed of the run."
    ),
]
PaperName = Annotated[
    str, typer.Argument(metavar="PAPER", help="Paper (see: fedtailor experiments list).")
]
TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="Table (see: fedtailor experiments list PAPER).")
]


@experiments_app.callback(invoke_without_command=True, add_help_option=False)
def _root(context: typer.Context, help_: Help = False) -> None:
    """Experiments of the papers: list their tables, show a configuration, run them, compare the
    numbers.
    """
    show_help(context, help_)


@experiments_app.command("list", cls=Command)
def list_(
    paper: Annotated[
        str, typer.Argument(metavar="PAPER", show_default=False, help="Paper (default: all).")
    ] = "",
    data_dir: DataDir = "",
    results: Results = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the papers, or the tables of one: the number of cells, how many can run here, and how
    many have a record.

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
    """Print the configuration of a cell as TOML for fedtailor run, and which of its settings are
    inferred.
    """
    from fedtailor.papers.records import describe
    from fedtailor.papers.tables import dataset_states, expand, load_paper, missing

    cell = expand(load_paper(paper), table, column, method, seed)
    missing_parts = missing(cell, dataset_states(data_dir))
    if json:
        record = cell.place()
        record["config"] = cell.values
        record["inferred"] = list(cell.inferred)
        record["missing"] = missing_parts
        record["scores"] = {reading.name: describe(reading, None) for reading in cell.readings}
        print_json(record)
    else:
        print(_to_toml(cell, missing_parts))  # noqa: T201  # what was asked for


@experiments_app.command(cls=Command)
def run(
    paper: Annotated[
        str,
        typer.Argument(
            metavar="PAPER", show_default=False, help="Paper (see: fedtailor experiments list)."
        ),
    ] = "",
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            show_default=False,
            help="Table (see: fedtailor experiments list PAPER).",
        ),
    ] = "",
    column: Annotated[str, typer.Option(metavar="NAME", help="Only this column.")] = "",
    method: Annotated[str, typer.Option(metavar="NAME", help="Only this method.")] = "",
    seed: Annotated[
        int | None,
        typer.Option(
            parser=whole_number("--seed", at_least=0),
            metavar="NUMBER",
            help="Random seed of the runs (default: 0).",
        ),
    ] = None,
    plan: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Run what a plan lists, in its order, instead of a table."
        ),
    ] = "",
    max_minutes: Annotated[
        int | None,
        typer.Option(
            parser=whole_number("--max-minutes", at_least=1),
            metavar="NUMBER",
            help="Leave out runs that would take longer. A run without an estimate is judged by its first rounds.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", metavar="", help="Only list the runs: their states and estimated times."
        ),
    ] = False,
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
    """Run the cells of a table, or of a plan, that have no record yet, and write a record for each.

    It can be stopped at any time: the same command continues with the first run that has no record.
    """
    from fedtailor.cli.show.experiments import show_agenda, show_outcome

    if plan:
        _refuse_beside_plan(
            {"PAPER": paper, "--column": column, "--method": method, "--seed": seed}
        )
    elif not (paper and table):
        raise UsageError("give PAPER and TABLE, or --plan FILE.", key="paper")

    agenda = _Agenda(_results_folder(results), data_dir, max_minutes, is_trial=rounds is not None)
    chosen = (
        _runs_of_plan(plan) if plan else _runs_of_table(paper, table, column, method, seed or 0)
    )
    if dry_run:
        listed = [
            {**cell.place(), **state}
            for cell, state in zip(chosen, agenda.states(chosen), strict=True)
        ]
        if json:
            print_json({"runs": listed})
        else:
            show_agenda(listed)

        return

    outcomes = []
    for number in range(len(chosen)):
        outcome = _run_one(agenda, chosen[number:], keep_models=not plan, rounds=rounds, quiet=json)
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


@experiments_app.command("report", cls=Command)
def report_(
    paper: Annotated[
        str, typer.Argument(metavar="PAPER", show_default=False, help="Paper (default: all).")
    ] = "",
    table: Annotated[
        str, typer.Argument(metavar="TABLE", show_default=False, help="Table (default: all).")
    ] = "",
    out: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="HTML file to write: tables and figures (default: none)."
        ),
    ] = "",
    figures: Annotated[
        str, typer.Option(metavar="FOLDER", help="New folder for every figure as PNG, SVG and CSV.")
    ] = "",
    results: Results = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the numbers that the papers print beside those of the records, and judge the
    differences.
    """
    from fedtailor.cli.show.console import say
    from fedtailor.cli.show.experiments import show_comparison
    from fedtailor.papers.records import compare, read_records, unused
    from fedtailor.papers.tables import find_table, load_paper, paper_names
    from fedtailor.papers.verdicts import count, judged_numbers, sentence

    papers = {name: load_paper(name) for name in ([paper] if paper else paper_names())}
    papers = {loaded.name: loaded for loaded in papers.values()}
    records = {name: read_records(_results_folder(results), name) for name in papers}
    compared = []
    judged = []
    stale = 0

    for name, loaded in papers.items():
        stale += len(unused(loaded, records[name]))
        judged += judged_numbers(loaded, records[name])
        for table_name in [find_table(loaded, table)] if table else loaded.tables:
            compared.append(
                {
                    "paper": name,
                    "table": table_name,
                    "title": loaded.tables[table_name].title,
                    "notes": list(loaded.tables[table_name].notes),
                    "rows": compare(loaded, table_name, records[name]),
                }
            )

    tally = count(judged)
    written = _write_report(papers, records, table, out, figures) if out or figures else {}
    if json:
        verdicts = dataclasses.asdict(tally)
        print_json(
            {
                "tables": compared,
                "verdicts": verdicts,
                "records_of_other_settings": stale,
                **written,
            }
        )

        return

    show_comparison(compared)
    if tally.runs and not table:
        say(sentence(tally))

    if stale:
        who = "1 record belongs" if stale == 1 else f"{stale} records belong"
        say(f"note: {who} to settings that are no longer in any table; not shown.")

    if written:
        from fedtailor.cli.show.report import show_report

        show_report(written, figures)


def _write_report(
    papers: dict[str, Paper],
    records: dict[str, list[dict[str, Any]]],
    table: str,
    out: str,
    figures: str,
) -> dict[str, Any]:
    """Write the page of some papers, and its figures; return what was written."""
    from fedtailor.papers.page import build_report
    from fedtailor.papers.tables import find_table
    from fedtailor.report.page.files import (
        check_figures_folder,
        check_page_path,
        write_figures,
        write_page,
    )

    target = Path(out or "report-papers.html")
    check_page_path(target)
    if figures:
        check_figures_folder(Path(figures))

    name = find_table(next(iter(papers.values())), table) if table else ""
    page = build_report(papers, records, table=name)
    return {
        "report": str(target),
        "bytes": write_page(page, target),
        "figures": [{"name": figure.name, "title": figure.title} for figure in page.figures],
        "files": [str(path) for path in write_figures(page.figures, Path(figures))]
        if figures
        else [],
    }


@experiments_app.command("difference", cls=Command)
def difference_(
    paper: PaperName,
    table: TableName,
    column: Annotated[str, typer.Argument(metavar="COLUMN", help="Column of the table.")],
    first: Annotated[str, typer.Argument(metavar="METHOD", help="Method of the table.")],
    second: Annotated[
        str, typer.Argument(metavar="OTHER", help="Method whose accuracies are subtracted.")
    ],
    results: Results = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare the accuracies of two methods client by client, over all seeds that have a record of
    both.
    """
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


def _results_folder(given: str) -> Path:
    """Return the folder of the records."""
    from fedtailor.papers.records import DEFAULT_FOLDER

    return Path(given or DEFAULT_FOLDER)


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


def _refuse_beside_plan(given: dict[str, Any]) -> None:
    """Check that nothing is given that only belongs to a table.

    Raises:
        UsageError: something is.
    """
    for name, value in given.items():
        if value not in ("", None):
            raise UsageError(
                f"{name} has no effect with --plan, which says what to run. Leave it out.", key=name
            )


def _runs_of_plan(plan: str) -> list[Cell]:
    """Return the runs of a plan."""
    from fedtailor.papers.plan import read_plan

    return read_plan(plan)


def _runs_of_table(paper: str, table: str, column: str, method: str, seed: int) -> list[Cell]:
    """Return the runs of a table."""
    from fedtailor.papers.plan import single_runs
    from fedtailor.papers.tables import cells, load_paper

    return single_runs(cells(load_paper(paper), table, column=column, method=method, seed=seed))


class _Agenda:
    """What is done of a list of runs, what is left, and what it would cost."""

    def __init__(
        self, results: Path, data_dir: str, max_minutes: int | None, *, is_trial: bool
    ) -> None:
        from fedtailor.papers.tables import dataset_states

        self.results = results
        self.data_dir = data_dir
        self.limit = None if max_minutes is None else 60.0 * max_minutes
        self.is_trial = is_trial
        self._datasets = dataset_states(data_dir)

    def states(self, cells: list[Cell]) -> list[dict[str, Any]]:
        """Return the states of runs, with the reasons and the time that each took or would take.

        A state is ``has a record``, ``skipped``, ``too long`` or ``to run``. Seconds and their
        basis are None where they are not known. The records are read anew, because other processes
        may write some.
        """
        from fedtailor.papers.records import read_records
        from fedtailor.papers.tables import paper_names

        records = [record for name in paper_names() for record in read_records(self.results, name)]
        return [self._state(cell, records) for cell in cells]

    def _state(self, cell: Cell, records: list[dict[str, Any]]) -> dict[str, Any]:
        from fedtailor.papers.costs import estimate, run_seconds
        from fedtailor.papers.tables import missing

        own = [
            record
            for record in records
            if record["digest"] == cell.digest and record["seed"] == cell.seed
        ]

        if own and not self.is_trial:
            return {
                "state": "has a record",
                "reasons": [],
                "seconds": run_seconds(own[0]),
                "basis": "measured",
            }

        found = estimate(cell, records)
        seconds = None if found is None else found.seconds
        basis = None if found is None else found.basis
        reasons = missing(cell, self._datasets)
        state = "to run"

        if reasons:
            state = "skipped"
        elif (
            self.limit is not None
            and seconds is not None
            and seconds > self.limit
            and not self.is_trial
        ):
            state = "too long"

        return {"state": state, "reasons": reasons, "seconds": seconds, "basis": basis}


def _run_one(
    agenda: _Agenda, left: list[Cell], *, keep_models: bool, rounds: int | None, quiet: bool
) -> dict[str, Any]:
    """Run the first of the cells that are left, unless its state forbids it; return the outcome."""
    from fedtailor.papers.records import write_record

    cell = left[0]
    outcome = {**cell.place(), **agenda.states([cell])[0]}
    if outcome["state"] != "to run":
        return outcome

    from fedtailor.cli.show.experiments import show_start
    from fedtailor.cli.show.progress import make_progress
    from fedtailor.experiment.progress import Progress
    from fedtailor.papers.runs import TimeLimit, TooLong, default_folder, remove_models, run_cell

    if not quiet:
        show_start(outcome, agenda.states(left[1:]))

    progress: Progress = make_progress()
    if agenda.limit is not None and not agenda.is_trial:
        progress = TimeLimit(progress, agenda.limit)

    folder = default_folder(cell, is_trial=agenda.is_trial)
    try:
        with guarded(str(folder)):
            record = run_cell(
                cell, folder, data_dir=agenda.data_dir, rounds=rounds, progress=progress
            )
    except Interrupted:
        raise
    except TooLong as stopped:
        return {
            **outcome,
            "state": "too long",
            "seconds": stopped.seconds,
            "basis": "the first rounds",
        }
    except FedtailorError as error:  # the other cells may run all the same
        return {**outcome, "state": "failed", "reasons": [error.message]}

    outcome["state"] = "trial" if agenda.is_trial else "done"
    outcome["seconds"] = record["result"]["seconds"]["total"]
    outcome["basis"] = "measured"
    outcome["scores"] = record["scores"]
    outcome["record"] = None if agenda.is_trial else str(write_record(agenda.results, record))
    outcome["run"] = str(folder)
    if not keep_models:
        remove_models(folder)

    return outcome


def _to_toml(cell: Cell, missing_parts: list[str]) -> str:
    """Return the configuration of a cell, below comments that say what it is and which settings are
    inferred.
    """
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
        lines.append(
            f"paper: {reading.score.label}: {printed} ({reading.score.point}, {reading.score.figure})"
        )

    lines += [
        f"inferred (neither the paper nor its released code states it): {key}"
        for key in cell.inferred
    ]
    lines += [f"missing: {sentence}" for sentence in missing_parts]

    return (
        "".join(f"# {printable(line)}\n" for line in lines)
        + "\n"
        + tomli_w.dumps(cell.values).rstrip()
    )
