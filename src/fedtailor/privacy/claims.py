"""What a run with noise may claim, in words. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOT_COVERED = (
    "scores and training metrics",
    "numbers of examples and names of classes",
    "the clients' own model files, which are made from their own data",
)
"""What the server, or whoever gets a file, sees beside the noisy sums."""


def sentences(privacy: Mapping[str, Any]) -> list[str]:
    """Return what the record of a run's privacy says, in sentences.

    Example:
        >>> record = {"epsilon": 2.0, "epsilon_known_cohort": 4.0, "delta": 1e-5}
        >>> sentences(record)[0].split("; ")[1]
        '4.00 for whoever also knows who took part in which round.'
    """
    claim = (
        f"epsilon {privacy['epsilon']:.2f} (delta {privacy['delta']:g}) per client, for whoever "
        "sees the global models"
    )
    known = privacy["epsilon_known_cohort"]
    if known > privacy["epsilon"]:
        claim += f"; {known:.2f} for whoever also knows who took part in which round"

    return [
        f"{claim}.",
        f"Not covered: {'; '.join(NOT_COVERED)}.",
        "The noise follows from the seed, so the run folder itself is not protected.",
    ]
