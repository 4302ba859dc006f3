"""Rounds of 1,000 clients on two Ray actors and on two processes, in turn in one run.

    python benchmarks/on_ray.py [--algorithms fedavg,scaffold] [--clients 1000] [--rounds 7]
    [--actors 2] [--json]

It needs fedtailor[ray]. Clients have 10 to 150 random 8-bit images of 28 x 28 pixels and train the
MLP for one epoch in batches of 10; all of them take part in every round, without evaluation. The
ratio is the median over rounds of the seconds of ``processes`` by those of ``ray``, where the two
take turns; above 1, ray is faster. Memory is the resident set of an actor, without what it shares
with others, and of the cluster's own processes. Bytes are those of messages between the run and its
actors.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

SIDE = 28
CLASSES = 10


def make_federation(clients: int) -> Any:
    """Return a federation of clients of different sizes."""
    import torch

    from fedtailor.core.federation import Federation, Split, Splits
    from fedtailor.core.task import Task
    from fedtailor.models import build_model

    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(10, 151, (clients,), generator=generator).tolist()
    rows = sum(sizes)
    x = torch.randint(256, (rows, 1, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    y = torch.randint(CLASSES, (rows,), generator=generator)
    nothing = torch.arange(0)
    splits = Splits(Split(part, nothing, nothing) for part in torch.arange(rows).split(sizes))
    shape = (1, SIDE, SIDE)
    scale = torch.tensor([[255.0], [0.5], [0.5]])
    return Federation(
        x, y, splits, Task(build_model("mlp", shape, CLASSES), CLASSES, shape), scale=scale
    )


def measure(name: str, clients: int, rounds: int, actors: int) -> dict[str, Any]:
    """Run both engines in turn, round by round."""
    from fedtailor.algorithms import load_algorithm
    from fedtailor.core.schedule import Schedule
    from fedtailor.core.task import Training
    from fedtailor.simulation.engines.processes import Processes
    from fedtailor.simulation.engines.ray_engine import Ray
    from fedtailor.simulation.rounds import simulate
    from fedtailor.testing.runs import assert_same_bits

    federation = make_federation(clients)
    algorithm = load_algorithm(name)(training=Training(lr=0.01, epochs=1, batch_size=10))
    schedule = Schedule(rounds=10**6, evaluate_every=0)
    found: dict[str, Any] = {"algorithm": name, "clients": clients, "actors": actors}
    with Processes(actors) as processes, Ray(actors) as ray:
        engines = {"processes": processes, "ray": ray}
        running = {
            engine: iter(simulate(algorithm, federation, value, schedule, seed=0))
            for engine, value in engines.items()
        }
        seconds: dict[str, list[float]] = {engine: [] for engine in engines}
        for number in range(rounds + 1):
            states = []
            for engine, generator in running.items():
                sent = ray.bytes_sent
                received = ray.bytes_received
                start = time.perf_counter()
                states.append(next(generator).state.server)
                passed = time.perf_counter() - start
                if number == 0:
                    found[f"first_{engine}_s"] = round(passed, 2)
                    continue
                seconds[engine].append(passed)
                if engine == "ray":
                    found["sent_mb"] = round((ray.bytes_sent - sent) / 1e6, 2)
                    found["received_mb"] = round((ray.bytes_received - received) / 1e6, 2)
            assert_same_bits(*states)
        found |= {
            f"{engine}_s": round(statistics.median(each), 3) for engine, each in seconds.items()
        }
        ratios = [
            one / other for one, other in zip(seconds["processes"], seconds["ray"], strict=True)
        ]
        found["ratio"] = round(statistics.median(ratios), 3)
        found |= memory()
    return found


def memory() -> dict[str, float]:
    """Return the megabytes of an actor, and of the processes of Ray that are no actors."""
    actors = []
    others = 0.0
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            status = dict(
                line.split(":", 1) for line in (process / "status").read_text().splitlines()
            )
        except (OSError, ValueError):
            continue
        own = int(status["RssAnon"].split()[0]) / 1024 if "RssAnon" in status else 0.0
        if command.startswith("ray::ClientActor"):
            actors.append(own)
        elif "ray::" in command or "/ray/core/src/ray/" in command or "/ray/_private/" in command:
            others += own
    return {
        "actor_mb": round(statistics.fmean(actors), 1) if actors else 0.0,
        "cluster_mb": round(others, 1),
    }


def main() -> None:
    """Parse the command line and print the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--algorithms", default="fedavg,scaffold", help="names, separated by commas"
    )
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument(
        "--json", action="store_true", help="print the record, and write results/on_ray.json"
    )
    arguments = parser.parse_args()
    from fedtailor.experiment.provenance import machine, versions

    record: dict[str, Any] = {"benchmark": "on_ray", "rounds": arguments.rounds, "results": []}
    record |= {"machine": {**machine(), "load_before": os.getloadavg()[0]}, "versions": versions()}
    for name in arguments.algorithms.split(","):
        record["results"].append(
            measure(name, arguments.clients, arguments.rounds, arguments.actors)
        )
        print(record["results"][-1], file=sys.stderr)
    record["machine"]["load_after"] = os.getloadavg()[0]
    if arguments.json:
        text = json.dumps(record, indent=1)
        (Path(__file__).parent / "results" / "on_ray.json").write_text(text + "\n")
        print(text)


if __name__ == "__main__":
    main()
