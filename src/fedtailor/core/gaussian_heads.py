"""Diagonal Gaussians over linear heads: drawing heads, and what they predict together.

A head is its parameters by name, D numbers in all; several drawn heads have a leading axis.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core.diagonal import kl
from fedtailor.core.noise import normal
from fedtailor.core.rng import Key
from fedtailor.core.task import Params, Task


class HeadPosterior(NamedTuple):
    """A diagonal Gaussian over heads, in parameters without bounds."""

    mean: Params
    raw: Params
    """The deviations are softplus of these."""

    def deviation(self) -> Params:
        """Return the standard deviations."""
        return {name: F.softplus(raw) for name, raw in self.raw.items()}


class HeadPrior(NamedTuple):
    """A Gaussian around a head, with one deviation rho for all numbers."""

    mean: Params
    rho: Tensor


def divergence(mean: Params, deviation: Params, prior: HeadPrior) -> Tensor:
    """Return KL(N(mean, deviation^2) || N(prior mean, rho^2)), summed over the head; see :func:`diagonal.kl`."""
    parts = [
        kl(mean[name].flatten(), own.flatten(), prior.mean[name].flatten(), prior.rho.expand(own.numel()))
        for name, own in deviation.items()
    ]
    return torch.stack(parts).sum()


def squares(head: Params) -> Tensor:
    """Return the sum of the squares of all numbers."""
    return torch.stack([(leaf**2).sum() for leaf in head.values()]).sum()


def raw_of(deviation: float) -> float:
    """Return the number whose softplus is a deviation > 0."""
    return deviation + math.log(-math.expm1(-deviation))


def head_size(head: Params) -> int:
    """Return D, the numbers of a head."""
    return sum(leaf.numel() for leaf in head.values())


def draw_heads(mean: Params, deviation: Params, noise: Tensor) -> Params:
    """Return the heads (draws, ...) that standard normal noise (draws, D) stands for."""
    parts = torch.split(noise, [leaf.numel() for leaf in mean.values()], dim=1)
    return {
        name: leaf + deviation[name] * part.reshape(-1, *leaf.shape)
        for (name, leaf), part in zip(mean.items(), parts, strict=True)
    }


def logits_of_heads(task: Task, heads: Params, z: Tensor) -> Tensor:
    """Return logits (draws, n, classes) of features (n, d) under several heads."""
    logits: Tensor = torch.func.vmap(lambda head: task.model.head(head, z))(heads)
    return logits


def mean_log_probabilities(task: Task, heads: Params, z: Tensor) -> Tensor:
    """Return the logarithms (n, classes) of the probabilities, averaged over several heads."""
    log_probs = torch.log_softmax(logits_of_heads(task, heads, z), -1)
    return log_probs.logsumexp(0) - math.log(log_probs.shape[0])


def expected_losses(
    task: Task, mean: Params, deviation: Params, z: Tensor, labels: Tensor, key: Key, draws: int
) -> Tensor:
    """Return the cross-entropy of every example (n,), averaged over drawn heads that all examples share."""
    noise = normal(key.fold("heads"), (draws, head_size(mean)))
    logits = logits_of_heads(task, draw_heads(mean, deviation, noise), z)
    return F.nll_loss(torch.log_softmax(logits, -1).mean(0), labels, reduction="none")
