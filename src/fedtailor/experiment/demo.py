"""The demo: four ways to train for 20 clients with little data each, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedtailor.experiment import records
from fedtailor.experiment import run as experiment
from fedtailor.experiment.config import make_config
from fedtailor.experiment.progress import Progress

ALGORITHMS = ("local", "fedavg", "fedavg_ft", "pfedfda")

SETTINGS: dict[str, Any] = {
    "data": {"dataset": "digits", "clients": 20, "partition": "dirichlet(alpha=0.5)", "fraction": 0.25},
    "model": {"name": "mlp"},
    "training": {"lr": 0.01, "momentum": 0.5, "weight_decay": 5e-4, "batch_size": 50, "epochs": 5},
    "federation": {"rounds": 20},
}
"""Training as in the pFedFDA paper; 20 rounds in place of 200."""

INTRODUCTION = (
    "20 clients hold real handwritten digits, each another mix of classes (Dirichlet 0.5), and only a quarter of their "
    "training data: 8 to 28 examples each. This is the scarce case that personalization is for."
)


def run_demo(out: str | Path, *, seed: int = 0, progress: Progress | None = None) -> list[dict[str, Any]]:
    """Run the algorithms one after the other on the same data; return their results.

    Args:
        out: folder for the runs, which get one folder each.
        seed: of every run.
        progress: what is told meanwhile.

    Raises:
        ConfigError: ``out`` exists.
    """
    folder = Path(out)
    records.refuse_existing(folder)
    configs = [make_config({**SETTINGS, "seed": seed, "algorithm": {"name": name}}) for name in ALGORITHMS]
    return [experiment.run(config, out=folder / config.algorithm.name, progress=progress) for config in configs]


def default_demo_folder() -> Path:
    """Return a folder that does not exist yet: ``runs/demo-TIME``."""
    return experiment.unused_folder("demo")
