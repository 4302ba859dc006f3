"""How many training pictures a server reads from updates that a site with its default policy sends.

    nice -n 19 python -m benchmarks.inversion [--iterations 4000]

The site trains FedAvg on digits with the perceptron (64-100-10), in one step on all of its training
pictures, which suits the server best. Two attacks:

* `inversion`: the server keeps to the protocol. It searches for pictures whose gradient has the
  direction of the update (Geiping et al. 2020, "Inverting Gradients", NeurIPS: cosine loss, total
  variation, Adam on signs). It is told the labels.
* `crafted`: the server sends a first layer that sorts pictures by a projection. A bin that
  holds one picture shows it (Fowl et al. 2022, "Robbing the Fed", ICLR). Every round has other
  projections; thresholds come from pictures of other people.

A picture counts as read if the error of a reconstruction is below 0.1 of the range of pixels (root
of the mean square, 20 dB). `guess` is the same for the mean of each class in pictures of others.
"""

from __future__ import annotations

import argparse
import tempfile
import uuid
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits

from fedtailor.core import rng
from fedtailor.core.algorithm import ModelState
from fedtailor.data.input_specification import InputSpecification
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.packing import pack_download
from fedtailor.deployment.plan import DeploymentPlan
from fedtailor.deployment.site import DeployedSite
from fedtailor.deployment.wire import Work, from_blob, to_blob
from fedtailor.experiment.config import make_config
from fedtailor.simulation.programs import TrainRequest

MODULES = {"fedtailor"}
TEST = 11
"""Pictures that the site keeps for testing."""
CLOSE = 0.1
SIZES = (10, 50, 115)
"""Training pictures of the site."""
SUM = 1150
"""Training pictures of ten sites with 115: the sum of their steps is the step of one such site."""
ROUNDS = (1, 10)
"""Of the attack with crafted models."""
NOISE = 0.001
"""Standard deviation of noise on every number, as a share of the norm of the update."""


class Site:
    """A site that was asked for its updates; it keeps the policy that it has by default."""

    def __init__(self, folder: Path, count: int, training: dict[str, float]) -> None:
        """Give the site pictures, of which it trains on ``count``."""
        digits = load_digits()
        order = np.random.default_rng(1).permutation(len(digits.target))
        mine = order[: count + TEST]
        images = (digits.images * 15).astype(np.uint8)
        data = folder / "data" / "site"
        data.mkdir(parents=True)
        names = np.array([str(label) for label in range(10)])
        np.savez(data / "train.npz", x=images[mine], y=digits.target[mine], class_names=names)
        (folder / "site.toml").write_text('name = "site"\ndata = "data"\n')

        # What the attacker has: pictures of others, of the same kind.
        self.public = images[order[-500:]].reshape(500, 64) / np.float32(255)
        self.public_labels = digits.target[order[-500:]]
        self.site = DeployedSite(folder)
        self.lr = training["lr"]
        config = make_config(
            {
                "algorithm": {"name": "fedavg"},
                "model": {"name": "mlp"},
                "training": training,
                "engine": {"name": "reference"},
                "data": {"path": "each-site", "test_share": (TEST - 0.5) / (count + TEST)},
            }
        )
        inputs = InputSpecification(
            kind="images",
            shape=(1, 8, 8),
            stored="uint8",
            white=255.0,
            mean=np.zeros(1),
            std=np.ones(1),
            num_classes=10,
            class_names=tuple(names.tolist()),
        )
        self.plan = DeploymentPlan(config, inputs, 1, 0, uuid.uuid4().hex)
        self.algorithm = self.plan.algorithm
        self.task = self.algorithm.bind(self.plan.task(0))
        self.round = 0

    def gradient(
        self, model: dict[str, torch.Tensor], noise: float = 0.0
    ) -> dict[str, torch.Tensor]:
        """Send a model, and return what its update says of the gradient, if it has noise."""
        self.round += 1
        messages = self.algorithm.messages(self.task)
        shared = to_blob(pack_download(ModelState(model), messages), MODULES)
        work = Work(TrainRequest(), self.plan.run, self.round, 0, None, None)
        request = Envelope(work.to_head(), {"plan": self.plan.raw, "shared": shared})
        answer = self.site.answer(request)
        if "out" not in answer.blobs:
            raise SystemExit(str(answer.head))

        sent = from_blob(answer.blobs["out"], MODULES)["upload"]["values"]["model"]
        gradient = {name: (model[name] - sent[name]) / self.lr for name in model}
        norm = torch.cat([part.flatten() for part in gradient.values()]).norm()
        generator = torch.Generator().manual_seed(self.round)
        return {
            name: part + noise * norm * torch.randn(part.shape, generator=generator)
            for name, part in gradient.items()
        }

    def pictures(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the training pictures (n, 64) and labels, with which attacks are judged."""
        prepared = self.site._run.prepared
        rows = prepared.positions.train
        x = prepared.site.x[rows].reshape(len(rows), 64) / np.float32(255)
        return x, prepared.site.y[rows]


def invert(
    site: Site, model: dict[str, torch.Tensor], labels: np.ndarray, iterations: int
) -> np.ndarray:
    """Return pictures (n, 64) whose gradient has the direction of the site's update."""
    gradient = site.gradient(model)
    target = torch.cat([gradient[name].flatten() for name in model])
    weights = {name: value.clone().requires_grad_() for name, value in model.items()}
    y = torch.from_numpy(labels)
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand(len(labels), 64, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([pictures], lr=0.1)
    milestones = [iterations * part // 8 for part in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)

    for _ in range(iterations):
        hidden = torch.relu(pictures @ weights["hidden.weight"].T + weights["hidden.bias"])
        logits = hidden @ weights["head.weight"].T + weights["head.bias"]
        loss = torch.nn.functional.cross_entropy(logits, y)
        parts = torch.autograd.grad(loss, [weights[name] for name in model], create_graph=True)
        guess = torch.cat([part.flatten() for part in parts])
        cosine = torch.nn.functional.cosine_similarity(guess, target, dim=0)

        # Neighboring pixels are alike.
        grid = pictures.view(-1, 8, 8)
        variation = grid.diff(dim=1).abs().mean() + grid.diff(dim=2).abs().mean()
        optimizer.zero_grad()
        (1 - cosine + 1e-4 * variation).backward()
        pictures.grad.sign_()
        optimizer.step()
        schedule.step()
        pictures.data.clamp_(0, 1)

    return pictures.detach().numpy()


def sort_into_bins(site: Site, rounds: int, noise: float = 0.0) -> np.ndarray:
    """Return all bins of some rounds, as pictures (bins, 64)."""
    found = []
    for number in range(rounds):
        generator = np.random.default_rng(number)
        direction = generator.normal(size=64).astype(np.float32) / 8
        values = site.public @ direction
        thresholds = np.quantile(values, (np.arange(100) + 0.5) / 100).astype(np.float32)

        # All units have one projection and one weight in the head; only thresholds differ.
        head = generator.normal(size=(10, 1)).astype(np.float32) / 100
        model = {
            "hidden.weight": torch.from_numpy(np.tile(direction, (100, 1))),
            "hidden.bias": torch.from_numpy(-thresholds),
            "head.weight": torch.from_numpy(np.tile(head, (1, 100))),
            "head.bias": torch.zeros(10),
        }
        gradient = site.gradient(model, noise)

        # A unit has the sum of all pictures above its threshold; the next one lacks those between.
        weights = gradient["hidden.weight"].double().numpy()
        biases = gradient["hidden.bias"].double().numpy()
        weights = weights - np.vstack([weights[1:], np.zeros((1, 64))])
        biases = biases - np.append(biases[1:], 0.0)
        is_used = np.abs(biases) > 1e-7
        found.append(weights[is_used] / biases[is_used, None])
    return np.vstack(found)


def read(pictures: np.ndarray, guesses: np.ndarray) -> tuple[int, float]:
    """Return how many pictures are read, and the median error of the nearest reconstruction."""
    errors = np.sqrt(((pictures[:, None] - guesses[None]) ** 2).mean(axis=2))
    rows, columns = linear_sum_assignment(errors)
    close = int((errors[rows, columns] < CLOSE).sum())
    return close, float(np.median(errors.min(axis=1)))


def main() -> None:
    """Print a row for each number of pictures and attack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=4000)
    options = parser.parse_args()
    one_step = {"lr": 1.0, "epochs": 1, "batch_size": 0}
    usual = {"lr": 0.01, "epochs": 5, "batch_size": 50}
    torch.set_num_threads(1)

    print("pictures  training      attack               read  median error", flush=True)
    for count in (*SIZES, SUM):
        for name, training in (("one step", one_step), ("5 epochs", usual)):
            if count == SUM and name != "one step":
                continue

            with tempfile.TemporaryDirectory() as folder:
                site = Site(Path(folder), count, training)
                model = site.algorithm.init_server(site.task, rng.new_key(0, purpose="init")).model
                site.gradient(model)
                pictures, labels = site.pictures()
                means = [site.public[site.public_labels == label].mean(0) for label in labels]
                results = {"guess": np.stack(means)}
                if count != SUM:
                    results["inversion"] = invert(site, model, labels, options.iterations)
                for rounds in ROUNDS:
                    results[f"crafted, {rounds} rounds"] = sort_into_bins(site, rounds)
                noisy = sort_into_bins(site, ROUNDS[-1], NOISE)
                results[f"{ROUNDS[-1]} rounds, noise"] = noisy

            for attack, guesses in results.items():
                close, error = read(pictures, guesses)
                print(f"{count:8}  {name:12}  {attack:18} {close:6}  {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
