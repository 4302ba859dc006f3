"""FedFomo: a client mixes models of other clients, by how much each lowers its validation loss.

Zhang, Sapra, Fidler, Yeung and Alvarez 2021, "Personalized federated learning with first order
model optimization", ICLR. The server has the last model of every client. Client i downloads those
of M others, and weighs them and its own last model: with b_i the model from which it trained last,
and L_i its mean cross-entropy on validation examples,

    w_n = (L_i(b_i) - L_i(theta_n)) / |theta_n - b_i|
    b_i <- b_i + sum_n u_n (theta_n - b_i),   u_n = max(w_n, 0) / sum_m max(w_m, 0)

and trains the new b_i, which gives its next own model. If no model is better than b_i, it starts
from b_i again. The server adds the weights to the affinities P_in, and chooses M models by them:
for each of the M, with probability epsilon any other client's, else that of the largest affinity.

Messages: down ``peers`` (M models: M times FedAvg) and ``clients`` (whose they are); up ``model``
and ``weights`` (w_n of the M models, with their clients, over |sum_m w_m|, where the sum has the
client's own last model too), which the server sees of every single client. A client so receives
models of other clients, and so could whoever is one.

Deviations (P: paper, C: released code):
* |theta - b| is the Euclidean distance of all parameters; C's default is the sum of absolute
  differences.
* Where a client has no validation examples, L_i is on its training examples. P and C set a fifth of
  the training examples aside; here ``data.val_fraction`` does.
* As in C, only models of the clients of the last round can be downloaded, affinities start at 0,
  ties are broken at random, and epsilon falls by ``exploration_decay`` in each round.
* C also offers means of clustered models, and their mean, for download. They are not in P, and left
  out.
* The personal model is the client's own after training, as C reports it last; the common
  initialization if it never trained. A new client weighs M models against that initialization, and
  trains their mixture for a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.algorithms._several_models import losses_under_models, stacked_shapes
from fedtailor.toolkit import tree

_LEAST_SUM = 1e-9
"""Of weights, before they are divided by it."""


class ServerState(NamedTuple):
    """What the server knows of all K clients."""

    models: ft.Params
    """The last model of each, stacked: every parameter has a leading axis (K, ...)."""
    available: Tensor  # (K,), 1 for clients of the last round
    affinity: Tensor  # (K, K), P: row i is of client i


class ClientState(NamedTuple):
    """The model b_i from which the client trained last, and what it became."""

    start: ft.Params
    model: ft.Params


class Peers(NamedTuple):
    """Models of other clients, stacked, and the ids of these clients; -1: no model."""

    peers: ft.Params
    clients: Tensor  # (M,)


class Weights(NamedTuple):
    """The weights of downloaded models, and the ids of their clients; -1: no model."""

    clients: Tensor  # (M,)
    weights: Tensor  # (M,)


def first_order_weights(losses: Tensor, distances: Tensor, offered: Tensor) -> Tensor:
    """Return w_n of models (n,).

    Args:
        losses: of the model to improve first, then of the others (1 + n,).
        distances: of the others from it (n,).
        offered: 1 for those that there are (n,).
    """
    usable = (offered > 0) & (distances > 0)
    weights = (losses[0] - losses[1:]) / torch.where(usable, distances, 1.0)

    # A model that has diverged has no finite loss, and no weight.
    return torch.where(usable & torch.isfinite(weights), weights, 0.0)


def mean_losses(task: ft.Task, models: ft.Params, data: ft.ClientData, key: ft.Key) -> Tensor:
    """Return the mean loss of every model (k,), on validation examples where there are any."""
    means = []
    for examples, name in ((data.val, "validation"), (data.train, "training")):
        losses = ft.forward(task, losses_under_models, models, examples, key=key.fold(name))
        weight = examples.weight[:, None]
        total = torch.where(weight > 0, losses * weight, 0.0).sum(0)
        means.append(total / examples.size().clamp(min=1))

    return torch.where(data.val.size() > 0, means[0], means[1])


def choose(
    affinity: Tensor, free: Tensor, exploration: float, key: ft.Key, count: int
) -> list[Tensor]:
    """Return the ids of the clients (), whose models a client downloads; -1 where none is left.

    Args:
        affinity: of the client (K,).
        free: whose models may be chosen (K,).
        exploration: the probability of a choice at random (epsilon).
        key: of the random numbers.
        count: of models (M).
    """
    chosen = []
    explores = ft.uniform(key.fold("explore"), (count,)) < exploration
    for number in range(count):
        # The largest affinity; of equal ones, or of all, the largest random number.
        best = torch.where(free, affinity, -torch.inf).max()
        candidates = free & (explores[number] | (affinity == best))
        noise = ft.uniform(key.fold(number), tuple(affinity.shape))
        client = torch.where(candidates, noise, -1.0).argmax()

        chosen.append(torch.where(free.any(), client, -1))
        free = free & (torch.arange(len(free)) != client)

    return chosen


@dataclass(frozen=True, kw_only=True)
class FedFomo(ft.Algorithm[ServerState, ClientState, ft.Params]):
    """Federated first order model optimization."""

    chooses_by_validation = True
    onboarding = (ft.RoundOfTraining(),)

    downloads: ft.PositiveInt = 4
    """Models of other clients that a client downloads in a round (M)."""
    exploration: ft.Share = 0.3
    """Probability that one of them is chosen at random (epsilon), in the first round."""
    exploration_decay: ft.NonNegativeFloat = 0.05
    """How much this probability falls in each round, down to 0."""

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare models of other clients, their ids, the client's own model, and weights."""
        count = (self.downloads,)
        return {
            "peers": ft.Field(
                kind="model", shapes=stacked_shapes(task, self.downloads), reduction="none"
            ),
            "clients": ft.Field(kind="statistics", shapes=count, reduction="none"),
            "model": ft.Field(
                kind="model", shapes=task.shapes(*ft.ALL), reduction="each", down=False
            ),
            "weights": ft.Field(
                kind="statistics",
                shapes=Weights._make([count, count]),
                reduction="each",
                down=False,
            ),
        }

    def init_federation(self, task: ft.Task, population: int, key: ft.Key) -> ServerState:
        """Start with the common initialization for all clients, which nobody can download."""
        models = tree.stack([task.initial(key)] * population)
        return ServerState(models, torch.zeros(population), torch.zeros(population, population))

    def admit(
        self, task: ft.Task, server: ServerState, before: int, population: int, key: ft.Key
    ) -> ServerState:
        """Make room for those who join, who have the common initialization and no affinities."""
        added = self.init_federation(task, population - before, key)
        models = tree.map(
            lambda old, new: torch.cat([old[:before], new]), server.models, added.models
        )
        available = torch.cat([server.available[:before], added.available])
        affinity = server.affinity.new_zeros(population, population)
        affinity[:before, :before] = server.affinity[:before, :before]
        return ServerState(models, available, affinity)

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ClientState:
        """Start from the common initialization."""
        model = task.initial(key)
        return ClientState(model, model)

    def init_per_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> Peers:
        """Return no models."""
        shapes = stacked_shapes(task, self.downloads)
        models = {name: torch.zeros(shape) for name, shape in shapes.items()}
        return Peers(models, torch.full((self.downloads,), -1.0))

    def broadcast(self, server: ServerState, cohort: ft.Cohort) -> tuple[()]:
        """Return nothing that all clients receive."""
        return ()

    def per_client(self, server: ServerState, cohort: ft.Cohort, key: ft.Key) -> Peers:
        """Choose models for every client, by its affinities."""
        exploration = max(self.exploration - self.exploration_decay * (cohort.round - 1), 0.0)
        population = cohort.population
        rows = []
        for client in cohort.ids:
            # A new client has no affinities.
            is_other = torch.arange(population) != client
            affinity = server.affinity.new_zeros(population)
            if client < population:
                affinity = server.affinity[client]

            own_key = key._replace(client=client)
            free = is_other & (server.available > 0)
            chosen = choose(affinity, free, exploration, own_key, self.downloads)
            rows.append(torch.stack(chosen))

        ids = torch.stack(rows)  # (cohort, M)
        models = {name: _rows(leaf, ids) for name, leaf in server.models.items()}
        return Peers(models, ids.to(server.affinity.dtype))

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[tuple[()]],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Weigh and mix the models, then train the mixture."""
        received: Peers = download.per_client
        start, weights = self._mix(task, received, state, data, key)
        trained = ft.train(task, ft.classification_loss, start, data=data.train, key=key)

        upload = {"model": ft.Each(trained.params), "weights": ft.Each(weights)}
        new_state = ClientState(start, trained.params)
        return ft.ClientUpdate(new_state, upload, personal=trained.params, metrics=trained.metrics)

    def aggregate(
        self, server: ServerState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ServerState, tuple[()]]:
        """Keep the models of the cohort, and add its weights to the affinities."""
        ids = cohort.ids.to(server.affinity.device)
        models = tree.map(
            lambda kept, sent: kept.index_copy(0, ids, sent),
            server.models,
            received["model"].value,
        )
        available = torch.zeros_like(server.available).index_fill(0, ids, 1.0)

        # P_in; a place without a model adds 0
        weights: Weights = received["weights"].value
        clients = weights.clients.long().clamp(0, cohort.population - 1)
        added = torch.zeros(len(ids), cohort.population).scatter_add(1, clients, weights.weights)
        affinity = server.affinity.index_add(0, ids, added)
        return ServerState(models, available, affinity), ()

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[tuple[()]],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Weigh the models against the common initialization, and train the mixture."""
        update = self.local_update(task, download, self.init_client(task, info, key), data, key)
        return ft.Onboarded(update.state, update.metrics["steps"])

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[tuple[()]],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Params:
        """Return the client's own model."""
        return state.model

    def _mix(
        self,
        task: ft.Task,
        received: Peers,
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> tuple[ft.Params, Weights]:
        """Return the model to train, and the weights of the downloaded models."""
        # b_i first, then the client's own model, then the others: (2 + M, ...)
        models = tree.map(
            lambda start, own, others: torch.cat([start[None], own[None], others]),
            state.start,
            state.model,
            received.peers,
        )
        offered = torch.cat([torch.ones(1), (received.clients >= 0).to(received.clients.dtype)])

        losses = mean_losses(task, models, data, key.fold("weigh"))
        differences = {name: leaf[1:] - leaf[:1] for name, leaf in models.items()}
        squares = [differences[name].flatten(1).square().sum(1) for name in task.names(*ft.TRAINED)]
        distances = torch.stack(squares).sum(0).sqrt()
        weights = first_order_weights(losses, distances, offered)

        # b_i + sum_n u_n (theta_n - b_i)
        positive = weights.clamp(min=0.0)
        total = positive.sum()
        shares = torch.where(total > 0, positive / torch.where(total > 0, total, 1.0), 0.0)
        mixed = {
            name: state.start[name] + torch.tensordot(shares, change, 1)
            for name, change in differences.items()
        }

        normalized = weights / weights.sum().abs().clamp(min=_LEAST_SUM)
        return mixed, Weights(received.clients, normalized[1:])


def _rows(models: Tensor, ids: Tensor) -> Tensor:
    """Return the rows of some clients (cohort, M, ...), zeros where the id is -1."""
    rows = models[ids.clamp(min=0)]
    is_model = (ids >= 0).reshape(*ids.shape, *[1] * (rows.dim() - ids.dim()))
    return torch.where(is_model, rows, 0.0)
