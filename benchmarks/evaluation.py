"""Examples scored per second: the engine ``workers`` and the loop of other tools, in turn in one
run.

    python benchmarks/evaluation.py [--model cifar_cnn] [--blocks 7] [--json]

Each arm scores one global model on the test examples of 100 clients, 250 random images each. The
loop, called the peer, does what common tools do: one client after another, a DataLoader over (x, y)
tuples in batches of 50, one forward pass per batch, the number of correct predictions and the
summed loss. It runs with PyTorch's default number of threads, with one thread, and tuned as in
``train_step.py``. Our arms compute, for every client, correct predictions and loss by class and the
calibration error from the same passes. Each arm runs in a separate process. What a run does once is
done before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from train_step import SETTINGS, alternate, as_lists, machine, speedups, torch_module, tune

CLIENTS = 100
EXAMPLES = 250
BATCH = 50
ARMS = ("ours", "ours_1", "peer", "peer_1", "peer_tuned")


def examples(setting: dict[str, Any]) -> tuple[Any, Any]:
    """Return random images and labels of all clients."""
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * EXAMPLES, *setting["shape"], generator=generator)
    return x, torch.randint(setting["classes"], (len(x),), generator=generator)


def peer_block(module: Any, clients: list[list[Any]]) -> None:
    """Score one client after another as peers do; ``clients`` are lists of examples."""
    import torch
    from torch.utils.data import DataLoader

    for examples_of_one in clients:
        hits = 0
        loss = 0.0
        with torch.no_grad():
            for images, labels in DataLoader(examples_of_one, BATCH):
                logits = module(images)
                hits += int((logits.argmax(1) == labels).sum())
                loss += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))


def our_block(name: str, setting: dict[str, Any], data: Any, engine: Any) -> Callable[[], None]:
    """Return a function that scores the same clients with FedAvg's global model on an engine."""
    import torch

    from fedtailor.algorithms.fedavg import FedAvg
    from fedtailor.core import rng
    from fedtailor.core.engine import Job
    from fedtailor.core.federation import Federation, Split
    from fedtailor.core.task import Task
    from fedtailor.models import build_model
    from fedtailor.simulation.programs import (
        ScoreRequest,
        SharedInputs,
        client_inputs,
        client_program,
    )

    algorithm = FedAvg()
    task = Task(
        build_model(name, setting["shape"], setting["classes"], {}),
        setting["classes"],
        setting["shape"],
    )
    none = torch.zeros(0, dtype=torch.int64)
    rows = torch.arange(CLIENTS * EXAMPLES).split(EXAMPLES)
    federation = Federation(*data, [Split(none, none, row) for row in rows], task)
    model = algorithm.init_server(task, rng.new_key(0)).model
    common = SharedInputs(*data, federation.scale, torch.tensor(0), torch.tensor(1), model)
    program = client_program(algorithm, ScoreRequest())

    def block() -> None:
        jobs = []
        for client, split in enumerate(federation.splits):
            inputs = client_inputs(client, split, federation.info(client), (), ())
            jobs.append(Job(client, task, inputs, EXAMPLES))
        outputs = engine.map(program, common, jobs)
        assert sum(float(scores.class_total.sum()) for scores in outputs) == CLIENTS * EXAMPLES

    return block


def serve(arm: str, name: str) -> None:
    """Run one block for every line of standard input; answer with its seconds."""
    import torch

    setting = SETTINGS[name]
    x, y = examples(setting)
    if arm.startswith("ours"):
        from fedtailor.simulation.engines.workers import Workers

        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        engine = Workers(1 if arm == "ours_1" else 0)
        block = our_block(name, setting, (x, y), engine)
    else:
        torch.set_num_threads(1 if arm == "peer_1" else torch.get_num_threads())
        module = torch_module(name, setting["classes"]).eval()
        if arm == "peer_tuned":
            tune(module)
        block = partial(peer_block, module, as_lists(x, y, CLIENTS, EXAMPLES))
    for _ in sys.stdin:
        start = time.perf_counter()
        block()
        print(time.perf_counter() - start, flush=True)
    if arm.startswith("ours"):
        engine.close()


def run(name: str, blocks: int) -> dict[str, Any]:
    """Alternate the arms for a number of blocks and summarize."""
    record: dict[str, Any] = {
        "benchmark": "evaluation",
        "model": name,
        "blocks": blocks,
        "machine": machine(),
    }
    times = alternate(__file__, name, blocks, ARMS)
    record["machine"]["load_after"] = os.getloadavg()[0]
    for arm, values in times.items():
        record[arm] = {"examples_per_second": round(CLIENTS * EXAMPLES / statistics.median(values))}
    record["speedup"] = speedups(times)
    return record


def main() -> None:
    """Parse the command line and print the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=sorted(SETTINGS), default="cifar_cnn")
    parser.add_argument("--blocks", type=int, default=7, help="paired blocks after the warm-up")
    parser.add_argument(
        "--json", action="store_true", help="write results/evaluation-MODEL.json too"
    )
    parser.add_argument("--serve", choices=ARMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.model)
        return
    record = run(arguments.model, arguments.blocks)
    if arguments.json:
        path = Path(__file__).parent / "results" / f"evaluation-{arguments.model}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
    for arm in ARMS:
        print(f"{arm:10} {record[arm]['examples_per_second']:8,d} examples/s")
    for label, ratio in record["speedup"].items():
        print(f"speed-up over {label}: {ratio:.2f}")


if __name__ == "__main__":
    main()
