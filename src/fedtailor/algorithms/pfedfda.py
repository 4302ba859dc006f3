"""pFedFDA: a shared body and, for every client, a generative Gaussian classifier blended with the global one.

McLaughlin and Su 2024, "Personalized federated learning via feature distribution adaptation", NeurIPS. The body
phi is trained under the frozen linear classifier of a Gaussian model (one mean per class mu, one covariance
Sigma) with the client's own class prior pi_i. The client then estimates its own Gaussian from the features seen
while training, and blends it with the global one (their eq. 8-9):

    mu_i = beta mu_hat + (1 - beta) mu_g,   Sigma_i = beta Sigma_hat + (1 - beta) Sigma_g,

where beta minimizes the cross-entropy of two-fold cross-validation (their eq. 10). Clients upload the blend,
the server averages with weights n_i / n. At test time a client uses phi_g, its blend and its prior: no gradient.

Messages: down and up ``body`` (phi), ``means`` (mu, classes x d), ``covariance`` (Sigma, d x d, packed); up, the
weight n_i of all three. The linear head is computed by everybody and never sent.

Deviations (P: paper, C: released code; presets ``reference`` = C, ``paper`` = P):
* Ridge of Sigma_hat: C adds 1e-4 to every entry and a full identity, P a small multiple of the identity
  (``cov_ridge``, ``cov_offset``). Small ridges make the classifier's weights, and then the features, explode.
* beta: ``single`` as P and its main tables (C defaults to ``multi``). Both describe variants of L-BFGS; we search
  the multiples of 2^-12 from a coarse grid down, with one matrix decomposition per fold; the smallest beta of a tie.
* Initial means are uniform in [0, 1] as C; P says spherical Gaussian, which suits rectified features worse.
* Statistics use the features of all epochs, taken before each step, as C; so both folds share examples.
* Training drops the last, shorter batch in C; here ``training.drop_last`` decides, and is off by default.
* Linear systems are solved by an eigendecomposition, which gives the solution of smallest norm where C's least squares
  would; with the shrinkage of 1e-4 there is only one.
* Evaluation uses all training examples; C drops the last, shorter batch (``evaluate_drop_last``). Only there, and as
  C, a class with fewer than ``evaluate_min_class_count`` examples takes its mean from the server.
* The projection to the nearest positive definite matrix is skipped where a ridge makes it the identity.
* Means, covariances and solves are in float64 (C: float32); folds are drawn by key (C: a fixed seed).
* An empty cohort leaves the server as it is (C would zero the model).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.algorithms._beta_search import find_beta
from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download
from fedtailor.core.federation import ClientData, ClientInfo, Cohort, ExampleSet
from fedtailor.core.message import Field, Mean, Messages, Reduced
from fedtailor.core.noise import row_words, uniform
from fedtailor.core.options import Range
from fedtailor.core.prediction import predict_features
from fedtailor.core.rng import Key
from fedtailor.core.task import BODY, Batch, LossOutput, Params, Task
from fedtailor.statistics.gaussian import (
    blend,
    class_moments,
    condition,
    covariance,
    fill_missing_means,
    lda_head,
    mahalanobis,
    mean_negative_log_likelihood,
    nearest_pd,
    smooth_prior,
)
from fedtailor.training.blocks import cached_features, train
from fedtailor.training.losses import cross_entropy

_SHRINKAGE = 1e-4  # of a covariance, before every solve (C)


class Global(NamedTuple):
    """Server state: body, class means (classes, d), covariance (d, d)."""

    body: Params
    means: Tensor
    covariance: Tensor


class State(NamedTuple):
    """Client state: its last beta for means and covariance (2,), used if the search fails."""

    beta: Tensor


class Head(NamedTuple):
    """A linear classifier."""

    weight: Tensor
    bias: Tensor


class Personal(NamedTuple):
    """A client's model: the global body, its blended Gaussian, its prior, and the classifier that follows."""

    body: Params
    head: Head
    means: Tensor
    covariance: Tensor
    prior: Tensor
    beta: Tensor


def body_loss(task: Task, body: Params, head: Head, batch: Batch, key: Key) -> LossOutput:
    """Cross-entropy under a frozen classifier; collects the features (eq. 5, as a loss)."""
    z, buffers = task.model.features(body, batch.x, weight=batch.weight, key=key, training=True)
    return LossOutput(cross_entropy(z @ head.weight.T + head.bias, batch.y, batch.weight), buffers, z.detach())


@dataclass(frozen=True, kw_only=True)
class PFedFDA(Algorithm[Global, State, Personal]):
    """Personalization by feature distribution adaptation."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {},
        "paper": {"cov_ridge": 1e-4, "cov_offset": 0.0},
    }
    preset_warnings: ClassVar[Mapping[str, str]] = {
        "paper": "pfedfda, preset 'paper': a covariance ridge of 1e-4, as the paper's text has it, lets features and "
        "classifier weights grow without bound in our runs; the released code uses 1 (preset 'reference')."
    }

    beta: Literal["single", "multi", "none"] = "single"
    """One beta, one each for means and covariance, or none (beta = 1, purely local)."""
    cov_ridge: Annotated[float, Range(ge=0)] = 1.0
    """Added to the diagonal of the local covariance."""
    cov_offset: Annotated[float, Range(ge=0)] = 1e-4
    """Added to every entry of the local covariance."""
    prior_smoothing: Annotated[float, Range(gt=0)] = 1e-4
    """Added to every class frequency of the prior."""
    evaluate_min_class_count: Annotated[int, Range(ge=1)] = 3
    """At evaluation, a class with fewer training examples takes its mean from the server."""
    evaluate_drop_last: bool = False
    """Whether evaluation leaves out what does not fill a batch, as the released code does."""

    @property
    def adaptation(self) -> str:
        """The Gaussian is estimated and blended, without gradients."""
        return "closed form"

    def messages(self, task: Task) -> Messages:
        """Declare body, means and covariance."""
        d = task.model.feature_dim
        return {
            "body": Field(kind="model", shapes=task.shapes(*BODY)),
            "means": Field(kind="class_means", shapes=(task.num_classes, d)),
            "covariance": Field(kind="covariance", shapes=(d, d)),
        }

    def init_server(self, task: Task, key: Key) -> Global:
        """Start from the common body, uniform means and the identity."""
        d = task.model.feature_dim
        body = task.pick(task.model.init(key.common("model")), *BODY)
        return Global(body, uniform(key.common("means"), (task.num_classes, d)), torch.eye(d))

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> State:
        """Start with beta = 0.5."""
        return State(torch.full((2,), 0.5))

    def local_update(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> ClientUpdate:
        """Train the body under the frozen classifier, then estimate and blend the Gaussian."""
        shared: Global = download.shared
        prior = smooth_prior(data.info.class_counts, self.prior_smoothing)
        head = self._head(shared.means, shared.covariance, prior)
        trained = train(
            task, body_loss, shared.body, context=head, data=data.train, key=key, training=self.training, collect="all"
        )
        seen = trained.collected_examples()
        means, cov, beta = self._adapt(task, shared, seen, prior, state.beta, key, min_count=1)
        n = data.info.num_train
        upload = {"body": Mean(trained.params, n), "means": Mean(means, n), "covariance": Mean(cov, n)}
        metrics = {
            "steps": trained.steps,
            "loss": trained.loss,
            "beta_means": beta[0],
            "beta_covariance": beta[1],
            "max_head_weight": head.weight.abs().max(),
            "feature_scale": shared.covariance.diagonal().sqrt().mean(),
            "feature_surprise": mean_negative_log_likelihood(seen.x, seen.y, seen.weight, means, cov, _SHRINKAGE),
        }
        personal = self._personal(trained.params, means, cov, prior, beta)
        return ClientUpdate(State(beta), upload, personal=personal, metrics=metrics)

    def aggregate(self, server: Global, received: Mapping[str, Reduced], cohort: Cohort) -> tuple[Global, tuple[()]]:
        """Take the means."""
        old = server._asdict()
        return Global(**{name: received[name].or_else(old[name]) for name in Global._fields}), ()

    def global_model(self, task: Task, server: Global) -> Personal:
        """Return the global Gaussian with equally likely classes."""
        prior = torch.full((task.num_classes,), 1.0 / task.num_classes)
        return self._personal(server.body, server.means, server.covariance, prior, torch.zeros(2))

    def personalize(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> Personal:
        """Estimate and blend the Gaussian with the features of the global body, in one pass."""
        shared: Global = download.shared
        examples = self._whole_batches(data.train, key) if self.evaluate_drop_last else data.train
        features = cached_features(task, shared.body, examples, key=key)
        prior = smooth_prior(data.info.class_counts, self.prior_smoothing)
        minimum = self.evaluate_min_class_count
        means, cov, beta = self._adapt(task, shared, features, prior, state.beta, key, min_count=minimum)
        return self._personal(shared.body, means, cov, prior, beta)

    def predict(self, task: Task, personal: Personal, x: Tensor) -> Tensor:
        """Return logits: log joint densities up to a term that all classes share."""
        return predict_features(task, personal.body, x) @ personal.head.weight.T + personal.head.bias

    def ood_score(self, task: Task, personal: Personal, x: Tensor) -> Tensor:
        """Return the Mahalanobis distance of features from the nearest class mean."""
        z = predict_features(task, personal.body, x)
        return mahalanobis(z, personal.means, personal.covariance, _SHRINKAGE).to(z.dtype)

    def diagnostics(self, task: Task, personal: Personal) -> dict[str, Tensor]:
        """Record beta, the largest classifier weight and the scale of the features."""
        return {
            "beta_means": personal.beta[0],
            "beta_covariance": personal.beta[1],
            "max_head_weight": personal.head.weight.abs().max(),
            "feature_scale": personal.covariance.diagonal().sqrt().mean(),
            "covariance_condition": condition(personal.covariance, _SHRINKAGE),
        }

    def _adapt(
        self,
        task: Task,
        shared: Global,
        features: ExampleSet,
        prior: Tensor,
        previous: Tensor,
        key: Key,
        *,
        min_count: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Estimate the local Gaussian and blend it; return means, covariance and beta."""
        z, labels, weight = features.x, features.y, features.weight
        moments = class_moments(z, labels, weight, task.num_classes)
        local_means = fill_missing_means(moments, shared.means, min_count)
        local_covariance = covariance(moments.scatter, weight.sum(), self.cov_ridge, self.cov_offset)
        project = self.cov_ridge == 0  # a scatter plus any ridge is positive definite: nothing to project
        if project:
            local_covariance = nearest_pd(local_covariance)
        if self.beta == "none":  # but for a client without any examples, which has nothing local
            beta = (weight.sum() > 0).double().expand(2)
        else:
            words = row_words(key.fold("folds"), weight)
            beta = find_beta(
                z, labels, weight, words, shared.means, shared.covariance, prior, previous,
                mode=self.beta, ridge=self.cov_ridge, offset=self.cov_offset, shrinkage=_SHRINKAGE, project=project,
            )  # fmt: skip
        dtype = shared.means.dtype
        means = blend(local_means, shared.means, beta[0])
        return means.to(dtype), blend(local_covariance, shared.covariance, beta[1]).to(dtype), beta.to(dtype)

    def _personal(self, body: Params, means: Tensor, cov: Tensor, prior: Tensor, beta: Tensor) -> Personal:
        head = self._head(means, cov, prior)
        return Personal(body, head, means, cov, prior.to(means.dtype), beta)

    def _head(self, means: Tensor, cov: Tensor, prior: Tensor) -> Head:
        weight, bias = lda_head(means, cov, prior, _SHRINKAGE)
        return Head(weight.to(means.dtype), bias.to(means.dtype))

    def _whole_batches(self, examples: ExampleSet, key: Key) -> ExampleSet:
        """Leave out, by lot, what does not fill a batch; a client below one batch keeps all."""
        count = examples.size()
        size = torch.clamp(count, 1, self.training.batch_size or None)
        return examples.keep(count // size * size, key.fold("drop"))
