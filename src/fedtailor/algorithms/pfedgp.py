"""pFedGP: a shared body, and a tree of Gaussian process classifiers of a client's own examples.

Achituve, Shamsian, Navon, Chechik and Fetaya 2021, "Personalized federated learning with Gaussian
processes", NeurIPS: the full version, without inducing points. The body phi is the feature
extractor of a kernel,

    k(x, x') = 8 exp(-|u - u'|^2 / 2),   u = phi(x) / |phi(x)|

A client divides its classes in two by 2-means of their mean features, the halves again, and so on.
Every split has a binary classifier with a Gaussian process prior. With Polya-Gamma variables omega
its posterior is Gaussian, and Gibbs sampling gives omega (``_gaussian_process_tree``). In a round a
client takes steps of phi down

    - sum over splits of mean log p(side of x | the other half, omega)

over a random half of its examples of every class. The server averages phi. A
client predicts with all of its training examples: the probability of a class is the product of
those of the sides that lead to it.

Messages: down and up ``body`` (of equal weight). Nothing of the classifiers is sent.

Deviations (P: paper, C: released code):
* As in C: outputs scaled by 8, a length of 1, 5 steps of Gibbs sampling with 20 chains in training
  and 30 in prediction, and a mean of equal weights.
* Clients train as ``[training]`` says, with the examples of a batch as all that there are. C takes
  one step in a round, with all examples of the client: ``training.batch_size`` = 0 and
  ``training.steps`` = 1.
* The probability of a side is the mean of sigmoid(f) over the Gaussian of f. C takes
  exp(E log sigmoid(f)), which depends on which side is called the left one.
* The two means of a split are found from the two classes that are farthest apart, which stay apart;
  C takes the best of 50 random starts. A Polya-Gamma variable is the first 20 terms of its series
  and the mean of the rest, which leaves out 10^-5 of its variance; C draws exactly.
* A client with one class predicts it, one without examples all alike. Models factorize matrices
  when they predict, which ONNX cannot.
* P's two versions with inducing points are left out. Time and memory grow with the cube and the
  square of the examples of a batch, or of a client that predicts: some hundreds are possible. On
  the engine ``batched`` they also grow with the number of classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.algorithms import _gaussian_process_tree as processes
from fedtailor.toolkit import gaussian


class ServerState(NamedTuple):
    """The body."""

    body: ft.Params


class Memory(NamedTuple):
    """Remembered examples, and what Gibbs sampling has found of them."""

    features: Tensor  # (n, d)
    labels: Tensor  # (n,)
    weight: Tensor  # (n,), 0 for padding
    omega: Tensor  # (n, chains, splits)


class Personal(NamedTuple):
    """The body, the client's tree, and its remembered examples."""

    body: ft.Params
    tree: processes.Tree
    memory: ft.PerExample  # of a Memory


def tree_loss(
    task: ft.Task,
    body: ft.Params,
    tree: processes.Tree,
    batch: ft.Batch,
    key: ft.Key,
    *,
    chains: int,
    steps: int,
) -> ft.LossOutput:
    """Negative log-probability of half of the examples, given the others."""
    z, buffers = task.features(body, batch, key)
    counts = (batch.weight > 0).to(torch.float64)
    loss = processes.half_loss(
        z, batch.y, counts, tree, key.fold("process"), chains=chains, steps=steps
    )
    return ft.LossOutput(loss.to(z.dtype), buffers)


@dataclass(frozen=True, kw_only=True)
class PFedGP(ft.Algorithm[ServerState, tuple[()], Personal]):
    """Personalized federated learning with Gaussian processes."""

    unused_training = ("class_weights",)

    gibbs_steps: ft.PositiveInt = 5
    """Steps of Gibbs sampling."""
    training_chains: ft.PositiveInt = 20
    """Chains of it in every step of training."""
    chains: ft.PositiveInt = 30
    """Chains of it for predictions."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Sample the posterior of the Gaussian processes."""
        return [ft.WithoutTraining("Gaussian processes")]

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the body."""
        return {"body": ft.Field(kind="model", shapes=task.shapes(*ft.BODY), weight="equal")}

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the common body."""
        return ServerState(task.initial(key, *ft.BODY))

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the body under the tree of the received one."""
        body = download.shared.body
        tree, _ = _tree_of(task, body, data.train, key.fold("tree"))
        loss = partial(tree_loss, chains=self.training_chains, steps=self.gibbs_steps)
        trained = ft.train(task, loss, body, context=tree, data=data.train, key=key)

        upload = {"body": ft.Mean(trained.params, torch.ones(()))}
        return ft.ClientUpdate(state, upload, metrics=trained.metrics)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> Personal:
        """Remember the training examples, and sample what belongs to them."""
        body = download.shared.body
        tree, table = _tree_of(task, body, data.train, key.fold("tree"))
        labels = table.labels()
        omega = processes.sample_splits(
            processes.directions(table.x),
            tree.targets(labels, (table.weight > 0).to(torch.float64)),
            key.fold("omega"),
            chains=self.chains,
            steps=self.gibbs_steps,
        )
        memory = Memory(table.x, labels, table.weight, omega.to(table.x.dtype))
        return Personal(body, tree, ft.PerExample(memory))

    def features(self, task: ft.Task, personal: Personal, x: Tensor) -> Tensor:
        """Return the features of the body."""
        return ft.predict_features(task, personal.body, x)

    def predict(self, task: ft.Task, personal: Personal, x: Tensor) -> Tensor:
        """Return log-probabilities of the client's classes, the least for others."""
        memory: Memory = personal.memory.value
        z = self.features(task, personal, x)
        counts = (memory.weight > 0).to(torch.float64)

        left = processes.predict_splits(
            processes.directions(memory.features),
            personal.tree.targets(memory.labels, counts),
            memory.omega.double(),
            processes.directions(z),
        )
        log_probabilities = personal.tree.log_probabilities(left)

        # Classes without examples are impossible, unless there are no examples at all.
        present = torch.zeros(task.num_classes, dtype=torch.float64)
        present = present.index_add(0, memory.labels, counts) > 0
        is_possible = present | ~present.any()
        least = float(torch.finfo(z.dtype).tiny)
        floor = torch.full_like(log_probabilities, least).log()
        return torch.where(is_possible, log_probabilities, floor).to(z.dtype)


def _tree_of(
    task: ft.Task, body: ft.Params, data: ft.ExampleSet, key: ft.Key
) -> tuple[processes.Tree, ft.ExampleSet]:
    """Return the tree of a client's classes under a body, and its features."""
    table, moments = gaussian.measure(task, body, data, key=key)
    return processes.grow(moments.means, moments.counts > 0), table
