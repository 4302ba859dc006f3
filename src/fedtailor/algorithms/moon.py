"""MOON: federated averaging whose local training pulls features towards those of the global model.

Li, He and Song 2021, "Model-contrastive federated learning", CVPR, Algorithm 1. With the features z
of an example under the model in training, z_glob under the received one and z_prev under the
client's model of its last round, and cosine similarity sim, a client minimizes their equations 3
and 4 (mu: ``penalty``, tau: ``temperature``):

    CE + mu mean( -log( e_glob / (e_glob + e_prev) ) ),
    e_glob = exp(sim(z, z_glob) / tau),   e_prev = exp(sim(z, z_prev) / tau).

Messages: down ``model`` (w); up ``model`` (w_i, weight n_i). The client keeps its model of its last
round.

Deviations (P: paper, C: released code):
* Contrasted are the features that the model's head sees. P puts a projection head of two layers,
  256 wide, between body and classifier; a model that has such layers in its body gives P's method
  (C offers both).
* Both frozen models run in evaluation mode, so that the only noise of dropout is that of the model
  in training, and their batch statistics stay fixed.
* ``penalty`` is 1, the default of C; P tunes it per data set, among 0.1, 1, 5, 10 (5 for CIFAR-10,
  else 1).
* A client that trains for the first time has no last model and takes the received one: the term has
  no gradient then, and its first round is one of FedAvg, as in P.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import tree


class ClientState(NamedTuple):
    """The client's model of its last round, and 1 once there was one, ()."""

    previous: ft.Params
    trained: Tensor


class Frozen(NamedTuple):
    """The models that a client's features are compared under."""

    received: ft.Params
    previous: ft.Params


def contrastive_loss(
    task: ft.Task,
    params: ft.Params,
    frozen: Frozen,
    batch: ft.Batch,
    key: ft.Key,
    *,
    penalty: float,
    temperature: float,
) -> ft.LossOutput:
    """Cross-entropy plus a contrast: features like the received model's, unlike the previous."""
    z, buffers = task.features(params, batch, key)
    z_received, _ = task.features(frozen.received, batch, key, training=False)
    z_previous, _ = task.features(frozen.previous, batch, key, training=False)

    # -log(e_glob / (e_glob + e_prev)) is a sigmoid of the difference of the similarities.
    difference = F.cosine_similarity(z, z_received) - F.cosine_similarity(z, z_previous)
    contrast = ft.weighted_mean(-F.logsigmoid(difference / temperature), batch.weight)
    supervised = ft.cross_entropy_of(batch, task.model.head(params, z))
    return ft.LossOutput(supervised + penalty * contrast, buffers)


@dataclass(frozen=True, kw_only=True)
class Moon(ft.OneGlobalModel, ft.Algorithm[ft.ModelState, ClientState, ft.Params]):
    """Model-contrastive federated learning: one global model."""

    bounds_examples = True

    penalty: Annotated[ft.NonNegativeFloat, ft.AtZero("this is FedAvg.")] = 1.0
    """Weight of the contrast (mu)."""
    temperature: ft.PositiveFloat = 0.5
    """Temperature of the contrast (tau)."""

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ClientState:
        """Start without a last round."""
        return ClientState(task.initial(key), torch.zeros(()))

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the received model, compared with itself and with the client's last one."""
        received = download.shared.model
        frozen = Frozen(received, tree.where(state.trained > 0, state.previous, received))
        loss = partial(contrastive_loss, penalty=self.penalty, temperature=self.temperature)
        trained = ft.train(task, loss, received, context=frozen, data=data.train, key=key)
        upload = {"model": ft.Mean(trained.params, data.info.num_train)}
        new_state = ClientState(trained.params, torch.ones(()))
        return ft.ClientUpdate(new_state, upload, personal=trained.params, metrics=trained.metrics)
