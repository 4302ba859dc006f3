"""The command ``fedtailor demo``."""

from __future__ import annotations

import time
from typing import Annotated

from fedtailor.cli.options import Json, Out, number_option
from fedtailor.cli.shell import guarded, print_result


def demo(
    out: Out = "",
    seed: Annotated[int, number_option("--seed", "Random seed of the runs.")] = 0,
    json: Json = False,
) -> None:
    """Compare four ways to train for 20 clients with little data each.

    Takes under a minute, and downloads nothing.
    """
    from fedtailor.cli.show.console import say
    from fedtailor.cli.show.demo import show_demo
    from fedtailor.cli.show.progress import make_progress
    from fedtailor.experiment.demo import ALGORITHMS, INTRODUCTION, run_demo
    from fedtailor.experiment.run import unused_folder

    folder = out or str(unused_folder("demo"))
    say(INTRODUCTION)
    start = time.perf_counter()
    progress = make_progress(runs=len(ALGORITHMS))
    with guarded(folder):
        results = run_demo(folder, seed=seed, progress=progress)

    print_result({"runs": results}, json, show_demo, results, time.perf_counter() - start)
