"""IFCA: a model per cluster of clients; every client works on the one that fits its data best.

Ghosh, Chung, Yin, Ramchandran 2020, "An efficient framework for clustered federated learning",
NeurIPS, Algorithm 1 with model averaging. The server keeps k models w^1..w^k. In every round a
client

    chooses  j = argmin_j f_i(w^j),

f_i being the mean cross-entropy over all its training examples, and trains w^j. The server sets
every w^j to the mean of what the clients that chose it return, with weights n_i. A client, known or
new, predicts with the w^j that it would choose at that time, without any training.

Messages: down ``models`` (all k: k times FedAvg); up ``models``, of which only the chosen one is
sent. The weights are k numbers, n_i for the chosen model and 0 for the others: they tell the server
the cluster and n_i.

Deviations:
* The paper leaves open which examples decide the choice. Here it is one pass over all training
  examples in evaluation mode; test examples never count. If losses are equal, the model of lower
  index is chosen. A model whose loss is not a number is never chosen before one whose loss is.
* The models are initialized independently, the first one as in all methods; equal ones would remain
  one cluster for ever. The clusters depend on the initialization. The paper restarts several times;
  here other seeds do that.
* A cluster that no client chose keeps its model.
* Two variants of the paper are left out: averaging of gradients, and layers shared by all clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.algorithms._several_models import (
    initial_models,
    losses_under_models,
    stacked_shapes,
)
from fedtailor.toolkit import tree


class ServerState(NamedTuple):
    """The models of all clusters, stacked: every parameter has a leading axis (k, ...)."""

    models: ft.Params


class Chosen(NamedTuple):
    """A client's model, and the number of its cluster."""

    model: ft.Params
    cluster: Tensor  # ()


def choose(task: ft.Task, models: ft.Params, data: ft.ExampleSet, key: ft.Key) -> Chosen:
    """Return the model of least mean loss over the examples; the first one if there are none."""
    losses = ft.forward(task, losses_under_models, models, data, key=key.fold("choose"))
    weight = data.weight[:, None]

    # The loss of padding may be infinite, and its product with 0 is NaN.
    weighted = torch.where(weight > 0, losses * weight, 0.0)
    total = weighted.sum(0)  # f_i, up to a factor that all models share
    cluster = total.nan_to_num(nan=torch.inf, posinf=torch.inf).argmin()
    model = tree.map(lambda leaf: leaf.index_select(0, cluster.reshape(1))[0], models)
    return Chosen(model, cluster)


def at_place(chosen: Tensor, leaf: Tensor) -> Tensor:
    """Return a stack (k, ...): the leaf where ``chosen`` (k,) is 1, zeros where it is 0."""
    return chosen.reshape(-1, *[1] * leaf.dim()) * leaf


@dataclass(frozen=True, kw_only=True)
class IFCA(ft.Algorithm[ServerState, tuple[()], Chosen]):
    """Iterative federated clustering."""

    clusters: ft.PositiveInt = 2
    """Models at the server (k)."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """The choice of a model."""
        if self.clusters == 1:
            return []
        return [ft.OtherAdaptation(f"choice among {self.clusters} models")]

    def warnings(self, task: ft.Task) -> list[str]:
        """Warn where all clients share one cluster."""
        if self.clusters > 1:
            return []
        return ["with one cluster, this is FedAvg."]

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the models, stacked."""
        shapes = stacked_shapes(task, self.clusters)
        field = ft.Field(kind="model", shapes=shapes, weight="own", weight_axes=1, rows=1)
        return {"models": field}

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from independent initializations, of which the first is the common one."""
        return ServerState(initial_models(task, key, self.clusters))

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Choose a model and train it on all layers."""
        start = choose(task, download.shared.models, data.train, key)
        trained = ft.train(task, ft.classification_loss, start.model, data=data.train, key=key)

        # all models but the chosen one have weight 0 and are not sent
        size = data.info.num_train
        chosen = (torch.arange(self.clusters) == start.cluster).to(size.dtype)  # (k,)
        models = tree.map(lambda leaf: at_place(chosen, leaf), trained.params)
        upload = {"models": ft.Mean(models, chosen * size)}
        personal = Chosen(trained.params, start.cluster)
        metrics = {**trained.metrics, "cluster": start.cluster}
        return ft.ClientUpdate(state, upload, personal=personal, metrics=metrics)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> Chosen:
        """Choose a model by the training examples."""
        return choose(task, download.shared.models, data.train, key)

    def diagnostics(self, task: ft.Task, personal: Chosen) -> dict[str, Tensor]:
        """Record the chosen cluster."""
        return {"cluster": personal.cluster}
