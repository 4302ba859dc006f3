"""The page of the leaderboard, from its records.

Its figure is docs/leaderboard.png, which git keeps. To draw it again, run
``python -m benchmarks.leaderboard --figure docs/leaderboard.png``.
"""

from benchmarks.leaderboard import RECORDS
from fedtailor.experiment.leaderboard import read_board
from fedtailor.report.leaderboard import page_of


def pages() -> dict[str, str]:
    """Return the text of the page by its path below docs."""
    return {"results/leaderboard.md": page_of(read_board(RECORDS), "../leaderboard.png")}
