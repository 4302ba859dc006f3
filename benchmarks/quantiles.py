"""Federated quantiles against those of all data in one place: rank error, bytes, equal bits.

    python -m benchmarks.quantiles [FOLDER] [--label COLUMN]

Without a folder, the table is the one of ``benchmarks.tables``. The rank error is how far the share
of the cells below a quantile is from the share that was asked for, where equal cells count either
way. Bytes are those of a site's counts, as JSON. The plan must have the same bits for any order of
the sites, and for all rows at one site.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.tables import write_lab
from fedtailor.data.options import DataOptions
from fedtailor.data.own.read import load_own
from fedtailor.data.quantiles import bin_levels, count_cells, find_quantiles, score_levels


def federated(dataset, sites, names, levels):
    """Return the quantiles by column, and the bytes that the largest site sent."""
    sent = np.zeros(len(sites), dtype=np.int64)

    def ask(exchange, request):
        counts = {name: [] for name in request}
        for number, rows in enumerate(sites):
            answer = count_cells(dataset.x, dataset.raw, rows, exchange, request)
            records = {name: one.to_record() for name, one in answer.items()}
            sent[number] += len(json.dumps(records))
            for name, one in answer.items():
                counts[name].append(one)

        return counts

    return find_quantiles(names, levels, ask), int(sent.max())


def rank_error(cells, quantiles, shares):
    """Return the largest distance between the share below a quantile and the one asked for."""
    ordered = np.sort(cells)
    low = np.searchsorted(ordered, quantiles, side="left") / len(ordered)
    high = np.searchsorted(ordered, quantiles, side="right") / len(ordered)
    return float(np.maximum(np.maximum(low - shares, shares - high), 0).max())


def main():
    """Print a row for each kind of numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="")
    parser.add_argument("--label", default="")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        if not arguments.folder:
            write_lab(folder)
        options = DataOptions(path=str(folder), label_column=arguments.label)
        dataset = load_own(str(folder), options)

    names = [column.name for column in dataset.raw.columns if not column.texts]
    sites = [np.flatnonzero(dataset.domains == site) for site in np.unique(dataset.domains)]
    everything = [np.arange(len(dataset.x))]
    for numbers, levels in (("bins", bin_levels), ("quantile", score_levels)):
        quantiles, sent = federated(dataset, sites, names, levels)
        for others in (sites[::-1], everything):
            again, _ = federated(dataset, others, names, levels)
            for name in names:
                np.testing.assert_array_equal(again[name], quantiles[name])

        errors = []
        for place, column in enumerate(dataset.raw.columns):
            if column.name in quantiles:
                cells = dataset.x[:, place]
                cells = cells[~np.isnan(cells)]
                shares = levels(len(cells))
                errors.append(rank_error(cells, quantiles[column.name], shares))

        error = f"largest rank error {100 * max(errors):.3f} %"
        print(f"{numbers:9} {error}, at most {sent:,} bytes from a site, the same bits")


if __name__ == "__main__":
    main()
