"""A model of the seconds of a round on Ray, fitted on 1, 2 and 4 actors, and how far it is off
elsewhere.

    python benchmarks/round_cost.py [--actors 1,2,4] [--cohorts 250,1000] [--check 3:500,2:500]
    [--rounds 4] [--json]

It needs fedtailor[ray]. Clients are those of ``on_ray.py``: FedAvg, the MLP, 10 to 150 images each.
A round takes

    fixed + max(steps * compute / actors, (steps * compute * slower + clients * server) / cores)

seconds: actors compute side by side, the run sends work to them and receives sums meanwhile, and
neither can use more than the cores of the machine. With more actors than cores, each of those that
are too many makes all steps slower: ``slower`` is 1 + crowding * max(0, actors - cores). The four
constants are fitted to the medians of rounds by least squares of relative errors.
The points to check are not part of the fit. Cohorts are drawn anew in each round, so steps are
those of the round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

from on_ray import make_federation

CLIENTS = 1000


def measure(points: list[tuple[int, int]], rounds: int) -> list[dict[str, Any]]:
    """Return the median seconds and steps of rounds with these numbers of actors and clients."""
    from fedtailor.algorithms import load_algorithm
    from fedtailor.core.participation import Participation
    from fedtailor.core.schedule import Schedule
    from fedtailor.core.task import Training
    from fedtailor.simulation.engines.ray_engine import Ray
    from fedtailor.simulation.rounds import simulate

    federation = make_federation(CLIENTS)
    algorithm = load_algorithm("fedavg")(training=Training(lr=0.01, epochs=1, batch_size=10))
    found = []
    for actors in sorted({actors for actors, _ in points}):
        with Ray(actors) as engine:
            for cohort in (cohort for other, cohort in points if other == actors):
                plan = Participation(plan="fixed", count=cohort, full_last_round=False)
                schedule = Schedule(rounds=10**6, participation=plan, evaluate_every=0)
                running = iter(simulate(algorithm, federation, engine, schedule, seed=0))
                next(running)  # actors start, and record their steps
                received = engine.bytes_received
                seconds = []
                steps = []
                start = time.perf_counter()
                for report in islice(running, rounds):
                    seconds.append(time.perf_counter() - start)
                    steps.append(report.steps)
                    start = time.perf_counter()
                point = {
                    "actors": actors,
                    "clients": cohort,
                    "steps": statistics.median(steps),
                    "seconds": round(statistics.median(seconds), 3),
                    "received_mb": round((engine.bytes_received - received) / rounds / 1e6, 1),
                }
                print(point, file=sys.stderr)
                found.append(point)
    return found


def predicted(constants: Any, point: dict[str, Any], cores: int) -> float:
    """Return the seconds of a round by the model."""
    fixed, compute, server, crowding = constants
    work = point["steps"] * compute
    slower = 1 + crowding * max(0, point["actors"] - cores)
    return float(
        fixed + max(work / point["actors"], (work * slower + point["clients"] * server) / cores)
    )


def fit(points: list[dict[str, Any]], cores: int) -> list[float]:
    """Return the seconds that are fixed, of a step, and of the run for a client; and how much
    crowding slows steps.
    """
    from scipy.optimize import least_squares

    def errors(logarithms: Any) -> list[float]:
        constants = 10.0**logarithms
        return [predicted(constants, point, cores) / point["seconds"] - 1 for point in points]

    return [float(value) for value in 10.0 ** least_squares(errors, [-1.0, -4.0, -3.0, -1.0]).x]


def main() -> None:
    """Parse the command line and print the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--actors", default="1,2,4", help="numbers to fit, separated by commas")
    parser.add_argument(
        "--cohorts", default="250,1000", help="clients of a round to fit, separated by commas"
    )
    parser.add_argument(
        "--check", default="3:500,2:500,3:1000", help="ACTORS:CLIENTS that are not fitted"
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--json", action="store_true", help="print the record, and write results/round_cost.json"
    )
    arguments = parser.parse_args()
    from fedtailor.experiment.provenance import machine, versions
    from fedtailor.simulation.engines.workers import physical_cores

    fitted = [
        (int(actors), int(cohort))
        for actors in arguments.actors.split(",")
        for cohort in arguments.cohorts.split(",")
    ]
    checked = [
        (int(actors), int(cohort))
        for actors, cohort in (each.split(":") for each in arguments.check.split(","))
    ]
    record: dict[str, Any] = {"benchmark": "round_cost", "rounds": arguments.rounds}
    record |= {"machine": {**machine(), "load_before": os.getloadavg()[0]}, "versions": versions()}
    cores = physical_cores()
    points = measure([*fitted, *checked], arguments.rounds)
    constants = fit(
        [point for point in points if (point["actors"], point["clients"]) in fitted], cores
    )
    rounded = [float(f"{constant:.3g}") for constant in constants]
    record["constants"] = dict(
        zip(("fixed_s", "step_s", "client_s", "crowding"), rounded, strict=True)
    )
    for point in points:
        point["is_fitted"] = (point["actors"], point["clients"]) in fitted
        point["predicted"] = round(predicted(constants, point, cores), 3)
        point["error"] = round(point["predicted"] / point["seconds"] - 1, 3)
    record["points"] = points
    record["machine"]["load_after"] = os.getloadavg()[0]
    text = json.dumps(record, indent=1)
    if arguments.json:
        (Path(__file__).parent / "results" / "round_cost.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
