"""FedBN: federated averaging of all layers but normalization layers, which stay with clients.

Li, Jiang, Zhang, Kamp and Dou 2021, "FedBN: Federated learning on non-IID features via local batch
normalization", ICLR, Algorithm 1. A client trains the received layers together with its own
normalization layers (scales, shifts and running statistics), and uploads the former.

Messages: down ``model`` (all layers except those of ``model.norm``) and ``rounds`` (how many rounds
each client trained on average, for new clients); up ``model`` (weight n_i). Normalization
parameters and statistics are client state and never sent.

Deviations:
* Uploads are weighted by n_i as in FedAvg. The paper takes the plain mean, of clients of about the
  same size.
* Normalization layers are recognized by the kind of the layer, not by its name (released code:
  names that contain "bn"). Group normalization is included.
* A model without normalization layers makes it FedAvg. Otherwise there is no global model: the
  server's layers alone cannot predict.
* A new client trains its normalization layers from the common initialization, with everything else
  frozen. It does so in one phase, for as long as others trained on average: with less training,
  running statistics do not even reach its data. The paper evaluates clients that took part. For
  others, its authors suggest to average the clients' normalization parameters, which would have to
  be sent, or to estimate the statistics on the new client's data.
* A known client that never trained predicts with initial normalization layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import tree


class Broadcast(NamedTuple):
    """What clients receive: shared layers, and the rounds that a client trained on average, ()."""

    model: ft.Params
    rounds: Tensor


@dataclass(frozen=True, kw_only=True)
class FedBN(ft.Algorithm[ft.ModelState, ft.Params, ft.Params]):
    """Federated averaging with personal normalization layers."""

    bounds_examples = True
    onboarding = (ft.RoundOfTraining("normalization", as_many_as_others=True),)

    def warnings(self, task: ft.Task) -> list[str]:
        """Warn where nothing is personal."""
        if task.model.norm:
            return []
        return ["the model has no normalization layers: this is FedAvg."]

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare all layers but those of normalization, and the rounds, for new clients."""
        shapes = tree.select(task.shapes(*ft.ALL), lambda name: name not in task.model.norm)
        return {
            "model": ft.Field(kind="model", shapes=shapes),
            "rounds": ft.Field(kind="counts", shapes=(), reduction="none"),
        }

    def init_server(self, task: ft.Task, key: ft.Key) -> ft.ModelState:
        """Start from the shared layers of the common initialization."""
        _, shared = self._split(task, task.initial(key))
        return ft.ModelState(shared)

    def broadcast(self, server: ft.ModelState, cohort: ft.Cohort) -> Broadcast:
        """Send the layers, and for new clients how long the others trained."""
        return Broadcast(server.model, torch.tensor(cohort.rounds_trained))

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ft.Params:
        """Start from the normalization layers of the common initialization."""
        norm, _ = self._split(task, task.initial(key))
        return norm

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[Broadcast],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the received layers and the client's own together."""
        model = self._join(task, download.shared.model, state)
        trained = ft.train(task, ft.classification_loss, model, data=data.train, key=key)

        norm, shared = self._split(task, trained.params)
        upload = {"model": ft.Mean(shared, data.info.num_train)}
        return ft.ClientUpdate(norm, upload, personal=trained.params, metrics=trained.metrics)

    def global_model(self, task: ft.Task, server: ft.ModelState) -> ft.Params | None:
        """Return the global model if no layer is personal."""
        if task.model.norm:
            return None
        return server.model

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[Broadcast],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Fit normalization layers to the client's data, with everything else frozen."""
        # a model without normalization layers is the global one
        norm = self.init_client(task, info, key)
        if not norm:
            return ft.Onboarded(norm, 0)

        shared = download.shared
        trained = ft.train_rounds(
            task,
            ft.classification_loss,
            norm,
            context=shared.model,
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
    ) -> ft.Params:
        """Join the server's layers and the client's own."""
        return self._join(task, download.shared.model, state)

    def _split(self, task: ft.Task, model: ft.Params) -> tuple[ft.Params, ft.Params]:
        return tree.split(model, lambda name: name in task.model.norm)

    def _join(self, task: ft.Task, shared: ft.Params, norm: ft.Params) -> ft.Params:
        """Return the whole model, in the order of its layers."""
        return task.pick({**shared, **norm}, *ft.ALL)
