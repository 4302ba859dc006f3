"""Examples scored per second: the engine ``workers`` and the loop of other tools, in turn.

    python -m benchmarks.evaluation [--model cifar_cnn] [--blocks 7] [--json]

Each arm scores one global model on the test examples of 100 clients, 250 random images each. The
loop scores one client after another: a DataLoader in batches of 50, one forward pass per batch, the
number of correct predictions and the summed loss. It runs with PyTorch's default number of threads,
with one thread, and tuned (``arms.py``). Our arms compute, for every client, correct predictions
and loss by class and the calibration error from the same passes. What a run does once is done
before the clock starts.
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
    SETTINGS,
    as_lists,
    random_examples,
    speedups,
    take_turns,
    torch_module,
    tune,
)
from benchmarks.records import describe_machine, save_record

CLIENTS = 100
EXAMPLES = 250
BATCH = 50
ARMS = ("ours", "ours_1", "peer", "peer_1", "peer_tuned")


def peer_block(module: Any, clients: list[list[Any]]) -> None:
    """Score one client after another as peers do."""
    import torch
    from torch.utils.data import DataLoader

    for examples in clients:
        hits = 0
        loss = 0.0
        with torch.no_grad():
            for images, labels in DataLoader(examples, BATCH):
                logits = module(images)
                hits += int((logits.argmax(1) == labels).sum())
                loss += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))


def our_block(name: str, data: tuple[Any, Any], engine: Any) -> Callable[[], None]:
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
    setting = SETTINGS[name]
    network = build_model(name, setting["shape"], setting["classes"], {})
    task = Task(network, setting["classes"], setting["shape"])
    nothing = torch.zeros(0, dtype=torch.int64)
    rows = torch.arange(CLIENTS * EXAMPLES).split(EXAMPLES)
    federation = Federation(*data, [Split(nothing, nothing, part) for part in rows], task)
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

    from fedtailor.simulation.engines.workers import Workers

    x, y = random_examples(name, CLIENTS, EXAMPLES)
    engine = None
    if arm.startswith("ours"):
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)

        engine = Workers(1 if arm == "ours_1" else 0)
        block = our_block(name, (x, y), engine)
    else:
        torch.set_num_threads(1 if arm == "peer_1" else torch.get_num_threads())
        module = torch_module(name, SETTINGS[name]["classes"]).eval()
        if arm == "peer_tuned":
            tune(module)

        block = partial(peer_block, module, as_lists(x, y, CLIENTS, EXAMPLES))

    for _ in sys.stdin:
        start = time.perf_counter()
        block()
        print(time.perf_counter() - start, flush=True)

    if engine is not None:
        engine.close()


def run(name: str, blocks: int) -> dict[str, Any]:
    """Alternate the arms for a number of blocks and summarize."""
    record = {"model": name, "blocks": blocks, **describe_machine()}
    times = take_turns("benchmarks.evaluation", name, blocks, ARMS)
    record["machine"]["load_after"] = os.getloadavg()[0]
    for arm, values in times.items():
        record[arm] = {"examples_per_second": round(CLIENTS * EXAMPLES / statistics.median(values))}

    record["speedup"] = speedups(times)
    return record


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=sorted(SETTINGS), default="cifar_cnn")
    parser.add_argument("--blocks", type=int, default=7, help="paired blocks after the warm-up")
    parser.add_argument("--json", action="store_true", help="write results/evaluation.jsonl too")
    parser.add_argument("--serve", choices=ARMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.model)
        return

    record = run(arguments.model, arguments.blocks)
    if arguments.json:
        save_record("evaluation", f"evaluation-{arguments.model}", record)

    for arm in ARMS:
        print(f"{arm:10} {record[arm]['examples_per_second']:8,d} examples/s")

    for label, ratio in record["speedup"].items():
        print(f"speed-up over {label}: {ratio:.2f}")


if __name__ == "__main__":
    main()
