"""Seconds of the baselines of many sites: what each would use alone, and all data in one place.

    python -m benchmarks.baselines [--sites 100] [--examples 600] [--features 128] [--classes 2]

The table is made up. A run does the same with such sites; four fifths of the examples of a site are
for training. Processor seconds are those of all processes: on an idle machine, the clock shows
them divided by the number of its cores.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from joblib.externals.loky import get_reusable_executor

from fedtailor.baselines import Inputs, LabeledInputs, SiteExamples, TrainedBaselines, train_sites
from fedtailor.core.schedule import BASELINE_NAMES


def _train(
    names: Sequence[str],
    parts: Iterable[tuple[np.ndarray, np.ndarray]],
    labeled: LabeledInputs,
    num_classes: int,
) -> Iterator[TrainedBaselines]:
    """Train the baselines of sites, given by the rows to train on and to test on."""
    sites = (
        SiteExamples(names, labeled.take(training), labeled.inputs.take(test))
        for training, test in parts
    )
    return train_sites(sites, num_values=labeled.inputs.stored.size, num_classes=num_classes)


def main() -> None:
    """Print seconds by baseline."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("sites", 100), ("examples", 600), ("features", 128), ("classes", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()

    rows = options.sites * options.examples
    random = np.random.default_rng(0)
    weight = random.normal(size=(options.features, options.classes))
    x = random.normal(size=(rows, options.features)).astype(np.float32)
    y = (x @ weight + 5 * random.gumbel(size=(rows, options.classes))).argmax(1)
    inputs = Inputs(x, x)

    parts = np.arange(rows).reshape(options.sites, options.examples)
    num_test = options.examples // 5
    labeled = LabeledInputs(inputs, y)
    alone = [(part[num_test:], part[:num_test]) for part in parts]
    together = (parts[:, num_test:].ravel(), parts[:, :num_test].ravel())

    for names in (*((name,) for name in BASELINE_NAMES), BASELINE_NAMES):
        start = time.perf_counter()
        before = sum(os.times()[:4])

        # At every site the best one; of all data in one place, those that are best anywhere.
        best = {site.best for site in _train(names, alone, labeled, options.classes)}
        for name in sorted(best):
            list(_train((name,), [together], labeled, options.classes))

        seconds = time.perf_counter() - start

        # Processes are counted when they have ended.
        get_reusable_executor().shutdown(wait=True)
        spent = sum(os.times()[:4]) - before
        print(f"{', '.join(names)}: {seconds:.1f} s, processor {spent:.1f} s", flush=True)


if __name__ == "__main__":
    main()
