"""What is missing on the leaderboard of all methods, and the figure of docs/results/leaderboard.md.

    python -m benchmarks.leaderboard --list            # what is missing
    python -m benchmarks.leaderboard --estimate        # core hours of what is missing
    python -m benchmarks.leaderboard --figure FILE     # .png, .svg, .pdf

``fedtailor leaderboard run --records benchmarks/results/leaderboard.jsonl`` runs it, in the root of
the clone (``make leaderboard``). A cell with a record is not repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.records import RESULTS
from fedtailor.experiment.leaderboard import is_done, make_cells, read_board

RECORDS = RESULTS / "leaderboard.jsonl"


def main() -> None:
    """Say what is missing, or draw what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--list", action="store_true", help="list what is missing")
    wanted.add_argument("--estimate", action="store_true", help="say how long it takes")
    wanted.add_argument("--figure", type=Path, help="draw what there is")
    options = parser.parse_args()

    records = read_board(RECORDS)
    if options.list:
        print("\n".join(cell.name for cell in make_cells() if not is_done(cell, records)))
    elif options.estimate:
        from fedtailor.report.leaderboard import missing_hours

        hours = missing_hours(records)
        for federation, number in hours.items():
            print(f"{federation:20} {number:5.1f} h")
        print(f"{'together':20} {sum(hours.values()):5.1f} h")
    else:
        from fedtailor.report.charts import picture
        from fedtailor.report.leaderboard_page import figure_of

        format = options.figure.suffix.removeprefix(".")
        options.figure.write_bytes(picture(figure_of(records), format))


if __name__ == "__main__":
    main()
