"""The experiments of the papers.

    python -m experiments list [PAPER]
    python -m experiments show PAPER TABLE COLUMN METHOD > cell.toml
    python -m experiments run PAPER [TABLE] [--column NAME] [--method NAME] [--seed NUMBER]
    python -m experiments run --plan experiments/plan.toml
    python -m experiments run --close
    python -m experiments table [PAPER [TABLE]]
    python -m experiments difference PAPER TABLE COLUMN METHOD OTHER
    python -m experiments figure PAPER TABLE [FILE]
    python -m experiments calibration
    python -m experiments search PAPER [METHOD]
    python -m experiments theorem [FILE]
    python -m experiments sizes [FILE]
    python -m experiments communication
    python -m experiments runtime

A cell is one method on one data set and setting, a column of a table. docs/results/experiments.md
explains the commands.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cells import (
    Cell,
    cells,
    dataset_states,
    expand,
    missing_data,
    read_plan,
    single_runs,
)
from experiments.difference import Interval, difference
from experiments.paper import FOLDER, Paper, load_paper, paper_names
from experiments.records import (
    FEW_SEEDS,
    Row,
    add_record,
    compare,
    count,
    judged_numbers,
    other_shares,
    read_records,
    records_of,
    unused,
)
from experiments.runs import remove_models, run_cell, run_folder
from fedtailor.core.errors import ConfigError, FedtailorError, UsageError, find_name
from fedtailor.core.text import percent, round_figure

if TYPE_CHECKING:
    from experiments.runtime import Timing
    from fedtailor.report.parts import Figure

INTERRUPTED = 130
"""The exit code of a shell for a command that was interrupted."""


def main(arguments: Sequence[str] | None = None, folder: Path = FOLDER) -> int:
    """Run a command on the papers of a folder, and return its exit code."""
    options = make_parser().parse_args(arguments)
    options.folder = folder
    try:
        return int(options.command(options) or 0)
    except FedtailorError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("list", help="list the papers, or the tables of one")
    command.set_defaults(command=list_papers)
    command.add_argument("paper", nargs="?")
    _add_data_dir(command)

    command = commands.add_parser("show", help="print the configuration of a cell as TOML")
    command.set_defaults(command=show_cell)
    for name in ("paper", "table", "column", "method"):
        command.add_argument(name)

    command.add_argument("--seed", type=int, default=0)

    command = commands.add_parser("run", help="run the cells that have no record")
    command.set_defaults(command=run_missing)
    command.add_argument("paper", nargs="?")
    command.add_argument("table", nargs="?")
    command.add_argument("--column", default="", help="only this column")
    command.add_argument("--method", default="", help="only this method")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--plan", type=Path, help="run what a plan lists, in its order")
    command.add_argument(
        "--close",
        action="store_true",
        help="run three seeds where a difference is at most twice the tolerance",
    )
    command.add_argument("--list", action="store_true", help="only list the runs")
    _add_data_dir(command)

    command = commands.add_parser("table", help="print the papers' numbers beside ours")
    command.set_defaults(command=print_tables)
    command.add_argument("paper", nargs="?")
    command.add_argument("table", nargs="?")

    command = commands.add_parser("difference", help="compare two methods client by client")
    command.set_defaults(command=print_difference)
    for name in ("paper", "table", "column", "method", "other"):
        command.add_argument(name)

    command = commands.add_parser("figure", help="draw the figure of a table that has one")
    command.set_defaults(command=draw_table)
    command.add_argument("paper")
    command.add_argument("table")
    _add_figure_file(command)

    command = commands.add_parser("calibration", help="FedCR's calibration by samples")
    command.set_defaults(command=print_calibration)

    command = commands.add_parser("search", help="search a paper's grids on validation examples")
    command.set_defaults(command=search_grids)
    command.add_argument("paper")
    command.add_argument("method", nargs="?")
    command.add_argument("--list", action="store_true", help="only list the searches")
    _add_data_dir(command)

    command = commands.add_parser("theorem", help="check pFedFDA's expected error by simulation")
    command.set_defaults(command=check_theorem)
    _add_figure_file(command)

    command = commands.add_parser("sizes", help="clients' examples, as Figures 3 to 6 of pFedVEM")
    command.set_defaults(command=draw_sizes_of_clients)
    _add_figure_file(command)

    command = commands.add_parser("communication", help="count what is sent, as Table 8 of pFedFDA")
    command.set_defaults(command=count_communication)

    command = commands.add_parser("runtime", help="time training, as Tables 5, 6 and 9 of pFedFDA")
    command.set_defaults(command=time_training)
    command.add_argument("--passes", type=int, default=5, help="turns of every method (default: 5)")
    _add_data_dir(command)

    return parser


def _add_figure_file(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", nargs="?", type=Path, help="figure: .html, .pdf, .svg or .png")


def _add_data_dir(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--data-dir",
        default="",
        help="folder of the data sets (default: FEDTAILOR_DATA, else ~/.cache/fedtailor)",
    )


def list_papers(options: argparse.Namespace) -> None:
    """List the papers, or the tables of one: number of cells, how many can run, and have run."""
    states = dataset_states(options.data_dir)
    counts = ["cells", "can run", "have a record"]
    if not options.paper:
        rows = []
        for name in paper_names(options.folder):
            paper = load_paper(name, options.folder)
            every = [cell for table in paper.tables for cell in cells(paper, table)]
            source = f"{paper.source.authors} {paper.source.year}, {paper.source.venue}"
            rows.append([name, *_counts(every, states, options.folder), source])

        print_columns(["paper", *counts, "source"], rows)
        return

    paper = load_paper(options.paper, options.folder)
    rows = []
    missing: dict[str, None] = {}
    for name, table in paper.tables.items():
        every = cells(paper, name)
        missing |= dict.fromkeys(missing_data(cell, states) for cell in every)
        rows.append(
            [
                name,
                *_counts(every, states, options.folder),
                f"{table.title} (columns: {', '.join(table.columns)}; "
                f"methods: {', '.join(table.reference)})",
            ]
        )

    print_columns(["table", *counts, "what"], rows)
    for sentence in filter(None, missing):
        print(f"missing: {sentence}")


def _counts(every: Sequence[Cell], states: dict[str, str], folder: Path) -> list[Any]:
    records = read_records(every[0].paper.name, folder)
    available = sum(not missing_data(cell, states) for cell in every)
    recorded = sum(bool(records_of(cell, records)) for cell in every)
    return [len(every), available, recorded]


def show_cell(options: argparse.Namespace) -> None:
    """Print the configuration of a cell for ``fedtailor run``, below comments that explain it."""
    import tomli_w

    paper = load_paper(options.paper, options.folder)
    cell = expand(paper, options.table, options.column, options.method, options.seed)
    print(f"# {paper.source.title} ({paper.source.authors} {paper.source.year})")
    print(f"# table {cell.table}, {paper.tables[cell.table].title}")
    print(f"# {paper.columns[cell.column].label}; {paper.methods[cell.method].label}")
    for number in cell.printed:
        value = "nothing" if number.value is None else f"{number.value:g}"
        score = number.score
        print(f"# printed: {value} ({score.label}; {score.point}, {score.figure})")

    for key in cell.inferred:
        print(f"# inferred (neither the paper nor its released code states it): {key}")

    print(f"\n{tomli_w.dumps(cell.values).rstrip()}")


def run_missing(options: argparse.Namespace) -> int:
    """Run the cells that have no record, and write a record of each; return the exit code.

    A cell that fails does not stop the others.
    """
    states = dataset_states(options.data_dir)
    exit_code = 0
    for cell in _chosen_cells(options):
        # The records are read again before each run, because other processes may write some.
        records = records_of(cell, read_records(cell.paper.name, options.folder))
        if any(record["seed"] == cell.seed for record in records):
            print(f"{cell}: has a record")
        elif sentence := missing_data(cell, states):
            print(f"{cell}: {sentence}")
        elif options.list:
            print(f"{cell}: to run")
        else:
            exit_code = _run_one(cell, options) or exit_code

    return exit_code


def _chosen_cells(options: argparse.Namespace) -> list[Cell]:
    """Return what to run, each run once."""
    chosen_by = [name for name in ("table", "column", "method", "seed") if getattr(options, name)]
    if options.plan:
        if options.paper or options.close or chosen_by:
            raise UsageError("--plan FILE names all runs: choose none beside it.", key="plan")

        return read_plan(options.plan, options.folder)

    if options.close:
        if chosen_by:
            what = "takes all runs of a PAPER, or of all papers"
            raise UsageError(f"--close {what}: choose none beside it.", key="close")

        return _close_cells(options)

    if not options.paper:
        raise UsageError("give PAPER and TABLE, or --plan FILE.", key="paper")

    paper = load_paper(options.paper, options.folder)
    tables = [options.table]
    if not options.table:
        tables = _tables_with(paper, options.column, options.method)

    chosen = []
    for table in tables:
        chosen += cells(
            paper, table, column=options.column, method=options.method, seed=options.seed
        )

    return single_runs(chosen)


def _tables_with(paper: Paper, column: str, method: str) -> list[str]:
    """Return the tables that have a column and a method; an empty name stands for any."""
    if column:
        column = find_name(f"column of {paper.name}", column, paper.columns, key="column")
    if method:
        method = find_name(f"method of {paper.name}", method, paper.methods, key="method")

    tables = []
    for name, table in paper.tables.items():
        if column in ("", *table.columns) and method in ("", *table.reference):
            tables.append(name)

    if not tables:
        message = f"no table of {paper.name} has the column '{column}' and the method '{method}'."
        raise ConfigError(message, key="table")

    return tables


def _close_cells(options: argparse.Namespace) -> list[Cell]:
    """Return three seeds of every run near the printed number that has fewer."""
    chosen = []
    for name in [options.paper] if options.paper else paper_names(options.folder):
        paper = load_paper(name, options.folder)
        rows = judged_numbers(paper, read_records(paper.name, options.folder))
        close = [row.cell for row in rows if row.needs_seeds]
        for cell in close:
            place = (cell.table, cell.column, cell.method)
            chosen += [expand(paper, *place, seed) for seed in range(FEW_SEEDS)]

    return single_runs(chosen)


def _run_one(cell: Cell, options: argparse.Namespace) -> int:
    """Run a cell and write its record; return the exit code of its error, 0 if there is none."""
    from fedtailor.cli.show.progress import make_progress

    print(f"{cell} ...", flush=True)
    run_path = run_folder(cell)
    try:
        record = run_cell(cell, run_path, data_dir=options.data_dir, progress=make_progress())
    except FedtailorError as error:
        print(f"{cell}: failed: {error.message}")
        return error.exit_code

    path = add_record(record, options.folder)
    remove_models(run_path)
    scores = ", ".join(
        f"{score['label']} {percent(score['value'])} (printed {percent(score['reference'])})"
        for score in record["scores"].values()
    )
    print(f"{cell}: {scores}; in {path}", flush=True)
    return 0


def print_tables(options: argparse.Namespace) -> None:
    """Print the papers' numbers beside ours where there is a record, and the verdicts."""
    judged = []
    for name in [options.paper] if options.paper else paper_names(options.folder):
        paper = load_paper(name, options.folder)
        records = read_records(paper.name, options.folder)
        judged += judged_numbers(paper, records)
        for table in [paper.find_table(options.table)] if options.table else paper.tables:
            _print_table(paper, table, compare(paper, table, records))

        stale = len(unused(paper, records))
        if stale:
            print(f"note: {stale} records have settings that are in no table; not shown.\n")

    if judged and not options.table:
        print(count(judged))
        for sentence in other_shares(judged):
            print(sentence)


def _print_table(paper: Paper, table: str, rows: list[Row]) -> None:
    """Print one table."""
    print(f"{paper.name}, table {table}: {paper.tables[table].title}; accuracy in %")
    recorded = [row for row in rows if row.records]
    if recorded:
        head = ["column", "method", "score", "model", "figure", "seeds", "printed", "ours"]
        head += ["deviation", "difference", "tolerance", "verdict", "program", "by program", "best"]
        head += ["by best"]
        print_columns(head, [_cells_of_row(row) for row in recorded])

    if len(recorded) < len(rows):
        print(f"{len(rows) - len(recorded)} of {len(rows)} numbers have no record yet.")

    for note in paper.tables[table].notes:
        print(f"note: {note}")

    print()


def _cells_of_row(row: Row) -> list[Any]:
    score = row.printed.score
    return [
        row.cell.column,
        row.cell.method,
        score.label,
        score.point,
        score.figure,
        ",".join(map(str, row.seeds)),
        percent(row.printed.value),
        percent(row.mean),
        percent(row.deviation),
        round_figure(row.difference, in_percent=True, signed=True),
        percent(row.tolerance),
        row.verdict or "-",
        percent(row.printed.program),
        row.program_verdict or "-",
        percent(row.best_of_rounds),
        row.best_verdict or "-",
    ]


def print_difference(options: argparse.Namespace) -> None:
    """Print the difference between two methods: of each seed, and the mean with its intervals."""
    paper = load_paper(options.paper, options.folder)
    first = expand(paper, options.table, options.column, options.method)
    second = expand(paper, options.table, options.column, options.other)
    gap = difference(first, second, read_records(paper.name, options.folder))

    print(f"{first.method} minus {second.method} on {first.column}, in points")
    for seed, value in gap.by_seed.items():
        print(f"seed {seed}: {100 * value:+.2f}")

    print(f"mean: {100 * gap.mean:+.2f}")
    print(f"95 % interval over clients, for these models: {_in_points(gap.over_clients)}")
    print(f"95 % interval over seeds, for these clients: {_in_points(gap.over_seeds)}")


def _in_points(interval: Interval | None) -> str:
    if interval is None:
        return "-"

    low, high = interval
    return f"{100 * low:+.2f} to {100 * high:+.2f}"


def check_theorem(options: argparse.Namespace) -> None:
    """Print how far simulated errors are from the expected one, and write the figure if asked.

    Altair takes a while to load, so what draws with it is imported here.
    """
    from experiments.theorem import SIZES, best_beta, figure, make_clients, simulate

    rows = []
    points_by_size = {size: simulate(make_clients(size)) for size in SIZES}
    for size, points in points_by_size.items():
        gaps = [abs(point.simulated - point.expected) / point.standard_error for point in points]
        rows.append(
            [size, f"{best_beta(make_clients(size)):.2f}", f"{max(gaps):.1f} standard errors"]
        )

    print_columns(["examples", "best beta", "largest difference"], rows)
    _write_figure(figure(points_by_size), options)


def draw_sizes_of_clients(options: argparse.Namespace) -> None:
    """Divide pFedVEM's data sets 1,000 times, print the sizes, and write the figure if asked."""
    from experiments.sizes import CLIENTS, SETTINGS, draw_sizes, figure

    drawn = [draw_sizes(setting, clients) for setting in SETTINGS for clients in CLIENTS]
    _print_figure(figure(drawn), options)


def draw_table(options: argparse.Namespace) -> None:
    """Print the numbers of a table's figure, from its records, and write the figure if asked."""
    from experiments import curve, features

    paper = load_paper(options.paper, options.folder)
    name = paper.find_table(options.table)
    table = paper.tables[name]
    if not table.over and table.measure != "features":
        drawn = [other for other, entry in paper.tables.items() if entry.over or entry.measure]
        raise UsageError(
            f"table {name} of {paper.name} has no figure; these have one: {', '.join(drawn)}.",
            key="table",
        )

    records = read_records(paper.name, options.folder)
    module = features if table.measure == "features" else curve
    figure = module.figure(paper, name, records)
    if not figure.panels:
        raise UsageError(
            f"table {name} of {paper.name} has no record yet: "
            f"python -m experiments run {paper.name} {name}.",
            key="table",
        )

    _print_figure(figure, options)


def print_calibration(options: argparse.Namespace) -> None:
    """Print how well FedCR is calibrated by samples, from the records of Figure 3d."""
    from experiments.calibration import table

    paper = load_paper("fedcr", options.folder)
    measured = table(paper, "figure_3d", read_records("fedcr", options.folder))
    if not measured.rows:
        raise UsageError(
            "figure_3d of fedcr has no record yet: python -m experiments run fedcr figure_3d.",
            key="table",
        )

    print_columns(measured.columns, measured.rows)


def _has_grids(name: str, options: argparse.Namespace) -> bool:
    return bool(load_paper(name, options.folder).searches)


def search_grids(options: argparse.Namespace) -> None:
    """Search the grids that have no trials yet, or that of one method, and print what is best."""
    from experiments.search import MOST_TRIALS, run_search, trials_of
    from fedtailor.cli.show.progress import make_progress

    paper = load_paper(options.paper, options.folder)
    names = list(paper.searches)
    if not names:
        others = [name for name in paper_names(options.folder) if _has_grids(name, options)]
        raise ConfigError(
            f"{paper.name} has no grids to search; these have some: {', '.join(others)}.",
            key="paper",
        )
    if options.method:
        names = [find_name(f"search of {paper.name}", options.method, names, key="search")]

    for name in names:
        trials = trials_of(paper, name, options.folder)
        if not trials and options.list:
            combinations = math.prod(map(len, paper.searches[name].values.values()))
            count = min(MOST_TRIALS, combinations)
            print(f"{name}: {count} of {combinations} combinations to search")
            continue

        if not trials:
            how = {"data_dir": options.data_dir, "folder": options.folder}
            run_search(paper, name, progress=make_progress(), announce=print, **how)
            trials = trials_of(paper, name, options.folder)

        # More rounds rank first, then the higher score.
        best = max(trials, key=lambda trial: (trial.rounds, trial.validation_percent))
        print(f"{name}: {best.validation_percent} % after {best.rounds} rounds, {best.values}")


def _print_figure(figure: Figure, options: argparse.Namespace) -> None:
    """Print the numbers that a figure shows, and write it if asked."""
    if figure.table:
        print_columns(figure.table.columns, figure.table.rows)

    _write_figure(figure, options)


def _write_figure(figure: Figure, options: argparse.Namespace) -> None:
    from fedtailor.report.page.files import write_figure

    if options.file:
        write_figure(figure, options.file)
        print(f"wrote {options.file}")


def count_communication(options: argparse.Namespace) -> None:
    """Print Table 8 of pFedFDA beside the counts of our models and messages."""
    from experiments.communication import rows

    head = ["network", "classes", "body", "linear", "Gaussian", "overhead %", "printed %"]
    lines = []
    for row in rows():
        counts = [f"{number:,}" for number in row[2:5]]
        name = [row.network, row.classes]
        lines.append([*name, *counts, f"{row.overhead:.3f}", f"{row.printed:.3f}"])

    print_columns(head, lines)


def time_training(options: argparse.Namespace) -> None:
    """Print seconds of local training beside the printed ratios of Tables 5, 6 and 9 of pFedFDA."""
    from experiments.runtime import TABLE_5, TABLE_6, time_methods

    paper = load_paper("pfedfda", options.folder)
    methods = [*TABLE_6, "pfedfda_nb"]
    timings = time_methods(paper, "cifar10_dir05", methods, options.passes, options.data_dir)
    printed = {name: value / TABLE_6["fedavg"] for name, value in TABLE_6.items()}
    _print_timings("Table 6: CIFAR-10, ratios to FedAvg", timings, printed)
    _print_shares("cifar10_dir05", timings)

    methods = [*TABLE_5, "fedbabu"]
    timings = time_methods(paper, "cifar100_dir05", methods, options.passes, options.data_dir)
    printed = {name: 1 + value / 100 for name, value in TABLE_5.items()}
    _print_timings("Table 5: CIFAR-100, ratios to no beta", timings, printed)
    _print_shares("cifar100_dir05", timings)


def _print_timings(title: str, timings: Sequence[Timing], printed: dict[str, float]) -> None:
    rows = []
    for timing in timings:
        ratio = printed.get(timing.method)
        rows.append(
            [
                timing.method,
                f"{timing.seconds:.2f}",
                f"{timing.ratio:.2f}",
                f"{timing.least:.2f} to {timing.largest:.2f}",
                "-" if ratio is None else f"{ratio:.2f}",
            ]
        )

    print(title)
    print_columns(["method", "seconds a round", "ratio", "range", "printed"], rows)
    print()


def _print_shares(column: str, timings: Sequence[Timing]) -> None:
    from experiments.runtime import TABLE_9, shares

    parts = ("network", "moments", "search for beta")
    rows = [
        [part, f"{ours:.1f}", f"{printed:.1f}"]
        for part, ours, printed in zip(parts, shares(timings), TABLE_9[column], strict=True)
    ]
    print(f"Table 9: parts of pFedFDA's training, {column}, %")
    print_columns(["part", "ours", "printed"], rows)
    print()


def print_columns(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table with aligned columns; a dash for None."""
    lines = [list(head)]
    for row in rows:
        lines.append(["-" if value is None else str(value) for value in row])

    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        print("  ".join(padded).rstrip())


if __name__ == "__main__":
    # A reader that closes the pipe, such as head, ends the program without a traceback.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
