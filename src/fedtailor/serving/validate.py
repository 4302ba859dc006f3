"""Cross-validation at a new site: its onboarded model, the global model, and a model of its own."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.algorithms import load_algorithm
from fedtailor.core import rng
from fedtailor.core.errors import DataError
from fedtailor.core.metrics import per_client
from fedtailor.core.schedule import names_of_baselines
from fedtailor.core.scores import score
from fedtailor.data.folds import assign_folds
from fedtailor.experiment.baselines import InputTables, train_at
from fedtailor.experiment.estimates import wilson_interval
from fedtailor.experiment.paired import effective_number, paired_interval
from fedtailor.experiment.predictions import ClientPredictions
from fedtailor.experiment.site_rows import PERSONALIZED, OwnModel, SeedPredictions
from fedtailor.serving.load import make_model
from fedtailor.serving.new_client import FinishedRun, onboard
from fedtailor.serving.site_data import SiteData
from fedtailor.simulation.calibration import (
    FEWEST_EXAMPLES,
    Calibration,
    fit_temperature,
    score_threshold,
)
from fedtailor.simulation.report import RunState

FOLDS = 5
_FEWEST_STEPS = 500
"""Gradient steps, at least, of a model of its own."""


class CrossValidation(NamedTuple):
    """The result of a cross-validation."""

    examples: int
    groups: int | None
    """How many groups the examples come in, such as patients; None: they are not grouped."""
    candidates: list[dict[str, Any]]
    """Every model, and how well it does on examples that it was not made from, ready for JSON."""
    trainings: list[SeedPredictions]
    """What the onboarded model and the best baseline say about every fold, if these were asked
    for."""
    calibration: Calibration
    """Of the onboarded model, from examples that it was not made from."""


def cross_validate(
    run: FinishedRun, site: SiteData, tables: InputTables | None = None
) -> CrossValidation:
    """Compare the three models that a site could use, by 5-fold cross-validation.

    The model of its own is trained on the site's data alone: as long as a client of the run, and
    for at least 500 gradient steps. Folds hold the classes in equal shares, and never divide a
    group. Where there are groups, intervals count them, not examples.

    Args:
        run: which the site would join.
        site: its data; only the training examples are used.
        tables: its inputs, if baselines are to be compared, too.

    Raises:
        DataError: there are fewer examples than folds.
        RunError: the method failed.
    """
    if site.num_train < FOLDS:
        message = f"--validate needs at least {FOLDS} examples, got {site.num_train}."
        raise DataError(message, key="data", allowed=f">= {FOLDS}", got=site.num_train)

    number = run.next_number
    name = run.method.config.algorithm.name
    alone = _alone(run, site)

    # What the server itself would predict with, if the method has such a model.
    method = run.method
    shared = method.algorithm.global_model(method.task(0), run.state.server)

    labels = torch.from_numpy(site.y[: site.num_train])
    logits: dict[str, Tensor] = {}
    strangeness = torch.zeros(len(labels), dtype=torch.float64)
    has_strangeness = False
    trainings: list[SeedPredictions] = []

    for train, held_out in folds_of(site):
        onboarded = onboard(run, site, positions=train).personal
        models = {name: make_model(run.method, number, onboarded, {})}
        if shared is not None:
            models["the global model"] = make_model(run.method, number, shared, {})
        own = onboard(alone, site, positions=train).personal
        models["a model of its own"] = make_model(alone.method, number, own, {})

        for candidate, model in models.items():
            empty = torch.zeros(len(labels), run.method.inputs.num_classes)
            predicted = torch.from_numpy(model.logits(site.x[held_out]))
            rows = torch.from_numpy(held_out)
            logits.setdefault(candidate, empty)[rows] = predicted

            if candidate == name and tables is not None:
                trainings.append(_compared(run, tables, train, held_out, predicted))

            # The onboarded model is calibrated by examples that it has not seen.
            if candidate == name:
                distances = model.ood_score(site.x[held_out])
                has_strangeness = distances is not None
                if distances is not None:
                    strangeness[rows] = torch.from_numpy(distances)

    # Numbers of the groups from 0, as sums over groups need them.
    groups = None
    if site.groups is not None:
        _, groups = np.unique(site.groups[: site.num_train], return_inverse=True)
    candidates = _candidates(logits, labels, groups)

    enough = len(labels) >= FEWEST_EXAMPLES
    temperature = fit_temperature(logits[name], labels) if enough else 1.0
    threshold = score_threshold(strangeness) if has_strangeness else None

    return CrossValidation(
        len(labels),
        None if groups is None else int(groups.max()) + 1,
        candidates,
        trainings,
        Calibration(len(labels), temperature, threshold),
    )


def _compared(
    run: FinishedRun, tables: InputTables, train: np.ndarray, held_out: np.ndarray, logits: Tensor
) -> SeedPredictions:
    """Return what the onboarded model and the best baseline say about a fold.

    Args:
        run: which the site would join.
        tables: the inputs of the site.
        train: rows of the other folds.
        held_out: rows of the fold.
        logits: of the onboarded model for them.
    """
    config = run.method.config
    trained = train_at(
        names_of_baselines(config.schedule.baselines),
        tables,
        train,
        held_out,
        num_classes=run.method.inputs.num_classes,
        keep=False,
    )

    def predictions(probabilities: np.ndarray) -> ClientPredictions:
        groups = None if tables.groups is None else tables.groups[held_out]
        of_model = {PERSONALIZED: probabilities}
        return ClientPredictions(held_out, tables.labels[held_out], of_model, groups)

    own = {}
    if trained.best is not None:
        own[0] = OwnModel(trained.best, predictions(trained.probabilities[trained.best]))
    federated = {0: predictions(torch.softmax(logits, dim=1).numpy())}
    return SeedPredictions(config.seeds[0], federated, own)


def _alone(run: FinishedRun, site: SiteData) -> FinishedRun:
    """Return a run whose method trains every client on its own data."""
    # The server's side of the method "local", which sends nothing to clients.
    method = run.method
    seed = method.config.seeds[0]
    algorithm = load_algorithm("local").from_preset("reference", training=method.config.training)
    task = algorithm.bind(method.task(0))
    server = algorithm.init_server(task, rng.new_key(seed, purpose="init_server"))

    # As many rounds as a client of the run, or more if these have few steps.
    training = algorithm.training
    batches = math.ceil(site.num_train / (training.batch_size or site.num_train))
    steps = training.steps or batches * max(int(training.epochs), 1)
    clients = max(run.trainable, 1)
    rounds = max(run.state.client_rounds / clients, _FEWEST_STEPS / steps)
    state = RunState(server, run.state.round, math.ceil(rounds * clients))

    return run._replace(method=method._replace(algorithm=algorithm), state=state)


def folds_of(site: SiteData) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return training and held-out rows of every fold; a fold never divides a group.

    Raises:
        DataError: every class has fewer examples than there are folds, or there are fewer groups.
    """
    rows = np.arange(site.num_train)
    labels = site.y[: site.num_train]
    groups = None if site.groups is None else site.groups[: site.num_train]
    largest = np.bincount(labels).max()
    if largest < FOLDS or (groups is not None and len(np.unique(groups)) < FOLDS):
        needed = f"a class with at least {FOLDS} examples, and {FOLDS} groups"
        message = f"--validate needs {needed}."
        raise DataError(message, key="data", allowed=f">= {FOLDS} of a class")

    fold_of = assign_folds(labels, groups, folds=FOLDS, seed=0)
    return [(rows[fold_of != fold], rows[fold_of == fold]) for fold in range(FOLDS)]


def _candidates(
    logits: dict[str, Tensor], labels: Tensor, groups: np.ndarray | None
) -> list[dict[str, Any]]:
    """Return the figures of all candidates, each beside the best other one, with 95 % intervals.

    Args:
        logits: of every candidate (n, classes).
        labels: of the examples (n,).
        groups: of the examples (n,).
    """
    right = {name: (of_one.argmax(1) == labels).numpy() for name, of_one in logits.items()}
    candidates = []
    for name, of_one in logits.items():
        metrics = per_client(score(of_one, labels, torch.ones(len(labels)), of_one.shape[1]))
        correct = right[name].astype(float)
        accuracy = float(correct.mean())

        # Both models see the same examples, so the difference has an interval of its own.
        others = [other for other in right if other != name]
        rival = max(others, key=lambda other: right[other].mean())
        paired = correct - right[rival]
        low, high = paired_interval(paired, groups)
        candidates.append(
            {
                "name": name,
                "accuracy": accuracy,
                **wilson_interval(accuracy, effective_number(correct, groups)),
                "rival": rival,
                "difference": float(paired.mean()),
                "difference_low": low,
                "difference_high": high,
                "balanced_accuracy": metrics["balanced_accuracy"],
                "auroc": metrics.get("auroc"),
            }
        )

    return candidates


def _advice(candidates: list[dict[str, Any]]) -> str:
    """Say which model to use."""
    best = max(candidates, key=lambda candidate: candidate["accuracy"])
    interval = f"{100 * best['difference_low']:+.1f} to {100 * best['difference_high']:+.1f}"
    points = f"{100 * best['difference']:+.1f} points ({interval})"
    if best["difference_low"] > 0:
        return f"Use {best['name']}: {points} compared with {best['rival']}."
    return f"No clear difference between {best['name']} and {best['rival']}: {points}."


def summary(validation: CrossValidation) -> dict[str, Any]:
    """Return the result, ready for JSON."""
    return {
        "folds": FOLDS,
        "examples": validation.examples,
        "groups": validation.groups,
        "candidates": validation.candidates,
        "advice": _advice(validation.candidates),
    }
