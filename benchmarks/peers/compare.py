"""Our engines, pfl-research and Flower on the same work, in turn in one run.

    sh benchmarks/peers/setup.sh
    python -m benchmarks.peers.compare [--model cifar_cnn|mlp] [--blocks 5] [--arms NAMES] [--json]
    [--check]

100 clients hold random images divided by Dir(0.5), and 30 of them train one epoch per round: in
batches of 50 with the CIFAR network of the pFedFDA paper, or in batches of 10 with a perceptron.
Each arm is a process, with its children, that trains one round when asked. Arms take turns within a
block; the first block is a warm-up. The time of a round runs from the request to the new global
weights. It includes batches, messages and aggregation, but not set-up and evaluation. Ratios
compare rounds of the same block. If a peer is not installed, the record says so.

The arms are ``ours`` (threads) and ``ours_processes``; ``pfl``, with one process of one thread per
physical core, and ``pfl_threads``, one process with PyTorch's default threads; and ``flower``, with
one actor per physical core. Cohorts, first weights and numbers of steps are the same, and every
block asserts the last; only our arms and Flower shuffle. ``--check`` compares what the arms learn
where the order of examples cannot matter: in two rounds of three epochs, each with one batch of all
examples of a client. All arms must end within 1e-5 of the first one in every weight. The processes
of a waiting arm are idle, except those of Ray, which poll; the record has their share of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.records import save_record

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ARMS = {
    "ours": ("ours_arm", "fedtailor", {"engine": "workers"}),
    "ours_processes": ("ours_arm", "fedtailor", {"engine": "processes"}),
    "pfl": ("pfl_arm", "pfl", {}),
    "pfl_threads": ("pfl_arm", "pfl", {"workers": 1}),
    "flower": ("flower_arm", "flwr", {}),
}
"""Arm -> its module, the package it needs, and its part of the plan."""
DEFAULT = "ours,ours_processes,pfl,flower"
BATCH = {"cifar_cnn": 50, "mlp": 10}
TOLERANCE = 1e-5
CHECK_ROUNDS = 2
CHECK_EPOCHS = 3
PROBE = """
import importlib.metadata as found, json
from fedtailor.experiment.provenance import machine, versions
def version(name):
    try:
        return found.version(name)
    except found.PackageNotFoundError:
        return "not installed"
peers = {name: version(name) for name in ("pfl", "flwr", "ray")}
print(json.dumps({"machine": machine(), "versions": versions() | peers}))
"""


def interpreter() -> str:
    """Return the Python of all arms.

    That of the environment of setup.sh, or this one, which may lack the peers.
    """
    made = HERE / ".venv" / "bin" / "python"
    return str(made) if made.exists() else sys.executable


def environment(temporary: str) -> dict[str, str]:
    """Return the environment of the arms.

    PyTorch's defaults, no telemetry, nothing beyond the loopback.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    }
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    # otherwise Ray replaces 127.0.0.1 by the address of a network card
    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    return {**kept, **quiet, **loopback, "PEERS_TEMPORARY": temporary, "PYTHONUNBUFFERED": "1"}


class Arm:
    """A process, with its children, that trains a round when asked."""

    def __init__(self, name: str, plan: dict[str, Any], temporary: str) -> None:
        module, _, own = ARMS[name]
        self.name = name
        self.log = Path(temporary) / f"{name}.log"
        command = [interpreter(), "-m", f"benchmarks.peers.{module}", json.dumps(plan | own)]
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=environment(temporary),
            )

    def round(self) -> dict[str, Any]:
        """Train one round; return its seconds and its number of steps."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{self.name} ended. Its last lines:\n{''.join(self.log.read_text()[-3000:])}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def family(self) -> list[int]:
        """Return the ids of the process and of all its descendants."""
        parents = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parents[int(folder.name)] = int(
                    (folder / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:
                continue  # the process has ended
        found = [self.process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def cpu_seconds(self) -> float:
        """Return the processor time that the family has used so far."""
        total = 0
        for pid in self.family():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += sum(
                map(int, fields[11:15])
            )  # its own time, and that of children that have ended
        return total / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Let the arm end; kill its family if it does not."""
        family = self.family()
        try:
            self.process.communicate(timeout=60)
        except (subprocess.TimeoutExpired, BrokenPipeError, ValueError):
            for pid in family:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.wait()


def turns(
    arms: list[Arm], blocks: int
) -> tuple[dict[str, list[float]], dict[str, float], list[int]]:
    """Alternate the arms.

    Return milliseconds per step by arm and block, CPU share of waiting arms, and steps.
    """
    times: dict[str, list[float]] = {arm.name: [] for arm in arms}
    used = {arm.name: 0.0 for arm in arms}
    waited = dict(used)
    steps: list[int] = []
    for block in range(-1, blocks):  # the first is a warm-up
        answers = {}
        for arm in arms:
            before = {other.name: other.cpu_seconds() for other in arms}
            start = time.perf_counter()
            answers[arm.name] = arm.round()
            for other in arms:
                if other is not arm and block >= 0:
                    used[other.name] += other.cpu_seconds() - before[other.name]
                    waited[other.name] += time.perf_counter() - start
        numbers = {name: answer["steps"] for name, answer in answers.items()}
        if len(set(numbers.values())) > 1:
            raise SystemExit(f"the arms did different numbers of steps: {numbers}")
        if block >= 0:
            steps.append(next(iter(numbers.values())))
            for name, answer in answers.items():
                times[name].append(1e3 * answer["seconds"] / answer["steps"])
    return times, {name: used[name] / waited[name] if waited[name] else 0.0 for name in used}, steps


def check(names: list[str], plan: dict[str, Any], temporary: str) -> dict[str, float]:
    """Return, for every arm, the largest difference of a weight from that of the first arm."""
    import numpy as np

    plan = plan | {"batch": 10**6, "epochs": CHECK_EPOCHS, "rounds": CHECK_ROUNDS}
    learned = {}
    for name in names:
        path = Path(temporary) / f"{name}.npz"
        arm = Arm(name, plan | {"weights": str(path)}, temporary)
        try:
            for _ in range(CHECK_ROUNDS):
                arm.round()
        finally:
            arm.close()
        with np.load(path) as saved:
            learned[name] = [saved[key] for key in saved.files]
    first = learned[names[0]]
    return {
        name: max(
            float(np.abs(mine - other).max()) for mine, other in zip(first, weights, strict=True)
        )
        for name, weights in learned.items()
    }


def run(names: list[str], plan: dict[str, Any], blocks: int, temporary: str) -> dict[str, Any]:
    """Alternate the arms and summarize; the others are compared with the first arm."""
    load = os.getloadavg()[0]
    arms = []
    try:
        for name in names:
            arms.append(Arm(name, plan, temporary))
        times, idle, steps = turns(arms, blocks)
    finally:
        for arm in arms:
            arm.close()
    found = {}
    for name, values in times.items():
        ratios = [theirs / ours for theirs, ours in zip(values, times[names[0]], strict=True)]
        found[name] = {
            "ms_per_step": round(statistics.median(values), 4),
            "ratio": round(statistics.median(ratios), 3),
            "smallest_ratio": round(min(ratios), 3),
            "share_of_a_core_while_waiting": round(idle[name], 3),
        }
    loads = {"load_before": load, "load_after": os.getloadavg()[0]}
    return {"steps_per_round": steps, "compared_with": names[0], "arms": found, **loads}


def available(wanted: list[str], versions: dict[str, str]) -> list[str]:
    """Return the arms that can run."""
    return [name for name in wanted if versions.get(ARMS[name][1]) != "not installed"]


def show(record: dict[str, Any]) -> None:
    """Print a record."""
    print(f"{record['model']}, {record['blocks']} paired rounds of {record['active']} clients")
    for name, found in record["arms"].items():
        print(
            f"{name:15} {found['ms_per_step']:8.3f} ms per client-step, "
            f"x{found['ratio']:.2f} of the first arm"
        )
    for name in record["not_installed"]:
        print(f"{name:15} not installed")
    for name, difference in record.get("largest_difference", {}).items():
        print(f"{name:15} differs by at most {difference:.1e} in any weight")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=sorted(BATCH), default="cifar_cnn")
    parser.add_argument("--blocks", type=int, default=5, help="paired rounds after the warm-up")
    parser.add_argument(
        "--arms", default=DEFAULT, help=f"names, separated by commas, of: {', '.join(ARMS)}"
    )
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--active", type=int, default=30, help="clients per round")
    parser.add_argument("--check", action="store_true", help="also compare what the arms learn")
    parser.add_argument("--json", action="store_true", help="write results/peers.jsonl too")
    arguments = parser.parse_args()
    arguments.names = arguments.arms.split(",")
    if unknown := sorted(set(arguments.names) - set(ARMS)):
        parser.error(f"--arms: unknown: {', '.join(unknown)}; known: {', '.join(ARMS)}")
    if arguments.blocks < 1 or not 1 <= arguments.active <= arguments.clients:
        parser.error("--blocks must be at least 1, and --active between 1 and --clients")
    return arguments


def main() -> None:
    """Parse the command line, measure, print and record."""
    arguments = parse()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit("terminated")
    )  # so that arms end and files are removed
    answer = subprocess.run(
        [interpreter(), "-c", PROBE], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    about = json.loads(answer.stdout)
    names = available(arguments.names, about["versions"])
    counts = {"clients": arguments.clients, "active": arguments.active}
    plan = {"model": arguments.model, **counts, "batch": BATCH[arguments.model], "epochs": 1}
    plan |= {"rounds": arguments.blocks + 1, "workers": about["machine"]["physical_cores"]}
    record = {"benchmark": "peers", "model": arguments.model, "blocks": arguments.blocks, **counts}
    record["not_installed"] = [name for name in arguments.names if name not in names]
    with tempfile.TemporaryDirectory(prefix="peers") as temporary:
        if arguments.check:
            record["largest_difference"] = check(names, plan, temporary)
        record |= run(names, plan, arguments.blocks, temporary) | about
    show(record)
    if worst := {n: d for n, d in record.get("largest_difference", {}).items() if d > TOLERANCE}:
        raise SystemExit(f"these arms did not learn the same: {', '.join(worst)}")
    if arguments.json:
        save_record("peers", f"peers-{arguments.model}", record)


if __name__ == "__main__":
    main()
