"""FedPAC's messages: features aligned with global class means, and heads combined at the server for every client.

Xu et al. 2023, "Personalized federated learning with feature alignment and classifier collaboration", ICLR. Here the
weights of a combined head are exp(-squared distance of feature statistics), in place of a quadratic program.

Messages: down ``body``, ``class_means``, ``head`` (the client's own row); up ``body`` (weight n_i), ``class_means``
(weight: class counts), ``head`` and ``statistics`` of every single client.
"""

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate
from fedtailor.core.gaussian import class_moments, known_means
from fedtailor.core.local import cached_features, cross_entropy, head_loss, predict_logits, train, weighted_mean
from fedtailor.core.message import Each, Field, Mean
from fedtailor.core.options import Range
from fedtailor.core.task import BODY, LossOutput, Params


class Server(NamedTuple):
    """The body, global class means (classes, d), and which of them are known (classes,)."""

    body: Params
    class_means: torch.Tensor
    known: torch.Tensor


def aligned_loss(task, body, context, batch, key):
    """Cross-entropy under the head, plus the squared distance of features from the means of their classes."""
    head, means, alignment = context
    z, buffers = task.model.features(body, batch.x, weight=batch.weight, key=key, training=True)
    distance = weighted_mean((z - means[batch.y]).square().mean(1), batch.weight)
    return LossOutput(cross_entropy(task.model.head(head, z), batch.y, batch.weight) + alignment * distance, buffers)


@dataclass(frozen=True, kw_only=True)
class FedPAC(Algorithm[Server, torch.Tensor, Params]):
    """Client state: epochs of the head that ``personalize`` still owes (a new client has no combined head)."""

    alignment: Annotated[float, Range(ge=0)] = 1.0
    """Weight of the distance from the class means (lambda)."""
    head_lr: Annotated[float, Range(gt=0)] = 0.1

    @property
    def adaptation(self):
        return "none; new clients: 1 epoch of the head"

    def messages(self, task):
        classes, d = task.num_classes, task.model.feature_dim
        return {
            "body": Field(kind="model", shapes=task.shapes(*BODY)),
            "class_means": Field(kind="class_means", shapes=(classes, d), weight="class_counts"),
            "head": Field(kind="model", shapes=task.shapes("head"), reduction="each"),
            "statistics": Field(kind="statistics", shapes=(classes, d), reduction="each", down=False),
        }

    def init_server(self, task, key):
        body = task.pick(task.model.init(key.common("model")), *BODY)
        return Server(body, torch.zeros(task.num_classes, task.model.feature_dim), torch.zeros(task.num_classes))

    def init_client(self, task, info, key):
        return torch.tensor(0)

    def init_own(self, task, info, key):
        return task.pick(task.model.init(key.common("model")), "head")

    def local_update(self, task, download, state, data, key):
        server, info = download.shared, data.info
        features = cached_features(task, server.body, data.train, key=key)
        before = self._means(task, features, server.class_means)
        head = self._head_phase(task, download.own, features, key, 1)
        targets = torch.where(server.known[:, None] > 0, server.class_means, before)
        alignment = self.alignment * server.known.max()  # no alignment in the first round
        body = train(
            task, aligned_loss, server.body, context=(head, targets, alignment), data=data.train, key=key.fold("body"),
            training=self.training,
        )  # fmt: skip
        after = self._means(task, cached_features(task, body.params, data.train, key=key), server.class_means)
        upload = {
            "body": Mean(body.params, info.num_train),
            "class_means": Mean(after, info.class_counts),
            "head": Each(head),
            "statistics": Each(info.class_counts[:, None] / info.num_train * before),
        }
        return ClientUpdate(state, upload, personal={**body.params, **head}, metrics={"steps": body.steps})

    def aggregate(self, server, received, cohort):
        flat = received["statistics"].value.flatten(1)
        weight = torch.softmax(-torch.cdist(flat, flat).square(), dim=1)  # (cohort, cohort)
        rows = tree.map(lambda heads: torch.einsum("ij,j...->i...", weight, heads), received["head"].value)
        means = received["class_means"]
        known = torch.maximum(server.known, (means.total_weight > 0).to(server.known.dtype))
        return Server(received["body"].or_else(server.body), means.or_else(server.class_means), known), rows

    def onboard(self, task, download, info, data, key):
        return torch.tensor(1)

    def personalize(self, task, download, state, data, key):
        body = download.shared.body
        features = cached_features(task, body, data.train, key=key)
        return {**body, **self._head_phase(task, download.own, features, key, state)}

    def predict(self, task, personal, x):
        return predict_logits(task, personal, x)

    def _head_phase(self, task, head, features, key, epochs):
        faster = replace(self.training, lr=self.head_lr)
        phase = train(task, head_loss, head, data=features, key=key.fold("head"), training=faster, epochs=epochs)
        return phase.params

    def _means(self, task, features, fallback):
        moments = class_moments(features.x, features.labels(), features.weight, task.num_classes)
        return known_means(moments, fallback).to(fallback.dtype)
