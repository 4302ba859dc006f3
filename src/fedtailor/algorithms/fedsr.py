"""FedSR and FedSR-FT: averaging of a model with simple stochastic features, and then, for FT, tuned heads.

Nguyen, Torr and Lim 2022, "FedSR: a simple and effective domain generalization method for federated learning",
NeurIPS. The body gives every example a Gaussian N(mu, s^2) over V features, a linear head h classifies draws z of it.
With a Gaussian N(r_mu, r_s^2) for every class and a number C, all of them trained, shared and averaged, the loss is

    L = CE(h(z), y) + a_L2R E ||z|| + a_CMI mean_x KL( N(C mu, (C s)^2) || N(r_mu[y], r_s[y]^2) ).

With ``finetune_epochs`` = 0 it is FedSR: everybody predicts with the global model, so that ``personalized`` equals
``global``. FedSR-FT, as Zhang et al. 2023 (FedCR) compare with, tunes the head on the client's data for 10 epochs.

The Gaussian layer (d -> 2V) and the head (V -> classes) are the algorithm's: they go on top of the body of whatever
model the experiment names, whose own head is not used.

Messages: down and up ``model`` and ``references`` (r_mu, the raw numbers whose softplus is r_s, C), weight n_i.

Deviations (P: paper, R: released code, F: FedCR's port; presets ``reference`` = R, ``paper`` = P):
* P squares the norm (``squared_norm``), R does not, with the same a_L2R of 0.01: far less where V is large. F divides
  the norm of a whole batch of B by B, so that its a_L2R is weaker by sqrt(B): 7 times for its 48. a_CMI is that of R's
  example and of F's; R's default is 5e-4.
* References are averaged like all parameters, by examples; R averages the network alone, over clients that weigh the
  same, and each client keeps its references. In F clients are not overwritten by the broadcast, nor is the server by
  uploads: FedSR-FT there is training without collaboration.
* r_mu starts at 0, the raw r_s and C at 1, as R. The deviation of C z is |C| s, so that C may change its sign.
* One sample in training and 20 in predictions, which average probabilities, as R (F: 15 and 30). Noise of predictions
  is a constant that all models and examples share, so that a model predicts the same twice (R: drawn anew). Accuracy
  depends on it: on the digits, its standard deviation over constants of 20 samples was about 0.03.
* Tuning trains the head alone (F: the Gaussian layer too), by cross-entropy of samples; the other terms do not depend
  on the head. Features are cached unless ``training`` augments. A new client is treated like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download
from fedtailor.core.federation import ClientData
from fedtailor.core.message import Field, Mean, Messages
from fedtailor.core.noise import normal
from fedtailor.core.options import Range
from fedtailor.core.prediction import predict_features
from fedtailor.core.rng import Key
from fedtailor.core.task import ALL, Batch, LossOutput, Params, Task
from fedtailor.statistics.bottleneck import (
    GaussianModel,
    mean_log_probabilities,
    sampled_losses,
    split,
    train_sampled_head,
)
from fedtailor.statistics.diagonal import kl
from fedtailor.training.blocks import train
from fedtailor.training.losses import weighted_mean
from fedtailor.training.tuning import FineTuned, in_words, untuned

Server = dict[str, Params]


def simple_loss(task: Task, params: Server, context: Any, batch: Batch, key: Key, *, method: FedSR) -> LossOutput:
    """Loss of sampled features, their norm, and the divergence from the reference of the class."""
    model, references = params["model"], params["references"]
    features, buffers = task.model.features(model, batch.x, weight=batch.weight, key=key, training=True)
    z, scale = split(features), references["scale"]
    classes = split(torch.cat([references["mean"], references["raw"]], 1))
    noise = normal(key.fold("noise"), (len(z.mean), method.samples, method.latent_dim))
    norms = torch.linalg.vector_norm(z.mean[:, None] + z.std[:, None] * noise, dim=2)
    norms = (norms.square() if method.squared_norm else norms).mean(1)
    gaps = kl(scale * z.mean, scale.abs() * z.std, classes.mean[batch.y], classes.std[batch.y])
    losses = sampled_losses(task, model, z, batch.y, noise, "expected_log")
    loss = weighted_mean(losses + method.l2_weight * norms + method.cmi_weight * gaps, batch.weight)
    return LossOutput(loss, {f"model/{name}": buffer for name, buffer in buffers.items()})


@dataclass(frozen=True, kw_only=True)
class FedSR(Algorithm[Server, tuple[()], FineTuned]):
    """Federated averaging of simple representations, with tuning of the head if wanted."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"reference": {}, "paper": {"squared_norm": True}}

    latent_dim: Annotated[int, Range(ge=1)] = 512
    """Features of the Gaussian layer (V)."""
    l2_weight: Annotated[float, Range(ge=0)] = 0.01
    """Weight of the norm of the features (a_L2R)."""
    cmi_weight: Annotated[float, Range(ge=0)] = 0.001
    """Weight of the divergence from the reference of the class (a_CMI)."""
    squared_norm: bool = False
    """Whether the norm is squared, as in the paper."""
    samples: Annotated[int, Range(ge=1)] = 1
    """Samples of features per example in training."""
    prediction_samples: Annotated[int, Range(ge=1)] = 20
    """Samples of features per example in a prediction."""
    finetune_epochs: Annotated[int, Range(ge=0)] = 0
    """Epochs that tune the head on a client's data (FedSR-FT); 0: FedSR."""

    @property
    def adaptation(self) -> str:
        """The head is tuned, if anything."""
        return in_words(self.finetune_epochs, "head")

    def warnings(self, task: Task) -> list[str]:
        """Without both terms little is left."""
        plain = self.l2_weight == self.cmi_weight == 0
        return ["with both weights 0, this is FedAvg of a model with a Gaussian layer."] if plain else []

    def messages(self, task: Task) -> Messages:
        """Declare the model and the references of the classes."""
        table = (task.num_classes, self.latent_dim)
        references = {"mean": table, "raw": table, "scale": ()}
        return {
            "model": Field(kind="model", shapes=self.own(task).shapes(*ALL)),
            "references": Field(kind="model", shapes=references),
        }

    def init_server(self, task: Task, key: Key) -> Server:
        """Start from the common initialization, with the same reference for all classes."""
        table = torch.zeros(task.num_classes, self.latent_dim)
        references = {"mean": table, "raw": torch.ones_like(table), "scale": torch.ones(())}
        return {"model": self.own(task).model.init(key.common("model")), "references": references}

    def local_update(
        self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key
    ) -> ClientUpdate:
        """Train the received model and references."""
        loss, start = partial(simple_loss, method=self), download.shared
        trained = train(self.own(task), loss, start, data=data.train, key=key, training=self.training)
        upload = {name: Mean(value, data.info.num_train) for name, value in trained.params.items()}
        personal = FineTuned(trained.params["model"], trained.steps)
        return ClientUpdate(state, upload, personal=personal, metrics={"steps": trained.steps, "loss": trained.loss})

    def global_model(self, task: Task, server: Server) -> FineTuned:
        """Return the global model, not tuned."""
        return untuned(server["model"])

    def personalize(self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key) -> FineTuned:
        """Tune the head of a copy of the global model."""
        task, model, key = self.own(task), download.shared["model"], key.fold("finetune")
        how, epochs = self.training, self.finetune_epochs
        tuned = train_sampled_head(task, model, data.train, key=key, training=how, epochs=epochs, samples=self.samples)
        return FineTuned({**model, **tuned.params}, tuned.steps)

    def predict(self, task: Task, personal: FineTuned, x: Tensor) -> Tensor:
        """Return the logarithms of probabilities, averaged over samples of the features."""
        task, model = self.own(task), personal.model
        noise = normal(rng.new_key(0, purpose="prediction"), (self.prediction_samples, self.latent_dim))
        return mean_log_probabilities(task, model, split(predict_features(task, model, x)), noise)

    def own(self, task: Task) -> Task:
        """Return the task whose model has the Gaussian layer."""
        return task._replace(model=GaussianModel(task.model, self.latent_dim, task.num_classes))
