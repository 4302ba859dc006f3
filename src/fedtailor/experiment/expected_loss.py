"""What noise is expected to cost: the same run without it, and with that of every budget."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.errors import DataError
from fedtailor.experiment.config import Config
from fedtailor.experiment.run import run
from fedtailor.privacy.options import PrivacyOptions


def without_noise(privacy: PrivacyOptions) -> PrivacyOptions:
    """Return the section ``[privacy]`` of the same run without noise, and without its bound."""
    return PrivacyOptions(
        secure_sums=privacy.secure_sums,
        smallest_sum=privacy.smallest_sum,
        most_examples=privacy.most_examples,
        rare_classes=privacy.rare_classes,
    )


def expected_accuracies(config: Config, privacy: PrivacyOptions) -> dict[str, float]:
    """Return the accuracy after a run, a mean over clients and seeds, by evaluation point.

    Nothing is kept. What the run tells of its data is not counted: it is as if they were public.

    Args:
        config: the experiment.
        privacy: its section ``[privacy]``.

    Raises:
        ConfigError: an option is wrong.
        DataError: data is missing or damaged, cannot be divided as asked, or has no test examples.
        RunError: the run could not continue.
    """
    schedule = dataclasses.replace(config.schedule, baselines="none")
    config = dataclasses.replace(config, schedule=schedule, privacy=privacy)
    with tempfile.TemporaryDirectory() as folder:
        result = run(config, out=Path(folder) / "run")

    metrics: Mapping[str, Any] = result["metrics"]
    accuracies = {}
    for point in ("global", "personalized"):
        if point not in metrics:
            continue

        if "accuracy" not in metrics[point]:
            message = "no client has test examples, so no accuracy can be expected."
            raise DataError(message, key="data")

        accuracies[point] = metrics[point]["accuracy"]["mean"]

    return accuracies
