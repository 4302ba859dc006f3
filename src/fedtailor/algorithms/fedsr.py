"""FedSR and FedSR-FT: averaging of a model with simple stochastic features; -FT tunes its heads.

Nguyen, Torr and Lim 2022, "FedSR: a simple and effective domain generalization method for federated
learning", NeurIPS. The body gives every example a Gaussian N(mu, s^2) over V features; a linear
head h classifies draws z of it. With a Gaussian N(r_mu, r_s^2) for every class and a number C, all
of them trained, shared and averaged, the loss is

    L = CE(h(z), y) + a_L2R E ||z|| + a_CMI mean_x KL( N(C mu, (C s)^2) || N(r_mu[y], r_s[y]^2) ).

With ``finetune_epochs`` = 0 it is FedSR: every client predicts with the global model, so
``personalized`` equals ``global``. FedSR-FT, which Zhang et al. 2023 (FedCR) compare with, tunes
the head on the client's data for 10 epochs.

The Gaussian layer (d -> 2V) and the head (V -> classes) belong to the algorithm. They go on top of
the body of the model that the experiment names, in place of its head.

Messages: down and up ``model`` and ``references`` (r_mu, the raw numbers whose softplus is r_s, C),
weight n_i.

Deviations (P: paper, R: released code, F: FedCR's port; presets ``reference`` = R, ``paper`` = P):
* P squares the norm (``squared_norm``); R does not, with the same a_L2R of 0.01, which is far less
  where V is large. F divides the norm of a whole batch of B by B, so that its a_L2R is weaker by
  sqrt(B): 7 times for its 48. a_CMI is that of R's example and of F; R's default is 5e-4.
* References are averaged like all parameters, by examples. R averages the network alone, over
  clients of equal weight, and each client keeps its references. In F the broadcast does not
  overwrite clients, nor do uploads overwrite the server: FedSR-FT there is training without
  collaboration.
* r_mu starts at 0, the raw r_s and C at 1, as in R. The deviation of C z is |C| s, so that C may
  change its sign.
* Training draws one sample, predictions draw 20 and average their probabilities, as in R (F: 15 and
  30). The noise of predictions is a constant that all models and examples share, so that a model
  predicts the same twice (R: drawn each time). Accuracy depends on it: on the digits, its standard
  deviation over constants of 20 samples was about 0.03.
* Tuning trains the head alone (F: the Gaussian layer too), by cross-entropy of samples; the other
  terms do not depend on the head. Features are cached unless ``training`` augments. A new client is
  treated like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import bottleneck, diagonal


class References(NamedTuple):
    """The Gaussians of the classes, means and raw deviations (classes, V), and the scale C, ()."""

    mean: Tensor
    raw: Tensor
    scale: Tensor


class ServerState(NamedTuple):
    """The model, and the references of the classes: all of it is trained."""

    model: ft.Params
    references: References


def simple_loss(
    task: ft.Task,
    params: ServerState,
    context: ft.Params,
    batch: ft.Batch,
    key: ft.Key,
    *,
    method: FedSR,
) -> ft.LossOutput:
    """Loss of sampled features, their norm, and the divergence from the reference of the class."""
    references = params.references
    features, buffers = task.features(params.model, batch, key)
    z = bottleneck.split(features)

    # a_L2R E ||z||, of the samples that are classified too
    noise = ft.normal(key.fold("noise"), (len(z.mean), method.samples, method.latent_dim))
    norms = torch.linalg.vector_norm(z.mean[:, None] + z.std[:, None] * noise, dim=2)
    if method.squared_norm:
        norms = norms.square()

    # a_CMI KL( N(C mu, (C s)^2) || N(r_mu[y], r_s[y]^2) )
    scale = references.scale
    classes = bottleneck.split(torch.cat([references.mean, references.raw], 1))
    gaps = diagonal.kl(
        scale * z.mean, scale.abs() * z.std, classes.mean[batch.y], classes.std[batch.y]
    )

    losses = bottleneck.sampled_losses(task, params.model, z, batch.y, noise, "expected_log")
    total = batch.weigh(losses) + method.l2_weight * norms.mean(1) + method.cmi_weight * gaps
    by_path = {f"model/{name}": buffer for name, buffer in buffers.items()}
    return ft.LossOutput(ft.weighted_mean(total, batch.weight), by_path)


@dataclass(frozen=True, kw_only=True)
class FedSR(ft.Algorithm[ServerState, tuple[()], ft.FineTuned]):
    """Federated averaging of simple representations, with optional tuning of the head."""

    bounds_examples = True

    presets = {
        "reference": {},
        "paper": {"squared_norm": True},
    }

    latent_dim: ft.PositiveInt = 512
    """Features of the Gaussian layer (V)."""
    l2_weight: ft.NonNegativeFloat = 0.01
    """Weight of the norm of the features (a_L2R)."""
    cmi_weight: ft.NonNegativeFloat = 0.001
    """Weight of the divergence from the reference of the class (a_CMI)."""
    squared_norm: Annotated[
        bool, ft.AsReleased("the norm of the features is not squared, with the paper's weight")
    ] = False
    """Whether the norm is squared, as in the paper."""
    samples: ft.PositiveInt = 1
    """Samples of features per example in training."""
    prediction_samples: ft.PositiveInt = 20
    """Samples of features per example in a prediction."""
    finetune_epochs: ft.NonNegativeInt = 0
    """Epochs that tune the head on a client's data (FedSR-FT); 0: FedSR."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Tune the head, if asked to."""
        return [ft.FineTuning("head", epochs=self.finetune_epochs)]

    def warnings(self, task: ft.Task) -> list[str]:
        """Without both terms little is left."""
        if self.l2_weight == 0 and self.cmi_weight == 0:
            return ["with both weights 0, this is FedAvg of a model with a Gaussian layer."]
        return []

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the model and the references of the classes."""
        table = (task.num_classes, self.latent_dim)
        model = bottleneck.with_gaussian_layer(task, self.latent_dim).shapes(*ft.ALL)
        return {
            "model": ft.Field(kind="model", shapes=model),
            "references": ft.Field(kind="model", shapes=References._make([table, table, ()])),
        }

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the common initialization, with the same reference for all classes."""
        zeros = torch.zeros(task.num_classes, self.latent_dim)
        references = References(zeros, torch.ones_like(zeros), torch.ones(()))
        model = bottleneck.with_gaussian_layer(task, self.latent_dim).initial(key)
        return ServerState(model, references)

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the received model and references."""
        loss = partial(simple_loss, method=self)
        task = bottleneck.with_gaussian_layer(task, self.latent_dim)
        trained = ft.train(task, loss, download.shared, data=data.train, key=key)
        result: ServerState = trained.params

        n = data.info.num_train
        upload = {"model": ft.Mean(result.model, n), "references": ft.Mean(result.references, n)}
        personal = ft.FineTuned(result.model, trained.steps)
        return ft.ClientUpdate(state, upload, personal=personal, metrics=trained.metrics)

    def global_model(self, task: ft.Task, server: ServerState) -> ft.FineTuned:
        """Return the global model, not tuned."""
        return ft.untuned(server.model)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.FineTuned:
        """Tune the head of a copy of the global model."""
        model = download.shared.model
        tuned = bottleneck.train_sampled_head(
            bottleneck.with_gaussian_layer(task, self.latent_dim),
            model,
            data.train,
            key=key.fold("finetune"),
            epochs=self.finetune_epochs,
            samples=self.samples,
        )
        return ft.FineTuned({**model, **tuned.params}, tuned.steps)

    def features(self, task: ft.Task, personal: ft.FineTuned, x: Tensor) -> Tensor:
        """Return the means (n, V) of the Gaussian features."""
        task = bottleneck.with_gaussian_layer(task, self.latent_dim)
        return bottleneck.predict_gaussians(task, personal.model, x).mean

    def predict(self, task: ft.Task, personal: ft.FineTuned, x: Tensor) -> Tensor:
        """Return the logarithms of probabilities, averaged over samples of the features."""
        noise = ft.normal(
            ft.new_key(0, purpose="prediction"), (self.prediction_samples, self.latent_dim)
        )
        task = bottleneck.with_gaussian_layer(task, self.latent_dim)
        z = bottleneck.predict_gaussians(task, personal.model, x)
        return bottleneck.mean_log_probabilities(task, personal.model, z, noise)
