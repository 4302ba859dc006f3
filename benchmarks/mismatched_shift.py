"""CIFAR-10-S with clean training images: one possible reading of Table 1 of pFedFDA.

    python benchmarks/mismatched_shift.py --data-dir DIR [--column cifar10_s_25] [--method
    fedavg_ft]

The command runs a cell of that table with seed 0. Its corrupted clients train on the clean versions
of their images and are tested on the corrupted ones. The scores go to
results/mismatched_shift-COLUMN-METHOD.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch

from fedtailor.core.federation import Federation, Split
from fedtailor.experiment import summary
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.config import make_config
from fedtailor.experiment.provenance import machine, versions
from fedtailor.papers import tables as papers
from fedtailor.simulation.rounds import simulate

RESULTS = Path(__file__).parent / "results"


def mismatched(shifted: Federation, clean: Federation) -> Federation:
    """Return the shifted federation with the training examples of the clean one, whose rows come
    first in its table.
    """
    assert torch.equal(shifted.x[: len(clean.x)], clean.x)
    splits = []
    for each, original in zip(shifted.splits, clean.splits, strict=True):
        assert torch.equal(shifted.y[each.test], clean.y[original.test])
        splits.append(Split(original.train, original.val, each.test))
    return dataclasses.replace(shifted, splits=splits)


def main() -> None:
    """Run and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--column", default="cifar10_s_25")
    parser.add_argument("--method", default="fedavg_ft")
    arguments = parser.parse_args()
    cell = papers.expand(papers.load_paper("pfedfda"), "1", arguments.column, arguments.method)
    given = [("data.dir", arguments.data_dir)]
    unshifted = {name: value for name, value in cell.values["data"].items() if name != "shift"}
    parts = assemble(make_config(cell.values, given), 0)
    clean = assemble(make_config({**cell.values, "data": unshifted}, given), 0)
    federation = mismatched(parts.federation, clean.federation)
    for report in simulate(
        parts.algorithm, federation, parts.engine, parts.config.schedule, seed=0
    ):
        sys.stderr.write(f"\rround {report.round} of {parts.config.schedule.rounds}")
    metrics, _ = summary.final_metrics(report, federation.roster)
    scores: dict[str, Any] = {
        point: {
            "accuracy": found["accuracy"],
            "pooled_by_condition": {
                name: at["accuracy"]["pooled"] for name, at in found["conditions"].items()
            },
        }
        for point, found in metrics.items()
    }
    record = {"cell": [cell.table, cell.column, cell.method], "seed": 0, "scores": scores}
    path = RESULTS / f"mismatched_shift-{arguments.column}-{arguments.method}.json"
    path.write_text(
        json.dumps({**record, "machine": machine(), "versions": versions()}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
