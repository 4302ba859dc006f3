"""What a comparison of methods that share a training takes, against one training and their
personalizations.

    python benchmarks/compare.py --data-dir DIR [--rounds 30] [--repeats 3] [--json]

FedAvg, FedAvg-FT, FedAvg-FT (head) and kNN-Per are run on Fashion-MNIST, Dirichlet(0.5) over 100
clients: each on its own, and in a comparison, which trains once. The least that a comparison can
take is what the separate runs take, less the seconds of training of all but the first: what is left
of them makes, tests and writes their models. The ratio of both is measured in one process, in turn;
the median of the repeats counts. The benchmark also checks that all models have the bits of the
separate runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from fedtailor.experiment.config import Config, make_config
from fedtailor.experiment.methods import with_methods
from fedtailor.experiment.records import read_run
from fedtailor.experiment.run import run
from fedtailor.experiment.runner import make_jobs, run_jobs
from train_step import machine

RESULTS = Path(__file__).parent / "results"
METHODS = ("fedavg", "fedavg_ft", "fedavg_ft(finetune=head)", "knn_per")


def configuration(rounds: int, data_dir: str) -> Config:
    """Return what the methods share."""
    data = {
        "dataset": "fashion_mnist",
        "dir": data_dir,
        "partition": "dirichlet(alpha=0.5)",
        "clients": 100,
    }
    return make_config(
        {
            "data": data,
            "federation": {"rounds": rounds, "participation": 0.3},
            "training": {"epochs": 1, "batch_size": 50, "lr": 0.05},
        }
    )


def measure(configs: list[Config], folder: Path) -> dict[str, Any]:
    """Run the methods alone and in a comparison; return what both took, in seconds."""
    alone = []
    for number, config in enumerate(configs):
        start = time.perf_counter()
        run(config, out=folder / f"alone-{number}")
        alone.append(time.perf_counter() - start)
    trained_again = sum(
        training_seconds(folder / f"alone-{number}") for number in range(1, len(configs))
    )
    jobs = make_jobs(configs, folder / "compared")
    start = time.perf_counter()
    for outcome in run_jobs(jobs):
        assert outcome.result is not None
    compared = time.perf_counter() - start
    least = sum(alone) - trained_again
    for number, job in enumerate(jobs):
        for model in (folder / f"alone-{number}" / "models").iterdir():
            assert (job.folder / "models" / model.name).read_bytes() == model.read_bytes(), (
                job.folder,
                model.name,
            )
    return {"compared": compared, "least": least, "separate": sum(alone), "ratio": compared / least}


def training_seconds(path: Path) -> float:
    """Return the seconds of a run that another one can reuse: all rounds, but for the evaluation of
    the last one.
    """
    seconds = [line["seconds"] for line in read_run(path).rounds]
    return sum(sum(each.values()) for each in seconds) - float(seconds[-1]["evaluate"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="write results/compare.json")
    given = parser.parse_args()
    configs = with_methods(configuration(given.rounds, given.data_dir), METHODS)
    found = []
    for _ in range(given.repeats):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(configs, Path(folder)))
            print(", ".join(f"{name} {value:.2f}" for name, value in found[-1].items()))
    ratio = statistics.median(each["ratio"] for each in found)
    print(
        f"a comparison takes {ratio:.2f} times one training and the personalizations (median of {len(found)})"
    )
    if given.json:
        record = {
            "benchmark": "compare",
            "rounds": given.rounds,
            "machine": machine(),
            "repeats": found,
        }
        (RESULTS / "compare.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
