"""Training steps per second: our engines and the loop of other tools, in turn in one run.

    python -m benchmarks.train_step [--model cifar_cnn] [--blocks 7] [--json]

Our engines are those that ``auto`` chooses for long runs: ``processes`` for the perceptron, whose
steps take less than a millisecond, and ``workers`` (threads) for the convolutional networks.
Processes start before the first block that counts. The loop (``arms.py``) runs with PyTorch's
default number of threads, with one thread, and tuned. All arms train the same clients for the same
number of steps on random images. What a run does once (data, clients, the first model) is done
before the clock starts. Ratios are within a block.

``ours_1`` is the same engine on one core. ``ours_plain`` is the engine ``reference`` with the same
allocator setting; it records no steps, so the difference between the two is what recordings save.

FLOPs count the forward pass, the backward pass for weights, and the backward pass for inputs except
those of the first layer. Every block measures two peaks with one thread per core: float32 matrix
products (sgemm) and large convolutions; the best value counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.arms import (
    DECAY,
    LR,
    MOMENTUM,
    SETTINGS,
    as_lists,
    random_examples,
    speedups,
    take_turns,
    torch_module,
    tune,
)
from benchmarks.records import describe_machine, save_record

CLIENTS = 4
EXAMPLES = 1000
ENGINES = {"cifar_cnn": "workers", "emnist_cnn": "workers", "mlp": "processes"}
"""Model -> the engine of our arms."""
ARMS = ("ours", "ours_1", "ours_plain", "peer", "peer_1", "peer_tuned")


def peer_block(common: Any, setting: dict[str, Any], clients: list[list[Any]]) -> int:
    """Train one client after another as peers do; return the number of steps."""
    import copy

    import torch
    from torch.utils.data import DataLoader

    steps = 0
    for examples in clients:
        module = copy.deepcopy(common).train()
        optimizer = torch.optim.SGD(
            module.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY
        )
        loader = DataLoader(examples, setting["batch"], shuffle=True, drop_last=True)
        for _ in range(setting["epochs"]):
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(module(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps += 1

    return steps


def our_block(name: str, data: tuple[Any, Any], engine: Any) -> Callable[[], int]:
    """Return a function that trains the clients with FedAvg and returns the number of steps."""
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

    setting = SETTINGS[name]
    training = Training(
        lr=LR,
        momentum=MOMENTUM,
        weight_decay=DECAY,
        epochs=setting["epochs"],
        batch_size=setting["batch"],
    )
    algorithm = FedAvg(training=training)
    model = build_model(name, setting["shape"], setting["classes"], {})
    task = Task(model, setting["classes"], setting["shape"])
    nothing = torch.zeros(0, dtype=torch.int64)
    rows = torch.arange(CLIENTS * EXAMPLES).split(EXAMPLES)
    federation = Federation(*data, [Split(part, nothing, nothing) for part in rows], task)
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

    from fedtailor.simulation.engines import EngineOptions
    from fedtailor.simulation.engines.build import build_engine
    from fedtailor.simulation.engines.workers import keep_pages

    x, y = random_examples(name, CLIENTS, EXAMPLES)
    engine = None
    if arm.startswith("ours"):
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)

        kind = "reference" if arm == "ours_plain" else ENGINES[name]
        engine = build_engine(EngineOptions(name=kind, workers=1 if arm == "ours_1" else 0))  # type: ignore[arg-type]
        keep_pages()  # as engines with threads or processes do
        block = our_block(name, (x, y), engine)
    else:
        torch.set_num_threads(1 if arm == "peer_1" else torch.get_num_threads())
        common = torch_module(name, SETTINGS[name]["classes"])
        if arm == "peer_tuned":
            tune(common)

        block = partial(peer_block, common, SETTINGS[name], as_lists(x, y, CLIENTS, EXAMPLES))

    for _ in sys.stdin:
        start = time.perf_counter()
        steps = block()
        print(1e3 * (time.perf_counter() - start) / steps, flush=True)

    if engine is not None:
        engine.close()


def measure_peaks() -> dict[str, float]:
    """Return the best GFLOP/s of one thread per core: a matrix product, and a convolution.

    Two libraries compute them, which do not always use the same instructions. On some processors
    the convolution is more than twice as fast; the matrix product is not an upper bound there.
    """
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from fedtailor.core.engine import physical_cores

    def best(flops: float, work: Callable[[], Any]) -> float:
        times = []
        for _ in range(6):
            start = time.thread_time()  # other programs may share the core
            work()
            times.append(time.thread_time() - start)

        return flops / min(times) / 1e9

    def one_core(_: int) -> tuple[float, float]:
        torch.set_num_threads(1)
        matrix = torch.randn(2048, 2048)
        images = torch.randn(8, 128, 28, 28).contiguous(memory_format=torch.channels_last)
        filters = torch.randn(128, 128, 5, 5).contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            flops = 2.0 * torch.conv2d(images, filters).numel() * 128 * 25
            product = best(2.0 * 2048**3, lambda: matrix @ matrix)
            return product, best(flops, lambda: torch.conv2d(images, filters))

    cores = physical_cores()
    with ThreadPoolExecutor(cores) as pool:
        products, convolutions = zip(*pool.map(one_core, range(cores)), strict=True)

    return {"sgemm": sum(products), "convolution": sum(convolutions)}


def run(name: str, blocks: int) -> dict[str, Any]:
    """Alternate the arms for a number of blocks and summarize."""
    record = {"model": name, "engine": ENGINES[name], "blocks": blocks, **describe_machine()}
    peaks = {"sgemm": 0.0, "convolution": 0.0}

    def measure() -> None:
        for peak, value in measure_peaks().items():
            peaks[peak] = max(peaks[peak], value)

    times = take_turns("benchmarks.train_step", name, blocks, ARMS, before=measure)
    record["machine"]["load_after"] = os.getloadavg()[0]
    record["peak_gflops"] = {peak: round(value, 1) for peak, value in peaks.items()}

    setting = SETTINGS[name]
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


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=sorted(SETTINGS), default="cifar_cnn")
    parser.add_argument("--blocks", type=int, default=7, help="paired blocks after the warm-up")
    parser.add_argument("--json", action="store_true", help="write results/train_step.jsonl too")
    parser.add_argument("--serve", choices=ARMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.model)
        return

    record = run(arguments.model, arguments.blocks)
    if arguments.json:
        save_record("train_step", f"train_step-{arguments.model}", record)

    print(f"{record['model']}, {record['blocks']} blocks, peaks {record['peak_gflops']} GFLOP/s")
    for arm in ARMS:
        row = record[arm]
        print(
            f"{arm:10} {row['ms_per_step']:8.3f} ms/step, "
            f"{row['percent_of_sgemm_peak']:5.1f} % of the sgemm peak, "
            f"{row['percent_of_convolution_peak']:5.1f} % of the convolution peak"
        )

    for label, ratio in record["speedup"].items():
        print(f"speed-up over {label}: {ratio:.2f}")


if __name__ == "__main__":
    main()
