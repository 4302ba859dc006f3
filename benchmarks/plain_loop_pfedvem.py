"""Methods of pFedVEM's tables in plain PyTorch, to tell whether differences from print are due to
our code.

    python benchmarks/plain_loop_pfedvem.py --data-dir DIR --column NAME --method NAME [--seed 0]
    [--our-initial-model]

pFedVEM, pFedMe and pFedBayes, written from the equations: of pFedVEM those numbered 6, 8 and 9, of
the others Algorithm 1. Nothing of our algorithms, statistics, models and engines is used. Data,
split and options are those of our record of the same column and method in
experiments/pfedvem/paper.toml, so this shows that our arithmetic is right, not that the authors
made the same choices. tests/golden/test_plain_loop_pfedvem.py compares the models with ours, number
by number.

The global model is scored on all official test examples, after every fifth round; the personal
models on the official test examples of each client's labels, after the last round, as they were
right after local training. The scores go to results/plain_loop_pfedvem-COLUMN-METHOD-seedN.json.

With ``--our-initial-model``, training starts from the initial model of our run with the same seed
(of pFedVEM, only the body); all else is drawn as before. So it shows what of a difference the
initial model makes. The record's name then ends in ``-our_initial_model``.
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
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.rng import new_key
from fedtailor.core.task import Task, Training
from fedtailor.data.build import build
from fedtailor.experiment.config import make_config
from fedtailor.experiment.provenance import machine, versions
from fedtailor.models.lenet import lenet
from fedtailor.models.mlp import mlp
from fedtailor.papers import tables as papers

RESULTS = Path(__file__).parent / "results"
TABLES = ("1", "6", "grid", "full")
CLASSES = 10
HEAD_MOMENTUM = 0.9
SCORED_EVERY = 5


class Perceptron(nn.Module):
    """The body of Fashion-MNIST's network, with a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(784, 100)
        self.head = nn.Linear(100, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """Return features (n, 100) of images (n, 1, 28, 28)."""
        return F.relu(self.hidden(x.flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, 10)."""
        return self.head(self.features(x))


class LeNet(nn.Module):
    """CIFAR-10's network: the body, with a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 5)
        self.conv2 = nn.Conv2d(16, 32, 5)
        self.hidden1 = nn.Linear(800, 120)
        self.hidden2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """Return features (n, 84) of images (n, 3, 32, 32)."""
        for convolution in (self.conv1, self.conv2):
            x = F.max_pool2d(F.relu(convolution(x)), 2)
        return F.relu(self.hidden2(F.relu(self.hidden1(x.flatten(1)))))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, 10)."""
        return self.head(self.features(x))


NETWORKS = {"fashion_mnist": Perceptron, "cifar10": LeNet}


def our_initial_model(dataset: str, seed: int) -> dict[str, Tensor]:
    """Return the parameters that a run of ours with this seed starts from."""
    build_model, shape = {"fashion_mnist": (mlp, (1, 28, 28)), "cifar10": (lenet, (3, 32, 32))}[
        dataset
    ]
    return Task(build_model(shape, CLASSES), CLASSES, shape).initial(new_key(seed))


class Client:
    """A client's training examples, the test examples of its labels, and what it keeps between
    rounds.
    """

    def __init__(self, x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> None:
        self.x = x
        self.y = y
        self.test_x = test_x
        self.test_y = test_y
        self.kept: Any = None

    def batches(self, training: Training) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the shuffled batches of a round: its epochs, or as many batches as the options
        say.
        """
        size = min(training.batch_size or len(self.y), len(self.y))
        taken = 0
        epoch = 0
        while taken < training.steps or (not training.steps and epoch < training.epochs):
            order = torch.randperm(len(self.y))
            for rows in order.split(size):
                if training.steps and taken == training.steps:
                    return
                yield self.x[rows], self.y[rows]
                taken += 1
            epoch += 1


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Return the share of examples that are classified correctly."""
    return float((logits.argmax(1) == y).double().mean())


def mean_of(models: Sequence[nn.Module], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return the weighted mean of the parameters of modules."""
    states = [model.state_dict() for model in models]
    total = sum(weights)
    return {
        name: sum(
            weight / total * state[name] for weight, state in zip(weights, states, strict=True)
        )
        for name in states[0]
    }


class PFedVEM:
    """A Gaussian over every client's head, around a global head; the body is averaged by the
    numbers of examples.

    A head is a vector (D,): the weights (10, d), then the biases (10,).
    """

    def __init__(self, model: nn.Module, options: dict[str, Any], training: Training) -> None:
        self.model = model
        self.options = options
        self.training = training
        self.head = torch.randn(sum(value.numel() for value in model.head.parameters()))

    def noise(self) -> Tensor:
        """Return standard normal numbers (draws, D)."""
        return torch.randn(self.options["draws"], len(self.head))

    def logits(self, z: Tensor, heads: Tensor) -> Tensor:
        """Return logits (draws, n, 10) of features (n, d) under heads (draws, D)."""
        weights = heads[:, :-CLASSES].view(len(heads), CLASSES, -1)
        return torch.einsum("nd,kcd->knc", z, weights) + heads[:, None, -CLASSES:]

    def losses(self, z: Tensor, y: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return the cross-entropy (n,) under drawn heads, averaged over them."""
        logits = self.logits(z, mean + deviation * self.noise())
        shape = (len(logits), len(y))
        return (
            F.cross_entropy(logits.flatten(0, 1), y.expand(shape).flatten(), reduction="none")
            .view(shape)
            .mean(0)
        )

    def train(self, client: Client) -> tuple[nn.Module, Tensor, float]:
        """Return the client's body, the mean of its head, and its confidence."""
        if client.kept is None:
            scale = self.options["initial_scale"]
            mean = self.head.clone()
            raw = torch.full_like(mean, float(np.log(np.expm1(scale))))
            variance = torch.tensor(scale**2)
        else:
            _, mean, raw = client.kept
            variance = (F.softplus(raw) ** 2 + (mean - self.head) ** 2).mean()  # equation 8
        mean = mean.clone().requires_grad_()
        raw = raw.clone().requires_grad_()
        self.tune_head(client, mean, raw, variance)
        body = deepcopy(self.model)
        self.train_body(client, body, mean.detach(), F.softplus(raw.detach()))
        client.kept = (body, mean.detach(), raw.detach())
        return body, mean.detach(), float(1 / variance)

    def tune_head(self, client: Client, mean: Tensor, raw: Tensor, variance: Tensor) -> None:
        """Descend the negative evidence lower bound (equation 6) on all examples; the body is
        frozen.
        """
        with torch.no_grad():
            z = self.model.features(client.x)
        optimizer = torch.optim.SGD([mean, raw], lr=self.options["head_lr"], momentum=HEAD_MOMENTUM)
        prior = torch.distributions.Normal(self.head, variance.sqrt())
        for _ in range(self.options["head_steps"]):
            deviation = F.softplus(raw)
            own = torch.distributions.Normal(mean, deviation)
            divergence = torch.distributions.kl_divergence(own, prior).sum()
            optimizer.zero_grad()
            (self.losses(z, client.y, mean, deviation).sum() + divergence).backward()
            optimizer.step()

    def train_body(self, client: Client, body: nn.Module, mean: Tensor, deviation: Tensor) -> None:
        """Train the body under heads that are drawn for every batch."""
        parameters = [
            value for name, value in body.named_parameters() if not name.startswith("head")
        ]
        optimizer = torch.optim.SGD(
            parameters, lr=self.training.lr, momentum=self.training.momentum
        )
        for x, y in client.batches(self.training):
            optimizer.zero_grad()
            self.losses(body.features(x), y, mean, deviation).mean().backward()
            optimizer.step()

    def round(self, clients: Sequence[Client], cohort: Sequence[bool]) -> None:
        """Train all clients, and average what the cohort sends (equation 9)."""
        sent = [self.train(client) for client in clients]
        sent = [update for update, takes_part in zip(sent, cohort, strict=True) if takes_part]
        sizes = [
            len(client.y) for client, takes_part in zip(clients, cohort, strict=True) if takes_part
        ]
        self.model.load_state_dict(mean_of([body for body, _, _ in sent], sizes))
        confidence = sum(own for _, _, own in sent)
        self.head = sum(own / confidence * mean for _, mean, own in sent)

    @torch.no_grad()
    def score_personal(self, client: Client) -> float | None:
        """Return the accuracy of a client's own body and head; None if it has not trained."""
        if client.kept is None:
            return None
        body, mean, _ = client.kept
        return accuracy(self.logits(body.features(client.test_x), mean[None])[0], client.test_y)

    @torch.no_grad()
    def global_logits(self, x: Tensor) -> Tensor:
        """Return logits of the averaged body and the global head."""
        return self.logits(self.model.features(x), self.head[None])[0]


class PFedMe:
    """Personal models theta near the client's copy w of the global model, which follows them."""

    def __init__(self, model: nn.Module, options: dict[str, Any], training: Training) -> None:
        self.model = model
        self.options = options
        self.training = training

    def train(self, client: Client) -> nn.Module:
        """Return w after a round of the client; theta is kept."""
        own = deepcopy(self.model)
        theta = deepcopy(self.model)
        for x, y in client.batches(self.training):
            for _ in range(self.options["inner_steps"]):
                theta.zero_grad()
                F.cross_entropy(theta(x), y).backward()
                self.step(theta, own)
            with torch.no_grad():
                for w, near in zip(own.parameters(), theta.parameters(), strict=True):
                    w -= self.options["outer_lr"] * self.options["penalty"] * (w - near)
        client.kept = theta
        return own

    @torch.no_grad()
    def step(self, theta: nn.Module, own: nn.Module) -> None:
        """Move theta down its loss and towards w."""
        for near, w in zip(theta.parameters(), own.parameters(), strict=True):
            near -= self.options["inner_lr"] * (near.grad + self.options["penalty"] * (near - w))

    def round(self, clients: Sequence[Client], cohort: Sequence[bool]) -> None:
        """Train the cohort; all clients weigh the same."""
        for client in clients:
            client.kept = None
        sent = [
            self.train(client)
            for client, takes_part in zip(clients, cohort, strict=True)
            if takes_part
        ]
        self.model.load_state_dict(mean_of(sent, [1.0] * len(sent)))

    @torch.no_grad()
    def score_personal(self, client: Client) -> float | None:
        """Return the accuracy of theta right after local training; None for a client outside the
        cohort.
        """
        return None if client.kept is None else accuracy(client.kept(client.test_x), client.test_y)

    @torch.no_grad()
    def global_logits(self, x: Tensor) -> Tensor:
        """Return logits of the global model."""
        return self.model(x)


class Gaussian:
    """A diagonal Gaussian over all weights of a network, with deviations softplus(raw); all are
    vectors (D,).
    """

    def __init__(self, mean: Tensor, raw: Tensor) -> None:
        self.mean = mean.detach().clone().requires_grad_()
        self.raw = raw.detach().clone().requires_grad_()

    def copy(self) -> Gaussian:
        """Return an equal Gaussian with tensors of its own."""
        return Gaussian(self.mean, self.raw)

    def deviation(self) -> Tensor:
        """Return the standard deviations."""
        return F.softplus(self.raw)

    def fixed(self) -> Gaussian:
        """Return this Gaussian without gradients."""
        fixed = self.copy()
        fixed.mean.requires_grad_(False)
        fixed.raw.requires_grad_(False)
        return fixed


def divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """Return KL(q || p).

    The ratio of the deviations is exactly 1 where they are equal, so the gradient is exactly 0
    there, and Adam does not take rounding errors for directions.
    """
    ratio = q.deviation() / p.deviation()
    distance = (q.mean - p.mean) / p.deviation()
    return (-ratio.log() + (ratio**2 + distance**2 - 1) / 2).sum()


class PFedBayes:
    """A Gaussian over the weights of every client's network, near a global one that follows
    them.
    """

    def __init__(self, model: nn.Module, options: dict[str, Any], training: Training) -> None:
        self.model = model
        self.options = options
        self.training = training
        self.shapes = {name: value.shape for name, value in model.named_parameters()}
        mean = nn.utils.parameters_to_vector(model.parameters())
        self.shared = Gaussian(
            mean, torch.full_like(mean, float(np.log(np.expm1(options["initial_scale"]))))
        )

    def noise(self) -> Tensor:
        """Return standard normal numbers (1, D)."""
        return torch.randn(1, len(self.shared.mean))

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return logits (n, 10) of the network with weights (D,)."""
        parts = weights.split([shape.numel() for shape in self.shapes.values()])
        named = {
            name: part.view(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
        return torch.func.functional_call(self.model, named, (x,))

    def train(self, client: Client) -> Gaussian:
        """Return the client's copy of the global Gaussian; its own one is kept."""
        own = self.shared.copy() if client.kept is None else client.kept
        received = self.shared.copy()
        own_optimizer = torch.optim.Adam([own.mean, own.raw], lr=self.options["personal_lr"])
        received_optimizer = torch.optim.Adam(
            [received.mean, received.raw], lr=self.options["global_lr"]
        )
        for x, y in client.batches(self.training):
            own_optimizer.zero_grad()
            weights = own.mean + own.deviation() * self.noise()[0]
            likelihood = len(client.y) * F.cross_entropy(self.logits(weights, x), y)
            (likelihood + self.options["penalty"] * divergence(own, received.fixed())).backward()
            own_optimizer.step()
            received_optimizer.zero_grad()
            (self.options["penalty"] * divergence(own.fixed(), received)).backward()
            received_optimizer.step()
        client.kept = own
        return received

    def round(self, clients: Sequence[Client], cohort: Sequence[bool]) -> None:
        """Train all clients, and average what the cohort sends; all weigh the same."""
        sent = [self.train(client) for client in clients]
        sent = [update for update, takes_part in zip(sent, cohort, strict=True) if takes_part]
        mean = torch.stack([update.mean for update in sent]).mean(0)
        self.shared = Gaussian(mean, torch.stack([update.raw for update in sent]).mean(0))

    @torch.no_grad()
    def score_personal(self, client: Client) -> float | None:
        """Return the accuracy of the mean of a client's Gaussian; None if it has not trained."""
        return (
            None
            if client.kept is None
            else accuracy(self.logits(client.kept.mean, client.test_x), client.test_y)
        )

    @torch.no_grad()
    def global_logits(self, x: Tensor) -> Tensor:
        """Return logits of the mean of the global Gaussian."""
        return self.logits(self.shared.mean, x)


METHODS = {"pfedvem": PFedVEM, "pfedme": PFedMe, "pfedbayes": PFedBayes}


def draw_cohort(count: int, probability: float, least: int) -> list[bool]:
    """Return who takes part: each client with the same probability, drawn again where there are too
    few.
    """
    while True:
        drawn = torch.rand(count) < probability
        if int(drawn.sum()) >= least:
            return drawn.tolist()


def run(
    method: Any,
    clients: Sequence[Client],
    schedule: Any,
    test: tuple[Tensor, Tensor],
    write: Callable,
) -> None:
    """Train, and write the scores as they come."""
    found: dict[str, Any] = {"global model, by round": {}}
    for number in range(1, schedule.rounds + 1):
        cohort = draw_cohort(
            len(clients), schedule.participation.probability, schedule.participation.min_clients
        )
        if schedule.participation.full_last_round and number == schedule.rounds:
            cohort = [True] * len(clients)
        method.round(clients, cohort)
        if number % SCORED_EVERY == 0:
            found["global model, by round"][number] = accuracy(
                method.global_logits(test[0]), test[1]
            )
            write({"rounds": number, **found})
        sys.stderr.write(f"\rround {number} of {schedule.rounds}")
    personal = [method.score_personal(client) for client in clients]
    known = [value for value in personal if value is not None]
    found["personal models after the last round"] = {
        "mean": float(np.mean(known)),
        "clients": len(known),
    }
    write({"rounds": schedule.rounds, **found})


def prepare(config: Any) -> tuple[list[Client], tuple[Tensor, Tensor]]:
    """Return the clients, and all official test examples."""
    divided = build(config.data, run_seed=0)
    dataset = divided.dataset
    mean = torch.tensor(config.data.mean).view(1, -1, 1, 1)
    deviation = torch.tensor(config.data.std).view(1, -1, 1, 1)

    def examples(rows: np.ndarray) -> tuple[Tensor, Tensor]:
        pixels = torch.from_numpy(np.ascontiguousarray(dataset.x[rows])).permute(0, 3, 1, 2) / 255.0
        return (pixels - mean) / deviation, torch.from_numpy(np.asarray(dataset.y)[rows]).long()

    clients = [Client(*examples(rows.train), *examples(rows.test)) for rows in divided.rows]
    return clients, examples(np.arange(dataset.num_official_train, len(dataset.y)))


def main() -> None:
    """Run and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--column", required=True)
    parser.add_argument(
        "--method",
        required=True,
        help="a method of the experiment: pfedvem, pfedme, pfedbayes, or a variant",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--our-initial-model", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    paper = papers.load_paper("pfedvem")
    table = next(
        name
        for name in TABLES
        if arguments.column in paper.tables[name].columns
        and arguments.method in paper.tables[name].reference
    )
    cell = papers.expand(paper, table, arguments.column, arguments.method)
    config = make_config(cell.values, [("data.dir", arguments.data_dir)])
    clients, test = prepare(config)
    torch.manual_seed(arguments.seed)
    model = NETWORKS[config.data.dataset]()
    if arguments.our_initial_model:
        model.load_state_dict(our_initial_model(config.data.dataset, arguments.seed))
    method = METHODS[config.algorithm.name](model, dict(config.algorithm.options), config.training)
    record = {"column": arguments.column, "method": arguments.method, "seed": arguments.seed}
    name = f"plain_loop_pfedvem-{arguments.column}-{arguments.method}-seed{arguments.seed}"
    if arguments.our_initial_model:
        record["initial_model"] = "fedtailor"
        name += "-our_initial_model"

    def write(found: dict[str, Any]) -> None:
        whole = {**record, "scores": found, "machine": machine(), "versions": versions()}
        (RESULTS / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n")

    run(method, clients, config.schedule, test, write)


if __name__ == "__main__":
    main()
