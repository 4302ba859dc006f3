"""The pages of the leaderboard, from its records.

Its figure is docs/leaderboard.png, which git keeps. To draw it again, run
``python -m benchmarks.leaderboard --figure docs/leaderboard.png``.
"""

from benchmarks.leaderboard import RECORDS
from fedtailor.experiment.leaderboard import read_board
from fedtailor.report.leaderboard_page import page_of, records_page_of

_RECORDS_PAGE = "leaderboard-records.md"


def pages() -> dict[str, str]:
    """Return the texts of the pages by their paths below docs."""
    records = read_board(RECORDS)
    return {
        "results/leaderboard.md": page_of(records, "../leaderboard.png", _RECORDS_PAGE),
        f"results/{_RECORDS_PAGE}": records_page_of(records),
    }
