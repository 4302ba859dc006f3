"""FedCR: a shared body with Gaussian features that align by class across clients, and private heads.

Zhang et al. 2023, "FedCR: Personalized federated learning based on across-client common representation with
conditional mutual information regularization", ICML. The body gives every example n a Gaussian over V features, mean
mu_n and deviation sigma_n; client i's own head w_i^p classifies S draws of it. Client i trains both (their eq. 7):

    L_i = mean_n [ CE(head(mu_n + sigma_n eps), y_n) + beta KL( N(m_c, s_c^2) || N(mu_n, sigma_n^2) ) ],   c = y_n.

It then multiplies the Gaussians of its examples class by class (eq. 8), and the server multiplies the clients' products
and N(0, 1) (eq. 9):

    1 / s_c^2 = 1 + sum_i sum_n 1 / sigma_n^2,   m_c = s_c^2 sum_i sum_n mu_n / sigma_n^2,   over examples of class c.

The body w^f is the plain mean of the clients'. In the end every client tunes its head on the last global body.

The Gaussian layer (d -> 2V) and the head (V -> classes) are the algorithm's: they go on top of the body of whatever
model the experiment names, whose own head is not used; so the same model serves the algorithms it is compared with.

Messages: down ``body`` (w^f, with the Gaussian layer), ``means`` (m) and ``stds`` (s), classes x V each; up ``body``,
and for the classes that the client has ``precisions`` (sum_n 1 / sigma_n^2) and ``weighted_means`` (sum_n mu_n /
sigma_n^2). Heads never leave a client. Without ``aggregate_body`` no body is sent, in either direction.

Deviations (P: paper, C: released code; presets ``reference`` = C, ``paper`` = P):
* The likelihood term averages the samples' cross-entropies in C, their probabilities in P (``likelihood``).
* A prediction averages the samples' logits in C, their probabilities in P (``prediction``). Their noise is drawn once
  per personal model and the same for all its examples (C: for each anew), so that a model predicts the same twice.
* What P writes as Sigma is the standard deviation softplus(raw) where it draws, as C, and its square elsewhere.
* N(0, 1) enters the product once, as P's Algorithm 2 and C; eq. 9 literally has it once per client. tau is 1.
* P keeps the latest Gaussian of every example; here, as C, those of the last epoch, each from before its batch's step.
  The two differ with ``training.drop_last`` or ``training.steps`` alone, where some examples are not in it.
* P's head tuning of the last round, an extra round of all clients in C, is what ``personalize`` does. Where training
  augments images so does the tuning, as C; otherwise it runs on cached features. The KL does not depend on the head.
* C can blend old and new class Gaussians, but runs with the new ones alone, as P: left out. So is C's offset of raw
  deviations, 0 in all its configurations.
* Uploads are precisions and weighted means, which add up, in place of means and deviations: the same 2V numbers per
  class. They are summed in float64 (C multiplies pairwise in float32, with 1e-32 added to a denominator).
* Deviations stay above 1e-6 so that precisions are finite (P, C: nothing; C's logarithms have 1e-8, and ours too).
* beta is P's 5e-4 (P has 1e-3 on CIFAR-100, Dirichlet; C 1e-4 there). S is 18 as P and C's instructions.
* C trains with lr 0.05, 10 epochs, batches of 48, and clips gradients at norm 10, which P does not mention; augments
  CIFAR; deals classes in turn; has 4 and 12 channels for Fashion-MNIST: settings of ``training``, ``data``, ``model``.
* A new client (P, C: not treated) gets a fresh head, since heads are private, and tunes it like all. Without
  ``aggregate_body`` it first trains its own body, for as long as a round takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download, Onboarded
from fedtailor.core.federation import ClientData, ClientInfo, Cohort
from fedtailor.core.message import Field, Mean, Messages, Reduced, Sum
from fedtailor.core.noise import normal
from fedtailor.core.options import Range
from fedtailor.core.prediction import predict_features
from fedtailor.core.rng import Key
from fedtailor.core.task import BODY, Batch, LossOutput, Params, Task
from fedtailor.statistics.bottleneck import (
    GaussianModel,
    Gaussians,
    Likelihood,
    mean_log_probabilities,
    sample_noise,
    sampled_losses,
    split,
    train_sampled_head,
)
from fedtailor.statistics.diagonal import class_products, kl
from fedtailor.training.blocks import Trained, train
from fedtailor.training.losses import weighted_mean
from fedtailor.training.tuning import in_words


class Global(NamedTuple):
    """Server state: body (() where it is not aggregated), means and deviations of the classes (classes, V)."""

    body: Params | tuple[()]
    means: Tensor
    stds: Tensor


class State(NamedTuple):
    """Client state: its head, and its body where that is not aggregated."""

    head: Params
    body: Params | tuple[()]


class Personal(NamedTuple):
    """A client's model, the noise (S, V) of its predictions, and the steps that tuned its head."""

    model: Params
    noise: Tensor
    steps: Tensor


def alignment_loss(
    task: Task,
    model: Params,
    classes: Gaussians,
    batch: Batch,
    key: Key,
    *,
    samples: int,
    kind: Likelihood,
    beta: float,
) -> LossOutput:
    """Loss of sampled features plus divergence from the Gaussian of the class (eq. 7); collects the features."""
    features, buffers = task.model.features(model, batch.x, weight=batch.weight, key=key, training=True)
    z = split(features)
    losses = sampled_losses(task, model, z, batch.y, sample_noise(key, z, samples), kind)
    gaps = kl(classes.mean[batch.y], classes.std[batch.y], *z)
    return LossOutput(weighted_mean(losses + beta * gaps, batch.weight), buffers, features.detach())


@dataclass(frozen=True, kw_only=True)
class FedCR(Algorithm[Global, State, Personal]):
    """Personalization with a representation that is common across clients."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {},
        "paper": {"likelihood": "log_expected", "prediction": "mean_probabilities"},
    }

    latent_dim: Annotated[int, Range(ge=1)] = 256
    """Features of the Gaussian layer (V)."""
    beta: Annotated[float, Range(ge=0)] = 5e-4
    """Weight of the divergence from the Gaussian of the class."""
    samples: Annotated[int, Range(ge=1)] = 18
    """Samples of features per example in training (S)."""
    prediction_samples: Annotated[int, Range(ge=1)] = 18
    """Samples of features per example in a prediction."""
    head_epochs: Annotated[int, Range(ge=0)] = 10
    """Epochs that tune the head on the final body."""
    likelihood: Likelihood = "expected_log"
    """Mean of the samples' cross-entropies, or cross-entropy of the mean of their probabilities."""
    prediction: Literal["mean_logits", "mean_probabilities"] = "mean_logits"
    """What a prediction averages over its samples."""
    aggregate_body: bool = True
    """Whether bodies are averaged; otherwise they are private, and the Gaussians of the classes alone are shared."""

    @property
    def adaptation(self) -> str:
        """The head is tuned."""
        return in_words(self.head_epochs, "head")

    @property
    def onboarding(self) -> str:
        """A body of the client's own is trained."""
        return "none" if self.aggregate_body else "a round's training of all layers"

    def messages(self, task: Task) -> Messages:
        """Declare body and class Gaussians."""
        shape = (task.num_classes, self.latent_dim)
        body = Field(kind="model", shapes=self._own(task).shapes(*BODY), weight="equal")
        return {
            **({"body": body} if self.aggregate_body else {}),
            "means": Field(kind="class_means", shapes=shape, reduction="none"),
            "stds": Field(kind="statistics", shapes=shape, reduction="none"),
            "precisions": Field(kind="statistics", shapes=shape, reduction="sum", down=False, low=0.0),
            "weighted_means": Field(kind="statistics", shapes=shape, reduction="sum", down=False),
        }

    def init_server(self, task: Task, key: Key) -> Global:
        """Start from the common body and standard normal classes."""
        task, shape = self._own(task), (task.num_classes, self.latent_dim)
        body = task.pick(task.model.init(key.common("model")), *BODY) if self.aggregate_body else ()
        return Global(body, torch.zeros(shape), torch.ones(shape))

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> State:
        """Start from the common model."""
        model, key = self._model(task), key.common("model")
        body = self._own(task).pick(model.init(key), *BODY) if not self.aggregate_body else ()
        return State(model.init_head(key), body)

    def local_update(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> ClientUpdate:
        """Train body and head towards the Gaussians of the classes, then multiply the Gaussians of each class."""
        task, shared = self._own(task), download.shared
        classes = Gaussians(shared.means, shared.stds)
        loss = partial(alignment_loss, samples=self.samples, kind=self.likelihood, beta=self.beta)
        model = {**self._body(shared, state), **state.head}
        training = self.training
        trained = train(task, loss, model, context=classes, data=data.train, key=key, training=training, collect="last")
        body, head = task.pick(trained.params, *BODY), task.pick(trained.params, "head")
        upload, metrics = self._statistics(task, classes, trained)
        if self.aggregate_body:
            upload["body"] = Mean(body, torch.ones(()))
        personal = Personal(trained.params, self._noise(key), torch.zeros((), dtype=torch.int64))
        return ClientUpdate(
            State(head, () if self.aggregate_body else body), upload, personal=personal, metrics=metrics
        )

    def aggregate(self, server: Global, received: Mapping[str, Reduced], cohort: Cohort) -> tuple[Global, tuple[()]]:
        """Average the bodies; multiply the class products and a standard normal, where a class has any."""
        body = received["body"].or_else(server.body) if self.aggregate_body else ()
        precision = 1.0 + received["precisions"].value.double()
        means = received["weighted_means"].value.double() / precision
        there = received["precisions"].total_weight[:, None] > 0
        dtype = server.means.dtype
        classes = Gaussians(means.to(dtype), precision.rsqrt().to(dtype))
        return Global(body, classes.mean.where(there, server.means), classes.std.where(there, server.stds)), ()

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Take the common model's head; with a body of its own, train for a round."""
        state = self.init_client(task, info, key)
        if self.aggregate_body:
            return Onboarded(state, 0)
        update = self.local_update(task, download, state, data, key)
        return Onboarded(update.state, update.metrics["steps"])

    def personalize(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> Personal:
        """Tune the head on the frozen body."""
        task, body = self._own(task), self._body(download.shared, state)
        tuned = train_sampled_head(
            task,
            {**body, **state.head},
            data.train,
            key=key,
            training=self.training,
            epochs=self.head_epochs,
            samples=self.samples,
            likelihood=self.likelihood,
        )
        return Personal({**body, **tuned.params}, self._noise(key), tuned.steps)

    def predict(self, task: Task, personal: Personal, x: Tensor) -> Tensor:
        """Return logits or log-probabilities, averaged over samples of the features."""
        task, noise = self._own(task), personal.noise
        z = split(predict_features(task, personal.model, x))
        if self.prediction == "mean_logits":  # the head is linear: its mean is that of the mean sample
            return task.model.head(personal.model, z.mean + z.std * noise.mean(0))
        return mean_log_probabilities(task, personal.model, z, noise)

    def diagnostics(self, task: Task, personal: Personal) -> dict[str, Tensor]:
        """Record the steps that tuned the head."""
        return {"steps": personal.steps}

    def _model(self, task: Task) -> GaussianModel:
        return GaussianModel(task.model, self.latent_dim, task.num_classes)

    def _own(self, task: Task) -> Task:
        """Return the task whose model has the Gaussian layer."""
        return task._replace(model=self._model(task))

    def _body(self, shared: Global, state: State) -> Params:
        """Return the body that a client starts from: the server's or its own."""
        body = shared.body if self.aggregate_body else state.body
        return dict(body)

    def _noise(self, key: Key) -> Tensor:
        return normal(key.fold("prediction"), (self.prediction_samples, self.latent_dim))

    def _statistics(
        self, task: Task, classes: Gaussians, trained: Trained
    ) -> tuple[dict[str, Mean | Sum], dict[str, Tensor]]:
        """Return the class products of the last epoch's Gaussians for the upload, and metrics."""
        seen = trained.collected_examples()
        z, dtype = split(seen.x), classes.mean.dtype
        products = class_products(z.mean, z.std, seen.y, seen.weight, task.num_classes)
        rows = (products.counts > 0).to(dtype)
        upload: dict[str, Mean | Sum] = {
            "precisions": Sum(products.precision.to(dtype), rows),
            "weighted_means": Sum(products.weighted_mean.to(dtype), rows),
        }
        metrics = {
            "steps": trained.steps,
            "loss": trained.loss,
            "kl": weighted_mean(kl(classes.mean[seen.y], classes.std[seen.y], z.mean, z.std), seen.weight),
            "feature_std": weighted_mean(z.std.mean(1), seen.weight),
            "class_std": classes.std.mean(),
        }
        return upload, metrics
