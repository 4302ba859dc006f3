"""Cross-validation at a new site: its onboarded model, the global model, and a model of its own."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch

from fedtailor.algorithms import load_algorithm
from fedtailor.core import rng
from fedtailor.core.errors import DataError
from fedtailor.experiment.intervals import wilson_interval
from fedtailor.serving.load import make_model
from fedtailor.serving.onboard import Server, global_model, onboard
from fedtailor.serving.site_data import SiteData
from fedtailor.simulation.calibration import FEWEST_EXAMPLES, Calibration, fit_temperature
from fedtailor.simulation.checkpoint import FinalState

FOLDS = 5
_OWN_STEPS = 500
"""Gradient steps, at least, of a model of its own."""
_NORMAL_975 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


class Candidate(NamedTuple):
    """A model, and how well it does on examples that it was not made from."""

    name: str
    accuracy: float
    low: float
    """Lower end of the 95 % interval of the accuracy (Wilson 1927)."""
    high: float
    difference: float
    """Of its accuracy from that of the best other candidate."""
    difference_low: float
    """Lower end of the 95 % interval of the difference, paired by example."""
    difference_high: float


class Validation(NamedTuple):
    """The result of a cross-validation."""

    examples: int
    candidates: list[Candidate]
    advice: str
    calibration: Calibration
    """Of the onboarded model, from examples that it was not made from."""


def cross_validate(server: Server, site: SiteData, *, number: int | None = None) -> Validation:
    """Compare the three models that a site could use, by 5-fold cross-validation on its training examples.

    The model of its own is trained on the site's data alone: as long as a client of the run, and for at least 500
    gradient steps. Folds hold the classes in equal shares.

    Raises:
        DataError: there are fewer examples than folds.
        RunError: the method failed.
    """
    if site.num_train < FOLDS:
        message = f"--validate needs at least {FOLDS} examples, got {site.num_train}."
        raise DataError(message, key="data", allowed=f">= {FOLDS}", got=site.num_train)
    number = server.next_number if number is None else number
    alone = _alone(server, site)
    shared = global_model(server)
    labels = torch.from_numpy(site.y[: site.num_train])
    logits = torch.zeros(len(labels), server.method.inputs.num_classes)
    right: dict[str, np.ndarray] = {}
    for train, held_out in folds_of(site):
        examples = site.x[held_out]
        own = {server.method.config.algorithm.name: (server, onboard(server, site, number=number, rows=train).personal)}
        if shared is not None:
            own["the global model"] = (server, shared)
        own["a model of its own"] = (alone, onboard(alone, site, number=number, rows=train).personal)
        for place, (name, (of, personal)) in enumerate(own.items()):
            found = torch.from_numpy(make_model(of.method, number, personal, {}).logits(examples))
            if place == 0:
                logits[torch.from_numpy(held_out)] = found
            correct = right.setdefault(name, np.zeros(len(labels), dtype=bool))
            correct[held_out] = found.argmax(1).numpy() == site.y[held_out]
    temperature = fit_temperature(logits, labels) if len(labels) >= FEWEST_EXAMPLES else 1.0
    candidates = [_candidate(name, right) for name in right]
    return Validation(len(labels), candidates, _advice(candidates), Calibration(len(labels), temperature))


def _alone(server: Server, site: SiteData) -> Server:
    """Return a server whose method trains every client on its own data."""
    method = server.method
    algorithm = load_algorithm("local").from_preset("reference", training=method.config.training)
    task = algorithm.bind(method.task(0))
    nothing = algorithm.init_server(task, rng.new_key(method.config.seeds[0], purpose="init_server"))
    training = algorithm.training
    batches = math.ceil(site.num_train / (training.batch_size or site.num_train))
    steps = training.steps or batches * max(int(training.epochs), 1)
    rounds = max(server.state.client_rounds / max(server.trainable, 1), _OWN_STEPS / steps)
    state = FinalState(nothing, server.state.round, math.ceil(rounds * max(server.trainable, 1)))
    return server._replace(method=method._replace(algorithm=algorithm), state=state)


def folds_of(site: SiteData) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return training and held-out rows of every fold; a fold never divides a group."""
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    rows = np.arange(site.num_train)
    labels = site.y[: site.num_train]
    groups = None if site.groups is None else site.groups[: site.num_train]
    divide = StratifiedKFold if groups is None else StratifiedGroupKFold
    folds = divide(FOLDS, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # classes with fewer examples than folds
        try:
            return list(folds.split(rows, labels, groups))
        except ValueError as reason:  # every class has fewer
            message = f"--validate needs a class with at least {FOLDS} examples, and {FOLDS} groups."
            raise DataError(message, key="data", allowed=f">= {FOLDS} of a class") from reason


def _candidate(name: str, right: dict[str, np.ndarray]) -> Candidate:
    """Return the figures of a candidate, from which examples every candidate has right."""
    mine = right[name]
    others = [each for other, each in right.items() if other != name]
    best = max(others, key=lambda each: each.mean())
    interval = wilson_interval(float(mine.mean()), len(mine))
    paired = mine.astype(float) - best
    error = _NORMAL_975 * paired.std(ddof=1) / math.sqrt(len(paired))
    difference = float(paired.mean())
    return Candidate(
        name, float(mine.mean()), interval["low"], interval["high"], difference, difference - error, difference + error
    )


def _advice(candidates: list[Candidate]) -> str:
    """Say which model to use."""
    best = max(candidates, key=lambda each: each.accuracy)
    points = 100 * best.difference
    interval = f"{100 * best.difference_low:+.1f} to {100 * best.difference_high:+.1f}"
    if best.difference_low > 0:
        return f"Use {best.name}: it is {points:.1f} points better than the next ({interval})."
    near = [each.name for each in candidates if each is not best and each.high >= best.low]
    return f"No clear difference between {best.name} and {' or '.join(near)}: {points:+.1f} points ({interval})."


def summary(validation: Validation) -> dict[str, Any]:
    """Return the result, ready for JSON."""
    return {
        "folds": FOLDS,
        "examples": validation.examples,
        "candidates": [each._asdict() for each in validation.candidates],
        "advice": validation.advice,
    }
