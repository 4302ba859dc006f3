"""FedProto: clients share the mean features of their classes, and nothing of their models.

Tan, Long, Liu, Zhou, Lu, Jiang and Zhang 2022, "FedProto: Federated prototype learning across heterogeneous clients",
AAAI, Algorithm 1. Prototype C^c is the mean of the features of class c over all clients' examples. A client trains its
own model, of an architecture of its own as long as features have the same length, on

    mean_n [ CE(h(z_n), y_n) + penalty MSE(z_n, C^c) ],   c = y_n,   MSE: the mean over the d features,

without MSE for classes that have no prototype yet, and uploads the means of its classes under the trained model. A
prediction is the class of the nearest global prototype.

Messages: down ``prototypes`` (C), ``known`` (1 for classes that have one) and ``rounds`` (how many each client trained
on average, for new ones); up ``prototypes`` (the client's means, weight: class counts). Models never leave a client.

Deviations (P: paper, C: released code):
* Class counts weigh the means; C's weights are equal, and P's eq. 6 divides by the number of clients besides.
* The distance is C's mean square; P writes the L2 distance between the prototypes of a client and the global ones.
* Local prototypes are of all examples under the trained model, in evaluation mode; C's of features of the last epoch.
* All known prototypes compete in a prediction, and no other class does: test examples of others have infinite loss. C
  looks among a client's own classes alone, as if those of test examples were known, or (``prediction``) takes the head.
* Right after local training (``local``), classes without a global prototype have the client's own.
* A new client (P, C: none) trains from the common start towards current prototypes, in one phase as long as others did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download, Onboarded
from fedtailor.core.federation import ClientData, ClientInfo, Cohort
from fedtailor.core.message import Field, Mean, Messages, Reduced
from fedtailor.core.options import Range
from fedtailor.core.prediction import predict_features
from fedtailor.core.rng import Key
from fedtailor.core.task import Batch, LossOutput, Params, Task
from fedtailor.statistics.gaussian import class_moments
from fedtailor.training.blocks import cached_features, train
from fedtailor.training.losses import cross_entropy, weighted_mean
from fedtailor.training.tuning import train_rounds


class Prototypes(NamedTuple):
    """Mean features of the classes (classes, d), and 1 for those that are known (classes,)."""

    means: Tensor
    known: Tensor


class Shared(NamedTuple):
    """What clients receive: prototypes, and the rounds that a client trained on average, ()."""

    prototypes: Prototypes
    rounds: Tensor


class Personal(NamedTuple):
    """A client's model, and the prototypes that it predicts with."""

    model: Params
    prototypes: Prototypes


def aligned_loss(
    task: Task, model: Params, prototypes: Prototypes, batch: Batch, key: Key, *, penalty: float
) -> LossOutput:
    """Cross-entropy plus the mean square of what parts features from the prototypes of their classes."""
    z, buffers = task.model.features(model, batch.x, weight=batch.weight, key=key, training=True)
    gaps = (z - prototypes.means[batch.y]).square().mean(1) * prototypes.known[batch.y]
    entropy = cross_entropy(task.model.head(model, z), batch.y, batch.weight)
    return LossOutput(entropy + penalty * weighted_mean(gaps, batch.weight), buffers)


@dataclass(frozen=True, kw_only=True)
class FedProto(Algorithm[Prototypes, Params, Personal]):
    """Federated prototype learning."""

    onboarding = "as many rounds of all layers as the others trained"

    penalty: Annotated[float, Range(ge=0)] = 1.0
    """Weight of the distance from the prototypes (lambda)."""
    prediction: Literal["prototypes", "head"] = "prototypes"
    """What predicts: the nearest prototype, or the model's own head."""

    def warnings(self, task: Task) -> list[str]:
        """Without the penalty nobody learns from others."""
        alone = "with penalty 0, every client trains alone"
        return [] if self.penalty else [f"{alone}." if self.prediction == "head" else f"{alone}; predictions do not."]

    def messages(self, task: Task) -> Messages:
        """Declare the prototypes, which of them are known, and the rounds that new clients must know."""
        shape = (task.num_classes, task.model.feature_dim)
        prototypes = Field(kind="class_means", shapes=shape, weight="class_counts")
        known, rounds = (Field(kind="counts", shapes=numbers, reduction="none") for numbers in (shape[:1], ()))
        return {"prototypes": prototypes, "known": known, "rounds": rounds}

    def init_server(self, task: Task, key: Key) -> Prototypes:
        """Start without prototypes."""
        return Prototypes(torch.zeros(task.num_classes, task.model.feature_dim), torch.zeros(task.num_classes))

    def broadcast(self, server: Prototypes, cohort: Cohort) -> Shared:
        """Send the prototypes, and for new clients how long the others trained."""
        return Shared(server, torch.tensor(cohort.rounds_trained))

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> Params:
        """Start from the common initialization of the client's own architecture."""
        return task.model.init(key.common("model"))

    def local_update(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> ClientUpdate:
        """Train towards the prototypes, then compute the client's own."""
        shared: Prototypes = download.shared.prototypes
        loss = partial(aligned_loss, penalty=self.penalty)
        trained = train(task, loss, state, context=shared, data=data.train, key=key, training=self.training)
        features = cached_features(task, trained.params, data.train, key=key)
        moments = class_moments(features.x, features.labels(), features.weight, task.num_classes)
        own = moments.means.to(shared.means.dtype)
        known = torch.maximum(shared.known, (moments.counts > 0).to(shared.known.dtype))
        after = Prototypes(torch.where(shared.known[:, None] > 0, shared.means, own), known)
        upload = {"prototypes": Mean(own, data.info.class_counts)}
        metrics = {"steps": trained.steps, "loss": trained.loss}
        return ClientUpdate(trained.params, upload, personal=Personal(trained.params, after), metrics=metrics)

    def aggregate(self, server: Prototypes, received: Mapping[str, Reduced], cohort: Cohort) -> tuple[Prototypes, Any]:
        """Replace the prototypes of classes that somebody sent."""
        new = received["prototypes"]
        known = torch.maximum(server.known, (new.total_weight > 0).to(server.known.dtype))
        return Prototypes(new.or_else(server.means), known), ()

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Train from the common initialization for the same budget as the others."""
        loss, model = partial(aligned_loss, penalty=self.penalty), self.init_client(task, info, key)
        (prototypes, rounds), examples, plan = download.shared, data.train, self.training
        own = train_rounds(task, loss, model, context=prototypes, data=examples, key=key, training=plan, rounds=rounds)
        return Onboarded(own.params, own.steps)

    def personalize(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> Personal:
        """Return the client's own model with the global prototypes."""
        return Personal(state, download.shared.prototypes)

    def predict(self, task: Task, personal: Personal, x: Tensor) -> Tensor:
        """Return negative squared distances from the prototypes, -inf where there is none; or the head's logits."""
        z, (means, known) = predict_features(task, personal.model, x), personal.prototypes
        if self.prediction == "head":
            return task.model.head(personal.model, z)
        distances = torch.cdist(z, means, compute_mode="donot_use_mm_for_euclid_dist").square()
        return -torch.where(known > 0, distances, torch.inf)
