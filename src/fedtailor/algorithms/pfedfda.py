"""pFedFDA: a shared body under a Gaussian classifier per client, blended with the global one.

McLaughlin and Su 2024, "Personalized federated learning via feature distribution adaptation",
NeurIPS. The body phi is trained under the frozen linear classifier of a Gaussian model (one mean
per class mu, one covariance Sigma) with the client's own class prior pi_i. The client then
estimates its own Gaussian from the features seen during training, and blends it with the global one
(their eq. 8-9):

    mu_i    = beta mu_hat + (1 - beta) mu_g             (eq. 8, ``Blend.means``)
    Sigma_i = beta Sigma_hat + (1 - beta) Sigma_g       (eq. 9, ``Blend.covariance``)

where beta minimizes the cross-entropy of two-fold cross-validation (their eq. 10). Clients upload
the blend, and the server averages with weights n_i / n. At test time a client uses phi_g, its blend
and its prior, and takes no gradient step.

Messages: down and up ``body`` (phi), ``means`` (mu, classes x d), ``covariance`` (Sigma, d x d,
packed); up, all three with the weight n_i. Every client computes the linear head, so it is never
sent. With ``temperature`` = cross_validated also, down and up, ``temperature_losses`` (one for each
of 13 temperatures), with the weight n_i. With ``statistics`` = pooled, up in place of means and
covariance: ``counts`` (C,), ``sums`` (C, d) and ``squares`` (the upper triangle of the sum of
z z^T).

Deviations (P: paper, C: released code; presets ``reference`` = C, ``paper`` = P, ``tuned`` = ours):
* Ridge of Sigma_hat: C adds 1e-4 to every entry and a full identity, P a small multiple of the
  identity (``cov_ridge``, ``cov_offset``). With small ridges the classifier's weights explode, and
  then the features.
* beta: ``single`` as in P and its main tables (the default of C is ``multi``). Both describe
  variants of L-BFGS. We search the multiples of 2^-12 from a coarse grid down, with one matrix
  decomposition per fold, and take the smallest beta of a tie.
* The prior pi_i is that of C: class frequencies with 1e-4 added to each (P: frequencies). A class
  of which a client has no example yet is then nearly impossible, which costs much if the client has
  few examples. ``pseudo_count`` is our own.
* ``prediction_prior`` = uniform is our own: it leaves pi_i out of the predictions of personal
  models, and only there, for balanced accuracy where classes are rare.
* ``temperature`` t is our own: it weighs the log-likelihood in predictions, and only there.
  cross_validated takes one t for all clients, by their losses under the received body and Gaussian.
  The folds of beta judge it, after beta, which is found with t = 1: searching beta at t as well
  changes little (results/scarce-data in the documentation). Folds cannot tell what the body knows
  by heart, so of losses within 0.01 of the least the t nearest to 1 is taken.
* ``shrinkage`` is our own, in place of ridge and offset. If there is no body to train, the first
  round then has no global Gaussian either, and beta is 1. The preset ``frozen`` is for features of
  a frozen encoder. Bodies are better trained with a ridge: without one, nothing keeps their
  features from growing, and they did on Fashion-MNIST (results/scarce-data in the documentation).
* ``statistics`` = pooled is our own: clients send counts, sums and second moments of the features
  of their trained body, in one pass, and the global Gaussian is that of all examples. Bodies are
  trained with equally likely classes; beta, and a client's own Gaussian and prior, are found after
  training, at home. The preset ``private`` has it, for ``privacy.unit`` = example: every example is
  bounded in the steps and, by ``feature_clip``, in the sums.
* The preset ``tuned`` is our own, for few examples and few rounds: ``prior_smoothing`` 0.1 and
  ``cov_ridge`` 0.3, chosen on validation examples of three data sets. In a check on CIFAR-10 with
  more rounds, nothing is left of its gain (results/scarce-data in the documentation).
* Initial means are uniform in [0, 1], as in C. P says spherical Gaussian, which suits rectified
  features worse.
* Statistics use the features of all epochs, taken before each step, as in C. So both folds share
  examples.
* C drops the last, shorter batch in training. Here ``training.drop_last`` decides, and is off by
  default.
* Linear systems are solved by an eigendecomposition. It gives the solution of smallest norm, as C's
  least squares do; with the shrinkage of 1e-4 there is only one solution.
* Evaluation uses all training examples; C drops the last, shorter batch (``evaluate_drop_last``).
  Only there, and as in C, a class with fewer than ``evaluate_min_class_count`` examples takes its
  mean from the server.
* The projection to the nearest positive definite matrix is skipped where a ridge makes it the
  identity.
* Means, covariances and solves are in float64 (C: float32). Folds are drawn by key (C: a fixed
  seed).
* An empty cohort leaves the server as it is (C would zero the model).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.algorithms._beta_search import (
    CovarianceEstimate,
    Fold,
    FoldedExamples,
    GlobalGaussian,
    find_beta,
    held_out_losses,
    make_folds,
)
from fedtailor.algorithms._feature_sums import shortened
from fedtailor.algorithms._gaussian_classifier import (
    GaussianClassifier,
    Head,
    ServerState,
    classifier,
)
from fedtailor.toolkit import gaussian

_SHRINKAGE = 1e-4  # of a covariance, before every solve (C)


class ClientState(NamedTuple):
    """The client's last beta for means and covariance (2,), used if the search fails."""

    beta: Tensor


class Blend(NamedTuple):
    """A client's Gaussian between its own and the global one, and its two betas (2,)."""

    means: Tensor
    covariance: Tensor
    beta: Tensor


class Personal(NamedTuple):
    """A client's model: global body, blended Gaussian, prior, and the classifier that follows."""

    body: ft.Params
    head: Head
    means: Tensor
    covariance: Tensor
    prior: Tensor
    beta: Tensor
    temperature: Tensor | tuple[()] = ()
    """That of the head, (), if it was chosen by cross-validation."""


def body_loss(
    task: ft.Task,
    body: ft.Params,
    head: Head,
    batch: ft.Batch,
    key: ft.Key,
    *,
    feature_clip: float = 0.0,
) -> ft.LossOutput:
    """Cross-entropy under a frozen classifier (eq. 5, as a loss); collects the features."""
    z, buffers = task.features(body, batch, key)
    z = shortened(z, feature_clip)
    loss = ft.cross_entropy_of(batch, head.logits(z))
    return ft.LossOutput(loss, buffers, z.detach())


@dataclass(frozen=True, kw_only=True)
class PFedFDA(GaussianClassifier[ClientState | tuple[()], Personal]):
    """Personalization by feature distribution adaptation."""

    presets = {
        "reference": {},
        "paper": {"cov_ridge": 1e-4, "cov_offset": 0.0},
        "tuned": {"prior_smoothing": 0.1, "cov_ridge": 0.3},
        "frozen": {
            "prior_smoothing": 0.01,
            "shrinkage": "oas",
            "temperature": "cross_validated",
        },
        "private": {"statistics": "pooled"},
    }
    bounds_examples = True
    preset_warnings = {
        "paper": "pfedfda, preset 'paper': with a covariance ridge of 1e-4, as in the paper's "
        "text, features and classifier weights grow without bound in our runs; the released code "
        "uses 1 (preset 'reference')."
    }

    beta: Literal["single", "multi", "none"] = "single"
    """One beta, one each for means and covariance, or none (beta = 1, purely local)."""
    cov_ridge: ft.NonNegativeFloat = 1.0
    """Added to the diagonal of the local covariance."""
    cov_offset: Annotated[
        float,
        ft.Range(ge=0),
        ft.AsReleased("a second ridge goes to every entry, not to the diagonal alone"),
    ] = 1e-4
    """Added to every entry of the local covariance."""
    shrinkage: Annotated[float | Literal["oas"], ft.Range(ge=0, le=1)] = 0.0
    """Share of the mean variance in the local covariance, in place of cov_ridge and cov_offset, so
    that the scale of the features does not matter. oas: the share that suits the number of examples
    (oracle approximating shrinkage); 0: cov_ridge and cov_offset."""
    prior: Literal["floor", "pseudo_count"] = "floor"
    """The client's class prior. floor: its class frequencies, with prior_smoothing added to each;
    pseudo_count: those with prior_smoothing more examples of every class."""
    prior_smoothing: ft.PositiveFloat = 1e-4
    """Added to every class frequency of the prior; with pseudo_count, a number of examples of every
    class."""
    evaluate_min_class_count: ft.PositiveInt = 3
    """At evaluation, a class with fewer training examples takes its mean from the server."""
    evaluate_drop_last: Annotated[
        bool, ft.AsReleased("evaluation loses the examples of a last, shorter batch")
    ] = False
    """Whether evaluation leaves out the examples that do not fill a batch."""

    @property
    def is_scale_free(self) -> bool:
        """Whether the scale of the features does not matter."""
        return self.shrinkage != 0

    @property
    def feature_bound(self) -> float | None:
        """Return the bound of the norm of features in sums."""
        return self.feature_clip if self.is_pooled else None

    @property
    def solver_shrinkage(self) -> float:
        """Share of the mean variance in every covariance that is inverted."""
        return _SHRINKAGE

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Estimate and blend the Gaussian, without gradients."""
        return [ft.CLOSED_FORM]

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the common body, uniform means and the identity."""
        d = task.model.feature_dim
        means = ft.uniform(key.common("means"), (task.num_classes, d))
        return self.first_state(task, key, means)

    def init_client(
        self, task: ft.Task, info: ft.ClientInfo, key: ft.Key
    ) -> ClientState | tuple[()]:
        """Start with beta = 0.5; with pooled statistics there is none in training."""
        return () if self.is_pooled else _first_state()

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState | tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the body under the frozen classifier, then estimate and blend the Gaussian."""
        shared = download.shared

        # eq. 5: the body, under the classifier of the global Gaussian and the client's prior
        prior = self.prior_of_training(self._class_prior(data.info.class_counts))
        head = classifier(shared.means, shared.covariance, prior, _SHRINKAGE)
        trained = ft.train(
            task,
            partial(body_loss, feature_clip=self.feature_clip),
            shared.body,
            context=head,
            data=data.train,
            key=key,
            collect="none" if self.is_pooled else "all",
        )
        if not isinstance(state, ClientState):
            sums = self.upload_of_sums(task, trained.params, data, key)
            # training may have taken all classes as equally likely
            own = self._class_prior(data.info.class_counts)
            losses = self._temperature_losses(task, shared, own, _first_state(), data, key)
            if isinstance(losses, Tensor):
                sums["temperature_losses"] = ft.Mean(losses, data.info.num_train)
            return ft.ClientUpdate((), sums, metrics=trained.metrics)

        # eq. 8-10, from the features of all epochs
        seen = trained.collected_examples()
        blend = self._blend(shared, seen, prior, state, data.info, key, min_count=1)
        losses = self._temperature_losses(task, shared, prior, state, data, key)

        new = ServerState(trained.params, blend.means, blend.covariance, losses)
        upload = new.upload(data.info.num_train)
        # how well the blend describes the client's features
        fit = gaussian.feature_fit(
            seen.x, seen.y, seen.weight, blend.means, blend.covariance, _SHRINKAGE
        )
        metrics = {
            **trained.metrics,
            "beta_means": blend.beta[0],
            "beta_covariance": blend.beta[1],
            "max_head_weight": head.weight.abs().max(),
            "feature_scale": shared.covariance.diagonal().sqrt().mean(),
            "feature_surprise": fit.surprise,
            "feature_kurtosis": fit.kurtosis,
        }
        personal = self._personal(shared, trained.params, blend, prior)
        return ft.ClientUpdate(ClientState(blend.beta), upload, personal=personal, metrics=metrics)

    def global_model(self, task: ft.Task, server: ServerState) -> Personal:
        """Return the global Gaussian with equally likely classes."""
        prior = torch.full((task.num_classes,), 1.0 / task.num_classes)
        blend = Blend(server.means, server.covariance, torch.zeros(2))
        return self._personal(server, server.body, blend, prior)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState | tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> Personal:
        """Estimate and blend the Gaussian with the features of the global body, in one pass."""
        # one pass without gradients, over whole batches only where C is followed
        shared = download.shared
        examples = data.train
        if self.evaluate_drop_last:
            examples = _whole_batches(examples, task.training.batch_size, key)

        features = self.table(task, shared.body, examples, key)
        prior = self._class_prior(data.info.class_counts)
        last = state if isinstance(state, ClientState) else _first_state()
        blend = self._blend(
            shared, features, prior, last, data.info, key, min_count=self.evaluate_min_class_count
        )
        return self._personal(shared, shared.body, blend, prior)

    def diagnostics(self, task: ft.Task, personal: Personal) -> dict[str, Tensor]:
        """Record beta, and the numbers of all Gaussian classifiers."""
        betas = {"beta_means": personal.beta[0], "beta_covariance": personal.beta[1]}
        return betas | super().diagnostics(task, personal)

    def _class_prior(self, class_counts: Tensor) -> Tensor:
        """Estimate a client's class prior (classes,) from its counts."""
        if self.prior == "pseudo_count":
            counts = class_counts.double() + self.prior_smoothing
            return counts / counts.sum()
        return gaussian.smooth_prior(class_counts, self.prior_smoothing)

    def _blend(
        self,
        shared: ServerState,
        features: ft.ExampleSet,
        prior: Tensor,
        state: ClientState,
        info: ft.ClientInfo,
        key: ft.Key,
        *,
        min_count: int,
    ) -> Blend:
        """Estimate the local Gaussian, find beta, and blend with the global Gaussian (eq. 8-10)."""
        weight = features.weight

        # mu_hat and Sigma_hat
        num_classes = shared.means.shape[0]
        moments = gaussian.class_moments(features.x, features.y, weight, num_classes)
        local_means = gaussian.fill_missing_means(moments, shared.means, min_count)
        local_covariance = self._estimate.local(moments, _repeats(features, info))

        # eq. 10; without the search, beta is 1, or 0 where a client has no examples
        if self.beta == "none":
            beta = (weight.sum() > 0).double().expand(2)
        else:
            folds = self._folds(shared, features, info, key)
            beta = self._search(shared, folds, prior, state)

        # eq. 8-9
        dtype = shared.means.dtype
        means = gaussian.blend(local_means, shared.means, beta[0])
        covariance = gaussian.blend(local_covariance, shared.covariance, beta[1])
        return Blend(means.to(dtype), gaussian.symmetric(covariance.to(dtype)), beta.to(dtype))

    def combined(
        self, server: ServerState, moments: gaussian.ClassMoments
    ) -> tuple[Tensor, Tensor]:
        """Return the Gaussian of all examples; a class without any keeps its mean."""
        once = torch.ones((), dtype=torch.float64)
        means = gaussian.fill_missing_means(moments, server.means)
        return means, self._estimate.local(moments, once)

    @property
    def _estimate(self) -> CovarianceEstimate:
        return CovarianceEstimate(self.cov_ridge, self.cov_offset, self.shrinkage)

    def _folds(
        self, shared: ServerState, features: ft.ExampleSet, info: ft.ClientInfo, key: ft.Key
    ) -> list[Fold]:
        """Divide a client's features into two halves that judge each other's blends."""
        words = ft.row_words(key.fold("folds"), features.weight)
        return make_folds(
            FoldedExamples(features.x, features.y, features.weight, words),
            GlobalGaussian(shared.means, shared.covariance),
            self._estimate,
            repeats=_repeats(features, info),
            solver_shrinkage=_SHRINKAGE,
        )

    def _search(
        self, shared: ServerState, folds: list[Fold], prior: Tensor, state: ClientState
    ) -> Tensor:
        """Return beta of means and covariance (2,): 1 without a global Gaussian."""
        if self.beta == "none":
            return torch.ones(2, dtype=torch.float64)
        beta = find_beta(folds, prior, state.beta, mode=self.beta)
        return torch.where(shared.is_estimated, beta, 1.0)

    def _temperature_losses(
        self,
        task: ft.Task,
        shared: ServerState,
        prior: Tensor,
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> Tensor | tuple[()]:
        """Return the held-out losses of every temperature, under the received body and Gaussian.

        The features seen in training would not do: both halves of them have the same examples.
        """
        if self.temperature != "cross_validated":
            return ()

        features = self.table(task, shared.body, data.train, key)
        folds = self._folds(shared, features, data.info, key)
        beta = self._search(shared, folds, prior, state)
        losses = held_out_losses(folds, self.prior_of_predictions(prior), beta)
        return losses.to(shared.means.dtype)

    def _personal(
        self, shared: ServerState, body: ft.Params, blend: Blend, prior: Tensor
    ) -> Personal:
        """Return a model that predicts with its own class prior, at the temperature of all."""
        temperature = self.temperature_of(shared)
        prior = self.prior_of_predictions(prior)
        head = classifier(blend.means, blend.covariance, prior, _SHRINKAGE, temperature)
        chosen = temperature if isinstance(temperature, Tensor) else ()
        prior = prior.to(blend.means.dtype)
        return Personal(body, head, blend.means, blend.covariance, prior, blend.beta, chosen)


def _first_state() -> ClientState:
    return ClientState(torch.full((2,), 0.5))


def _repeats(features: ft.ExampleSet, info: ft.ClientInfo) -> Tensor:
    """Return how often an example of a client is in a table of features, (); at least 1."""
    return (features.weight.sum() / info.num_train.clamp_min(1)).clamp_min(1).double()


def _whole_batches(examples: ft.ExampleSet, batch_size: int, key: ft.Key) -> ft.ExampleSet:
    """Leave out, at random, the examples that do not fill a batch, unless there is no other."""
    count = examples.size()
    size = torch.clamp(count, 1, batch_size or None)
    return examples.keep(count // size * size, key.fold("drop"))
