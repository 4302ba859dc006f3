"""What figures of the papers show, in words, and what no record can show. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class ShownFigure(NamedTuple):
    """A figure of a paper that records can give."""

    name: str
    """In the paper, such as ``Figure 2``."""
    words: str
    """What it shows there."""


SHOWN: Mapping[str, Sequence[ShownFigure]] = {
    "pfedfda": [
        ShownFigure(
            "Figure 2",
            "clients with clean data have a smaller beta than those with corrupted data, and corruptions with a large "
            "beta, such as contrast, are often the harder ones.",
        ),
    ],
    "fedlda": [
        ShownFigure(
            "Figure 1a",
            "the negative log-likelihood of the features, under the true statistics, shows that they stay Gaussian. "
            "Ours is under the statistics that a client has just refreshed, on its training examples.",
        ),
        ShownFigure("Figure 1b", "FedLDA converges quickly to a better model."),
    ],
    "fedcr": [
        ShownFigure(
            "Figures 3 and 4",
            "FedCR converges a little more slowly at first, and to a higher accuracy.",
        ),
    ],
    "pfedvem": [
        ShownFigure(
            "Figure 2",
            "clients with few examples gain most from a federation, and pFedVEM helps clients of all sizes.",
        ),
        ShownFigure(
            "Figure 10",
            "at the end of training the clients' shares of the confidence vary most on CIFAR-100.",
        ),
        ShownFigure(
            "Figure 11",
            "the heads spread most on CIFAR-100, and stay near the global one on Fashion-MNIST.",
        ),
        ShownFigure(
            "Figure 12", "pFedVEM converges faster than the others, and is good after 30 rounds."
        ),
    ],
}
"""The figures that records can give, by paper."""

MISSING: Mapping[str, Mapping[str, str]] = {
    "pfedfda": {"3": "divisions of data, which need no run: fedtailor data plot bubbles"},
    "fedcr": {
        "2": "features of single images and class means in two dimensions, which no record holds",
        "3d": "accuracy by the weight of the regularizer, for which the paper's file has no runs",
    },
    "pfedvem": {
        "3 to 6": "local sizes over many divisions, which need no run: fedtailor data plot sizes"
    },
}
"""The other figures with data or results, by paper and number: what they show."""
