"""Accuracy of FedAvg by graph replays on a device, and by the reference engine on the CPU, on Fashion-MNIST.

    python benchmarks/gpu_accuracy.py DIR [--device cuda] [--rounds 20] [--json FILE]

DIR is laid out as torchvision does. 6,000 of the training images are divided among 20 clients, every class by Dir(0.5);
all of them train in every round, one epoch in batches of 16 by the network of the EMNIST experiments, with the same
batches on both sides. The global model is scored on the 10,000 test images after every round. Both sides start from the
same model; what differs is rounding, so that single images come out otherwise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.core import rng
from fedtailor.core.algorithm import Download
from fedtailor.core.engine import Failure, Job
from fedtailor.core.errors import FedtailorError
from fedtailor.core.federation import ClientData, ClientInfo, ExampleSet
from fedtailor.core.phase import Phase
from fedtailor.core.task import Batch, Params, Task, Training
from fedtailor.data.mnist import load_fashion_mnist
from fedtailor.engines.reference import Reference
from gpu_arms import Graph
from gpu_device import about, require_device, set_precision, synchronize
from gpu_step import describe, save
from gpu_work import Work, make_phase, make_plans, place
from train_step import DECAY, LR, MOMENTUM

CLIENTS, EXAMPLES, ALPHA, BATCH = 20, 6000, 0.5, 16
LAST = 5
"""Rounds at the end over which accuracies are averaged."""

Data = tuple[Tensor, Tensor, Tensor]
"""Images as stored, labels, scale."""


def load(folder: Path) -> tuple[Data, Tensor]:
    """Return the data set, and the positions of its test images."""
    dataset = load_fashion_mnist(folder)
    x, y = torch.from_numpy(dataset.x).movedim(-1, 1), torch.from_numpy(dataset.y)
    return (x, y, torch.tensor([[255.0], [0.5], [0.5]])), torch.arange(dataset.num_official_train, len(y))


def divide(y: Tensor, test: Tensor, clients: int, examples: int) -> list[Tensor]:
    """Return every client's rows: some training images, each class divided by a Dirichlet distribution."""
    generator = np.random.default_rng(0)
    chosen = generator.permutation(int(test[0]))[:examples]
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in np.unique(y.numpy()):
        rows = chosen[y.numpy()[chosen] == label]
        ends = (np.cumsum(generator.dirichlet([ALPHA] * clients)) * len(rows)).astype(int)[:-1]
        for part, own in zip(parts, np.split(rows, ends), strict=True):
            part.append(own)
    every = [torch.from_numpy(np.sort(np.concatenate(part))) for part in parts]
    return [rows for rows in every if len(rows)]


def client_key(round: int, client: int) -> rng.Key:
    """Return what decides the batches of a client in a round, as the product's engines derive it."""
    return rng.new_key(0, round=round, client=client, purpose="train")


def accuracy(phase: Phase, data: Data, test: Tensor, leaves: list[Tensor], work: Work) -> float:
    """Return the accuracy of a model on the test images, computed where the work is."""
    params = dict(zip(phase.task.model.shapes, leaves, strict=True))
    hits = torch.zeros((), dtype=torch.int64, device=work.device)
    with torch.no_grad():
        for rows in test.to(work.device).split(1000):
            batch: Batch = work.batch(rows, work.start.new_ones(len(rows)))
            z, _ = phase.task.model.features(params, batch.x, weight=batch.weight, key=work.key, training=False)
            hits += (phase.task.model.head(params, z).argmax(1) == batch.y).sum()
    return float(hits) / len(test)


def train_client(task: Task, common: tuple[Data, Params, FedAvg, int], row: tuple[int, Tensor]) -> Params:
    """Run a client's round: the program that the engine maps."""
    (x, y, scale), model, algorithm, round = common
    client, rows = row
    examples = ExampleSet(x, y, rows, torch.ones(len(rows)), scale)
    nothing = examples._replace(rows=rows[:0], weight=torch.ones(0))
    info = ClientInfo(torch.tensor(float(len(rows))), torch.bincount(y[rows], minlength=task.num_classes).float())
    own = ClientData(examples, nothing, info)
    update = algorithm.local_update(task, Download({"model": model}), (), own, client_key(round, client))
    trained: Params = update.personal
    return trained


def by_reference(phase: Phase, data: Data, rows: list[Tensor], model: Params, rounds: int) -> Iterator[list[Tensor]]:
    """Yield the global model after every round."""
    algorithm, engine, total = FedAvg(training=phase.training), Reference(), sum(map(len, rows))
    for round in range(1, rounds + 1):
        jobs = [Job(client, phase.task, (client, own), len(own)) for client, own in enumerate(rows)]
        outputs = engine.map(train_client, (data, model, algorithm, round), jobs)
        for output in outputs:
            if isinstance(output, Failure):
                raise output.reason
        pairs = list(zip(outputs, rows, strict=True))
        model = {name: sum(output[name] * (len(own) / total) for output, own in pairs) for name in model}
        yield list(model.values())


def by_graph(work: Work, arm: Graph, rounds: int) -> Iterator[list[Tensor]]:
    """Yield the global model after every round."""
    for round in range(1, rounds + 1):
        work.plans = make_plans(work.phase, work.rows, lambda client, round=round: client_key(round, client))
        arm.load_plans()
        work.start.copy_(arm.round())
        synchronize(work.device.type)
        yield work.layout.views(work.start.clone())


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train on both sides and compare."""
    record: dict[str, Any] = {"benchmark": "gpu_accuracy", "machine": about(arguments.device)}
    record["precision"] = set_precision(arguments)
    data, test = load(Path(arguments.folder))
    rows = divide(data[1], test, arguments.clients, arguments.examples)
    training = Training(lr=LR, momentum=MOMENTUM, weight_decay=DECAY, epochs=1, batch_size=BATCH)
    phase = make_phase("emnist_cnn", (1, 28, 28), 10, training)
    model = phase.task.model.init(rng.new_key(0, purpose="start"))
    plans = make_plans(phase, rows, lambda client: client_key(1, client))
    record |= {"clients": len(rows), "examples": sum(map(len, rows)), "rounds": arguments.rounds}
    works = [
        place("emnist_cnn", phase, data, rows, plans, model, device=device, dtype=torch.float32)
        for device in ("cpu", arguments.device)
    ]
    arm = Graph(works[1], arguments.unroll)
    record["captured"] = describe(arm.captured)
    sides = {
        "reference": (by_reference(phase, data, rows, model, arguments.rounds), works[0]),
        "graph": (by_graph(works[1], arm, arguments.rounds), works[1]),
    }
    record |= {name: {"accuracy": [], "seconds": 0.0} for name in sides}
    for _ in range(arguments.rounds):
        for name, (models, work) in sides.items():
            start, side = time.perf_counter(), record[name]
            side["accuracy"].append(accuracy(phase, data, test, next(models), work))
            side["mean_of_last"] = sum(side["accuracy"][-LAST:]) / len(side["accuracy"][-LAST:])
            side["seconds"] += time.perf_counter() - start
        pairs = zip(record["reference"]["accuracy"], record["graph"]["accuracy"], strict=True)
        record["largest_difference"] = max(abs(a - b) for a, b in pairs)
        save(record, arguments.json)
    return record


def options() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", help="folder of the data sets")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    parser.add_argument("--unroll", type=int, default=4, help="steps of one graph")
    parser.add_argument("--tf32", action="store_true", help="allow TF32 in matrix products and convolutions")
    parser.add_argument("--json", metavar="FILE", help="write the record, after every round")
    parser.set_defaults(autotune=False, deterministic=False)
    return parser


def main() -> None:
    """Parse the command line, run, and print."""
    parser = options()
    arguments = parser.parse_args()
    require_device(parser, arguments.device)
    try:
        record = run(arguments)
    except FedtailorError as error:
        parser.exit(2, f"{parser.prog}: error: {error.message}\n")
    print(f"{arguments.rounds} rounds, {record['clients']} clients; {', '.join(record['captured'])}")
    for name in ("reference", "graph"):
        side = record[name]
        last = f"{100 * side['accuracy'][-1]:.2f} % after the last round"
        print(f"{name:10} {last}, {100 * side['mean_of_last']:.2f} % over the last {LAST}, {side['seconds']:.1f} s")
    print(f"largest difference of a round: {100 * record['largest_difference']:.2f} points")


if __name__ == "__main__":
    main()
