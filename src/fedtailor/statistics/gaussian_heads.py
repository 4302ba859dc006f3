"""Diagonal Gaussians over linear heads: drawing heads, and their joint predictions.

A head is a dict of parameters by name, D numbers in all; several drawn heads have a leading axis.
Drawing and divergences take any other parameters by name as well, such as those of a whole model.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core.rng import Key, normal
from fedtailor.core.task import Batch, Params, Task
from fedtailor.statistics.diagonal import kl
from fedtailor.training.losses import classification_loss


class HeadPosterior(NamedTuple):
    """A diagonal Gaussian over heads, in unbounded parameters."""

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
    """Return KL(N(mean, deviation^2) || N(prior mean, rho^2)), summed over the head."""
    parts = []
    for name, std in deviation.items():
        rho = prior.rho.expand(std.numel())
        parts.append(kl(mean[name].flatten(), std.flatten(), prior.mean[name].flatten(), rho))

    return torch.stack(parts).sum()


def divergence_between(q: HeadPosterior, p: HeadPosterior) -> Tensor:
    """Return KL(q || p), summed over all numbers that have a deviation, ().

    With u = sigma_q / sigma_p - 1 and m the distance of the means in units of sigma_p, it is the
    sum of ``u + u^2 / 2 - log(1 + u) + m^2 / 2``. Because u is computed from the difference of the
    raw numbers, all gradients are exactly 0 where q equals p, on any engine. Otherwise Adam would
    turn rounding errors into steps of full size.
    """
    parts = []
    for name, raw in q.raw.items():
        scale = F.softplus(p.raw[name])
        # sigma_q / sigma_p - 1 without the difference of two nearly equal numbers.
        u = torch.log1p(torch.sigmoid(p.raw[name]) * torch.expm1(raw - p.raw[name])) / scale
        m = (q.mean[name] - p.mean[name]) / scale
        parts.append((u + (u**2 + m**2) / 2 - torch.log1p(u)).sum())
    return torch.stack(parts).sum()


def squares(head: Params) -> Tensor:
    """Return the sum of the squares of all numbers."""
    return torch.stack([(leaf**2).sum() for leaf in head.values()]).sum()


def raw_of(deviation: float) -> float:
    """Return the number whose softplus is ``deviation``, which is > 0."""
    return deviation + math.log(-math.expm1(-deviation))


def head_size(head: Params) -> int:
    """Return D, the count of numbers in a head."""
    return sum(leaf.numel() for leaf in head.values())


def draw_heads(mean: Params, deviation: Params, noise: Tensor) -> Params:
    """Return the heads (draws, ...) that standard normal noise (draws, D) gives."""
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
    """Return the cross-entropy of every example (n,), averaged over draws that all share."""
    noise = normal(key.fold("heads"), (draws, head_size(mean)))
    logits = logits_of_heads(task, draw_heads(mean, deviation, noise), z)
    return F.nll_loss(torch.log_softmax(logits, -1).mean(0), labels, reduction="none")


def expected_loss(
    task: Task, model: HeadPosterior, batch: Batch, key: Key, draws: int
) -> tuple[Tensor, Params]:
    """Return the mean cross-entropy of a batch under drawn whole models, and updated buffers.

    Means without a deviation (buffers) are taken as they are; each draw continues from the buffers
    of the one before.
    """
    # All draws of all weights at once: (draws, D).
    uncertain = {name: model.mean[name] for name in model.raw}
    noise = normal(key.fold("weights"), (draws, head_size(uncertain)))
    drawn = draw_heads(uncertain, model.deviation(), noise)

    losses: list[Tensor] = []
    buffers: Params = {}
    for number in range(draws):
        weights = {name: leaf[number] for name, leaf in drawn.items()}
        fixed = {**model.mean, **buffers}
        output = classification_loss(task, weights, fixed, batch, key.fold(number))
        losses.append(output.loss)
        buffers.update(output.buffers)

    return torch.stack(losses).mean(), buffers
