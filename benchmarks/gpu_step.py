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
with its reason. TF32 is off unless --tf32 turns it on, for matrix products and convolutions alike. On the CPU,
recordings or stand-ins take the place of graphs: the record says which.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_arms import ARMS, Arm, Eager, segments
from gpu_device import about, require_device, set_precision, synchronize, usable
from gpu_work import MODELS, Work, draw_sizes, random_work

SMALL, SMALL_BATCH = (3, 11, 20, 50, 44), 8
"""Clients of the comparison: of one partial batch, of several, some finished while others go on."""
MOST_DIFFERENCE = 1e-10
MOST_DIFFERENCE_FLOAT32 = 1e-2
"""Of the timed work, after one round: rounding and TF32 give far less."""
_LAUNCHES = ("LaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")


def describe(captured: list[Any]) -> list[str]:
    """Return how things were captured, without repetitions."""
    return list(dict.fromkeys(part.kind + (f": {part.reason}" if part.reason else "") for part in captured))


def furthest(work: Work, result: Tensor, expected: list[Tensor]) -> float:
    """Return the largest difference of any parameter; infinite if there is one that is no number."""
    pairs = zip(work.layout.views(result.cpu()), expected, strict=True)
    largest = float(torch.stack([(own - other).abs().max() for own, other in pairs]).max())
    return largest if math.isfinite(largest) else math.inf


def check(name: str, arm: str, arguments: argparse.Namespace) -> float:
    """Return how far an arm is from ``eager`` on the CPU, in float64 on a few small clients."""
    options: dict[str, Any] = {"dtype": torch.float64, "batch": SMALL_BATCH}
    oracle = random_work(name, SMALL, device="cpu", **options)
    expected = oracle.layout.views(Eager(oracle, 1).round().clone())
    if not furthest(oracle, oracle.start, expected) > 1e-4:
        raise RuntimeError("the comparison trains nothing")
    work = random_work(name, SMALL, device=arguments.device, channels_last=not arguments.channels_first, **options)
    return furthest(work, ARMS[arm](work, arguments.unroll).round(), expected)


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


class _Operators(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def count_launches(arm: Arm, device: str) -> dict[str, Any]:
    """Return how often a round calls upon the device: kernels, copies and graphs; on the CPU, operators of PyTorch."""
    if device != "cuda":
        with _Operators() as operators:
            arm.round()
        return {"operators": operators.count}
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        arm.round()
        torch.cuda.synchronize()
    calls = Counter({event.key: event.count for event in profile.key_averages()})
    found = {key: count for key, count in calls.items() if any(part in key for part in _LAUNCHES)}
    return {"launches": sum(found.values()), "by_kind": found}


def measure(arm: str, work: Work, arguments: argparse.Namespace, results: dict[str, Tensor]) -> dict[str, Any]:
    """Time an arm; what its first round gives goes into ``results``."""
    device = arguments.device
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    made = ARMS[arm](work, arguments.unroll)
    results[arm] = made.round().cpu()
    row: dict[str, Any] = {"first_round_seconds": time.perf_counter() - start, "capture_seconds": made.capture_seconds}
    seconds = time_rounds(made, arguments)
    median = statistics.median(seconds)
    row |= {"seconds_per_round": median, "ms_per_client_step": 1e3 * median / work.steps, "rounds": seconds}
    row |= {"replays": made.replays, "captured": describe(made.captured)}
    if device == "cuda":
        row["peak_mib_allocated"] = torch.cuda.max_memory_allocated() / 2**20
        row["peak_mib_reserved"] = torch.cuda.max_memory_reserved() / 2**20
    try:
        row |= count_launches(made, device)
    except Exception as reason:  # a profiler that does not work here must not cost the timing
        row["launches"] = f"not counted: {reason}"
    return row


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
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(record, indent=1) + "\n")
        if not arguments.quiet:
            print(f"{arm}: {record['arms'][arm]['status']}", file=sys.stderr, flush=True)
    return record


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
    names = ("arm", "ms/step", "s/round", "x peer", "capture s", "peak MiB", "launches", "replays", "difference")
    lines = [f"{names[0]:14}" + "".join(f"{name:>11}" for name in names[1:])]
    for arm, row in record["arms"].items():
        if row["status"] != "ok":
            lines.append(f"{arm:14} {row['status']}: {row['reason']}")
            continue
        launches = row.get("launches", row.get("operators"))
        cells = [f"{row['ms_per_client_step']:.4f}", f"{row['seconds_per_round']:.4f}"]
        cells += [f"{row.get('speedup_over_peer', float('nan')):.2f}", f"{row['capture_seconds']:.2f}"]
        cells += [f"{row['peak_mib_reserved']:.0f}" if "peak_mib_reserved" in row else "-"]
        cells += [str(launches) if isinstance(launches, int) else "-", str(row["replays"])]
        lines.append(f"{arm:14}" + "".join(f"{cell:>11}" for cell in [*cells, f"{row['difference_float64']:.1e}"]))
        lines += [f"{'':14} {text}" for text in row["captured"]]
    return "\n".join(lines)


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
    shown = ", ".join(f"{name} {value}" for name, value in record["precision"].items())
    print(f"{record['model']} on {record['machine']['device']}, torch {record['machine']['torch']}; {shown}")
    print(
        f"{record['clients']} clients, {record['client_steps']} steps of {record['batch']}, {record['longest']} at most"
    )
    print(table(record))


if __name__ == "__main__":
    main()
