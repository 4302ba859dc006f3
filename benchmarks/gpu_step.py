"""One simulated round of FedAvg in five ways, on a GPU or the CPU: what a client's step costs, and why.

    python benchmarks/gpu_step.py [--model cifar_cnn] [--device cuda] [--rounds 5] [--tf32] [--json FILE]

30 clients, whose sizes are those of 100 clients among whom 50,000 examples are divided by Dir(0.5) (--alpha), train one
epoch of SGD on random images (speed only), with the same batches in the same order in every arm:

    peer           a torch.nn module per client, a DataLoader over pairs, batches sent one by one, torch.optim.SGD
    eager          our step, client after client: images stay on the device as bytes, gathered and normalized there
    graph          the same step, gather included, captured once and replayed; it reads its batch at a counter
    batched        all clients stacked, torch.func.vmap; the stack shrinks as clients finish
    batched_graph  the same, captured for every width

First every arm trains a few small clients in float64, and its result is compared with that of ``eager`` on the CPU: an
arm that differs by more than 1e-10 is wrong, and is not timed. Then each arm runs its rounds after warm-up rounds, with
synchronization around a round only; what its first round gives is compared with that of ``eager`` too. Drawing the
order of batches is left out in all arms; sending it is not, nor is the weighted mean. An arm that fails is recorded
with its reason. TF32 is off unless --tf32 turns it on, for matrix products and convolutions alike and in every arm; in
PyTorch it is on for convolutions unless one turns it off, so the peer is not as it comes. When all arms are timed, the
launches of a few of their steps are counted. On the CPU, recordings or stand-ins take the place of graphs: the record
says which.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_arms import ARMS, Arm, Batched, Eager, segments
from gpu_device import (
    about,
    count_calls,
    peak_memory,
    require_device,
    set_precision,
    settle_memory,
    synchronize,
    usable,
)
from gpu_work import MODELS, Work, draw_sizes, random_work

SMALL, SMALL_BATCH = (3, 11, 20, 50, 44), 8
"""Clients of the comparison: of one partial batch, of several, some finished while others go on."""
MOST_DIFFERENCE = 1e-10
MOST_DIFFERENCE_FLOAT32 = 1e-2
"""Of the timed work, after one round: rounding gives far less. The time is kept and shown in any case."""
COUNTED = 12
"""Steps of a client, at most, whose launches are counted: a profiler takes longer over a round than all arms do."""
FOOTNOTES = (
    "peak MiB: allocated in rounds, and what graphs hold in their private pools",
    "calls/step: kernels, copies and graphs of a client's step (CPU: operators of PyTorch), from a part of a round",
    "float64, float32: largest difference from eager, on small clients and in the timed work",
)


def describe(captured: list[Any]) -> list[str]:
    """Return how things were captured, without repetitions."""
    return list(dict.fromkeys(part.kind + (f": {part.reason}" if part.reason else "") for part in captured))


def furthest(work: Work, result: Tensor, expected: list[Tensor]) -> float:
    """Return the largest difference of any parameter; infinite if there is one that is no number."""
    pairs = zip(work.layout.views(result.cpu()), expected, strict=True)
    largest = float(torch.stack([(own - other).abs().max() for own, other in pairs]).max())
    return largest if math.isfinite(largest) else math.inf


small_work = functools.partial(random_work, sizes=SMALL, dtype=torch.float64, batch=SMALL_BATCH)


@functools.cache
def oracle(name: str) -> list[Tensor]:
    """Return what ``eager`` on the CPU makes of a few small clients in float64."""
    work = small_work(name, device="cpu")
    expected = work.layout.views(Eager(work, 1).round())
    if not furthest(work, work.start, expected) > 1e-4:
        raise RuntimeError("the comparison trains nothing")
    return expected


def check(name: str, arm: str, arguments: argparse.Namespace) -> float:
    """Return how far an arm is from the oracle."""
    work = small_work(name, device=arguments.device, channels_last=not arguments.channels_first)
    return furthest(work, ARMS[arm](work, arguments.unroll).round(), oracle(name))


def time_rounds(arm: Arm, arguments: argparse.Namespace) -> list[float]:
    """Return the seconds of every round after the warm-up."""
    seconds = []
    for number in range(-arguments.warmup, arguments.rounds):
        synchronize(arguments.device)
        start = time.perf_counter()
        arm.round()
        synchronize(arguments.device)
        if number >= 0:
            seconds.append(time.perf_counter() - start)
    return seconds


def count_launches(arm: str, work: Work, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return how often a client's step calls upon the device, from a part of a round; on the CPU, on PyTorch."""
    stacked = issubclass(ARMS[arm], Batched)
    clients = sorted(range(len(work.plans)), key=lambda client: -len(work.plans[client]))[: None if stacked else 2]
    plans = [work.plans[client][:COUNTED] for client in clients]
    part = dataclasses.replace(work, rows=[work.rows[client] for client in clients], plans=plans)
    made = ARMS[arm](part, arguments.unroll)
    made.round()
    calls = count_calls(made.round, arguments.device)
    counted: float = part.steps
    if stacked:  # a stacked step is as many client steps as on average over the round, whose stack shrinks
        counted = len(plans[0]) * work.steps / max(map(len, work.plans))
    return {
        "launches_per_client_step": sum(calls.values()) / counted,
        "launches_counted": {"clients": len(clients), "steps_of_each_at_most": len(plans[0]), **calls},
    }


def measure(arm: str, work: Work, arguments: argparse.Namespace, results: dict[str, Tensor]) -> dict[str, Any]:
    """Time an arm; what its first round gives goes into ``results``."""
    start = time.perf_counter()
    made = ARMS[arm](work, arguments.unroll)
    results[arm] = made.round().cpu()
    row: dict[str, Any] = {"first_round_seconds": time.perf_counter() - start, "capture_seconds": made.capture_seconds}
    idle = settle_memory(arguments.device)
    seconds = time_rounds(made, arguments)
    median = statistics.median(seconds)
    row |= {"seconds_per_round": median, "ms_per_client_step": 1e3 * median / work.steps, "rounds": seconds}
    row |= {"replays": made.replays, "captured": describe(made.captured)}
    return row | peak_memory(arguments.device, idle if made.captured else 0)


def run_arm(arm: str, work: Work, arguments: argparse.Namespace, results: dict[str, Tensor]) -> dict[str, Any]:
    """Compare and time one arm; whatever it raises becomes its record."""
    row: dict[str, Any] = {"status": "failed"}
    try:
        row["difference_float64"] = difference = check(arguments.model, arm, arguments)
        if not difference <= MOST_DIFFERENCE:
            return {**row, "status": "wrong", "reason": f"differs by {difference:.1e} in float64"}
        return {**row, "status": "ok", **measure(arm, work, arguments, results)}
    except Exception as reason:
        return {**row, "status": "failed", "reason": f"{type(reason).__name__}: {str(reason)[:500]}"}
    finally:
        gc.collect()


def elsewhere(arms: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the arms that are left in a new process, after one that the device did not survive."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.json"
        given = [part for part in sys.argv[1:] if part != "--quiet"]
        subprocess.run([sys.executable, __file__, *given, "--arms", *arms, "--json", str(file), "--quiet"], check=False)
        return json.loads(file.read_text())["arms"] if file.exists() else {}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the arms one after the other; the record is written after each."""
    precision, sizes = set_precision(arguments), draw_sizes(arguments.alpha, arguments.clients, 100, arguments.examples)
    work = random_work(
        arguments.model,
        sizes,
        device=arguments.device,
        batch=arguments.batch,
        epochs=arguments.epochs,
        examples=arguments.examples,
        channels_last=not arguments.channels_first,
    )
    lengths = sorted((len(plan) for plan in work.plans), reverse=True)
    lanes = sum(width * count for width, count in segments(lengths))
    record: dict[str, Any] = {"benchmark": "gpu_step", "model": arguments.model, "machine": about(arguments.device)}
    record |= {"precision": precision, "channels_last": work.layout.channels_last, "unroll": arguments.unroll}
    record |= {"alpha": arguments.alpha, "clients": len(sizes), "examples": sum(sizes), "epochs": arguments.epochs}
    record |= {"batch": work.phase.training.batch_size, "client_steps": work.steps, "longest": lengths[0]}
    record |= {"wasted_lanes": 1 - work.steps / lanes, "arms": {}}
    results: dict[str, Tensor] = {}
    left = list(arguments.arms)
    while left:
        arm = left.pop(0)
        record["arms"][arm] = run_arm(arm, work, arguments, results)
        if left and not usable(arguments.device):
            record["arms"] |= elsewhere(left, arguments)
            left = []
        compare(record["arms"], work, results)
        save(record, arguments.json)
        if not arguments.quiet:
            print(f"{arm}: {record['arms'][arm]['status']}", file=sys.stderr, flush=True)
    for arm, row in record["arms"].items():
        if "seconds_per_round" in row and "launches_per_client_step" not in row:
            try:
                row |= count_launches(arm, work, arguments)
            except Exception as reason:  # a profiler that does not work here
                row["launches_counted"] = f"not counted: {str(reason)[:200]}"
            save(record, arguments.json)
    return record


def save(record: dict[str, Any], file: str | None) -> None:
    """Write a record, if a file for it is given."""
    if file:
        Path(file).write_text(json.dumps(record, indent=1) + "\n")


def compare(arms: dict[str, Any], work: Work, results: dict[str, Tensor]) -> None:
    """Add how much faster than the peer each arm is, and how far from ``eager`` in float32."""
    peer = arms.get("peer", {}).get("seconds_per_round")
    for arm, row in arms.items():
        if peer and "seconds_per_round" in row:
            row["speedup_over_peer"] = peer / row["seconds_per_round"]
        if "eager" in results and arm in results:
            difference = furthest(work, results[arm], work.layout.views(results["eager"]))
            row["difference_float32"] = difference
            if not difference <= MOST_DIFFERENCE_FLOAT32:
                row |= {"status": "wrong", "reason": f"differs by {difference:.1e} from eager in the timed work"}


def table(record: dict[str, Any]) -> str:
    """Return the record as a table for people."""
    columns = {  # title -> entry of a row, digits
        "ms/step": ("ms_per_client_step", 4),
        "s/round": ("seconds_per_round", 4),
        "x peer": ("speedup_over_peer", 2),
        "capture s": ("capture_seconds", 2),
        "peak MiB": ("peak_mib", 0),
        "calls/step": ("launches_per_client_step", 2),
        "replays": ("replays", 0),
    }
    lines = [f"{'arm':14}" + "".join(f"{title:>11}" for title in columns) + f"{'float64':>11}{'float32':>11}  status"]
    for arm, row in record["arms"].items():
        cells = [f"{row[entry]:.{digits}f}" if entry in row else "-" for entry, digits in columns.values()]
        differences = (row.get(f"difference_{dtype}", math.nan) for dtype in ("float64", "float32"))
        cells += [f"{difference:.1e}" for difference in differences]
        status = row["status"] + (f": {row['reason']}" if "reason" in row else "")
        lines.append(f"{arm:14}" + "".join(f"{cell:>11}" for cell in cells) + f"  {status}")
        lines += [f"{'':14} {text}" for text in row.get("captured", [])]
    return "\n".join([*lines, *FOOTNOTES])


def options() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="cifar_cnn")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of every arm")
    parser.add_argument("--warmup", type=int, default=3, help="rounds before them")
    parser.add_argument("--alpha", type=float, default=0.5, help="of the Dirichlet distribution of the sizes")
    parser.add_argument("--clients", type=int, default=30, help="of 100")
    parser.add_argument("--examples", type=int, default=50_000, help="of all 100 clients")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=0, help="0: that of the model's paper")
    parser.add_argument("--unroll", type=int, default=4, help="steps of one graph")
    parser.add_argument("--tf32", action="store_true", help="allow TF32 in matrix products and convolutions")
    parser.add_argument("--autotune", action="store_true", help="cudnn.benchmark, in all arms")
    parser.add_argument("--deterministic", action="store_true", help="cudnn.deterministic, in all arms")
    parser.add_argument("--channels-first", action="store_true", help="our arms; default: channels last")
    parser.add_argument("--json", metavar="FILE", help="write the record, after every arm")
    parser.add_argument("--quiet", action="store_true", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Parse the command line, run, and print the table."""
    parser = options()
    arguments = parser.parse_args()
    require_device(parser, arguments.device)
    record = run(arguments)
    if arguments.quiet:
        return
    shown = ", ".join(f"{name} {value}" for name, value in record["precision"].items() if name != "tf32_note")
    print(f"{record['model']} on {record['machine']['device']}, torch {record['machine']['torch']}; {shown}")
    print(
        f"{record['clients']} clients, {record['client_steps']} steps of {record['batch']}, {record['longest']} at most"
    )
    print(f"TF32: {record['precision']['tf32_note']}")
    print(table(record))


if __name__ == "__main__":
    main()
