"""FedCR: a shared body whose Gaussian features align by class across clients, and personal heads.

Zhang et al. 2023, "FedCR: Personalized federated learning based on across-client common
representation with conditional mutual information regularization", ICML. The body gives every
example n a Gaussian over V features, mean mu_n and deviation sigma_n; client i's personal head
w_i^p classifies S draws of it. Client i trains both (their eq. 7):

    L_i = mean_n [ CE(head(mu_n + sigma_n eps), y_n)
                   + beta KL( N(m_c, s_c^2) || N(mu_n, sigma_n^2) ) ],   c = y_n.

It then multiplies the Gaussians of its examples class by class (eq. 8), and the server multiplies
the clients' products and N(0, 1) (eq. 9). Over the examples n of class c at all clients i:

    1 / s_c^2 = 1 + sum_i sum_n 1 / sigma_n^2            (``precisions``)
    m_c       = s_c^2 sum_i sum_n mu_n / sigma_n^2       (``weighted_means``)

The body w^f is the plain mean of the clients' bodies. In the end every client tunes its head on the
last global body.

The Gaussian layer (d -> 2V) and the head (V -> classes) belong to the algorithm. They go on top of
the body of the model that the experiment names, in place of its head; so the same model serves the
algorithms that FedCR is compared with.

Messages: down ``body`` (w^f, with the Gaussian layer), ``means`` (m) and ``stds`` (s), classes x V
each; up ``body``, and for the classes that the client has ``precisions`` (sum_n 1 / sigma_n^2) and
``weighted_means`` (sum_n mu_n / sigma_n^2). Heads never leave a client. Without ``aggregate_body``
no body is sent, in either direction.

Deviations (P: paper, C: released code; presets ``reference`` = C, ``paper`` = P):
* The likelihood term averages the samples' cross-entropies in C, their probabilities in P
  (``likelihood``).
* A prediction averages the samples' logits in C, their probabilities in P (``prediction``). The
  noise is drawn once per personal model and is the same for all examples, so that a model predicts
  the same twice (C: drawn for every example).
* What P writes as Sigma is the standard deviation softplus(raw) where it draws, as in C, and its
  square elsewhere.
* N(0, 1) enters the product once, as in P's Algorithm 2 and in C; eq. 9 literally has it once per
  client. tau is 1.
* P keeps the latest Gaussian of every example. Here, as in C, they are those of the last epoch,
  each from before its batch's step. The two differ only with ``training.drop_last`` or
  ``training.steps``, where the last epoch misses some examples.
* P's head tuning of the last round, an extra round of all clients in C, is what ``personalize``
  does. Where training augments images the tuning does too, as in C; otherwise it runs on cached
  features. The KL does not depend on the head.
* C can blend old and new class Gaussians, but runs with the new ones alone, as P: left out. So is
  C's offset of raw deviations, which is 0 in all its configurations.
* Uploads are precisions and weighted means, which add up, in place of means and deviations: the
  same 2V numbers per class. They are summed in float64 (C multiplies pairwise in float32, with
  1e-32 added to a denominator).
* Deviations stay above 1e-6 so that precisions are finite (P, C: no bound; C's logarithms have
  1e-8, and ours too).
* beta is P's 5e-4 (P has 1e-3 on CIFAR-100, Dirichlet; C 1e-4 there). S is 18, as in P and C's
  instructions.
* C trains with lr 0.05, 10 epochs, batches of 48, and clips gradients at norm 10, which P does not
  mention; it augments CIFAR, deals classes in turn, and has 4 and 12 channels for Fashion-MNIST.
  These are settings of ``training``, ``data`` and ``model``.
* A new client (P, C: not treated) gets a fresh head, since heads are personal, and tunes it like
  all clients. Without ``aggregate_body`` it first trains a body, for as long as a round takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import bottleneck, diagonal


class ServerState(NamedTuple):
    """Body (() where it is not aggregated), means and deviations of the classes (classes, V)."""

    body: ft.Params | tuple[()]
    means: Tensor
    stds: Tensor


class ClientState(NamedTuple):
    """The client's head, and its body where bodies are not aggregated."""

    head: ft.Params
    body: ft.Params | tuple[()]


class Personal(NamedTuple):
    """A client's model, the noise (S, V) of its predictions, and the steps that tuned its head."""

    model: ft.Params
    noise: Tensor
    steps: Tensor


def alignment_loss(
    task: ft.Task,
    model: ft.Params,
    classes: bottleneck.Gaussians,
    batch: ft.Batch,
    key: ft.Key,
    *,
    samples: int,
    kind: bottleneck.Likelihood,
    beta: float,
) -> ft.LossOutput:
    """Loss of sampled features plus divergence from the class (eq. 7); collects the features."""
    features, buffers = task.features(model, batch, key)
    z = bottleneck.split(features)

    noise = bottleneck.sample_noise(key, z, samples)
    losses = bottleneck.sampled_losses(task, model, z, batch.y, noise, kind)
    gaps = diagonal.kl(classes.mean[batch.y], classes.std[batch.y], z.mean, z.std)
    total = batch.weigh(losses) + beta * gaps
    return ft.LossOutput(ft.weighted_mean(total, batch.weight), buffers, features.detach())


@dataclass(frozen=True, kw_only=True)
class FedCR(ft.Algorithm[ServerState, ClientState, Personal]):
    """Personalization with a representation that is common across clients."""

    averages_models = True  # of bodies; Gaussians of classes are multiplied beside them

    presets = {
        "reference": {},
        "paper": {"likelihood": "log_expected", "prediction": "mean_probabilities"},
    }

    latent_dim: ft.PositiveInt = 256
    """Features of the Gaussian layer (V)."""
    beta: ft.NonNegativeFloat = 5e-4
    """Weight of the divergence from the Gaussian of the class."""
    samples: ft.PositiveInt = 18
    """Samples of features per example in training (S)."""
    prediction_samples: ft.PositiveInt = 18
    """Samples of features per example in a prediction."""
    head_epochs: ft.NonNegativeInt = 10
    """Epochs that tune the head on the final body."""
    likelihood: bottleneck.Likelihood = "expected_log"
    """Mean of the samples' cross-entropies, or cross-entropy of the mean of their probabilities."""
    prediction: Literal["mean_logits", "mean_probabilities"] = "mean_logits"
    """What a prediction averages over its samples."""
    aggregate_body: bool = True
    """Whether bodies are averaged; otherwise they are personal, and only the Gaussians of the
    classes are shared."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Tune the head."""
        return [ft.FineTuning("head", epochs=self.head_epochs)]

    @property
    def onboarding(self) -> list[ft.Adaptation]:
        """Train a body where bodies are personal."""
        if self.aggregate_body:
            return []
        return [ft.RoundOfTraining()]

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare body and class Gaussians."""
        shape = (task.num_classes, self.latent_dim)
        received = partial(
            ft.Field,
            kind="statistics",
            shapes=shape,
            reduction="sum",
            down=False,
            bound=2.0**34,
            weight_axes=1,
        )
        # classes go down as means and deviations, up as sums that can be added
        statistics = {
            "means": ft.Field(kind="class_means", shapes=shape, reduction="none"),
            "stds": ft.Field(kind="statistics", shapes=shape, reduction="none"),
            "precisions": received(low=0.0),
            "weighted_means": received(),
        }
        if not self.aggregate_body:
            return statistics

        shapes = bottleneck.with_gaussian_layer(task, self.latent_dim).shapes(*ft.BODY)
        return {"body": ft.Field(kind="model", shapes=shapes, weight="equal"), **statistics}

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the common body and standard normal classes."""
        shape = (task.num_classes, self.latent_dim)
        body: ft.Params | tuple[()] = ()
        if self.aggregate_body:
            body = bottleneck.with_gaussian_layer(task, self.latent_dim).initial(key, *ft.BODY)
        return ServerState(body, torch.zeros(shape), torch.ones(shape))

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ClientState:
        """Start from the common model."""
        task = bottleneck.with_gaussian_layer(task, self.latent_dim)
        body = () if self.aggregate_body else task.initial(key, *ft.BODY)
        return ClientState(task.initial(key, "head"), body)

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train body and head towards the classes' Gaussians, then multiply those of each class."""
        task = bottleneck.with_gaussian_layer(task, self.latent_dim)
        shared = download.shared
        classes = bottleneck.Gaussians(shared.means, shared.stds)

        # eq. 7; the Gaussians of the examples are those of the last epoch
        loss = partial(alignment_loss, samples=self.samples, kind=self.likelihood, beta=self.beta)
        model = {**self._body(shared, state), **state.head}
        trained = ft.train(
            task, loss, model, context=classes, data=data.train, key=key, collect="last"
        )
        body = task.pick(trained.params, *ft.BODY)
        new_state = ClientState(task.pick(trained.params, "head"), body)

        # eq. 8
        upload, metrics = self._class_products(task, classes, trained)
        if self.aggregate_body:
            upload["body"] = ft.Mean(body, torch.ones(()))
            new_state = new_state._replace(body=())

        personal = Personal(trained.params, self._noise(key), torch.zeros((), dtype=torch.int64))
        return ft.ClientUpdate(new_state, upload, personal=personal, metrics=metrics)

    def aggregate(
        self, server: ServerState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ServerState, tuple[()]]:
        """Average the bodies; multiply the products of every class and a standard normal."""
        body = received["body"].or_else(server.body) if self.aggregate_body else ()

        # eq. 9: precisions add, and so do means times precisions
        precision = 1.0 + received["precisions"].value.double()
        means = received["weighted_means"].value.double() / precision
        stds = precision.rsqrt()

        # a class that nobody sent stays as it was
        # With noise there is one weight for all classes.
        weight = received["precisions"].total_weight.expand(len(server.means))
        sent = weight[:, None] > 0
        dtype = server.means.dtype
        means = means.to(dtype).where(sent, server.means)
        stds = stds.to(dtype).where(sent, server.stds)
        return ServerState(body, means, stds), ()

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Take the common model's head; train for a round where bodies are personal."""
        state = self.init_client(task, info, key)
        if self.aggregate_body:
            return ft.Onboarded(state, 0)
        update = self.local_update(task, download, state, data, key)
        return ft.Onboarded(update.state, update.metrics["steps"])

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> Personal:
        """Tune the head on the frozen body."""
        task = bottleneck.with_gaussian_layer(task, self.latent_dim)
        body = self._body(download.shared, state)
        tuned = bottleneck.train_sampled_head(
            task,
            {**body, **state.head},
            data.train,
            key=key,
            epochs=self.head_epochs,
            samples=self.samples,
            likelihood=self.likelihood,
        )
        return Personal({**body, **tuned.params}, self._noise(key), tuned.steps)

    def features(self, task: ft.Task, personal: Personal, x: Tensor) -> Tensor:
        """Return the means (n, V) of the Gaussian features."""
        task = bottleneck.with_gaussian_layer(task, self.latent_dim)
        return bottleneck.predict_gaussians(task, personal.model, x).mean

    def predict(self, task: ft.Task, personal: Personal, x: Tensor) -> Tensor:
        """Return logits or log-probabilities, averaged over samples of the features."""
        task = bottleneck.with_gaussian_layer(task, self.latent_dim)
        z = bottleneck.predict_gaussians(task, personal.model, x)

        # the head is linear: the mean of its logits is that of the mean sample
        if self.prediction == "mean_logits":
            return task.model.head(personal.model, z.mean + z.std * personal.noise.mean(0))
        return bottleneck.mean_log_probabilities(task, personal.model, z, personal.noise)

    def diagnostics(self, task: ft.Task, personal: Personal) -> dict[str, Tensor]:
        """Record the steps that tuned the head."""
        return {"steps": personal.steps}

    def _body(self, shared: ServerState, state: ClientState) -> ft.Params:
        """Return the body that a client starts from: the server's, or its personal one."""
        body = shared.body if self.aggregate_body else state.body
        return dict(body)

    def _noise(self, key: ft.Key) -> Tensor:
        return ft.normal(key.fold("prediction"), (self.prediction_samples, self.latent_dim))

    def _class_products(
        self, task: ft.Task, classes: bottleneck.Gaussians, trained: ft.Trained
    ) -> tuple[dict[str, ft.Mean | ft.Sum], dict[str, Tensor]]:
        """Multiply the last epoch's Gaussians by class: what is uploaded, and metrics."""
        seen = trained.collected_examples()
        z = bottleneck.split(seen.x)
        products = diagonal.class_products(z.mean, z.std, seen.y, seen.weight, task.num_classes)

        # rows of classes that the client lacks are not sent
        dtype = classes.mean.dtype
        rows = (products.counts > 0).to(dtype)
        upload: dict[str, ft.Mean | ft.Sum] = {
            "precisions": ft.Sum(products.precision.to(dtype), rows),
            "weighted_means": ft.Sum(products.weighted_mean.to(dtype), rows),
        }

        # metrics: how far the features are from the received classes, and how wide both are
        gaps = diagonal.kl(classes.mean[seen.y], classes.std[seen.y], z.mean, z.std)
        metrics = {
            **trained.metrics,
            "kl": ft.weighted_mean(gaps, seen.weight),
            "feature_std": ft.weighted_mean(z.std.mean(1), seen.weight),
            "class_std": classes.std.mean(),
        }
        return upload, metrics
