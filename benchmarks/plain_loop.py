"""Methods of pFedFDA's Tables 1 and 3 in plain PyTorch, to tell whether differences from print are
due to our code.

    python benchmarks/plain_loop.py --data-dir DIR [--column NAME] [--method NAME] [--seed 0]
    [--our-initial-model]

FedAvg, FedAvg-FT (the tuned models of FedAvg's run) and Local train and average as in the code that
pFedFDA's authors
released: each client has a module, a ``DataLoader`` that drops the last, shorter batch, and a new
SGD with momentum in every round; clients take part with probability 0.3, all of them in the last
round. The other methods are not in that code. They run in the same loop with the choices that our
algorithms document under Deviations, and are scored at the same points. Nothing of our algorithms
and engines is used, only the split and the images, which are those of our record of the same
column. So agreement shows that our arithmetic is right; for the other methods, it does not show
that the authors made the same choices. tests/golden/test_plain_loop.py compares the models of all
methods, number by number. The scores go to results/plain_loop-COLUMN-METHOD-seedN.json.

With ``--our-initial-model``, training starts from the initial model of our run with the same seed;
the batches and who takes part are drawn as before. So it shows what of a difference the initial
model makes. The record's name then ends in ``-our_initial_model``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedtailor.core.rng import new_key
from fedtailor.core.task import Task
from fedtailor.data.build import DividedData, build
from fedtailor.experiment.config import make_config
from fedtailor.experiment.provenance import machine, versions
from fedtailor.models.cnn import cifar_cnn
from fedtailor.papers import tables as papers

RESULTS = Path(__file__).parent / "results"
ROUNDS = 200
PARTICIPATION = 0.3
EPOCHS = 5
BATCH_SIZE = 50
RATE = 0.01
SCORED_ROUNDS = (50, 80, 100, 120, 150, ROUNDS)
TUNED_ROUNDS = (100, ROUNDS)
"""Rounds after which models are scored that every client tunes first."""
CORRUPTED_CLIENTS = 50
CLASSES = 10
IMAGE_SHAPE = (3, 32, 32)
COLUMNS = {
    "cifar10_s_100": "1",
    "cifar10_s_75": "1",
    "cifar10_s_50": "1",
    "cifar10_s_25": "1",
    "cifar10_scarce_dir01": "variants",
}
"""The columns that can be run, with the table that has them. In those of table 1, the first clients
are corrupted."""


class Network(nn.Module):
    """The CNN of pFedFDA's CIFAR experiments, with the initial weights of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 5)
        self.conv2 = nn.Conv2d(16, 32, 5, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.linear = nn.Linear(576, 128)
        self.head = nn.Linear(128, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """Return features (n, 128) of images (n, 3, 32, 32)."""
        for convolution in (self.conv1, self.conv2, self.conv3):
            x = F.leaky_relu(F.max_pool2d(convolution(x), 2))
        return F.leaky_relu(self.linear(x.flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, 10) of images (n, 3, 32, 32)."""
        return self.head(self.features(x))

    def body(self) -> list[nn.Parameter]:
        """Return the parameters below the head."""
        return [value for name, value in self.named_parameters() if not name.startswith("head")]


class Client:
    """A client with its examples and its own module."""

    def __init__(
        self, model: Network, train: TensorDataset, test: TensorDataset, *, corrupted: bool = False
    ) -> None:
        self.model = deepcopy(model)
        self.corrupted = corrupted
        self.train_set = train
        self.test_set = test

    def batches(self, epochs: int = EPOCHS) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of a number of epochs."""
        size = min(BATCH_SIZE, len(self.train_set))
        loader = DataLoader(self.train_set, batch_size=size, shuffle=True, drop_last=True)
        for _ in range(epochs):
            yield from loader

    def fit(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        epochs: int = EPOCHS,
        rate: float = RATE,
        extra: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        """Train some parameters with a new optimizer; ``extra`` adds a loss of features and
        labels.
        """
        optimizer = new_optimizer(parameters, rate)
        for x, y in self.batches(epochs):
            self.model.zero_grad()
            features = self.model.features(x)
            loss = F.cross_entropy(self.model.head(features), y)
            if extra is not None:
                loss = loss + extra(features, y)
            loss.backward()
            optimizer.step()

    @torch.no_grad()
    def correct(self, model: nn.Module) -> int:
        """Return how many test examples a module classifies correctly."""
        x, y = self.test_set.tensors
        return int((model(x).argmax(1) == y).sum())


def our_initial_model(seed: int) -> dict[str, Tensor]:
    """Return the parameters that a run of ours with this seed starts from."""
    return Task(cifar_cnn(IMAGE_SHAPE, CLASSES), CLASSES, IMAGE_SHAPE).initial(new_key(seed))


def new_optimizer(parameters: Sequence[nn.Parameter], rate: float = RATE) -> torch.optim.Optimizer:
    """Return the optimizer of every method."""
    return torch.optim.SGD(parameters, lr=rate, momentum=0.5, weight_decay=5e-4)


@torch.no_grad()
def copy(source: nn.Module, target: nn.Module) -> None:
    """Set a module's parameters to those of another one."""
    for own, other in zip(target.parameters(), source.parameters(), strict=True):
        own.copy_(other)


@torch.no_grad()
def average(
    shared: Sequence[Tensor], uploads: Sequence[Sequence[Tensor]], weights: Sequence[int]
) -> None:
    """Set tensors to the weighted mean of the clients' ones."""
    total = sum(weights)
    for tensor in shared:
        tensor.zero_()
    for upload, weight in zip(uploads, weights, strict=True):
        for tensor, own in zip(shared, upload, strict=True):
            tensor += weight / total * own


class FedAvg:
    """FedAvg, and the base of the other methods: what clients receive, train, send and predict
    with.
    """

    tuned = True
    """Clients tune the averaged model before they are scored, as in FedAvg-FT and FedBABU."""

    def __init__(self, model: Network) -> None:
        self.model = model

    def receive(self, client: Client) -> None:
        """Give a client what the server holds."""
        copy(self.model, client.model)

    def train(self, client: Client) -> None:
        """Train a client's module."""
        client.fit(list(client.model.parameters()))

    def combine(self, cohort: Sequence[Client]) -> None:
        """Average what the clients trained."""
        weights = [len(client.train_set) for client in cohort]
        average(
            list(self.model.parameters()),
            [list(client.model.parameters()) for client in cohort],
            weights,
        )

    def personal(self, client: Client) -> nn.Module:
        """Return the model with which a client predicts, untuned."""
        return self.model

    def tune(self, client: Client) -> None:
        """Tune a client's module, which starts as the averaged one."""
        self.train(client)


class Local(FedAvg):
    """Every client trains alone."""

    tuned = False

    def receive(self, client: Client) -> None:
        """Clients receive nothing."""

    def combine(self, cohort: Sequence[Client]) -> None:
        """Nothing is averaged."""

    def personal(self, client: Client) -> nn.Module:
        """Return the client's own module."""
        return client.model


class LGFedAvg(FedAvg):
    """LG-FedAvg: the head is shared, the layers below it are personal."""

    tuned = False

    def receive(self, client: Client) -> None:
        """Give a client the shared head."""
        copy(self.model.head, client.model.head)

    def combine(self, cohort: Sequence[Client]) -> None:
        """Average the heads."""
        weights = [len(client.train_set) for client in cohort]
        average(
            list(self.model.head.parameters()),
            [list(client.model.head.parameters()) for client in cohort],
            weights,
        )

    def personal(self, client: Client) -> nn.Module:
        """Return the client's layers under the shared head."""
        model = deepcopy(client.model)
        copy(self.model.head, model.head)
        return model


class FedBABU(FedAvg):
    """FedBABU: the head stays as initialized; at the end every client tunes it."""

    def train(self, client: Client) -> None:
        """Train the body."""
        client.fit(client.model.body())

    def tune(self, client: Client) -> None:
        """Tune the head."""
        client.fit(list(client.model.head.parameters()))


class FedRep(FedAvg):
    """FedRep: the body is shared; clients train their own heads, then the body."""

    tuned = False

    @torch.no_grad()
    def receive(self, client: Client) -> None:
        """Give a client the shared body."""
        for own, shared in zip(client.model.body(), self.model.body(), strict=True):
            own.copy_(shared)

    def train(self, client: Client) -> None:
        """Train the head, then the body."""
        client.fit(list(client.model.head.parameters()))
        client.fit(client.model.body())

    def combine(self, cohort: Sequence[Client]) -> None:
        """Average the bodies."""
        weights = [len(client.train_set) for client in cohort]
        average(self.model.body(), [client.model.body() for client in cohort], weights)

    def personal(self, client: Client) -> nn.Module:
        """Return the shared body under the client's head."""
        model = deepcopy(self.model)
        copy(client.model.head, model.head)
        return model


class APFL(FedAvg):
    """APFL: every client mixes its own model with the global one, parameter by parameter."""

    tuned = False
    alpha = 0.25

    def __init__(self, model: Network) -> None:
        super().__init__(model)
        self.initial = deepcopy(model)
        self.own: dict[int, Network] = {}
        """The clients' own models, by the identity of the client."""

    def train(self, client: Client) -> None:
        """On each batch, take a step of the global model's copy, then one of the client's own
        through the mixture.
        """
        own = self.own.setdefault(id(client), deepcopy(self.initial))
        shared_optimizer = new_optimizer(list(client.model.parameters()))
        own_optimizer = new_optimizer(list(own.parameters()))
        for x, y in client.batches():
            client.model.zero_grad()
            F.cross_entropy(client.model(x), y).backward()
            shared_optimizer.step()
            own.zero_grad()
            mixture = {
                name: self.alpha * value
                + (1 - self.alpha) * client.model.get_parameter(name).detach()
                for name, value in own.named_parameters()
            }
            F.cross_entropy(torch.func.functional_call(own, mixture, (x,)), y).backward()
            own_optimizer.step()

    @torch.no_grad()
    def personal(self, client: Client) -> nn.Module:
        """Return the mixture with the averaged model."""
        model = deepcopy(self.model)
        own = self.own.get(id(client), self.model)
        for mixed, personal in zip(model.parameters(), own.parameters(), strict=True):
            mixed.mul_(1 - self.alpha).add_(personal, alpha=self.alpha)
        return model


class FedPAC(FedRep):
    """FedPAC: features align with global class means, and every client's next head combines those
    of the cohort.

    Clients are scored with the models that they have right after their own training.
    """

    def __init__(self, model: Network) -> None:
        super().__init__(model)
        self.means = torch.zeros(CLASSES, model.head.in_features)
        self.known = torch.zeros(CLASSES, dtype=torch.bool)
        self.measured: dict[int, tuple[float, Tensor]] = {}
        """How far features spread, and class means times class shares, by the identity of the
        client."""
        self.trained: dict[int, Network] = {}
        """The models of the last cohort after their own training."""

    def train(self, client: Client) -> None:
        """Measure the features under the received body, train the head, then the body."""
        features, labels = self.features(client)
        counts = torch.bincount(labels, minlength=CLASSES)
        shares = counts / len(labels)
        means = class_means(features, labels)
        squares = torch.stack(
            [features[labels == label].square().sum() for label in range(CLASSES)]
        ) / len(labels)
        spread = (squares - shares.square() * means.square().sum(1)).sum() / len(labels)
        self.measured[id(client)] = (float(spread), shares[:, None] * means)
        client.fit(list(client.model.head.parameters()), epochs=1, rate=0.1)
        client.fit(client.model.body(), extra=self.alignment)

    def alignment(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the mean, over examples and dimensions, of the squared differences from the class
        means.

        A class whose mean no client has sent yet counts as 0; with 30 clients a round there is none
        after the first.
        """
        differences = (features - self.means[labels]) * self.known[labels, None]
        return differences.square().mean()

    @torch.no_grad()
    def features(self, client: Client) -> tuple[Tensor, Tensor]:
        """Return the features of a client's training examples, and their labels."""
        x, y = client.train_set.tensors
        return client.model.features(x), y

    def combine(self, cohort: Sequence[Client]) -> None:
        """Average the bodies and class means, and combine the heads."""
        super().combine(cohort)
        sums = torch.zeros_like(self.means)
        counts = torch.zeros(CLASSES)
        for client in cohort:
            features, labels = self.features(client)
            number = torch.bincount(labels, minlength=CLASSES)
            sums += number[:, None] * class_means(features, labels)
            counts += number
        found = counts > 0
        self.means[found] = sums[found] / counts[found, None]
        self.known |= found
        self.trained = {id(client): deepcopy(client.model) for client in cohort}
        heads = [
            [value.detach().clone() for value in client.model.head.parameters()]
            for client in cohort
        ]
        for client in cohort:
            weights = self.weights(client, cohort)
            with torch.no_grad():
                for position, own in enumerate(client.model.head.parameters()):
                    own.copy_(
                        sum(
                            float(w) * head[position]
                            for w, head in zip(weights, heads, strict=True)
                        )
                    )

    def weights(self, client: Client, cohort: Sequence[Client]) -> np.ndarray:
        """Return the weights of the cohort's heads for a client: not negative, with sum 1."""
        _, own = self.measured[id(client)]
        spreads = np.array([self.measured[id(other)][0] for other in cohort])
        differences = np.stack(
            [(own - self.measured[id(other)][1]).flatten().numpy() for other in cohort], axis=1
        )
        rows = np.concatenate([np.diag(np.sqrt(spreads)), differences])
        scale = 1e3 * np.abs(rows).max()
        equations = np.concatenate([rows, np.full((1, len(cohort)), scale)])
        found, _ = nnls(equations, np.append(np.zeros(len(rows)), scale))
        return found / found.sum()

    def personal(self, client: Client) -> nn.Module:
        """Return the model that the client trained in this round."""
        return self.trained[id(client)]


def class_means(features: Tensor, labels: Tensor) -> Tensor:
    """Return the mean features of every class (10, d); 0 for a class without examples."""
    sums = torch.zeros(CLASSES, features.shape[1]).index_add_(0, labels, features)
    return sums / torch.bincount(labels, minlength=CLASSES).clamp(min=1)[:, None]


class FedRoD(FedAvg):
    """FedRoD: a generic head learns with a balanced softmax, and every client's own head what is
    left.

    The loss of a client's own head trains nothing else.
    """

    tuned = False

    def __init__(self, model: Network) -> None:
        super().__init__(model)
        self.heads: dict[int, nn.Linear] = {}
        """The clients' own heads, by the identity of the client."""

    def own_head(self, client: Client) -> nn.Linear:
        """Return the client's own head, which starts at 0."""
        if id(client) not in self.heads:
            head = deepcopy(self.model.head)
            with torch.no_grad():
                for value in head.parameters():
                    value.zero_()
            self.heads[id(client)] = head
        return self.heads[id(client)]

    def train(self, client: Client) -> None:
        """Train the model by the balanced loss, and the own head by the loss of both heads
        together.
        """
        head = self.own_head(client)
        counts = torch.bincount(client.train_set.tensors[1], minlength=CLASSES)
        optimizer = new_optimizer([*client.model.parameters(), *head.parameters()])
        for x, y in client.batches():
            optimizer.zero_grad()
            features = client.model.features(x)
            generic = client.model.head(features)
            F.cross_entropy(generic + counts.log(), y).backward()
            F.cross_entropy(generic.detach() + head(features.detach()), y).backward()
            optimizer.step()

    @torch.no_grad()
    def personal(self, client: Client) -> nn.Module:
        """Return the averaged model with the sum of both heads."""
        model = deepcopy(self.model)
        for value, own in zip(
            model.head.parameters(), self.own_head(client).parameters(), strict=True
        ):
            value.add_(own)
        return model


METHODS: dict[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "local": Local,
    "lg_fedavg": LGFedAvg,
    "fedbabu": FedBABU,
    "fedrep": FedRep,
    "apfl": APFL,
    "fedpac": FedPAC,
    "fedrod": FedRoD,
}


def scores(clients: Sequence[Client], model: Callable[[Client], nn.Module]) -> dict[str, float]:
    """Return the accuracy over all test examples, its deviation over clients, and that of corrupted
    and clean ones.
    """
    correct = np.array([client.correct(model(client)) for client in clients], float)
    number = np.array([len(client.test_set) for client in clients], float)
    corrupted = np.array([client.corrupted for client in clients])
    found = {
        "pooled": correct.sum() / number.sum(),
        "deviation_over_clients": float((correct / number).std(ddof=1)),
    }
    if corrupted.any():
        found["corrupted_clients"] = correct[corrupted].sum() / number[corrupted].sum()
        found["clean_clients"] = correct[~corrupted].sum() / number[~corrupted].sum()
    return found


def examples(divided: DividedData, rows: np.ndarray) -> TensorDataset:
    """Return images in [-1, 1] and their labels."""
    pixels = torch.from_numpy(np.ascontiguousarray(divided.dataset.x[rows])).permute(0, 3, 1, 2)
    labels = torch.from_numpy(np.asarray(divided.dataset.y)[rows]).long()
    return TensorDataset((pixels / 255.0 - 0.5) / 0.5, labels)


def run(
    clients: Sequence[Client], method: FedAvg, name: str, write: Callable[[dict[str, Any]], None]
) -> None:
    """Train, and write the scores by what is scored and the round, as they come."""
    found: dict[str, Any] = {}
    for number in range(1, ROUNDS + 1):
        drawn = torch.bernoulli(torch.ones(len(clients)) * PARTICIPATION)
        cohort = [client for client, takes_part in zip(clients, drawn, strict=True) if takes_part]
        if number == ROUNDS:
            cohort = list(clients)
        for client in cohort:
            method.receive(client)
            method.train(client)
        method.combine(cohort)
        if number in SCORED_ROUNDS:
            scored = score_round(clients, cohort, method, name, number)
            if scored:
                found |= scored
                write(found)
        sys.stderr.write(f"\rround {number} of {ROUNDS}")


def score_round(
    clients: Sequence[Client], cohort: Sequence[Client], method: FedAvg, name: str, number: int
) -> dict[str, Any]:
    """Return the scores after a round, named by what is scored and the round."""
    if isinstance(method, FedPAC) and len(cohort) < len(clients):
        return {}  # only clients that have just trained have the model that is scored
    found = {f"{name}, round {number}": scores(clients, method.personal)}
    if method.tuned and number in TUNED_ROUNDS:
        for client in clients:
            method.receive(client)
        for client in clients:
            method.tune(client)
        found[f"{name}_ft, round {number}"] = scores(clients, lambda client: client.model)
    return found


def main() -> None:
    """Run and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--column", choices=COLUMNS, default="cifar10_s_25")
    parser.add_argument("--method", choices=METHODS, default="fedavg")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--our-initial-model", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = COLUMNS[arguments.column]
    cell = papers.expand(papers.load_paper("pfedfda"), table, arguments.column, "fedavg_ft")
    divided = build(make_config(cell.values, [("data.dir", arguments.data_dir)]).data, run_seed=0)
    train = [examples(divided, rows.train) for rows in divided.rows]
    test = [examples(divided, rows.test) for rows in divided.rows]
    torch.manual_seed(arguments.seed)
    model = Network()
    if arguments.our_initial_model:
        model.load_state_dict(our_initial_model(arguments.seed))
    corrupted = CORRUPTED_CLIENTS if table == "1" else 0
    clients = [
        Client(model, *sets, corrupted=index < corrupted)
        for index, sets in enumerate(zip(train, test, strict=True))
    ]
    record = {"column": arguments.column, "method": arguments.method, "seed": arguments.seed}
    name = f"plain_loop-{arguments.column}-{arguments.method}-seed{arguments.seed}"
    if arguments.our_initial_model:
        record["initial_model"] = "fedtailor"
        name += "-our_initial_model"
    path = RESULTS / f"{name}.json"

    def write(found: dict[str, Any]) -> None:
        whole = {**record, "scores": found, "machine": machine(), "versions": versions()}
        path.write_text(json.dumps(whole, indent=1) + "\n")

    run(clients, METHODS[arguments.method](model), arguments.method, write)


if __name__ == "__main__":
    main()
