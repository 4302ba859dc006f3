"""The commands ``fedtailor leaderboard ...``: methods on the same federations, and their ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor.cli.options import (
    Json,
    argument,
    number_option,
    read_assignments,
    text_option,
)
from fedtailor.cli.parsing import Command, make_group
from fedtailor.cli.shell import Interrupted, print_result
from fedtailor.core.errors import RunError
from fedtailor.core.text import counted

if TYPE_CHECKING:
    from fedtailor.experiment.leaderboard import Cell

Records = Annotated[
    str, typer.Option(metavar="FILE", help="The records, one in each line: what is there stays.")
]
_DEFAULT = "leaderboard.jsonl"
_NOBODY_TO_COMPARE_WITH = (
    "note: '{records}' has no records of other methods to compare with. Copy the repository's "
    "records there (benchmarks/results/leaderboard.jsonl), or make some: "
    "fedtailor leaderboard run local fedavg"
)


DataDir = Annotated[
    str,
    text_option(
        "FOLDER", "Folder of the data sets (default: FEDTAILOR_DATA, else ~/.cache/fedtailor)."
    ),
]
Engine = Annotated[
    str,
    typer.Option(metavar="NAME", help="How clients are run (see: fedtailor list engines)."),
]
Only = Annotated[
    list[str] | None,
    text_option(
        "TEXT",
        "Only cells FEDERATION/METHOD/REPETITION with this text in the name, such as "
        "digits/. May be repeated.",
    ),
]
Hours = Annotated[
    float | None,
    number_option(
        "--hours",
        "Begin no cell after so many hours (default: no limit).",
        kind=float,
        at_least=0,
    ),
]

leaderboard_app = make_group(
    "Compare all methods on the same federations, with equal numbers of trials."
)


@leaderboard_app.command("run", cls=Command)
def run(
    methods: Annotated[
        list[str] | None,
        argument(
            "METHOD...",
            "Methods, such as ditto, or package.module:Class (default: all of the package).",
        ),
    ] = None,
    records: Records = _DEFAULT,
    data_dir: DataDir = "",
    engine: Engine = "auto",
    only: Only = None,
    hours: Hours = None,
    json: Json = False,
) -> None:
    """Run the cells that have no record.

    A cell is a method on a federation in one repetition. It tries up to four combinations of
    options, and validation examples choose. Interrupted cells are resumed.

    Example: fedtailor leaderboard run fedavg ditto --only digits/
    """
    from fedtailor.experiment.leaderboard import make_cells

    cells = make_cells(methods or (), only=only or ())
    failures = _run(cells, records, data_dir, engine, hours)
    print_result({"records": records, "failed": failures}, json, _show_run)
    _end(failures)


@leaderboard_app.command("add", cls=Command)
def add(
    method: Annotated[str, argument("METHOD", "Your method: package.module:Class.")],
    values: Annotated[
        list[str] | None,
        text_option(
            "KEY=VALUES",
            'What to try, such as "algorithm.penalty=[0.1, 1]": at most four combinations '
            "(default: four learning rates). May be repeated.",
        ),
    ] = None,
    records: Records = _DEFAULT,
    data_dir: DataDir = "",
    engine: Engine = "auto",
    only: Only = None,
    hours: Hours = None,
    json: Json = False,
) -> None:
    """Run the missing cells of your method, and say where it stands.

    If its module changes, its cells are run again.

    Example: fedtailor leaderboard add my_methods:Mine --only digits/
    """
    from fedtailor.experiment.leaderboard import make_cells, read_board, without_older

    tried = dict(read_assignments(values, "--values"))
    cells = make_cells([method], only=only or (), values=tried)
    failures = _run(cells, records, data_dir, engine, hours)

    from fedtailor.cli.show.console import say
    from fedtailor.report.leaderboard_page import standing_of

    # The name as records have it, in whatever spelling it was given.
    method = cells[0].method
    board = without_older(read_board(Path(records)), make_cells([method], values=tried))
    places = standing_of(board, method)
    result = {
        "records": records,
        "failed": failures,
        "standings": {federation: sentence for federation, _, sentence in places},
    }
    if not json:
        _print_tables([table for _, table, _ in places])
    print_result(result, json, _show_added)
    if places and all(record["method"] == method for record in board.values()):
        say(_NOBODY_TO_COMPARE_WITH.format(records=records))
    _end(failures)


@leaderboard_app.command("show", cls=Command)
def show(
    records: Records = _DEFAULT,
    out: Annotated[
        str,
        text_option(
            "FILE",
            "Instead, write the page in Markdown, with its figure and the list of records beside "
            "it. Existing files are replaced.",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Show the tables of all federations that have records, or write the page.

    Example: fedtailor leaderboard show --out leaderboard.md
    """
    from fedtailor.core.errors import DataError
    from fedtailor.experiment.leaderboard import read_board
    from fedtailor.report.leaderboard import (
        federations_of,
        missing_cells,
        rank_methods,
        standings,
        table_of,
    )
    from fedtailor.report.leaderboard_page import write_page

    board = read_board(Path(records))
    if not board:
        message = f"'{records}' has no records yet: fedtailor leaderboard run makes them."
        raise DataError(message, path=records)

    ranks = rank_methods(board)
    result = {
        "records": records,
        "missing": missing_cells(board),
        "mean_ranks": dict(ranks.mean_rank),
        "critical_difference": ranks.critical_difference,
        "ranked_on": list(ranks.federations),
        "page": "",
    }
    if out:
        result["page"] = str(write_page(board, Path(out)))
    elif not json:
        tables = [table_of(name, standings(board, name)) for name in federations_of(board)]
        _print_tables(tables)
    print_result(result, json, _show_board)


def _run(
    cells: Sequence[Cell], records: str, data_dir: str, engine: str, hours: float | None
) -> dict[str, str]:
    """Run the cells that have no record, and return why some failed."""
    from fedtailor.cli.show.console import say
    from fedtailor.experiment.leaderboard import run_cells

    try:
        return run_cells(
            cells,
            Path(records),
            data_dir=data_dir,
            engine=engine,
            hours=math.inf if hours is None else hours,
            say=say,
        )
    except KeyboardInterrupt:
        message = "interrupted. The same command continues where this one stopped."
        raise Interrupted(message, path=records) from None


def _end(failures: Mapping[str, str]) -> None:
    """End with the exit code of a failed run if cells failed."""
    if failures:
        raise typer.Exit(RunError.exit_code)


def _print_tables(tables: Sequence[Any]) -> None:
    from fedtailor.cli.show.console import table

    for one in tables:
        table(one.title, list(one.columns), [list(map(str, row)) for row in one.rows])


def _show_run(result: Mapping[str, Any]) -> None:
    if Path(result["records"]).exists():
        typer.echo(f"The records are in {result['records']}: fedtailor leaderboard show")
    _show_failures(result["failed"])


def _show_added(result: Mapping[str, Any]) -> None:
    for sentence in result["standings"].values():
        typer.echo(sentence)
    _show_failures(result["failed"])


def _show_board(result: Mapping[str, Any]) -> None:
    counts = {name: sum(methods.values()) for name, methods in result["missing"].items()}
    missing = ", ".join(f"{name} {number}" for name, number in counts.items() if number)
    typer.echo(f"Missing cells: {missing or 'none'}.")
    if result["critical_difference"] is not None:
        on = ", ".join(result["ranked_on"])
        difference = result["critical_difference"]
        ranks = ", ".join(f"{name} {rank:.1f}" for name, rank in result["mean_ranks"].items())
        typer.echo(f"Mean ranks over {on} (critical difference {difference:.1f}): {ranks}.")
    if result["page"]:
        typer.echo(f"Wrote {result['page']}")


def _show_failures(failures: Mapping[str, str]) -> None:
    """Print why cells failed, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in failures.items():
        by_reason.setdefault(reason, []).append(name)

    for reason, names in by_reason.items():
        typer.echo(f"{counted(len(names), 'cell')} failed, such as {names[0]}: {reason}")
