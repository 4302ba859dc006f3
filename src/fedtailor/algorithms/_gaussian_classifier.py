"""A shared body under a Gaussian classifier: what pFedFDA and FedLDA have in common.

The features of a class have a mean mu and all classes one covariance Sigma. With a class prior pi
the classifier of this model is linear (linear discriminant analysis), so that the body can be
trained under it. The server averages body, means and covariance.

A temperature t stands between the likelihood of the features and the prior. The logits of a class
are ``t log N(z; mu_c, Sigma) + log pi_c``: with many features the likelihood is far too sure, and
with a ridge that is large beside the variance of the features not sure enough. One t for all
clients minimizes their losses: clients send them for every t of a grid, and the server averages
them. Scaling the logits of a classifier by one number: Guo et al. 2017, "On calibration of modern
neural networks", ICML.

With ``statistics`` = pooled, clients do not send Gaussians but sums over the features of the body
that they have trained, from which the server makes the Gaussian of all examples. Noise can hide
single examples in these sums, as it can in the steps of training.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedtailor import toolkit as ft
from fedtailor.algorithms._feature_sums import (
    finite_rows,
    received_sums,
    repaired_sums,
    shortened,
    sum_fields,
    upload_of,
)
from fedtailor.toolkit import class_sums, gaussian

C = TypeVar("C")
P = TypeVar("P")

TEMPERATURES = (1.0, 0.7, 1.5, 0.5, 2.0, 3.0, 0.3, 0.2, 5.0, 0.1, 10.0, 0.05, 20.0)
"""Those from which one is chosen, the nearest to 1 first."""
_TIE = 0.01
"""Losses this close to the least one, in nats, count as equal: the nearest to 1 is chosen then. If
a body knows its training examples by heart, a larger temperature hardly changes their losses."""


class ServerState(NamedTuple):
    """Body, class means (classes, d), covariance (d, d)."""

    body: ft.Params
    means: Tensor
    covariance: Tensor
    temperature_losses: Tensor | tuple[()] = ()
    """Mean losses of clients for each of ``TEMPERATURES``; () if none is chosen."""

    def upload(self, weight: Tensor) -> dict[str, ft.Mean]:
        """Return the upload of a client whose body and Gaussian these are."""
        values = self._asdict()
        if isinstance(self.temperature_losses, tuple):
            del values["temperature_losses"]
        return {name: ft.Mean(value, weight) for name, value in values.items()}

    @property
    def is_estimated(self) -> Tensor:
        """Whether the Gaussian comes from features, (): before that, all means may be 0."""
        return (self.means != 0).any()


class Head(NamedTuple):
    """A linear classifier."""

    weight: Tensor
    bias: Tensor

    def logits(self, z: Tensor) -> Tensor:
        """Return log joint densities (n, classes) of features, up to a term that classes share."""
        return z @ self.weight.T + self.bias


def classifier(
    means: Tensor,
    covariance: Tensor,
    prior: Tensor,
    shrinkage: float,
    temperature: Tensor | float = 1.0,
) -> Head:
    """Return the linear classifier of a Gaussian model, a class prior (classes,), and t, ()."""
    weight, bias = gaussian.lda_head(means, covariance, prior, shrinkage)

    # t log N + log pi, where the bias already holds one log pi
    bias = temperature * bias + (1.0 - temperature) * prior.double().log()
    weight = temperature * weight
    return Head(weight.to(means.dtype), bias.to(means.dtype))


def losses_of_temperatures(
    log_likelihood: Tensor, labels: Tensor, weight: Tensor, prior: Tensor
) -> Tensor:
    """Return the mean cross-entropy of examples (n,) for each of ``TEMPERATURES``.

    Args:
        log_likelihood: of every class (n, classes), up to a term that all classes share.
        labels: (n,); rows of weight 0 may hold anything.
        weight: (n,).
        prior: of the classes (classes,).

    Returns:
        Losses in float64. All are 0, so that they speak for no temperature, without examples, or
        where one is not finite.
    """
    temperatures = torch.tensor(TEMPERATURES, dtype=torch.float64, device=weight.device)
    row_weight = weight.double()
    is_there = row_weight > 0
    present = torch.where(is_there, labels, 0)

    logits = temperatures[:, None, None] * log_likelihood.double() + prior.double().log()
    targets = present.expand(len(TEMPERATURES), -1)
    losses = cross_entropy(logits.mT, targets, reduction="none")  # (temperatures, n)
    sums = torch.where(is_there, losses, 0.0) @ row_weight
    means = sums / row_weight.sum().clamp_min(1.0)
    return torch.where(torch.isfinite(means).all(), means, 0.0)


def scale_free_covariance(
    scatter: Tensor, count: Tensor, shrinkage: float | Literal["oas"], num_examples: Tensor
) -> Tensor:
    """Return a covariance (d, d), shrunk towards its mean variance.

    Args:
        scatter: (d, d), of ``count`` rows.
        count: how often an example was seen, over all examples.
        shrinkage: share of the mean variance; oas: what the number of different examples asks for.
        num_examples: how many different ones there are.
    """
    matrix = gaussian.covariance(scatter, count, 0.0, 0.0)
    amount = gaussian.oas_amount(matrix, num_examples) if shrinkage == "oas" else shrinkage
    return gaussian.shrink(matrix, amount)


@dataclass(frozen=True, kw_only=True)
class GaussianClassifier(ft.Algorithm[ServerState, C, P]):
    """Base of a method; its personal models have ``body``, ``head``, ``means`` and ``covariance``.

    It adds how a client trains, estimates its Gaussian, and combines that with the server's.
    """

    averages_models = True  # of bodies; the Gaussian is made beside them

    prediction_prior: Literal["client", "uniform"] = "client"
    """The class prior of the personal models. client: that under which the body was trained;
    uniform: all classes are equally likely, so that rare classes are found more often."""
    temperature: Annotated[float | Literal["cross_validated"], ft.Range(gt=0)] = 1.0
    """Weight of the log-likelihood beside the log-prior in predictions: more trusts the features
    more, less trusts the class prior more. cross_validated: one for all clients, by their losses;
    see Deviations."""
    statistics: Literal["client", "pooled"] = "client"
    """Who estimates the Gaussian that all share. client: every client, and the server takes the
    mean; pooled: the server, from sums over the features of all clients. See Deviations."""
    feature_clip: ft.NonNegativeFloat = 0.0
    """Features of a larger norm are shortened to it, in training, in statistics and in predictions;
    0: none are. ``privacy.unit = "example"`` needs it: a public number."""

    @property
    @abstractmethod
    def is_scale_free(self) -> bool:
        """Whether the scale of the features does not matter."""

    @property
    @abstractmethod
    def solver_shrinkage(self) -> float:
        """Share of the mean variance in every covariance that is inverted."""

    @abstractmethod
    def combined(
        self, server: ServerState, moments: gaussian.ClassMoments
    ) -> tuple[Tensor, Tensor]:
        """Return new means and covariance from the moments of all examples, with pooled sums."""

    @property
    def is_pooled(self) -> bool:
        """Whether the server makes the Gaussian."""
        return self.statistics == "pooled"

    @property
    def unbounded_options(self) -> dict[str, str]:
        """Options whose values let more of an example reach uploads than noise can hide."""
        options = {}
        if not self.is_pooled:
            options["statistics"] = "'pooled' (preset 'private')"
        if self.temperature == "cross_validated":
            options["temperature"] = "a number"
        return options

    def warnings(self, task: ft.Task) -> list[str]:
        """Say that an absolute ridge does not suit features of any scale."""
        sentences = super().warnings(task)
        if not self.is_scale_free and not task.names(*ft.BODY):
            sentences.append(
                "the features stay as they are, and cov_ridge is made for those of a body that is "
                "trained with it: preset 'frozen' does not depend on their scale"
            )
        return sentences

    def first_state(self, task: ft.Task, key: ft.Key, means: Tensor) -> ServerState:
        """Return the common body with first means, and the identity as covariance.

        If no body is trained under them and the scale of the features must not matter, the means
        are 0: clients then send their own Gaussians in the first round.
        """
        body = task.initial(key, *ft.BODY)
        if self.is_scale_free and not body:
            means = torch.zeros_like(means)

        losses: Tensor | tuple[()] = ()
        if self.temperature == "cross_validated":
            losses = torch.zeros(len(TEMPERATURES))
        return ServerState(body, means, torch.eye(means.shape[1]), losses)

    def prior_of_predictions(self, prior: Tensor) -> Tensor:
        """Return the class prior (classes,) with which personal models predict.

        With equal priors, the prediction maximizes the likelihood of the features, and with it the
        expected balanced accuracy under the Gaussian model. The body is still trained under the
        client's prior: in the loss it explains how frequent classes are, so that the features need
        not (Menon et al. 2021, "Long-tail learning via logit adjustment", ICLR, section 5).
        """
        if self.prediction_prior == "client":
            return prior
        return torch.full_like(prior, 1.0 / prior.shape[0])

    def prior_of_training(self, prior: Tensor) -> Tensor:
        """Return the class prior (classes,) under which clients train the body.

        With pooled statistics, classes are equally likely: numbers of examples by class would move
        the gradients of all examples.
        """
        return torch.full_like(prior, 1.0 / prior.shape[0]) if self.is_pooled else prior

    def table(
        self, task: ft.Task, body: ft.Params, examples: ft.ExampleSet, key: ft.Key
    ) -> ft.ExampleSet:
        """Return examples as a table of the features of a body."""
        features = ft.cached_features(task, body, examples, key=key)
        return features._replace(x=shortened(features.x, self.feature_clip))

    def upload_of_sums(
        self, task: ft.Task, body: ft.Params, data: ft.ClientData, key: ft.Key
    ) -> dict[str, ft.Mean | ft.Sum]:
        """Return what a client uploads with pooled statistics: its body, and sums of features."""
        features = self.table(task, body, data.train, key)
        if self.feature_clip:
            features = features._replace(x=finite_rows(features.x))

        sums = class_sums.add_up(features, task.num_classes, "pooled", torch.get_default_dtype())
        sent = upload_of(sums, all_rows=self.feature_clip > 0)
        return {"body": ft.Mean(body, data.info.num_train), **sent}

    def aggregate(
        self, server: ServerState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ServerState, Any]:
        """Take the means of what clients sent, or make the Gaussian of the sums."""
        if not self.is_pooled or not received:
            return super().aggregate(server, received, cohort)

        sums = received_sums(received)
        total = sums.counts.sum().clamp_min(1.0)
        scatter = sums.within_covariance() * total
        moments = gaussian.ClassMoments(sums.means(), sums.counts, scatter)
        means, covariance = self.combined(server, moments)
        dtype = server.means.dtype
        new = server._replace(
            body=received["body"].or_else(server.body),
            means=means.to(dtype),
            covariance=gaussian.symmetric(covariance.to(dtype)),
        )
        if "temperature_losses" in received:
            losses = received["temperature_losses"].or_else(server.temperature_losses)
            new = new._replace(temperature_losses=losses)
        return new, ()

    def repaired(self, received: ft.Received, noise: Mapping[str, float]) -> ft.Received:
        """Return sums whose means are within the bound, and whose scatter is above the noise."""
        return repaired_sums(received, noise, self.feature_clip)

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare body, means and covariance, and what these are made of."""
        d = task.model.feature_dim
        of_clients: Literal["mean", "none"] = "none" if self.is_pooled else "mean"
        messages = {
            "body": ft.Field(kind="model", shapes=task.shapes(*ft.BODY)),
            "means": ft.Field(
                kind="class_means", shapes=(task.num_classes, d), reduction=of_clients
            ),
            "covariance": ft.Field(
                kind="covariance", shapes=(d, d), bound=2.0**20, reduction=of_clients
            ),
        }
        if self.is_pooled:
            messages |= sum_fields(task.num_classes, d, "pooled", self.feature_clip)
        if self.temperature == "cross_validated":
            shapes = (len(TEMPERATURES),)
            messages["temperature_losses"] = ft.Field(
                kind="statistics", shapes=shapes, low=0.0, bound=2.0**20
            )
        return messages

    def temperature_of(self, server: ServerState) -> Tensor | float:
        """Return t of predictions, a number or ()."""
        losses = server.temperature_losses
        if isinstance(losses, tuple):
            assert self.temperature != "cross_validated"
            return self.temperature
        temperatures = torch.tensor(TEMPERATURES, dtype=losses.dtype, device=losses.device)
        is_least = losses <= losses.min() + _TIE
        return temperatures[is_least.int().argmax()]

    def features(self, task: ft.Task, personal: Any, x: Tensor) -> Tensor:
        """Return the features of the body."""
        return shortened(ft.predict_features(task, personal.body, x), self.feature_clip)

    def predict(self, task: ft.Task, personal: Any, x: Tensor) -> Tensor:
        """Return logits: log joint densities up to a term that all classes share."""
        logits: Tensor = personal.head.logits(self.features(task, personal, x))
        return logits

    def ood_score(self, task: ft.Task, personal: Any, x: Tensor) -> Tensor:
        """Return the Mahalanobis distance of features from the nearest class mean."""
        z = self.features(task, personal, x)
        distances = gaussian.mahalanobis(
            z, personal.means, personal.covariance, self.solver_shrinkage
        )
        return distances.to(z.dtype)

    def diagnostics(self, task: ft.Task, personal: Any) -> dict[str, Tensor]:
        """Record the largest classifier weight, the scale of features, and Sigma's condition."""
        numbers = {
            "max_head_weight": personal.head.weight.abs().max(),
            "feature_scale": personal.covariance.diagonal().sqrt().mean(),
            "covariance_condition": gaussian.condition(personal.covariance, self.solver_shrinkage),
        }
        if isinstance(personal.temperature, Tensor):
            numbers["temperature"] = personal.temperature
        return numbers

    def surprise(self, task: ft.Task, personal: Any, x: Tensor) -> Tensor:
        """Return the negative log-density of features under the Gaussians and the class prior."""
        z = self.features(task, personal, x)
        nats = gaussian.surprise(
            z, personal.means, personal.covariance, personal.prior, self.solver_shrinkage
        )
        return nats.to(z.dtype)

    def with_gaussians(self, personal: P, means: Tensor, prior: Tensor) -> P:
        """Return a personal model with other class means (classes, d) and another class prior."""
        old: Any = personal
        temperature = old.temperature if isinstance(old.temperature, Tensor) else self.temperature
        assert temperature != "cross_validated"
        means = means.to(old.means.dtype)
        head = classifier(means, old.covariance, prior, self.solver_shrinkage, temperature)
        new: P = old._replace(head=head, means=means, prior=prior.to(means.dtype))
        return new
