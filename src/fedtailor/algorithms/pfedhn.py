"""pFedHN: a network at the server makes the model of every client from a few numbers of the client.

Shamsian, Navon, Fetaya and Chechik 2021, "Personalized federated learning using hypernetworks",
ICML, Algorithm 1. The server has a hypernetwork h with parameters phi, and an embedding v_i for
each of the K clients. A client receives its model, trains it, and sends what changed:

    server:   theta_i = h(v_i; phi)
    client:   theta~_i after local steps down its cross-entropy from theta_i
              Delta_i = theta_i - theta~_i
    server:   phi and v_i take a step of SGD, with Delta_i in place of the gradient in theta_i:
              (d theta_i / d phi)^T Delta_i   and   (d theta_i / d v_i)^T Delta_i

h is a perceptron of 1 + 3 layers, each of ``hidden`` units, and one more linear layer whose outputs
are all parameters of the model, whatever that is. It is never sent. Its last layer has ``hidden``
numbers for each parameter of the model, of which the server holds several copies: with ResNet18,
1.1 billion numbers, and more than 21 GB of memory.

Messages: down ``model`` (theta_i, the client's own) and ``buffers``; up ``change`` (Delta_i), which
the server sees of every single client, and ``buffers`` (weight n_i): the bytes of FedAvg.

Deviations (P: paper, C: released code):
* P and C train one client per round, C for 5,000 rounds: ``federation.participation`` =
  "fixed(1)". With more clients, the step of phi is that of their mean, and every embedding takes
  its own; a few dozen rounds are too few for the default rate.
* The server's SGD is that of C: momentum 0.9 and weight decay 0.001, for all embeddings in every
  round, gradients clipped to a norm of 50, layers and embeddings as PyTorch initializes them, and
  1 + K / 4 numbers of an embedding, rounded down. The sign of Delta_i is that of C.
* Clients train as ``[training]`` says. C takes 50 batches per round, with learning rate 0.005,
  momentum 0.9 and weight decay 0.00005.
* The networks of P have no normalization layers. The hypernetwork makes their scales too, which
  start near 0 and need more rounds. Their buffers are averaged, as in FedAvg.
* In P the server finds the embedding of a new client in more rounds, with phi as it is. Here new
  clients send nothing: one receives the model of the mean embedding, and trains it for a round.
* P's variant with personal heads (pFedHN-PC) is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.algorithms._hypernetwork import init_hyper
from fedtailor.toolkit import tree

_HIDDEN_LAYERS = 4
_MOMENTUM = 0.9
_WEIGHT_DECAY = 1e-3
_LARGEST_NORM = 50.0


class Network(NamedTuple):
    """The parameters phi of the hypernetwork h."""

    hidden: ft.Params
    weight: ft.Params
    """Of the last layer, for every parameter of a model: its shape, then the hidden units."""
    bias: ft.Params
    """The same without the hidden units."""


class Learned(NamedTuple):
    """What the server trains: phi, and the embeddings v of all clients."""

    network: Network
    embeddings: Tensor  # (K, e)


class ServerState(NamedTuple):
    """Hypernetwork and embeddings, their momentum, and the buffers of models."""

    learned: Learned
    velocity: Learned
    buffers: ft.Params


class Shared(NamedTuple):
    """What all clients receive."""

    buffers: ft.Params


class ClientState(NamedTuple):
    """The model of a new client, and 1 if it is one, ()."""

    model: ft.Params
    new: Tensor


def model_of(network: Network, embedding: Tensor) -> ft.Params:
    """Return h(v; phi): the trained parameters of the model of an embedding (e,)."""
    units = embedding
    for layer in range(_HIDDEN_LAYERS):
        if layer > 0:
            units = F.relu(units)
        weight = network.hidden[f"layer{layer}.weight"]
        units = F.linear(units, weight, network.hidden[f"layer{layer}.bias"])

    return {name: weight @ units + network.bias[name] for name, weight in network.weight.items()}


def pulled_back(learned: Learned, ids: Tensor, changes: ft.Params) -> Learned:
    """Return the gradients for which the changes of models (clients, ...) stand.

    That of phi is the mean over the clients with these ids. Embeddings of others have 0.
    """
    models_of = torch.func.vmap(model_of, in_dims=(None, 0))
    pull = torch.func.vjp(models_of, learned.network, learned.embeddings[ids])[1]
    network, embeddings = pull(changes)

    network = tree.map(lambda leaf: leaf / len(ids), network)
    rows = torch.zeros_like(learned.embeddings).index_copy(0, ids, embeddings)
    return Learned(network, rows)


def clipped(gradients: Learned) -> Learned:
    """Return the gradients, with a norm of 50 at most for all of them together."""
    squares = [leaf.square().sum() for leaf in tree.leaves(gradients)]
    norm = torch.stack(squares).sum().sqrt()
    factor = _LARGEST_NORM / norm.clamp(min=_LARGEST_NORM)
    smaller: Learned = tree.map(lambda leaf: leaf * factor, gradients)
    return smaller


@dataclass(frozen=True, kw_only=True)
class PFedHN(ft.Algorithm[ServerState, ClientState, ft.Params]):
    """Personalized federated hypernetworks."""

    onboarding = (ft.RoundOfTraining(),)

    server_lr: ft.PositiveFloat = 0.01
    """Learning rate of the hypernetwork and of the embeddings (alpha)."""
    hidden: ft.PositiveInt = 100
    """Units of each hidden layer of the hypernetwork."""
    embedding: ft.NonNegativeInt = 0
    """Numbers of an embedding; 0: 1 + K / 4 for K clients, rounded down."""

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the client's model, its change, and buffers."""
        trained = task.shapes(*ft.TRAINED)
        return {
            "model": ft.Field(kind="model", shapes=trained, reduction="none"),
            "change": ft.Field(kind="model", shapes=trained, reduction="each", down=False),
            "buffers": ft.Field(kind="model", shapes=task.shapes("buffer")),
        }

    def init_federation(self, task: ft.Task, population: int, key: ft.Key) -> ServerState:
        """Draw the hypernetwork and the embeddings."""
        size = self.embedding or 1 + population // 4
        embeddings = ft.normal(key.fold("embeddings"), (population, size))
        learned = Learned(self._init_network(task, size, key), embeddings)

        velocity = tree.map(torch.zeros_like, learned)
        return ServerState(learned, velocity, task.initial(key, "buffer"))

    def admit(
        self, task: ft.Task, server: ServerState, before: int, population: int, key: ft.Key
    ) -> ServerState:
        """Draw the embeddings of those who join; the size of an embedding stays."""
        known = server.learned.embeddings
        drawn = ft.normal(key.fold("embeddings"), (population, known.shape[1]))[before:]
        learned = server.learned._replace(embeddings=torch.cat([known[:before], drawn]))

        moving = server.velocity.embeddings[:before]
        velocity = server.velocity._replace(embeddings=torch.cat([moving, torch.zeros_like(drawn)]))
        return server._replace(learned=learned, velocity=velocity)

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ClientState:
        """Start as a known client, which keeps no model."""
        return ClientState(task.zeros(*ft.ALL), torch.zeros(()))

    def init_per_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ft.Params:
        """Return zeros, which the hypernetwork's model replaces."""
        return task.zeros(*ft.TRAINED)

    def broadcast(self, server: ServerState, cohort: ft.Cohort) -> Shared:
        """Return the buffers."""
        return Shared(server.buffers)

    def per_client(self, server: ServerState, cohort: ft.Cohort, key: ft.Key) -> tree.Tree:
        """Make the model of every client; a new one gets that of the mean embedding."""
        known = server.learned.embeddings
        embeddings = torch.cat([known, known.mean(0, keepdim=True)])
        ids = cohort.ids.to(known.device).clamp(max=cohort.population)

        # One by one: the bits must not depend on how many clients are asked at once.
        models = [model_of(server.learned.network, row) for row in embeddings[ids]]
        return tree.stack(models)

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[Shared],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the received model, and send what changed."""
        model = _received(task, download)
        trained = ft.train(task, ft.classification_loss, model, data=data.train, key=key)

        change = {name: model[name] - trained.params[name] for name in task.names(*ft.TRAINED)}
        upload: dict[str, ft.Mean | ft.Each] = {
            "change": ft.Each(change),
            "buffers": ft.Mean(task.pick(trained.params, "buffer"), data.info.num_train),
        }
        return ft.ClientUpdate(state, upload, personal=trained.params, metrics=trained.metrics)

    def aggregate(
        self, server: ServerState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ServerState, tuple[()]]:
        """Take a step with the hypernetwork and the embeddings."""
        ids = cohort.ids.to(server.learned.embeddings.device)
        gradients = clipped(pulled_back(server.learned, ids, received["change"].value))

        # v <- m v + (g + a w), w <- w - lr v
        velocity = tree.map(
            lambda old, gradient, leaf: _MOMENTUM * old + gradient + _WEIGHT_DECAY * leaf,
            server.velocity,
            gradients,
            server.learned,
        )
        learned = tree.map(
            lambda leaf, step: leaf - self.server_lr * step, server.learned, velocity
        )
        return ServerState(learned, velocity, received["buffers"].value), ()

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[Shared],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Train the model of the mean embedding."""
        model = _received(task, download)
        trained = ft.train(task, ft.classification_loss, model, data=data.train, key=key)
        return ft.Onboarded(ClientState(trained.params, torch.ones(())), trained.steps)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[Shared],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Params:
        """Return the model that the hypernetwork makes; a new client's own."""
        received = _received(task, download)
        model: ft.Params = tree.where(state.new > 0, state.model, received)
        return model

    def _init_network(self, task: ft.Task, size: int, key: ft.Key) -> Network:
        """Draw phi for embeddings of a size, as PyTorch initializes linear layers."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(_HIDDEN_LAYERS):
            width = size if layer == 0 else self.hidden
            shapes[f"layer{layer}.weight"] = (self.hidden, width)
            shapes[f"layer{layer}.bias"] = (self.hidden,)

        weight = {}
        bias = {}
        bound = 1 / math.sqrt(self.hidden)
        for name, shape in task.shapes(*ft.TRAINED).items():
            drawn = ft.uniform(key.fold(f"{name}.weight"), (*shape, self.hidden))
            weight[name] = (2 * drawn - 1) * bound
            bias[name] = (2 * ft.uniform(key.fold(f"{name}.bias"), shape) - 1) * bound

        return Network(init_hyper(shapes, key.fold("hidden")), weight, bias)


def _received(task: ft.Task, download: ft.Download[Shared]) -> ft.Params:
    """Return the whole model that a client receives, in layer order."""
    return task.pick({**download.per_client, **download.shared.buffers}, *ft.ALL)
