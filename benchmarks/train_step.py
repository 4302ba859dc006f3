"""Training steps per second: our engines and the loop of other tools, in turn in one run.

    python benchmarks/train_step.py [--model cifar_cnn] [--blocks 7] [--json]
    python benchmarks/train_step.py --parts [--model cifar_cnn] [--json]

Our engines are those that ``auto`` chooses for long runs: ``processes`` for the perceptron, whose
steps take less than a millisecond, and ``workers`` (threads) for the convolutional networks.
Processes start before the first block that counts. The loop, called the peer, does what common
tools do: a torch.nn module per client, a DataLoader over (x, y) tuples with shuffling,
torch.optim.SGD, one client after another. It runs with PyTorch's default number of threads and with
one thread. ``peer_tuned`` shows what remains of the difference: it has default threads, our
allocator setting, and convolutions channels last. No compared tool does that; its batches still
arrive channels first. Each arm runs in a separate process. All arms train the same clients for the
same number of steps on random images. What a run does once (data, clients, the first model) is done
before the clock starts. The arms take turns, and ratios are within a block.

``ours_1`` is the same engine on one core. ``ours_plain`` is the engine ``reference`` with the same
allocator setting; it records no steps, so the difference between the two is what recordings save.

FLOPs count the forward pass, the backward pass for weights, and the backward pass for inputs except
those of the first layer. Every block measures two peaks with one thread per core: float32 matrix
products (sgemm) and large convolutions; the best value counts.

``--parts`` says where the time of a step goes on one core of the engine ``reference``, by kind of
operation. All of it is processor time, which other programs hardly change: for each operation, the
median over the steps. What is left of the whole is Python. The convolution library reports its
memory reorders, which are a part of the convolutions' time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

CLIENTS = 4
EXAMPLES = 1000
LR = 0.01
MOMENTUM = 0.5
DECAY = 5e-4
SETTINGS: dict[str, dict[str, Any]] = {
    "cifar_cnn": {"shape": (3, 32, 32), "classes": 10, "batch": 50, "mflop": 19.26, "epochs": 1},
    "emnist_cnn": {"shape": (1, 28, 28), "classes": 62, "batch": 16, "mflop": 9.26, "epochs": 2},
    "mlp": {"shape": (1, 28, 28), "classes": 10, "batch": 10, "mflop": 0.32, "epochs": 6},
}
ENGINES = {"cifar_cnn": "workers", "emnist_cnn": "workers", "mlp": "processes"}
"""Model -> the engine of our arms."""
KINDS = {
    "max_pool2d": "pooling",
    "leaky_relu": "activations",
    "relu": "activations",
    "threshold_backward": "activations",
    "mm": "linear layers",
    "addmm": "linear layers",
    "_fused_sgd_": "optimizer",
    "index_select": "gathering batches",
}
"""How the name of an operation begins -> its kind; convolutions are told apart by layer."""
PASSES = 15
_W = (128, 128, 5, 5)
ARMS = ("ours", "ours_1", "ours_plain", "peer", "peer_1", "peer_tuned")


def torch_module(name: str, classes: int) -> Any:
    """Build the network as its paper writes it."""
    from torch import nn

    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, classes))
    stages = {
        "cifar_cnn": ([(3, 16, 5, 0), (16, 32, 5, 1), (32, 64, 3, 1)], 576),
        "emnist_cnn": ([(1, 16, 5, 0), (16, 32, 5, 1)], 800),
    }
    layers: list[Any] = []
    for channels, out, kernel, padding in stages[name][0]:
        layers += [
            nn.Conv2d(channels, out, kernel, padding=padding),
            nn.LeakyReLU(),
            nn.MaxPool2d(2),
        ]
    layers += [
        nn.Flatten(),
        nn.Linear(stages[name][1], 128),
        nn.LeakyReLU(),
        nn.Linear(128, classes),
    ]
    return nn.Sequential(*layers)


def examples(setting: dict[str, Any]) -> tuple[Any, Any]:
    """Return random images and labels of all clients."""
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * EXAMPLES, *setting["shape"], generator=generator)
    return x, torch.randint(setting["classes"], (len(x),), generator=generator)


def as_lists(x: Any, y: Any, clients: int, examples: int) -> list[list[Any]]:
    """Return the examples of every client as a list of pairs, as peers keep them in memory."""
    return [
        [(x[row], y[row]) for row in range(start, start + examples)]
        for start in range(0, clients * examples, examples)
    ]


def tune(module: Any) -> None:
    """Give the peer our allocator setting, and convolutions channels last."""
    import torch

    from fedtailor.simulation.engines.workers import keep_pages

    keep_pages()
    module.to(memory_format=torch.channels_last)


def peer_block(common: Any, setting: dict[str, Any], clients: list[list[Any]]) -> int:
    """Train one client after another as peers do; return the number of steps. ``clients`` are lists
    of examples.
    """
    import copy

    import torch
    from torch.utils.data import DataLoader

    steps = 0
    for examples_of_one in clients:
        module = copy.deepcopy(common).train()
        optimizer = torch.optim.SGD(
            module.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY
        )
        loader = DataLoader(examples_of_one, setting["batch"], shuffle=True, drop_last=True)
        for _ in range(setting["epochs"]):
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(module(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps += 1
    return steps


def our_block(
    name: str, setting: dict[str, Any], data: Any, engine: Any, clients: int = CLIENTS
) -> Callable[[], int]:
    """Return a function that trains the same clients with FedAvg on an engine and returns the
    number of steps.
    """
    import torch

    from fedtailor.algorithms.fedavg import FedAvg
    from fedtailor.core import rng
    from fedtailor.core.engine import Job
    from fedtailor.core.federation import Federation, Split
    from fedtailor.core.task import Task, Training
    from fedtailor.models import build_model
    from fedtailor.simulation.programs import (
        SharedInputs,
        TrainRequest,
        client_inputs,
        client_program,
    )

    training = Training(
        lr=LR,
        momentum=MOMENTUM,
        weight_decay=DECAY,
        epochs=setting["epochs"],
        batch_size=setting["batch"],
    )
    algorithm = FedAvg(training=training)
    task = Task(
        build_model(name, setting["shape"], setting["classes"], {}),
        setting["classes"],
        setting["shape"],
    )
    none = torch.zeros(0, dtype=torch.int64)
    rows = [torch.arange(client * EXAMPLES, (client + 1) * EXAMPLES) for client in range(clients)]
    federation = Federation(data[0], data[1], [Split(row, none, none) for row in rows], task)
    server = algorithm.init_server(task, rng.new_key(0))
    common = SharedInputs(*data, federation.scale, torch.tensor(0), torch.tensor(1), server)
    program = client_program(algorithm, TrainRequest())

    def block() -> int:
        jobs = []
        for client, split in enumerate(federation.splits):
            inputs = client_inputs(client, split, federation.info(client), (), ())
            jobs.append(Job(client, task, inputs, EXAMPLES))
        return int(sum(output[2]["steps"] for output in engine.map(program, common, jobs)))

    return block


def serve(arm: str, name: str) -> None:
    """Run one block for every line of standard input; answer with milliseconds per client step."""
    import torch

    from fedtailor.simulation.engines.build import build_engine
    from fedtailor.simulation.engines.options import EngineOptions
    from fedtailor.simulation.engines.workers import keep_pages

    setting = SETTINGS[name]
    x, y = examples(setting)
    if arm.startswith("ours"):
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        kind = "reference" if arm == "ours_plain" else ENGINES[name]
        engine = build_engine(EngineOptions(name=kind, workers=1 if arm == "ours_1" else 0))
        keep_pages()  # as engines with threads or processes do
        block = our_block(name, setting, (x, y), engine)
    else:
        torch.set_num_threads(1 if arm == "peer_1" else torch.get_num_threads())
        common = torch_module(name, setting["classes"])
        if arm == "peer_tuned":
            tune(common)
        block = partial(peer_block, common, setting, as_lists(x, y, CLIENTS, EXAMPLES))
    for _ in sys.stdin:
        start = time.perf_counter()
        steps = block()
        print(1e3 * (time.perf_counter() - start) / steps, flush=True)
    if arm.startswith("ours"):
        engine.close()


def measure_peaks() -> dict[str, float]:
    """Return the best GFLOP/s of one thread per core: a large float32 matrix product, and a large
    convolution.

    Two libraries compute them, which do not always use the same instructions. On some processors
    the convolution is more than twice as fast; the matrix product is not an upper bound there.
    """
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from fedtailor.simulation.engines.workers import physical_cores

    def best(flops: float, work: Any) -> float:
        times = []
        for _ in range(6):
            start = time.thread_time()  # other programs may share the core
            work()
            times.append(time.thread_time() - start)
        return flops / min(times) / 1e9

    def one_core(_: int) -> tuple[float, float]:
        torch.set_num_threads(1)
        a = torch.randn(2048, 2048)
        x = torch.randn(8, 128, 28, 28).contiguous(memory_format=torch.channels_last)
        w = torch.randn(*_W).contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            flops = 2.0 * torch.conv2d(x, w).numel() * 128 * 25
            return best(2.0 * 2048**3, lambda: a @ a), best(flops, lambda: torch.conv2d(x, w))

    with ThreadPoolExecutor(physical_cores()) as pool:
        matrix, convolution = zip(*pool.map(one_core, range(physical_cores())), strict=True)
    return {"sgemm": sum(matrix), "convolution": sum(convolution)}


def machine() -> dict[str, Any]:
    """Describe the machine and the software, without names."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def alternate(
    script: str,
    name: str,
    blocks: int,
    names: Sequence[str] = ARMS,
    before: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Run every arm of a script in turn, block after block, each in a process of its own; return
    its answers.

    The first block is a warm-up; ``before`` runs at the start of each.
    """
    command = [sys.executable, script, "--model", name, "--serve"]
    arms = {
        arm: subprocess.Popen(
            [*command, arm], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for arm in names
    }
    times: dict[str, list[float]] = {arm: [] for arm in names}
    for block in range(-1, blocks):
        before()
        for arm, process in arms.items():
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            answer = float(process.stdout.readline())
            if block >= 0:
                times[arm].append(answer)
    for process in arms.values():
        process.communicate()
    return times


def speedups(times: dict[str, list[float]]) -> dict[str, float]:
    """Return medians over blocks of the times of the peer, at its better and at each setting,
    relative to ours.
    """
    better = [min(a, b) for a, b in zip(times["peer"], times["peer_1"], strict=True)]
    pairs = {
        "peer_better": better,
        "peer_default_threads": times["peer"],
        "peer_1_thread": times["peer_1"],
    }
    pairs |= {"peer_tuned": times["peer_tuned"]}
    return {
        label: round(
            statistics.median(p / o for p, o in zip(values, times["ours"], strict=True)), 3
        )
        for label, values in pairs.items()
    }


def run(name: str, blocks: int) -> dict[str, Any]:
    """Alternate the arms for a number of blocks and summarize."""
    record: dict[str, Any] = {"benchmark": "train_step", "model": name, "engine": ENGINES[name]}
    record |= {"blocks": blocks, "machine": machine()}
    peaks = {"sgemm": 0.0, "convolution": 0.0}

    def measure() -> None:
        for peak, value in measure_peaks().items():
            peaks[peak] = max(peaks[peak], value)

    times = alternate(__file__, name, blocks, before=measure)
    setting = SETTINGS[name]
    record["machine"]["load_after"] = os.getloadavg()[0]
    record["peak_gflops"] = {name_: round(value, 1) for name_, value in peaks.items()}
    for arm, values in times.items():
        median = statistics.median(values)
        gflops = setting["mflop"] * setting["batch"] / median
        record[arm] = {
            "ms_per_step": round(median, 3),
            "samples_per_second": round(1e3 * setting["batch"] / median),
            "percent_of_sgemm_peak": round(100 * gflops / peaks["sgemm"], 1),
            "percent_of_convolution_peak": round(100 * gflops / peaks["convolution"], 1),
        }
    record["speedup"] = speedups(times)
    return record


def parts(name: str) -> dict[str, Any]:
    """Return where the time of a training step goes on one core."""
    import torch

    from fedtailor.simulation.engines.reference import Reference
    from fedtailor.simulation.engines.workers import keep_pages, physical_cores

    setting = SETTINGS[name]
    record: dict[str, Any] = {"benchmark": "parts of a step", "model": name, "machine": machine()}
    peak = measure_peaks()["convolution"] / physical_cores()
    torch.set_num_threads(1)
    keep_pages()
    x, y = examples(setting)
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    block = our_block(name, setting, (x, y), Reference(), clients=1)
    block()
    total, kinds = step_and_operations(block)
    kinds["Python"] = total - sum(kinds.values())
    record["convolution_peak_of_one_core"] = round(peak, 1)
    record["ms_per_step"] = round(total, 3)
    record["ms_of_the_arithmetic_at_the_peak"] = round(
        setting["mflop"] * setting["batch"] / peak, 3
    )
    record["ms"] = {
        kind: round(ms, 3) for kind, ms in sorted(kinds.items(), key=lambda each: -each[1])
    }
    record["ms_of_reorders"] = round(reorders(name), 3)
    return record


def step_and_operations(block: Callable[[], int]) -> tuple[float, dict[str, float]]:
    """Return the processor milliseconds of a step, and of each kind of operation in it; measured in
    turn.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    layers: dict[Any, int] = {}

    def kind_of(name: str, tensors: list[Any]) -> str:
        if not name.startswith("convolution"):
            return next(
                (kind for start, kind in KINDS.items() if name.startswith(start)),
                "other operations",
            )
        backward = name.startswith("convolution_backward")
        layer = layers.setdefault(tensors[2 if backward else 1].shape, len(layers) + 1)
        return f"convolution {layer}, {'backward' if backward else 'forward'}"

    class Timer(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            start = time.thread_time()
            output = function(*args, **(kwargs or {}))
            duration = time.thread_time() - start
            tensors = [each for each in args if isinstance(each, torch.Tensor)]
            name = function.overloadpacket.__name__
            seconds[kind_of(name, tensors), f"{name} {[each.shape for each in tensors]}"].append(
                duration
            )
            return output

    whole = []
    steps = 0
    for _ in range(PASSES):
        start = time.thread_time()
        taken = block()
        whole.append(1e3 * (time.thread_time() - start) / taken)
        with Timer():
            steps += block()
    kinds: dict[str, float] = defaultdict(float)
    for (kind, _), durations in seconds.items():
        kinds[kind] += 1e3 * statistics.median(durations) * len(durations) / steps
    return statistics.median(whole), dict(kinds)


def reorders(name: str) -> float:
    """Return the milliseconds per step of the memory reorders that the convolution library
    reports.
    """
    command = [sys.executable, __file__, "--model", name, "--serve", "ours_plain"]
    verbose = {**os.environ, "ONEDNN_VERBOSE": "profile_exec"}
    output = subprocess.run(
        command, env=verbose, input="go\n", capture_output=True, text=True, check=True
    ).stdout
    durations: dict[str, list[float]] = defaultdict(list)
    for line in output.splitlines():
        if line.startswith("onednn_verbose") and ",exec," in line and ",reorder," in line:
            operation, _, duration = line.rpartition(",")
            durations[operation].append(float(duration))
    steps = CLIENTS * (EXAMPLES // SETTINGS[name]["batch"]) * SETTINGS[name]["epochs"]
    return sum(statistics.median(values) * len(values) for values in durations.values()) / steps


def main() -> None:
    """Parse the command line and print the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=sorted(SETTINGS), default="cifar_cnn")
    parser.add_argument("--blocks", type=int, default=7, help="paired blocks after the warm-up")
    parser.add_argument(
        "--parts", action="store_true", help="where the time of a step goes on one core"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="write results/train_step-MODEL.json, or parts-MODEL.json",
    )
    parser.add_argument("--serve", choices=ARMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.model)
        return
    if arguments.parts:
        record = parts(arguments.model)
        if arguments.json:
            path = Path(__file__).parent / "results" / f"parts-{arguments.model}.json"
            path.write_text(json.dumps(record, indent=1) + "\n")
        print(json.dumps(record, indent=1))
        return
    record = run(arguments.model, arguments.blocks)
    if arguments.json:
        path = Path(__file__).parent / "results" / f"train_step-{arguments.model}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
    peaks = ", ".join(f"{name} {value:.0f}" for name, value in record["peak_gflops"].items())
    print(
        f"{record['model']}, {record['blocks']} paired blocks, peaks of all cores in GFLOP/s: {peaks}"
    )
    for arm in ARMS:
        row = record[arm]
        print(
            f"{arm:10} {row['ms_per_step']:8.3f} ms/step {row['samples_per_second']:7d} samples/s "
            f"{row['percent_of_sgemm_peak']:5.1f} % of the sgemm peak, "
            f"{row['percent_of_convolution_peak']:5.1f} % of the convolution peak"
        )
    for label, ratio in record["speedup"].items():
        print(f"speed-up over {label}: {ratio:.2f}")


if __name__ == "__main__":
    main()
