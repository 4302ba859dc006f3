"""The command ``fedtailor hand-over``."""

from __future__ import annotations

from fedtailor.cli.options import Json, NewFolder
from fedtailor.cli.predict import RunPath, RunSeed
from fedtailor.cli.shell import print_result


def hand_over(run: RunPath, out: NewFolder, seed: RunSeed = None, json: Json = False) -> None:
    """Write what a new site needs of a run, to give it away: fedtailor onboard reads it.

    Models, scores, names and examples of the other sites are not in it.
    """
    from fedtailor.cli.show.results import show_handed_over
    from fedtailor.serving.run import load

    values = load(run).hand_over(out, seed=seed)
    record = {"out": out, "run": run, "values_of_sites": values}
    print_result(record, json, show_handed_over)
