"""The leaderboard of all methods: the records of the page docs/results/leaderboard.md.

    python -m benchmarks.leaderboard --data-dir DIR [METHOD ...] [--only TEXT ...] [--hours NUMBER]
    python -m benchmarks.leaderboard --list [METHOD ...]      # what is missing
    python -m benchmarks.leaderboard --estimate               # core hours of what is missing
    python -m benchmarks.leaderboard --figure FILE            # of the page: .png, .svg, .pdf

The protocol is :mod:`fedtailor.experiment.leaderboard`. Every cell adds a line to
``results/leaderboard.jsonl``, and a cell with a line is not repeated.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.records import RESULTS, Record
from fedtailor.core.errors import FedtailorError
from fedtailor.experiment.leaderboard import (
    is_done,
    make_cells,
    read_board,
    run_cells,
)

RECORDS = RESULTS / "leaderboard.jsonl"


INTERRUPTED = 130
"""The exit code of a shell for a command that was interrupted."""


def main() -> int:
    """Run what is missing, or say what is; return 1 if a cell failed."""
    options = parse_arguments()
    try:
        return run(options)
    except FedtailorError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return INTERRUPTED


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", help="methods (default: all)")
    parser.add_argument("--data-dir", default="", help="folder of the data sets")
    parser.add_argument("--engine", default="auto", help="how clients are run")
    parser.add_argument(
        "--only", nargs="*", default=[], help="parts of the names of cells; a name has all of them"
    )
    parser.add_argument("--hours", type=float, default=math.inf, help="no cell begins after them")
    parser.add_argument("--list", action="store_true", help="only list what is missing")
    parser.add_argument("--estimate", action="store_true", help="only say how long it takes")
    parser.add_argument("--figure", type=Path, help="only draw what there is")
    return parser.parse_args()


def run(options: argparse.Namespace) -> int:
    """Do what the command line says, and return the exit code."""
    if options.figure:
        draw(options.figure)
        return 0

    cells = make_cells(options.methods, only=options.only)
    records = read_board(RECORDS)
    if options.list:
        print("\n".join(cell.name for cell in cells if not is_done(cell, records)))
        return 0
    if options.estimate:
        print_estimate(records)
        return 0

    failures = run_cells(
        cells,
        RECORDS,
        data_dir=options.data_dir,
        engine=options.engine,
        hours=options.hours,
        say=print,
    )
    return 1 if failures else 0


def draw(path: Path) -> None:
    """Draw the figure of the page."""
    from fedtailor.report.charts import picture
    from fedtailor.report.leaderboard_page import figure_of

    figure = figure_of(read_board(RECORDS))
    path.write_bytes(picture(figure, path.suffix.removeprefix(".")))


def print_estimate(records: Mapping[str, Record]) -> None:
    """Print the core hours that the missing cells of every federation take."""
    from fedtailor.report.leaderboard import missing_hours

    hours = missing_hours(records)
    for federation, number in hours.items():
        print(f"{federation:20} {number:5.1f} h")
    print(f"{'together':20} {sum(hours.values()):5.1f} h")


if __name__ == "__main__":
    sys.exit(main())
