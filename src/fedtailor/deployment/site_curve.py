"""The curve of a site: the accuracy of models on its own test examples, round by round.

It is written when a model is scored at the site anyway, and stays there, whatever the site shares.
"""

from __future__ import annotations

import logging
from pathlib import Path

from fedtailor.core.atomic import append_lines
from fedtailor.core.errors import RunError
from fedtailor.core.metrics import per_client
from fedtailor.core.reading import content_of, read_lines
from fedtailor.core.scores import Scores

CURVE_FILE = "curve.jsonl"
"""In the folder of a site."""

log = logging.getLogger("fedtailor.site")


def note_accuracy(folder: Path, run: str, round: int, point: str, scores: Scores) -> None:
    """Note the accuracy of a model; nothing without test examples.

    Args:
        folder: of the site.
        run: the name of the run.
        round: of the model.
        point: ``personalized``, ``global``, or ``local``: the model after training.
        scores: on the site's test examples.
    """
    accuracy = per_client(scores).get("accuracy")
    if accuracy is None:
        return

    line = {"run": run, "round": round, "point": point, "accuracy": accuracy}
    try:
        append_lines(folder / CURVE_FILE, [line])
    except RunError as error:  # such as a full disk: no reason to give no answer
        log.error("the curve cannot be continued: %s", error.message)


def read_curves(folder: Path) -> dict[str, dict[str, dict[int, float]]]:
    """Return the accuracies by run, the newest last, then by point and round.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / CURVE_FILE
    curves: dict[str, dict[str, dict[int, float]]] = {}
    with content_of(path):
        # A round that was done again counts as it was the last time.
        for line in read_lines(path, within=folder):
            of_run = curves.setdefault(str(line["run"]), {})
            curve = of_run.setdefault(str(line["point"]), {})
            curve[int(line["round"])] = float(line["accuracy"])

    return curves
