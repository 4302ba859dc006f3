"""FedProto: clients share the mean features of their classes, and no part of their models.

Tan, Long, Liu, Zhou, Lu, Jiang and Zhang 2022, "FedProto: Federated prototype learning across
heterogeneous clients", AAAI, Algorithm 1. Prototype C^c is the mean of the features of class c over
all clients' examples. A client trains its own model on

    mean_n [ CE(h(z_n), y_n) + lambda MSE(z_n, C^c) ],   c = y_n      (``aligned_loss``),

where lambda is ``penalty`` and MSE the mean over the d features: 0 without a prototype. It uploads
the means of its classes under the trained model. Architectures may differ between clients as long
as features have the same length. A prediction is the class of the nearest global prototype.

Messages: down ``prototypes`` (C), ``known`` (1 for classes that have one) and ``rounds`` (how many
rounds each client trained on average, for new clients); up ``prototypes`` (the client's means,
weight: class counts). Models never leave a client.

Deviations (P: paper, C: released code):
* Class counts weight the means. C weights them equally, and P's eq. 6 also divides by the number of
  clients.
* The distance is C's mean square. P writes the L2 distance between the prototypes of a client and
  the global ones.
* Local prototypes use all examples under the trained model, in evaluation mode. C uses features of
  the last epoch.
* A prediction compares all known prototypes and no other class, so test examples of unknown classes
  have infinite loss. C compares only the client's own classes, as if those of test examples were
  known, or (``prediction``) uses the head.
* Right after local training (``local``), classes without a global prototype have the client's own.
* P and C have no new clients. Here a new client trains from the common start towards current
  prototypes, in one phase as long as others trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import gaussian


class Prototypes(NamedTuple):
    """Mean features of the classes (classes, d), and 1 for those that are known (classes,)."""

    means: Tensor
    known: Tensor


class ServerState(NamedTuple):
    """The global prototypes."""

    prototypes: Prototypes


class Broadcast(NamedTuple):
    """What clients receive: prototypes, and the rounds that a client trained on average, ()."""

    prototypes: Prototypes
    rounds: Tensor


class Personal(NamedTuple):
    """A client's model, and the prototypes that it predicts with."""

    model: ft.Params
    prototypes: Prototypes


def aligned_loss(
    task: ft.Task,
    model: ft.Params,
    prototypes: Prototypes,
    batch: ft.Batch,
    key: ft.Key,
    *,
    penalty: float,
) -> ft.LossOutput:
    """Cross-entropy plus the mean squared distance of features from their classes' prototypes."""
    z, buffers = task.features(model, batch, key)
    distances = (z - prototypes.means[batch.y]).square().mean(1) * prototypes.known[batch.y]
    supervised = ft.cross_entropy_of(batch, task.model.head(model, z))
    return ft.LossOutput(supervised + penalty * ft.weighted_mean(distances, batch.weight), buffers)


@dataclass(frozen=True, kw_only=True)
class FedProto(ft.Algorithm[ServerState, ft.Params, Personal]):
    """Federated prototype learning."""

    onboarding = (ft.RoundOfTraining(as_many_as_others=True),)

    penalty: Annotated[ft.NonNegativeFloat, ft.AtZero("every client trains alone.")] = 1.0
    """Weight of the distance from the prototypes (lambda)."""
    prediction: Literal["prototypes", "head"] = "prototypes"
    """What predicts: the nearest prototype, or the model's own head."""

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare prototypes, which of them are known, and the rounds, for new clients."""
        classes = task.num_classes
        shape = (classes, task.model.feature_dim)
        return {
            "prototypes": ft.Field(kind="class_means", shapes=shape, weight="class_counts"),
            "known": ft.Field(kind="counts", shapes=(classes,), reduction="none"),
            "rounds": ft.Field(kind="counts", shapes=(), reduction="none"),
        }

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start without prototypes."""
        means = torch.zeros(task.num_classes, task.model.feature_dim)
        return ServerState(Prototypes(means, torch.zeros(task.num_classes)))

    def broadcast(self, server: ServerState, cohort: ft.Cohort) -> Broadcast:
        """Send the prototypes, and for new clients how long the others trained."""
        return Broadcast(server.prototypes, torch.tensor(cohort.rounds_trained))

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ft.Params:
        """Start from the common initialization of the client's own architecture."""
        return task.initial(key)

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[Broadcast],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train towards the prototypes, then compute the client's own."""
        shared = download.shared.prototypes
        loss = partial(aligned_loss, penalty=self.penalty)
        trained = ft.train(task, loss, state, context=shared, data=data.train, key=key)

        # the means of the client's classes, under the model that it trained
        _, moments = gaussian.measure(task, trained.params, data.train, key=key)
        local_means = moments.means.to(shared.means.dtype)
        upload = {"prototypes": ft.Mean(local_means, data.info.class_counts)}

        # until the next round, the client's means stand for prototypes that are missing
        present = (moments.counts > 0).to(shared.known.dtype)
        merged = torch.where(shared.known[:, None] > 0, shared.means, local_means)
        prototypes = Prototypes(merged, torch.maximum(shared.known, present))
        personal = Personal(trained.params, prototypes)
        return ft.ClientUpdate(trained.params, upload, personal=personal, metrics=trained.metrics)

    def aggregate(
        self, server: ServerState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ServerState, tuple[()]]:
        """Replace the prototypes of the classes that were sent."""
        # a class is known from the first cohort on that has it
        old = server.prototypes
        new = received["prototypes"]
        sent = (new.total_weight > 0).to(old.known.dtype)
        return ServerState(Prototypes(new.or_else(old.means), torch.maximum(old.known, sent))), ()

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[Broadcast],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Train from the common initialization for the same budget as the others."""
        shared = download.shared
        trained = ft.train_rounds(
            task,
            partial(aligned_loss, penalty=self.penalty),
            self.init_client(task, info, key),
            context=shared.prototypes,
            data=data.train,
            key=key,
            rounds=shared.rounds,
        )
        return ft.Onboarded(trained.params, trained.steps)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[Broadcast],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> Personal:
        """Return the client's own model with the global prototypes."""
        return Personal(state, download.shared.prototypes)

    def predict(self, task: ft.Task, personal: Personal, x: Tensor) -> Tensor:
        """Return negative squared distances from prototypes (-inf: none), or the head's logits."""
        z = self.features(task, personal, x)
        if self.prediction == "head":
            return task.model.head(personal.model, z)

        means, known = personal.prototypes
        distances = torch.cdist(z, means, compute_mode="donot_use_mm_for_euclid_dist").square()
        return -torch.where(known > 0, distances, torch.inf)
