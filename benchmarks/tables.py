"""What the encoding of numbers is worth on tables: AUROC, mean over sites, three seeds and splits.

± is the standard error over the seeds.

    python -m benchmarks.tables lab            # a made-up table that favours trees
    python -m benchmarks.tables FOLDER --set data.label_column=disease

Each seed has a split of its own; a third of the rows of each site is for testing.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np

import fedtailor
from fedtailor.experiment.config import parse_assignment

VARIANTS = {
    "standard": {},
    "quantile": {"data.numbers": "quantile"},
    "bins": {"data.numbers": "bins"},
    "standard, indicator": {"data.missing": "indicator"},
    "quantile, indicator": {"data.numbers": "quantile", "data.missing": "indicator"},
    "bins, indicator": {"data.numbers": "bins", "data.missing": "indicator"},
}
SITES = {"A": 150, "B": 250, "C": 350, "D": 500, "E": 700}
"""Rows of the made-up table."""


def write_lab(folder):
    """Write a table whose classes follow thresholds and interactions of heavy-tailed values."""
    generator = np.random.default_rng(0)
    shift = generator.normal(0, 0.3, (len(SITES), 8))
    for number, (site, rows) in enumerate(SITES.items()):
        values = np.exp(generator.normal(shift[number], 1.0, (rows, 8)))
        logit = 1.6 * (values[:, 0] > 1.5) + 1.4 * (values[:, 1] > 2) * (values[:, 2] < 1)
        logit += 1.2 * ((values[:, 3] > 0.6) & (values[:, 3] < 1.6)) - 0.8 * (values[:, 4] > 3)
        logit += -2.4 + 0.4 * number / len(SITES)
        sick = generator.random(rows) < 1 / (1 + np.exp(-logit))
        header = ",".join([*(f"lab{column}" for column in range(8)), "label"])
        lines = [",".join([*map(str, row), str(int(label))]) for row, label in zip(values, sick)]
        (folder / f"{site}.csv").write_text("\n".join([header, *lines]) + "\n")


def auroc(data, algorithm, settings, seeds, rounds):
    """Return the mean over sites of the AUROC of personalized models, for every seed."""
    areas = []
    for seed in seeds:
        base = {
            "seed": seed,
            "algorithm": {"name": algorithm},
            "data": {"path": str(data), "seed": "run", "test_share": 0.33},
            "federation": {"rounds": rounds},
            "checkpoint": {"every": 0},
        }
        with tempfile.TemporaryDirectory() as out:
            config = fedtailor.make_config(base, list(settings.items()))
            result = fedtailor.run(config, out=Path(out) / "run")
        areas.append(result["metrics"]["personalized"]["auroc"]["mean"])

    return areas


def main():
    """Print a row for each encoding and method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="lab, or a folder of tables")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--algorithms", default="fedavg_ft,pfedfda")
    parser.add_argument("--set", action="append", default=[], help="an option for all runs")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    common = dict(parse_assignment(text) for text in options.set)

    with tempfile.TemporaryDirectory() as temporary:
        data = Path(options.data)
        if options.data == "lab":
            data = Path(temporary)
            write_lab(data)

        for algorithm in options.algorithms.split(","):
            for name, settings in VARIANTS.items():
                areas = auroc(data, algorithm, common | settings, seeds, options.rounds)
                spread = statistics.stdev(areas) if len(areas) > 1 else 0.0
                error = spread / len(areas) ** 0.5
                print(
                    f"{algorithm:10} {name:20} {statistics.mean(areas):.3f} ± {error:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
