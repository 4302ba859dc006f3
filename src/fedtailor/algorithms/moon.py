"""MOON: federated averaging whose local training pulls features towards those of the global model.

Li, He and Song 2021, "Model-contrastive federated learning", CVPR, Algorithm 1. With the features z of an example
under the model in training, z_glob under the received one and z_prev under the client's model of its last round, and
cosine similarity sim, a client minimizes their equations 3 and 4 (mu: ``penalty``, tau: ``temperature``):

    CE + mu * mean( -log( exp(sim(z, z_glob)/tau) / (exp(sim(z, z_glob)/tau) + exp(sim(z, z_prev)/tau)) ) ).

Messages: down ``model`` (w); up ``model`` (w_i, weight n_i). The client keeps its model of its last round.

Deviations (P: paper, C: released code):
* Contrasted are the features that the model's head sees. P puts a projection head of two layers, 256 wide, between
  body and classifier; a model that has such layers in its body gives P's method (C offers both).
* Both frozen models run in evaluation mode, so that the only noise of dropout is that of the model in training, and
  their batch statistics stay fixed.
* ``penalty`` is 1, the default of C; P tunes it per data set, among 0.1, 1, 5, 10 (5 for CIFAR-10, else 1).
* A client that trains for the first time has no last model and takes the received one: the term has no gradient then,
  and its first round is one of FedAvg, as in P.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download
from fedtailor.core.federation import ClientData, ClientInfo
from fedtailor.core.message import Mean
from fedtailor.core.options import Range
from fedtailor.core.rng import Key
from fedtailor.core.task import Batch, LossOutput, Params, Task
from fedtailor.training.blocks import cross_entropy, train, weighted_mean

Server = dict[str, Params]


class State(NamedTuple):
    """Client state: the model of its last round, and 1 once there was one, ()."""

    previous: Params
    trained: Tensor


class Frozen(NamedTuple):
    """The models that a client's features are compared under."""

    received: Params
    previous: Params


def contrastive_loss(
    task: Task, params: Params, frozen: Frozen, batch: Batch, key: Key, *, penalty: float, temperature: float
) -> LossOutput:
    """Cross-entropy, plus a contrast that prefers the features of the received model to those of the previous one."""
    z, buffers = task.model.features(params, batch.x, weight=batch.weight, key=key, training=True)
    near, far = (
        F.cosine_similarity(z, task.model.features(model, batch.x, weight=batch.weight, key=key, training=False)[0])
        for model in frozen
    )
    contrast = weighted_mean(-F.logsigmoid((near - far) / temperature), batch.weight)
    supervised = cross_entropy(task.model.head(params, z), batch.y, batch.weight)
    return LossOutput(supervised + penalty * contrast, buffers)


@dataclass(frozen=True, kw_only=True)
class Moon(Algorithm[Server, State, Params]):
    """Model-contrastive federated learning: one global model."""

    primary_evaluation: ClassVar[Literal["global", "local", "personalized"]] = "global"

    penalty: Annotated[float, Range(ge=0)] = 1.0
    """Weight of the contrast (mu)."""
    temperature: Annotated[float, Range(gt=0)] = 0.5
    """Temperature of the contrast (tau)."""

    def warnings(self, task: Task) -> list[str]:
        """Without its weight, the contrast does nothing."""
        return [] if self.penalty else ["with penalty 0, this is FedAvg."]

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> State:
        """Start without a last round."""
        return State(task.model.init(key.common("model")), torch.zeros(()))

    def local_update(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> ClientUpdate:
        """Train the received model, compared with itself and with the client's last one."""
        received: Params = download.shared["model"]
        trained = train(
            task,
            partial(contrastive_loss, penalty=self.penalty, temperature=self.temperature),
            received,
            context=Frozen(received, tree.where(state.trained > 0, state.previous, received)),
            data=data.train,
            key=key,
            training=self.training,
        )
        upload = {"model": Mean(trained.params, data.info.num_train)}
        metrics = {"steps": trained.steps, "loss": trained.loss}
        return ClientUpdate(State(trained.params, torch.ones(())), upload, personal=trained.params, metrics=metrics)

    def global_model(self, task: Task, server: Server) -> Params:
        """Return the global model."""
        return server["model"]

    def personalize(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> Params:
        """Return the global model."""
        params: Params = download.shared["model"]
        return params
