"""The class mix of examples without labels, from what a classifier says of them.

Saerens, Latinne and Decaestecker 2002, "Adjusting the outputs of a classifier to new a priori
probabilities", Neural Computation 14 (1). The classes may come in other shares than before; what
examples of a class look like must be the same.
"""

from __future__ import annotations

from jaxtyping import Float, Float64
from torch import Tensor

_SMALLEST = 1e-9
"""Share of a class that no probability speaks for."""
_MOST_STEPS = 2_000
_CONVERGED = 1e-7
"""Largest change of a share in a step."""


def mean_mix(
    probabilities: Float[Tensor, "*batch n classes"],
) -> Float64[Tensor, "*batch classes"]:
    """Return the mean probabilities of classes, all above zero.

    It is the class mix under which the probabilities explain their own examples best: there
    :func:`fit_class_mix` does not move.
    """
    means = probabilities.double().mean(-2).clamp_min(_SMALLEST)
    return means / means.sum(-1, keepdim=True)


def fit_class_mix(
    probabilities: Float[Tensor, "*batch n classes"],
    prior: Float[Tensor, "*batch classes"],
    steps: int | None = None,
) -> Float64[Tensor, "*batch classes"]:
    """Return the most likely class mix of examples, by expectation-maximization (eq. 2.9).

    Args:
        probabilities: of the classes of every example, under ``prior``.
        prior: class mix that the probabilities rest on, all above zero.
        steps: how many; None: until no share changes by more than 1e-7.

    Example:
        Half of the examples look like each class, where the prior expects one of the first in ten.

        >>> import torch
        >>> from fedtailor.statistics.class_mix import fit_class_mix
        >>> likelihood = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
        >>> prior = torch.tensor([0.1, 0.9])
        >>> joint = likelihood * prior
        >>> mix = fit_class_mix(joint / joint.sum(1, keepdim=True), prior)
        >>> [round(share, 3) for share in mix.tolist()]
        [0.5, 0.5]
    """
    ratios = probabilities.double() / prior.double().unsqueeze(-2)
    mix = prior.double()
    for _ in range(steps or _MOST_STEPS):
        # The probabilities under the mix, and their mean.
        evidence = ratios @ mix.unsqueeze(-1)  # (..., n, 1)
        new = mix * (ratios / evidence).mean(-2)
        new = new / new.sum(-1, keepdim=True)
        change = (new - mix).abs().max()
        mix = new
        if steps is None and change < _CONVERGED:
            break

    return mix


def log_gain(
    probabilities: Float[Tensor, "*batch n classes"],
    prior: Float[Tensor, "*batch classes"],
    mix: Float[Tensor, "*batch classes"],
) -> Float64[Tensor, "*batch"]:
    """Return how much better a class mix explains examples than the prior, in nats an example.

    The logarithm of the likelihood ratio of section 2.3, over the number of examples.
    """
    factors = mix.double() / prior.double()
    return (probabilities.double() @ factors.unsqueeze(-1)).squeeze(-1).log().mean(-1)
