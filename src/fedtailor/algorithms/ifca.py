"""IFCA: a model per cluster of clients; every client works on the one that fits its data best.

Ghosh, Chung, Yin, Ramchandran 2020, "An efficient framework for clustered federated learning", NeurIPS, Algorithm 1
with model averaging. The server keeps k models w^1..w^k. In every round a client

    chooses  j = argmin_j f_i(w^j),  f_i the mean cross-entropy over all its training examples,  and trains w^j;

the server moves every w^j to the mean of what those who chose it return, with weights n_i. A client, known or new,
predicts with the w^j that it would choose then; it trains nothing for that.

Messages: down ``models`` (all k: k times FedAvg); up ``models``, of which only the chosen one is sent, with the weight
n_i at its place among zeros (k numbers: they tell the cluster and n_i).

Deviations:
* The paper leaves open what the choice is made on: here one pass over all training examples in evaluation mode. Test
  examples never count. Equal losses choose the model of lower index, and a model whose loss is not a number is never
  chosen before one whose loss is.
* The models are initialized independently, the first as in all methods; equal ones would remain one cluster for ever.
  Which clusters form depends on the initialization: the paper restarts several times, here other seeds do that.
* A cluster that nobody chose keeps its model.
* Averaging gradients, and layers shared by all clusters, the paper's variants, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download
from fedtailor.core.federation import ClientData, ExampleSet
from fedtailor.core.message import Field, Mean, Messages, spread
from fedtailor.core.options import Range
from fedtailor.core.prediction import predict_logits
from fedtailor.core.rng import Key
from fedtailor.core.task import ALL, Batch, Params, Task
from fedtailor.training.blocks import forward, train
from fedtailor.training.losses import classification_loss

Server = dict[str, Params]


class Chosen(NamedTuple):
    """A client's model, and which of the clusters it is."""

    model: Params
    cluster: Tensor  # ()


def losses(task: Task, models: Params, context: tuple[()], batch: Batch, key: Key) -> Tensor:
    """Return the cross-entropy of every example under every model, (n, k), in evaluation mode."""
    count = next(iter(models.values())).shape[0]
    scores = [predict_logits(task, model, batch.x) for model in tree.unstack(models, count)]
    return torch.stack([F.cross_entropy(logits, batch.y, reduction="none") for logits in scores], dim=-1)


def choose(task: Task, models: Params, data: ExampleSet, key: Key) -> Chosen:
    """Return the model of least mean loss over the examples; the first one if there are none."""
    rows = forward(task, losses, models, data, key=key.fold("choose"))
    weight = data.weight[:, None]
    weighted = torch.where(weight > 0, rows * weight, 0.0)  # the loss of padding may be infinite, its product NaN
    total = weighted.sum(0)  # the mean, but for a factor that all models share
    cluster = total.nan_to_num(nan=torch.inf, posinf=torch.inf).argmin()
    return Chosen(tree.map(lambda leaf: leaf.index_select(0, cluster.reshape(1))[0], models), cluster)


@dataclass(frozen=True, kw_only=True)
class IFCA(Algorithm[Server, tuple[()], Chosen]):
    """Iterative federated clustering."""

    clusters: Annotated[int, Range(ge=1)] = 2
    """Models at the server (k)."""

    @property
    def adaptation(self) -> str:
        """The choice of a model."""
        return "none" if self.clusters == 1 else f"choice among {self.clusters} models"

    def warnings(self, task: Task) -> list[str]:
        """One cluster holds everybody."""
        return ["with one cluster, this is FedAvg."] if self.clusters == 1 else []

    def messages(self, task: Task) -> Messages:
        """Declare the models, stacked."""
        shapes = {name: (self.clusters, *shape) for name, shape in task.shapes(*ALL).items()}
        return {"models": Field(kind="model", shapes=shapes, weight="own", rows=1)}

    def init_server(self, task: Task, key: Key) -> Server:
        """Start from independent initializations, of which the first is the common one."""
        purposes = ["model", *(f"model {number}" for number in range(1, self.clusters))]
        return {"models": tree.stack([task.model.init(key.common(purpose)) for purpose in purposes])}

    def local_update(
        self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key
    ) -> ClientUpdate:
        """Choose a model and train it on all layers."""
        start, cluster = choose(task, download.shared["models"], data.train, key)
        trained = train(task, classification_loss, start, data=data.train, key=key, training=self.training)
        here = (torch.arange(self.clusters) == cluster).to(data.info.num_train.dtype)  # (k,)
        models = tree.map(lambda leaf: spread(here, leaf[None]) * leaf, trained.params)
        metrics = {"steps": trained.steps, "loss": trained.loss, "cluster": cluster}
        upload = {"models": Mean(models, here * data.info.num_train)}
        return ClientUpdate(state, upload, personal=Chosen(trained.params, cluster), metrics=metrics)

    def personalize(self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key) -> Chosen:
        """Choose a model by the training examples."""
        return choose(task, download.shared["models"], data.train, key)

    def predict(self, task: Task, personal: Chosen, x: Tensor) -> Tensor:
        """Return the logits of the chosen model."""
        return predict_logits(task, personal.model, x)

    def diagnostics(self, task: Task, personal: Chosen) -> dict[str, Tensor]:
        """Record the chosen cluster."""
        return {"cluster": personal.cluster}
