"""FedCOF: covariances of classes from nothing but the class means of clients.

Goswami, Magistri, Wang, Twardowski, Bagdanov and van de Weijer 2025, "Covariances for free:
exploiting mean distributions for training-free federated learning", NeurIPS. The mean of n_kc
examples has 1 / n_kc of their covariance. So with the means mu_kc of the K_c clients that have
class c, and the mean mu_c of its n_c examples,

    S_c = 1 / (K_c - 1) sum_k n_kc (mu_kc - mu_c)(mu_kc - mu_c)^T + gamma I

estimates the covariance of class c (gamma: ``ridge``), without bias where examples are dealt to
clients at random. The head is a ridge regression whose second moment has covariances within classes
only:

    G = sum_c (n_c - 1) S_c + N mu mu^T,   W = G^-1 [n_1 mu_1, ..., n_C mu_C],

with the mean mu of all N examples; the weights of every class are then divided by their norm.

Messages: up, once, ``counts`` (C,) and ``means`` (C, d), each as a single value of every client, as
the estimate is about how clients differ: the method cannot run on sums alone; down ``head``.

Deviations (C: released code):
* A class that only one client has gets gamma I. So does C, where the only mean is the class mean.
* C draws several means from one client if asked to; here a client sends one for each class.
* A class without examples at any client is never predicted; C stops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from fedtailor import toolkit as ft
from fedtailor.algorithms._closed_form import (
    Broadcast,
    FrozenBody,
    Linear,
    ServerState,
    head_field,
    linear_shapes,
    log_known,
)
from fedtailor.algorithms._feature_sums import as_messages
from fedtailor.toolkit import class_sums


@dataclass(frozen=True, kw_only=True)
class FedCOF(FrozenBody[ServerState]):
    """Ridge regression with covariances from class means."""

    ridge: ft.PositiveFloat = 1.0
    """What is added to the diagonal of every covariance (gamma)."""

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare counts and means of every single client, and the head."""
        classes = task.num_classes
        d = task.model.feature_dim

        def field(kind: Literal["counts", "class_means"], *shape: int) -> ft.Field:
            return ft.Field(kind=kind, shapes=shape, reduction="each", down=False)

        return {
            "counts": field("counts", classes),
            "means": field("class_means", classes, d),
            "head": head_field(linear_shapes(classes, d)),
        }

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start with the common body, and a head that knows nothing."""
        classes = task.num_classes
        head = Linear(torch.zeros(classes, task.model.feature_dim), torch.zeros(classes))
        return ServerState(task.initial(key, *ft.BODY), head)

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[Broadcast],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Send the client's class means."""
        features = self.frozen_features(task, data.train, key)
        sums = class_sums.add_up(features, task.num_classes, "none")
        means = as_messages({"counts": sums.counts, "means": sums.means()})
        upload = {name: ft.Each(value) for name, value in means.items()}
        return ft.ClientUpdate((), upload, metrics={"steps": torch.zeros(())})

    def aggregate(
        self, server: ServerState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ServerState, tuple[()]]:
        """Estimate the covariances, and solve the regression."""
        counts = received["counts"].value.double()  # (clients, classes)
        means = received["means"].value.double()  # (clients, classes, d)
        total = counts.sum(0)
        sums = (means * counts[:, :, None]).sum(0)
        class_means = sums / total.clamp_min(1.0)[:, None]

        # G, class by class
        d = means.shape[2]
        mean = sums.sum(0) / total.sum().clamp_min(1.0)
        second = total.sum() * mean[:, None] * mean
        identity = torch.eye(d, dtype=second.dtype, device=second.device)
        num_clients = (counts > 0).sum(0)
        for label in range(len(total)):
            gaps = means[:, label] - class_means[label]
            scatter = gaps.mT @ (gaps * counts[:, label, None])
            between = scatter / (num_clients[label] - 1).clamp_min(1)
            second = second + (total[label] - 1).clamp_min(0.0) * (between + self.ridge * identity)

        # least squares of smallest norm, should every class have one example
        solution = torch.linalg.pinv(second, hermitian=True) @ sums.mT
        head = Linear(F.normalize(solution.mT, dim=1), log_known(total))
        return server._replace(head=as_messages(head)), ()
