"""Cross-validation at a new site: its onboarded model against what it would use alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from fedtailor.algorithms import load_algorithm
from fedtailor.baselines import TrainedBaselines
from fedtailor.core import rng
from fedtailor.core.errors import DataError
from fedtailor.core.schedule import names_of_baselines
from fedtailor.data.folds import assign_folds
from fedtailor.experiment.baselines import InputTables, train_at
from fedtailor.experiment.predictions import ClientPredictions
from fedtailor.experiment.site_rows import GLOBAL, LOCAL, PERSONALIZED, OwnModel, SeedPredictions
from fedtailor.serving.inputs import Stored
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
_CLIENT = 0
"""The number of the site, which is the only one."""
_FEWEST_STEPS = 500
"""Gradient steps, at least, of a network of its own."""


class CrossValidation(NamedTuple):
    """The result of a cross-validation."""

    trainings: list[SeedPredictions]
    """What the models say about every fold: they were made from the others."""
    calibration: Calibration
    """Of the onboarded model, from examples that it was not made from."""


def cross_validate(
    run: FinishedRun, site: SiteData, tables: InputTables | None = None
) -> CrossValidation:
    """Test what a site could use, by 5-fold cross-validation.

    These are the onboarded model, the global model, and what the site would use alone: the best
    baseline, or else the network of the run, trained on the site's data as long as a client of the
    run, and for at least 500 gradient steps. Folds hold the classes in equal shares, and never
    divide a group.

    Args:
        run: which the site would join.
        site: its data; only the training examples are used.
        tables: its inputs, if baselines are what it would use alone.

    Raises:
        DataError: there are fewer examples than folds.
        RunError: the method failed.
    """
    if site.num_train < FOLDS:
        message = f"--validate needs at least {FOLDS} examples, got {site.num_train}."
        raise DataError(message, key="data", allowed=f">= {FOLDS}", got=site.num_train)

    # What the server itself would predict with, if the method has such a model.
    method = run.method
    shared = method.algorithm.global_model(method.task(0), run.state.server)
    alone = _alone(run, site)

    logits = torch.zeros(site.num_train, method.inputs.num_classes)
    strangeness = torch.zeros(site.num_train, dtype=torch.float64)
    has_strangeness = False
    trainings = []
    for train, held_out in folds_of(site):
        inputs = Stored(site.x[held_out])
        onboarded = onboard(run, site, positions=train).personal
        model = make_model(method, run.next_number, onboarded, {})
        logits[held_out] = torch.from_numpy(model.logits(inputs))
        models = {PERSONALIZED: model.predict_proba(inputs)}
        if shared is not None:
            model_of_server = make_model(method, run.next_number, shared, {})
            models[GLOBAL] = model_of_server.predict_proba(inputs)

        own = _best_baseline(run, tables, train, held_out) if tables is not None else None
        if own is None:
            network = onboard(alone, site, positions=train).personal
            model_alone = make_model(alone.method, run.next_number, network, {})
            own = (LOCAL, model_alone.predict_proba(inputs))

        name, probabilities = own
        predictions = _predictions(site, held_out, {name: probabilities})
        trainings.append(
            SeedPredictions(
                method.config.seeds[0],
                {_CLIENT: _predictions(site, held_out, models)},
                {_CLIENT: OwnModel(name, predictions)},
            )
        )

        distances = model.ood_score(inputs)
        has_strangeness = distances is not None
        if distances is not None:
            strangeness[held_out] = torch.from_numpy(distances)

    enough = site.num_train >= FEWEST_EXAMPLES
    labels = torch.from_numpy(site.y[: site.num_train])
    temperature = fit_temperature(logits, labels) if enough else 1.0
    threshold = score_threshold(strangeness) if has_strangeness else None
    return CrossValidation(trainings, Calibration(site.num_train, temperature, threshold))


def _predictions(
    site: SiteData, rows: np.ndarray, models: Mapping[str, np.ndarray]
) -> ClientPredictions:
    """Return what models say about some examples of a site."""
    groups = None if site.groups is None else site.groups[rows]
    return ClientPredictions(rows, site.y[rows], models, groups)


def _best_baseline(
    run: FinishedRun, tables: InputTables, train: np.ndarray, held_out: np.ndarray
) -> tuple[str, np.ndarray] | None:
    """Return the baseline that the site would choose, and what it says; None if there is none.

    Args:
        run: which the site would join.
        tables: the inputs of the site.
        train: rows to train on.
        held_out: rows to predict.
    """
    trained = train_own(run, tables, train, held_out, keep=False)
    return None if trained.best is None else (trained.best, trained.probabilities[trained.best])


def train_own(
    run: FinishedRun, tables: InputTables, train: np.ndarray, test: np.ndarray, *, keep: bool
) -> TrainedBaselines:
    """Train what a new site would use alone; ``keep``: return the best model, too."""
    return train_at(
        names_of_baselines(run.method.config.schedule.baselines),
        tables,
        train,
        test,
        num_classes=run.method.inputs.num_classes,
        keep=keep,
    )


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
    batches = len(training.batch_sizes(site.num_train))
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
