"""The largest memory of the server's process with cohorts of 50 and of 1,000 out of 100,000
clients.

    python benchmarks/cohort.py [--engine processes] [--cohorts 50,1000] [--hidden 3300] [--json]

The model is a perceptron of 10 MB, and every client has two random 8-bit images of 28 x 28 pixels,
on which it trains for one step. Every number comes from a separate process: the largest resident
set of the process that runs the rounds and aggregates, without the processes of its clients and
without memory that it shares with others. What the object store of Ray took at most has a number of
its own, from the use of /dev/shm. 1,000 clients train in all, in 20 rounds or in one, because freed
memory that is scattered adds to it with every client. FedAvg keeps no state at clients, so that
uploads are what there is to hold. The digest is that of the server's state, for a comparison of two
versions of the code or of two engines.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

CLIENTS = 100_000
TRAINED = 1000
EACH = 2
SIDE = 28
CLASSES = 10


def make_federation(hidden: int) -> Any:
    """Return a federation of all clients; they share the memory of few images."""
    import torch

    from fedtailor.core.federation import Federation, Split, Splits
    from fedtailor.core.task import Task
    from fedtailor.models import build_model

    generator = torch.Generator().manual_seed(0)
    rows = 1000
    x = torch.randint(256, (rows, 1, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    y = torch.randint(CLASSES, (rows,), generator=generator)
    parts = torch.arange(rows).split(EACH)
    nothing = torch.arange(0)
    splits = Splits(
        Split(parts[client % len(parts)], nothing, nothing) for client in range(CLIENTS)
    )
    shape = (1, SIDE, SIDE)
    scale = torch.tensor([[255.0], [0.5], [0.5]])
    task = Task(build_model("mlp", shape, CLASSES, {"hidden": hidden}), CLASSES, shape)
    return Federation(x, y, splits, task, scale=scale)


class Peak:
    """The largest memory of this process and of /dev/shm while the context is open, looked at every
    10 ms.
    """

    def __init__(self) -> None:
        self.own_mb = 0.0
        self.shared_mb = 0.0
        self._shared_before = shared_mb()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            self.own_mb = max(self.own_mb, own_mb())
            self.shared_mb = max(self.shared_mb, shared_mb() - self._shared_before)


def own_mb() -> float:
    """Return the megabytes of this process that it does not share."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return (int(status["RssAnon"].split()[0]) + int(status["RssFile"].split()[0])) / 1024


def shared_mb() -> float:
    """Return the megabytes in /dev/shm."""
    found = os.statvfs("/dev/shm")
    return (found.f_blocks - found.f_bfree) * found.f_frsize / 2**20


def measure(engine_name: str, cohort: int, hidden: int) -> dict[str, Any]:
    """Run the rounds in this process."""
    import torch

    from fedtailor.algorithms import load_algorithm
    from fedtailor.core import tree
    from fedtailor.core.participation import Participation
    from fedtailor.core.schedule import Schedule
    from fedtailor.core.task import Training
    from fedtailor.simulation.engines.build import build_engine
    from fedtailor.simulation.engines.options import EngineOptions
    from fedtailor.simulation.rounds import simulate

    rounds = max(1, TRAINED // cohort)
    federation = make_federation(hidden)
    engine = build_engine(EngineOptions(name=engine_name))
    plan = Participation(plan="fixed", count=cohort, full_last_round=False)
    schedule = Schedule(rounds=10**6, participation=plan, evaluate_every=0)
    training = Training(lr=0.01, epochs=1, batch_size=EACH)
    before = own_mb()
    running = simulate(
        load_algorithm("fedavg")(training=training), federation, engine, schedule, seed=0
    )
    start = time.perf_counter()
    with Peak() as peak:
        report = list(islice(running, rounds))[-1]
    seconds = time.perf_counter() - start
    engine.close()
    digest = hashlib.sha256()
    for leaf in tree.leaves(report.state.server):
        digest.update(leaf.contiguous().view(torch.uint8).numpy().tobytes())
    return {
        "before_mb": round(before),
        "peak_mb": round(peak.own_mb),
        "object_store_mb": round(peak.shared_mb),
        "rounds": rounds,
        "seconds": round(seconds, 1),
        "aggregate_s": round(report.seconds["aggregate"], 3),
        "server": digest.hexdigest()[:16],
    }


def run(engine: str, cohorts: list[int], hidden: int) -> dict[str, Any]:
    """Measure every cohort in a separate process."""
    from fedtailor.experiment.provenance import machine, versions

    record: dict[str, Any] = {"benchmark": "cohort", "engine": engine, "clients": CLIENTS}
    record |= {
        "machine": {**machine(), "load_before": os.getloadavg()[0]},
        "versions": versions(),
        "results": [],
    }
    for cohort in cohorts:
        command = [sys.executable, __file__, "--serve", engine, str(cohort), str(hidden)]
        found = json.loads(
            subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        )
        record["results"].append({"cohort": cohort, **found})
        print(f"cohort {cohort:5}: {found}", file=sys.stderr)
    record["machine"]["load_after"] = os.getloadavg()[0]
    return record


def main() -> None:
    """Parse the command line and print the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default="processes")
    parser.add_argument("--cohorts", default="50,1000", help="numbers, separated by commas")
    parser.add_argument(
        "--hidden", type=int, default=3300, help="hidden units; 3,300 are 10 MB of parameters"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the record, and write results/cohort-ENGINE.json"
    )
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        engine, *numbers = arguments.serve
        print(json.dumps(measure(engine, *map(int, numbers))))
        return
    record = run(
        arguments.engine, [int(each) for each in arguments.cohorts.split(",")], arguments.hidden
    )
    if arguments.json:
        text = json.dumps(record, indent=1)
        (Path(__file__).parent / "results" / f"cohort-{arguments.engine}.json").write_text(
            text + "\n"
        )
        print(text)


if __name__ == "__main__":
    main()
