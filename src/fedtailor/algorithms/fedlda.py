"""FedLDA: a shared body and Gaussian class model, in which a client has its own class prior.

McLaughlin and Su 2023, "FedLDA: personalized federated learning through collaborative linear
discriminant analysis", FL@FM workshop at NeurIPS. The body phi is trained under the frozen linear
classifier of a Gaussian model (class means mu, one covariance Sigma) with the client's own class
prior pi_i (their eq. 4), and a penalty on correlated features (their eq. 5):

    F = CE + (lambda / d) sum_{m != n} |S_mn|        (``body_loss``),

S the covariance of the features of a mini-batch. After training the client refreshes the Gaussian
with momentum, from its features under the trained body. Sigma_hat is centered by the blended means:

    mu_i    = beta mu + (1 - beta) mu_hat            (``_refresh``)
    Sigma_i = beta Sigma + (1 - beta) Sigma_hat

The server averages with weights n_i / n. A new client needs its class frequencies only.

Messages: down and up ``body`` (phi), ``means`` (mu, classes x d), ``covariance`` (Sigma, d x d,
packed); up, all three with the weight n_i. With ``temperature`` = cross_validated also, down and
up, ``temperature_losses`` (one for each of 13 temperatures), with the weight n_i. Priors stay at
the clients. With ``statistics`` = pooled, up in place of means and covariance: ``counts`` (C,),
``sums`` (C, d) and ``squares`` (the upper triangle of the sum of z z^T).

Deviations (the paper released no code; I: inferred, mostly from pFedFDA by the same authors). The
preset ``paper`` takes back the first three, and has the classifier exactly as written:
* The prior is smoothed by 1e-4 (I). In the text a class without training examples has the logit
  -infinity; a ``prior_smoothing`` of 1e-300 says so in finite numbers.
* ``cov_ridge`` (0.01) is added to the diagonal of Sigma_hat (I: the paper has none). Without it
  Sigma shrinks, the classifier's weights grow and training collapses: on CIFAR-10, 20 clients of
  500 samples, by round 20.
* Linear systems are solved after a ``shrinkage`` of 1e-4 towards the identity (I). Without it,
  features that are always zero make Sigma singular after some twenty rounds. A Sigma that is not
  positive definite then has no classifier: no client can train with it, and the run stops.
* S is centered by the class means of the mini-batch (I: the model's covariance is that within
  classes) and divided by max(n_b - 1, 1); ``penalty_centering`` = "batch" centers by the mean of
  all.
* A class without examples keeps the server's mean (I). Sigma_hat divides by max(n_i - 1, 1).
  Misprinted indices (eq. 4, eq. 8, the definition of Sigma_hat) are read as the class that is
  summed over, or the example's own class.
* The evaluated model is the server's body and Gaussian with the client's prior (I: eq. 4 uses the
  server's estimates). ``evaluated_body`` = "local" takes the body of the client's own last
  training, and before it the server's. The experiments judge by the point ``local``, right after
  local training (I): only there does our FedLDA lead LG-FedAvg by about as much as in the paper.
  See "Small tables of our own" in results/experiments in the documentation.
* ``prediction_prior`` = uniform is our own: it leaves the prior out of the predictions of personal
  models, and only there, for balanced accuracy where classes are rare.
* ``temperature`` t is our own: it weighs the log-likelihood in predictions, and only there.
  cross_validated takes one t for all clients, by the losses of their training examples under the
  received body and Gaussian. A client's own examples are a small part of these, so there are no
  folds; of losses within 0.01 of the least the t nearest to 1 is taken.
* ``statistics`` = pooled is our own: clients send counts, sums and second moments of the features
  of their trained body, and the server refreshes the Gaussian with those of all examples. Bodies
  are trained with equally likely classes; predictions have the client's prior. The preset
  ``private`` has it, and no penalty, for ``privacy.unit`` = example: every example is bounded in
  the steps and, by ``feature_clip``, in the sums.
* ``shrinkage`` = oas is our own, in place of ``cov_ridge``. If there is no body to train, the first
  round then has no Gaussian of the server either, and clients send their own. The preset
  ``frozen`` is for features of a frozen encoder.
* The body starts as the model does (PyTorch's variant of Kaiming's initialization, as in pFedFDA).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.algorithms._feature_sums import shortened
from fedtailor.algorithms._gaussian_classifier import (
    GaussianClassifier,
    Head,
    ServerState,
    classifier,
    losses_of_temperatures,
    scale_free_covariance,
)
from fedtailor.toolkit import gaussian, tree

_SPREAD = 0.1  # initial means are uniform within this distance of 0
_SHRINKAGE = 1e-4  # of a covariance that is inverted, where the option does not say

Centering = Literal["class", "batch"]


class ClientState(NamedTuple):
    """The body of the client's last training, and 1 once there was one, if it is evaluated."""

    body: ft.Params
    trained: Tensor


class Personal(NamedTuple):
    """A client's model: body, Gaussian class model, prior, and the classifier that follows."""

    body: ft.Params
    head: Head
    means: Tensor
    covariance: Tensor
    prior: Tensor
    temperature: Tensor | tuple[()] = ()
    """That of the head, (), if it was chosen by held-out losses."""


def body_loss(
    task: ft.Task,
    body: ft.Params,
    head: Head,
    batch: ft.Batch,
    key: ft.Key,
    *,
    penalty: float,
    centering: Centering,
    feature_clip: float,
) -> ft.LossOutput:
    """Cross-entropy under a frozen classifier, plus the penalty on correlated features (eq. 5)."""
    z, buffers = task.features(body, batch, key)
    z = shortened(z, feature_clip)
    loss = ft.cross_entropy_of(batch, head.logits(z))
    if penalty:
        groups = batch.y if centering == "class" else torch.zeros_like(batch.y)
        loss = loss + penalty * correlation(z, groups, batch.weight, task.num_classes)
    return ft.LossOutput(loss, buffers)


def correlation(z: Tensor, groups: Tensor, weight: Tensor, count: int) -> Tensor:
    """Return ``1/d sum_{m != n} |S_mn|`` of features (n, d), centered by the means of groups."""
    # centered by the mean of the example's group
    member = (groups[:, None] == torch.arange(count, device=z.device)).to(z.dtype)  # (n, count)
    weighted = member * weight[:, None]
    means = (weighted.T @ z) / weighted.sum(0).clamp(min=1.0)[:, None]
    centered = z - member @ means

    # S, and the sum over its entries m != n
    matrix = centered.T @ (centered * weight[:, None]) / (weight.sum() - 1.0).clamp(min=1.0)
    d = z.shape[1]
    off_diagonal = 1.0 - torch.eye(d, dtype=z.dtype, device=z.device)
    return (matrix.abs() * off_diagonal).sum() / d


@dataclass(frozen=True, kw_only=True)
class FedLDA(GaussianClassifier[ClientState | tuple[()], Personal]):
    """Collaborative linear discriminant analysis."""

    presets = {
        "reference": {},
        "paper": {"prior_smoothing": 1e-300, "cov_ridge": 0.0, "shrinkage": 0.0},
        "frozen": {
            "prior_smoothing": 0.01,
            "shrinkage": "oas",
            "temperature": "cross_validated",
        },
        "private": {"statistics": "pooled", "penalty": 0.0},
    }
    bounds_examples = True
    preset_warnings = {
        "paper": "fedlda, preset 'paper': nothing keeps the covariance of features away from 0, "
        "as in the paper's text. In our runs accuracy falls, and training ends once the covariance "
        "has no inverse. Preset 'reference' adds a ridge and shrinkage."
    }

    momentum: ft.Share = 0.5
    """Share of the server's Gaussian in a client's upload (beta)."""
    penalty: ft.NonNegativeFloat = 0.1
    """Weight of the penalty on covariances between features (lambda)."""
    penalty_centering: Centering = "class"
    """In the penalty, features are centered by the means of their classes, or by the mean of the
    mini-batch."""
    prior_smoothing: ft.PositiveFloat = 1e-4
    """Added to every class frequency of the prior."""
    cov_ridge: ft.NonNegativeFloat = 0.01
    """Added to the diagonal of the local covariance."""
    shrinkage: Annotated[
        float | Literal["oas"],
        ft.Range(ge=0, le=1),
        ft.AtZero("there is no classifier where Sigma is not positive definite."),
    ] = 1e-4
    """Share of the mean variance in every covariance that is inverted. With 0, a covariance that is
    not positive definite has no classifier; what a client then sends is not finite, and is left
    out. The run stops if that is so for every client. oas: the local covariance has the share that
    suits its number of examples (oracle approximating shrinkage), in place of cov_ridge, so that
    the scale of the features does not matter."""
    evaluated_body: Literal["global", "local"] = "global"
    """The body of a client's personal model: the server's, or that of its own last training."""

    @property
    def is_scale_free(self) -> bool:
        """Whether the scale of the features does not matter."""
        return self.shrinkage == "oas"

    @property
    def feature_bound(self) -> float | None:
        """Return the bound of the norm of features in sums."""
        return self.feature_clip if self.is_pooled else None

    @property
    def unbounded_options(self) -> dict[str, str]:
        """Options whose values let more of an example reach uploads than noise can hide."""
        options = super().unbounded_options
        if self.penalty:
            options["penalty"] = "0"
        return options

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Count the classes for the prior."""
        return [ft.CLASS_FREQUENCIES]

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the common body, small uniform means and the identity."""
        d = task.model.feature_dim
        means = _SPREAD * (2.0 * ft.uniform(key.common("means"), (task.num_classes, d)) - 1.0)
        return self.first_state(task, key, means)

    def init_client(
        self, task: ft.Task, info: ft.ClientInfo, key: ft.Key
    ) -> ClientState | tuple[()]:
        """Start without a personal body."""
        if self.evaluated_body == "global":
            return ()
        return ClientState(task.initial(key, *ft.BODY), torch.zeros(()))

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState | tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the body under the frozen classifier, then refresh the Gaussian."""
        shared = download.shared

        # eq. 5, under the classifier of the received Gaussian and the client's prior (eq. 4)
        received = self._personal(shared.body, shared, data.info)
        prior = self.prior_of_training(self._class_prior(data.info))
        head = self._classifier(shared, prior, temperature=1.0)
        loss = partial(
            body_loss,
            penalty=self.penalty,
            centering=self.penalty_centering,
            feature_clip=self.feature_clip,
        )
        trained = ft.train(task, loss, shared.body, context=head, data=data.train, key=key)
        body: ft.Params = trained.params
        # the body of the client's own training is kept only if it is evaluated
        new_state = ClientState(body, torch.ones(())) if isinstance(state, ClientState) else ()
        personal = received._replace(body=body)
        if self.is_pooled:
            sums = self.upload_of_sums(task, body, data, key)
            losses = self._temperature_losses(task, shared, data, key)
            if isinstance(losses, Tensor):
                sums["temperature_losses"] = ft.Mean(losses, data.info.num_train)
            return ft.ClientUpdate(new_state, sums, personal=personal, metrics=trained.metrics)

        new, fit = self._refresh(task, shared, body, data, key)
        losses = self._temperature_losses(task, shared, data, key)
        new = new._replace(temperature_losses=losses)
        metrics = {
            **trained.metrics,
            "feature_surprise": fit.surprise,
            "feature_kurtosis": fit.kurtosis,
            **self.diagnostics(task, received),
        }

        upload = new.upload(data.info.num_train)
        return ft.ClientUpdate(new_state, upload, personal=personal, metrics=metrics)

    def global_model(self, task: ft.Task, server: ServerState) -> Personal:
        """Return the server's Gaussian with equally likely classes."""
        no_examples = ft.ClientInfo(torch.zeros(()), torch.zeros(task.num_classes))
        return self._personal(server.body, server, no_examples)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState | tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> Personal:
        """Combine the server's Gaussian with the client's prior."""
        body = download.shared.body
        if isinstance(state, ClientState):
            body = tree.where(state.trained > 0, state.body, body)
        return self._personal(body, download.shared, data.info)

    @property
    def solver_shrinkage(self) -> float:
        """Share of the mean variance in every covariance that is inverted."""
        return _SHRINKAGE if self.shrinkage == "oas" else self.shrinkage

    def _refresh(
        self, task: ft.Task, shared: ServerState, body: ft.Params, data: ft.ClientData, key: ft.Key
    ) -> tuple[ServerState, gaussian.FeatureFit]:
        """Blend the Gaussian of the trained body's features with the server's; return their fit."""
        features = self.table(task, body, data.train, key)
        moments = gaussian.class_moments(features.x, features.y, features.weight, task.num_classes)
        means, covariance = self.combined(shared, moments)
        fit = gaussian.feature_fit(
            features.x, features.y, features.weight, means, covariance, self.solver_shrinkage
        )
        dtype = shared.means.dtype
        covariance = gaussian.symmetric(covariance.to(dtype))
        return ServerState(body, means.to(dtype), covariance), fit

    def combined(
        self, server: ServerState, moments: gaussian.ClassMoments
    ) -> tuple[Tensor, Tensor]:
        """Return a Gaussian blended with the server's: means (classes, d), covariance (d, d)."""
        rate = torch.tensor(1.0 - self.momentum, dtype=torch.float64)
        rate = torch.where(server.is_estimated, rate, 1.0)

        # mu_i; a class without examples keeps the server's mean
        local_means = gaussian.fill_missing_means(moments, server.means)
        means = gaussian.blend(local_means, server.means, rate)

        # Sigma_i; Sigma_hat is centered by the blended means
        scatter = gaussian.scatter_about(moments, means)
        count = moments.counts.sum()
        if self.is_scale_free:
            local = scale_free_covariance(scatter, count, "oas", count)
        else:
            local = gaussian.covariance(scatter, count, self.cov_ridge, 0.0)
        return means, gaussian.blend(local, server.covariance, rate)

    def _personal(self, body: ft.Params, shared: ServerState, info: ft.ClientInfo) -> Personal:
        """Combine the server's Gaussian with the prior of predictions."""
        prior = self.prior_of_predictions(self._class_prior(info))
        temperature = self.temperature_of(shared)
        head = self._classifier(shared, prior, temperature=temperature)
        chosen = temperature if isinstance(temperature, Tensor) else ()
        prior = prior.to(shared.means.dtype)
        return Personal(body, head, shared.means, shared.covariance, prior, chosen)

    def _temperature_losses(
        self, task: ft.Task, shared: ServerState, data: ft.ClientData, key: ft.Key
    ) -> Tensor | tuple[()]:
        """Return the losses of every temperature, under the received body and Gaussian."""
        if self.temperature != "cross_validated":
            return ()

        features = self.table(task, shared.body, data.train, key)
        prior = self.prior_of_predictions(self._class_prior(data.info))
        head = self._classifier(shared, prior, temperature=1.0)
        log_likelihood = head.logits(features.x) - prior.log().to(features.x.dtype)
        losses = losses_of_temperatures(log_likelihood, features.y, features.weight, prior)
        return losses.to(shared.means.dtype)

    def _class_prior(self, info: ft.ClientInfo) -> Tensor:
        """Estimate a client's class prior (classes,): uniform without examples."""
        return gaussian.smooth_prior(info.class_counts, self.prior_smoothing)

    def _classifier(
        self, shared: ServerState, prior: Tensor, *, temperature: Tensor | float
    ) -> Head:
        """Return the classifier of the server's Gaussian and a prior (eq. 4)."""
        head = classifier(
            shared.means, shared.covariance, prior, self.solver_shrinkage, temperature
        )
        if self.shrinkage:
            return head

        # there is no classifier where the covariance has no inverse
        is_positive = torch.isfinite(gaussian.condition(shared.covariance))
        return Head(*(torch.where(is_positive, leaf, torch.nan) for leaf in head))
