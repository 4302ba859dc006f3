"""FedBN: federated averaging of everything but the normalization layers, which stay with their clients.

Li, Jiang, Zhang, Kamp and Dou 2021, "FedBN: Federated learning on non-IID features via local batch normalization",
ICLR, Algorithm 1: a client trains the received layers together with its own normalization layers, scales and shifts
as well as running statistics, and uploads the former.

Messages: down ``model`` (all layers but those of ``model.norm``) and ``rounds`` (how many each client trained on
average, for new ones); up ``model`` (weight n_i). Normalization parameters and statistics are client state, never sent.

Deviations:
* Uploads are weighted by n_i as in FedAvg; the paper takes the plain mean, of clients of about the same size.
* What belongs to a normalization layer is known by the kind of the layer, not by its name (released code: names that
  contain "bn"), and includes group normalization.
* A model without normalization layers makes it FedAvg. Otherwise there is no global model: the server's layers alone
  predict nothing.
* A new client trains its normalization layers from the common initialization, everything else frozen, in one phase as
  long as others trained on average: for less, running statistics do not even reach its data. The paper evaluates
  clients that took part; of others, its authors suggest to average the clients' normalization parameters, which would
  have to be sent, or to estimate the statistics on the new client's data.
* A known client that never trained predicts with initial normalization layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download, Onboarded
from fedtailor.core.federation import ClientData, ClientInfo, Cohort
from fedtailor.core.message import Field, Mean, Messages, Reduced
from fedtailor.core.rng import Key
from fedtailor.core.task import ALL, Params, Task
from fedtailor.training.blocks import train
from fedtailor.training.losses import classification_loss
from fedtailor.training.tuning import train_rounds


class Shared(NamedTuple):
    """What clients receive: layers but those of normalization, and the rounds that a client trained on average, ()."""

    model: Params
    rounds: Tensor


@dataclass(frozen=True, kw_only=True)
class FedBN(Algorithm[Params, Params, Params]):
    """Federated averaging with personal normalization layers."""

    onboarding = "as many rounds of the normalization layers as the others trained"

    def warnings(self, task: Task) -> list[str]:
        """Without normalization layers nothing is personal."""
        return [] if task.model.norm else ["the model has no normalization layers: this is FedAvg."]

    def messages(self, task: Task) -> Messages:
        """Declare all layers but those of normalization, and the rounds that new clients must know."""
        shapes = tree.select(task.shapes(*ALL), lambda name: name not in task.model.norm)
        rounds = Field(kind="counts", shapes=(), reduction="none")
        return {"model": Field(kind="model", shapes=shapes), "rounds": rounds}

    def init_server(self, task: Task, key: Key) -> Params:
        """Start from the common initialization."""
        return self._split(task, task.model.init(key.common("model")))[1]

    def broadcast(self, server: Params, cohort: Cohort) -> Shared:
        """Send the layers, and for new clients how long the others trained."""
        return Shared(server, torch.tensor(cohort.rounds_trained))

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> Params:
        """Start from the common initialization."""
        return self._split(task, task.model.init(key.common("model")))[0]

    def local_update(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> ClientUpdate:
        """Train the received layers and the client's own together."""
        model = self._join(task, download.shared.model, state)
        trained = train(task, classification_loss, model, data=data.train, key=key, training=self.training)
        norm, shared = self._split(task, trained.params)
        metrics = {"steps": trained.steps, "loss": trained.loss}
        upload = {"model": Mean(shared, data.info.num_train)}
        return ClientUpdate(norm, upload, personal=trained.params, metrics=metrics)

    def aggregate(self, server: Params, received: Mapping[str, Reduced], cohort: Cohort) -> tuple[Params, tuple[()]]:
        """Average the layers that were sent."""
        return received["model"].or_else(server), ()

    def global_model(self, task: Task, server: Params) -> Params | None:
        """Return the global model where no layer is personal."""
        return None if task.model.norm else server

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Fit normalization layers to the client's data, everything else frozen."""
        norm = self.init_client(task, info, key)
        if not norm:
            return Onboarded(norm, 0)
        shared: Shared = download.shared
        trained = train_rounds(
            task,
            classification_loss,
            norm,
            context=shared.model,
            data=data.train,
            key=key,
            training=self.training,
            rounds=shared.rounds,
        )
        return Onboarded(trained.params, trained.steps)

    def personalize(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> Params:
        """Join the server's layers and the client's own."""
        return self._join(task, download.shared.model, state)

    def _split(self, task: Task, model: Params) -> tuple[Params, Params]:
        """Return the normalization layers, and the others."""
        return tree.split(model, lambda name: name in task.model.norm)

    def _join(self, task: Task, shared: Params, norm: Params) -> Params:
        """Return the whole model, in the order of its layers."""
        return task.pick({**shared, **norm}, *ALL)
