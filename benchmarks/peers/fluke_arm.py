"""The arm of fluke: one run on our split. It runs in an environment with fluke, without fedtailor.

    python fluke_arm.py METHOD SEED EXAMPLES RESULT ROUNDS LR BATCH

EXAMPLES is a file of NumPy with `train_x_0`, `train_y_0`, `test_x_0`, ...; RESULT becomes JSON with
the right test examples and all test examples of every client. fluke imports names of torchvision
and torchmetrics that are not used here, so modules with empty names do as well.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.apfl import APFL
from fluke.algorithms.ditto import Ditto
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.fedrep import FedRep
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.nets import EncoderHeadNet
from torch import nn

METHODS = {"fedavg": FedAVG, "fedrep": FedRep, "ditto": Ditto, "apfl": APFL}
OPTIONS = {
    "fedavg": {},
    "fedrep": {"tau": 1},
    "ditto": {"tau": 1, "lam": 0.1},
    "apfl": {"lam": 0.5},
}
"""Our options in the words of fluke."""
INPUTS = 28 * 28
HIDDEN = 100
CLASSES = 10


class Encoder(nn.Sequential):
    """The hidden layer: what the server of FedRep has."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(INPUTS, HIDDEN), nn.ReLU())


class Perceptron(EncoderHeadNet):
    """A perceptron with one hidden layer; fluke divides it before the last layer."""

    def __init__(self) -> None:
        super().__init__(Encoder(), nn.Linear(HIDDEN, CLASSES))


def load_examples(path: str, batch: int) -> DummyDataContainer:
    """Return the examples of all clients; only training examples are shuffled."""
    parts: dict[str, list[FastDataLoader]] = {"train": [], "test": []}
    with np.load(path) as arrays:
        num_clients = len(arrays.files) // 4
        for part, loaders in parts.items():
            for client in range(num_clients):
                x = torch.from_numpy(arrays[f"{part}_x_{client}"])
                y = torch.from_numpy(arrays[f"{part}_y_{client}"])
                loader = FastDataLoader(
                    x,
                    y,
                    num_labels=CLASSES,
                    batch_size=batch,
                    shuffle=part == "train",
                    skip_singleton=False,
                )
                loaders.append(loader)

    return DummyDataContainer(parts["train"], parts["test"], None, CLASSES)


def make_options(method: str, lr: float, batch: int) -> DDict:
    """Return the options of a run: one epoch a round, plain SGD, a weighted mean."""
    client = {
        "batch_size": batch,
        "local_epochs": 1,
        "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": lr},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1.0},
        **OPTIONS[method],
    }
    if method != "fedavg":
        client["model"] = "fluke_arm.Perceptron"

    server = {"weighted": True}
    if method == "apfl":
        # the server averages after every round, and not after every third
        server["tau"] = 1

    network = "fluke_arm.Encoder" if method == "fedrep" else "fluke_arm.Perceptron"
    return DDict(model=network, client=client, server=server)


def accuracy_of(method: str, algorithm, data: DummyDataContainer) -> list[tuple[int, int]]:
    """Return right and all test examples of every client, with its model after the last mean."""
    scores = []
    for client, loader in zip(algorithm.clients, data.clients_te, strict=True):
        if method == "fedavg":
            model = algorithm.server.model
        elif method == "fedrep":
            model = client.model
        else:
            model = client.personalized_model

        model.eval()
        x, y = loader.tensors
        with torch.no_grad():
            right = int((model(x).argmax(dim=1) == y).sum())

        scores.append((right, len(y)))

    return scores


def main() -> None:
    """Run a method, and write its scores."""
    method, seed, examples, result, rounds, lr, batch = sys.argv[1:]
    environment = FlukeENV()
    environment.set_seed(int(seed))
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)

    data = load_examples(examples, int(batch))
    splitter = DataSplitter(data, client_split=0.5)
    num_clients = len(data.clients_tr)
    algorithm = METHODS[method](num_clients, splitter, make_options(method, float(lr), int(batch)))
    algorithm.run(int(rounds), 1.0)
    Path(result).write_text(json.dumps(accuracy_of(method, algorithm, data)))


if __name__ == "__main__":
    main()
