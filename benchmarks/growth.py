"""What grows with a run: memory with its rounds, seconds with its clients, seconds with the columns
of a table.

    python benchmarks/growth.py [--parts rounds,clients,columns] [--repeats 3] [--against SOURCE]
    [--json]

``rounds``: resident memory of a run of 2,000 rounds (FedAvg, five clients, digits, an MLP of six
hidden units) after round 200 and after the last one. ``clients``: seconds of a run of 20,000
clients and two rounds (FedAvg, 100 clients train in a round; 20 generated examples of eight
features per client), personal models included. ``columns``: seconds to read two tables of 50 rows
with 8,000 and with 20,000 columns. Each number comes from a separate process. With ``--against``,
the ``src`` folder of another version is measured too, in turn, and the medians of the paired ratios
are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROUNDS = 2000
FIRST = 200
"""Memory is compared with that after this round: by then everything is imported and recorded."""
CLIENTS = 20_000
COHORT = 100
EXAMPLES = 20
COLUMNS = (8000, 20_000)


def generated() -> Any:
    """Return a data set with examples for all clients."""
    import numpy as np

    from fedtailor.data.dataset import Dataset

    draw = np.random.default_rng(0)
    y = draw.integers(0, 4, EXAMPLES * CLIENTS)
    x = draw.normal(size=(len(y), 8)).astype(np.float32) + y[:, None].astype(np.float32)
    return Dataset(name="generated", x=x, y=y, num_classes=4, class_names=("a", "b", "c", "d"))


def configuration(values: dict[str, Any]) -> Any:
    """Return a small FedAvg run."""
    from fedtailor import make_config

    common: dict[str, Any] = {
        "algorithm": {"name": "fedavg"},
        "model": {"name": "mlp", "options": {"hidden": 6}},
        "training": {"epochs": 1, "batch_size": 10},
        "evaluation": {"every": 10},
        "engine": {"name": "workers"},
    }
    return make_config({**common, **values})


def measure_rounds(folder: Path) -> dict[str, float]:
    """Run many rounds, and return the memory at the beginning and at the end."""
    from fedtailor import run
    from fedtailor.experiment.progress import Silence

    resident: dict[int, float] = {}

    class Watch(Silence):
        def round(self, record: Any) -> None:
            if record["round"] in (FIRST, ROUNDS):
                resident[record["round"]] = resident_megabytes()

    values = {"data": {"clients": 5}, "federation": {"rounds": ROUNDS}}
    start = time.perf_counter()
    run(configuration(values), out=folder / "run", progress=Watch())
    seconds = time.perf_counter() - start
    growth = resident[ROUNDS] / resident[FIRST] - 1
    return {
        "first_mb": resident[FIRST],
        "last_mb": resident[ROUNDS],
        "growth": growth,
        "seconds": seconds,
    }


def resident_megabytes() -> float:
    """Return the memory of this process that is its own: pages of mapped files can be dropped at
    any time.
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) / 1024


def measure_clients(folder: Path) -> dict[str, float]:
    """Run two rounds with many clients."""
    from fedtailor import run

    sys.path.insert(0, str(Path(__file__).parent))
    data = {"path": "growth:generated", "clients": CLIENTS, "partition": "iid"}
    federation = {"rounds": 2, "participation": f"fixed({COHORT})", "full_last_round": False}
    start = time.perf_counter()
    processor = time.process_time()
    run(configuration({"data": data, "federation": federation}), out=folder / "run")
    return {"seconds": time.perf_counter() - start, "processor_s": time.process_time() - processor}


def measure_columns(folder: Path) -> dict[str, float]:
    """Read wide tables."""
    import numpy as np

    from fedtailor.data.options import DataOptions
    from fedtailor.data.own.findings import Findings
    from fedtailor.data.own.tables import read_tables

    seconds = {}
    for columns in COLUMNS:
        draw = np.random.default_rng(0)
        files = []
        for site in ("a", "b"):
            path = folder / f"{site}.csv"
            with path.open("w") as file:
                file.write(
                    ",".join([*(f"gene{column}" for column in range(columns)), "label"]) + "\n"
                )
                for row in range(50):
                    file.write(
                        ",".join(
                            [*(f"{value:.5f}" for value in draw.normal(size=columns)), str(row % 3)]
                        )
                    )
                    file.write("\n")
            files.append((site, path))
        start = time.process_time()
        if read_tables(files, DataOptions(path=str(folder)), Findings()) is None:
            raise SystemExit("the tables were not read")
        seconds[f"columns_{columns}_s"] = time.process_time() - start
    return seconds


MEASUREMENTS = {"rounds": measure_rounds, "clients": measure_clients, "columns": measure_columns}


def in_process(part: str, source: Path) -> dict[str, float]:
    """Measure in a separate process that imports the package from a folder."""
    with tempfile.TemporaryDirectory(
        dir="."
    ) as folder:  # temporary folders elsewhere may be in memory
        command = [sys.executable, __file__, "--serve", part, folder]
        environment = {**os.environ, "PYTHONPATH": str(source)}
        answer = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        )
    return dict(json.loads(answer.stdout))


def run(parts: list[str], repeats: int, against: Path | None) -> dict[str, Any]:
    """Measure every part, this version and the other one in turn."""
    from fedtailor.experiment.provenance import machine, versions

    here = Path(__file__).resolve().parents[1] / "src"
    sources = {"this": here} if against is None else {"other": against.resolve(), "this": here}
    record: dict[str, Any] = {"benchmark": "growth", "repeats": repeats, "results": {}}
    record |= {"machine": {**machine(), "load_before": os.getloadavg()[0]}, "versions": versions()}
    for part in parts:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
        for _ in range(repeats):
            for name, source in sources.items():
                found[name].append(in_process(part, source))
                print(f"{part:8} {name:6} {show(found[name][-1])}", file=sys.stderr)
        record["results"][part] = {name: medians(runs) for name, runs in found.items()}
        if against is not None:
            record["results"][part]["ratio"] = medians(
                [
                    {key: one[key] / other[key] for key in one}
                    for one, other in zip(found["this"], found["other"], strict=True)
                ]
            )
        for name, result in record["results"][part].items():
            print(f"{part:8} {name:6} {show(result)} (median)", file=sys.stderr)
    record["machine"]["load_after"] = os.getloadavg()[0]
    return record


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of every number."""
    return {name: round(statistics.median(each[name] for each in runs), 4) for name in runs[0]}


def show(found: dict[str, float]) -> str:
    """Return one line of numbers."""
    return ", ".join(f"{name} {value:.4g}" for name, value in found.items())


def main() -> None:
    """Parse the command line and print the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts", default=",".join(MEASUREMENTS), help="names, separated by commas"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=Path, help="the src folder of another version")
    parser.add_argument(
        "--json", action="store_true", help="print the record, and write results/growth.json"
    )
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        part, folder = arguments.serve
        print(json.dumps(MEASUREMENTS[part](Path(folder))))
        return
    record = run(arguments.parts.split(","), arguments.repeats, arguments.against)
    if arguments.json:
        text = json.dumps(record, indent=1)
        (Path(__file__).parent / "results" / "growth.json").write_text(text + "\n")
        print(text)


if __name__ == "__main__":
    main()
