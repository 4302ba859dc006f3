"""A shared body under a Gaussian classifier: what pFedFDA and FedLDA have in common.

The features of a class have a mean mu and all classes one covariance Sigma. With a class prior pi
the classifier of this model is linear (linear discriminant analysis), so that the body can be
trained under it. The server averages body, means and covariance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import gaussian

C = TypeVar("C")
P = TypeVar("P")


class ServerState(NamedTuple):
    """Body, class means (classes, d), covariance (d, d)."""

    body: ft.Params
    means: Tensor
    covariance: Tensor

    def upload(self, weight: Tensor) -> dict[str, ft.Mean]:
        """Return the upload of a client whose body and Gaussian these are."""
        return {name: ft.Mean(value, weight) for name, value in self._asdict().items()}


class Head(NamedTuple):
    """A linear classifier."""

    weight: Tensor
    bias: Tensor

    def logits(self, z: Tensor) -> Tensor:
        """Return log joint densities (n, classes) of features, up to a term that classes share."""
        return z @ self.weight.T + self.bias


def classifier(means: Tensor, covariance: Tensor, prior: Tensor, shrinkage: float) -> Head:
    """Return the linear classifier of a Gaussian model and a class prior (classes,)."""
    weight, bias = gaussian.lda_head(means, covariance, prior, shrinkage)
    return Head(weight.to(means.dtype), bias.to(means.dtype))


@dataclass(frozen=True, kw_only=True)
class GaussianClassifier(ft.Algorithm[ServerState, C, P]):
    """Base of a method; its personal models have ``body``, ``head``, ``means`` and ``covariance``.

    It adds how a client trains, estimates its Gaussian, and combines that with the server's.
    """

    prediction_prior: Literal["client", "uniform"] = "client"
    """The class prior of the personal models. client: that under which the body was trained;
    uniform: all classes are equally likely, so that rare classes are found more often."""

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

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare body, means and covariance."""
        d = task.model.feature_dim
        return {
            "body": ft.Field(kind="model", shapes=task.shapes(*ft.BODY)),
            "means": ft.Field(kind="class_means", shapes=(task.num_classes, d)),
            "covariance": ft.Field(kind="covariance", shapes=(d, d)),
        }

    def features(self, task: ft.Task, personal: Any, x: Tensor) -> Tensor:
        """Return the features of the body."""
        return ft.predict_features(task, personal.body, x)

    def predict(self, task: ft.Task, personal: Any, x: Tensor) -> Tensor:
        """Return logits: log joint densities up to a term that all classes share."""
        logits: Tensor = personal.head.logits(self.features(task, personal, x))
        return logits
