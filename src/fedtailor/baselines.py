"""What a site would use without a federation: simple models of its own examples, by scikit-learn.

Everything here depends on the examples and the seed only: each model is trained in one thread.

    models = train_baselines(BASELINE_NAMES, training, test, num_classes=2, seed=0)
    models.probabilities["random_forest"]  # (test examples, classes)
    models.best  # the one to compare a federation with
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import one_line

VERSION = 1
"""Of the models: predictions of another version are made again."""
FEWEST_EXAMPLES = 10
"""Training examples without which only the majority class is of use."""
MOST_EXAMPLES = 50_000
"""Training examples of a model; of more, so many are drawn."""
_MOST_CHOSEN_ON = 5_000
"""Training examples on which settings and models are compared; of more, so many are drawn."""
_MOST_OF_TREE = 10_000
"""Examples of one tree of a forest."""
_FOLDS = 3
_PARALLEL_FROM = 1_000_000
_UNIFORM = 0.01
"""Share of equal probabilities that is mixed into predictions before their logarithm is taken."""
_STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Of the inverse regularization of logistic regression, ``C`` of scikit-learn."""


class Inputs(NamedTuple):
    """The inputs of some examples: as networks get them, and as they are stored."""

    scaled: np.ndarray  # (n, features)
    stored: np.ndarray  # (n, features)

    def take(self, rows: np.ndarray) -> Inputs:
        """Return those of some rows."""
        return Inputs(self.scaled[rows], self.stored[rows])


class LabeledInputs(NamedTuple):
    """Training examples."""

    inputs: Inputs
    labels: np.ndarray  # (n,)
    groups: np.ndarray | None = None  # (n,)
    """Examples that belong together, such as those of a patient; None: each is its own."""

    def take(self, rows: np.ndarray) -> LabeledInputs:
        """Return those of some rows."""
        groups = None if self.groups is None else self.groups[rows]
        return LabeledInputs(self.inputs.take(rows), self.labels[rows], groups)


class TrainedBaselines(NamedTuple):
    """What baselines say about test examples."""

    probabilities: dict[str, np.ndarray]  # each (n, classes), float32
    best: str | None
    """The one that was best in a cross-validation on the training examples; None: there is none."""
    missing: dict[str, str]
    """Why a baseline could not be trained, by its name."""


class _Candidate(NamedTuple):
    """A baseline with one choice of its settings."""

    name: str
    strength: float = 1.0
    trees: int = 100


def train_baselines(
    names: Sequence[str],
    training: LabeledInputs,
    test: Inputs,
    *,
    num_classes: int,
    seed: int,
    choose: bool = True,
) -> TrainedBaselines:
    """Train baselines, and let them predict test examples, whose labels are not known here.

    * ``majority``: the class frequencies of the training examples.
    * ``logistic_regression``: of standardized inputs; its regularization is chosen by the
      cross-validation below.
    * ``random_forest``: 100 trees (50 in the cross-validation) with at least 3 examples in a leaf.
    * ``gradient_boosting``: 50 trees of 4 leaves a class, or 100 of 16 from 1,000 examples on.
      Small trees were better on small tables, such as those of single hospitals.

    The best one has the lowest log loss in a three-fold cross-validation on the training examples,
    stratified, which never divides a group. Log loss uses how sure a model is of every example.
    Balanced accuracy would be decided by the few examples of the rare class: at a hospital with 123
    patients, of whom 8 are healthy, by one or two of them. And it would be blind to the usual
    models of a rare class, which rank well and never predict it. A forest gives the probability 0
    where no tree agrees, so one percent of equal probabilities is mixed in first.

    Args:
        names: of the baselines.
        training: training and validation examples of the site.
        test: the inputs of its test examples.
        num_classes: of the labels.
        seed: of what is drawn.
        choose: whether the best one is wanted; without it, only settings are compared.
    """
    from threadpoolctl import threadpool_limits

    seed %= 2**32  # all that scikit-learn takes
    reasons = _reasons_against(names, training)
    usable = [name for name in names if name not in reasons]
    if not usable:
        return TrainedBaselines({}, None, reasons)

    # Sums of several threads depend on their number.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rare classes in folds, and fits that stop early

        random = np.random.default_rng([seed, len(training.labels)])
        losses = _cross_validate(
            usable, _drawn(training, _MOST_CHOSEN_ON, random), num_classes, seed, choose=choose
        )
        probabilities: dict[str, np.ndarray] = {}
        examples = _drawn(training, MOST_EXAMPLES, random)
        for name in usable:
            candidate = _best_of(_candidates(name), losses)
            try:
                predicted = _predict(
                    candidate._replace(trees=100), examples, test, num_classes, seed
                )
            except ValueError as reason:  # of scikit-learn
                reasons[name] = one_line(str(reason))
            else:
                probabilities[name] = predicted.astype(np.float32)

    return TrainedBaselines(probabilities, _best_name(list(probabilities), losses), reasons)


def train_sites(
    names: Sequence[str],
    sites: Iterable[tuple[LabeledInputs, Inputs]],
    *,
    num_sites: int,
    num_values: int,
    num_classes: int,
    seed: int,
) -> Iterator[TrainedBaselines]:
    """Train the baselines of sites, each alone; yield them in the order of the sites.

    Args:
        names: of the baselines.
        sites: training examples, and the inputs of test examples.
        num_sites: how many there are.
        num_values: numbers in the training examples of all sites; with many, sites are shared among
            processes, which take seconds to start and change no result.
        num_classes: of the labels.
        seed: of what is drawn.
    """
    from joblib import Parallel, delayed

    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    processes = min(processors, num_sites) if num_values >= _PARALLEL_FROM else 1
    train = partial(train_baselines, names, num_classes=num_classes, seed=seed)
    jobs = (delayed(train)(training, test) for training, test in sites)
    yield from Parallel(max(processes, 1), return_as="generator")(jobs)


def _reasons_against(names: Sequence[str], training: LabeledInputs) -> dict[str, str]:
    """Return why baselines cannot be trained, by their names."""
    count = len(training.labels)
    if count == 0:
        return dict.fromkeys(names, "there are no training examples.")

    reason = ""
    stored = training.inputs.stored
    if len(np.unique(training.labels)) == 1:
        reason = f"all {count} training examples have one class."
    elif count < FEWEST_EXAMPLES:
        reason = f"there are {count} training examples; {FEWEST_EXAMPLES} are needed."
    elif (stored == stored[:1]).all():
        reason = f"all {count} training examples have the same inputs."

    others = [name for name in names if name != "majority"]
    return dict.fromkeys(others, reason) if reason else {}


def _drawn(training: LabeledInputs, limit: int, random: np.random.Generator) -> LabeledInputs:
    """Return at most so many examples."""
    count = len(training.labels)
    if count <= limit:
        return training
    return training.take(np.sort(random.choice(count, limit, replace=False)))


def _candidates(name: str) -> list[_Candidate]:
    """Return a baseline with every choice of its settings; the first one is the default."""
    if name != "logistic_regression":
        return [_Candidate(name, trees=50)]
    strengths = sorted(_STRENGTHS, key=lambda strength: abs(np.log(strength)))
    return [_Candidate(name, strength) for strength in strengths]


def _cross_validate(
    names: Sequence[str],
    training: LabeledInputs,
    num_classes: int,
    seed: int,
    *,
    choose: bool,
) -> dict[_Candidate, float]:
    """Return the log loss of every candidate; empty if the examples cannot be divided."""
    candidates = []
    for name in names:
        of_name = _candidates(name)
        if choose or len(of_name) > 1:
            candidates += of_name

    # Nothing has to be compared with a single candidate.
    folds = _folds(training, seed) if len(candidates) > 1 else []
    if not folds:
        return {}

    sums = dict.fromkeys(candidates, 0.0)
    for rows, held_out in folds:
        part = training.take(rows)
        inputs = training.inputs.take(held_out)
        for candidate in candidates:
            predicted = _predict(candidate, part, inputs, num_classes, seed)
            mixed = (1 - _UNIFORM) * predicted + _UNIFORM / num_classes
            labels = training.labels[held_out]
            sums[candidate] -= float(np.log(mixed[np.arange(len(labels)), labels]).sum())

    return sums


def _folds(training: LabeledInputs, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return training and held-out rows of every fold; none if the examples are too few."""
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    # Every fold needs an example of the second class, and a group.
    counts = np.sort(np.bincount(training.labels))[::-1]
    number = min(_FOLDS, int(counts[1]) if len(counts) > 1 else 0)
    if training.groups is not None:
        number = min(number, len(np.unique(training.groups)))
    if number < 2:
        return []

    divide = StratifiedKFold if training.groups is None else StratifiedGroupKFold
    folds = divide(number, shuffle=True, random_state=seed)
    return list(folds.split(training.labels, training.labels, training.groups))


def _best_of(candidates: Sequence[_Candidate], losses: Mapping[_Candidate, float]) -> _Candidate:
    """Return the candidate with the lowest loss, the first of equal ones."""
    return min(candidates, key=lambda candidate: losses.get(candidate, 0.0))


def _best_name(names: Sequence[str], losses: Mapping[_Candidate, float]) -> str | None:
    """Return the baseline with the lowest loss; without losses, the simplest one."""
    if not names:
        return None

    by_name: dict[str, float] = {}
    for candidate, loss in losses.items():
        by_name[candidate.name] = min(loss, by_name.get(candidate.name, loss))
    return min(names, key=lambda name: by_name.get(name, 0.0))


def _predict(
    candidate: _Candidate, training: LabeledInputs, inputs: Inputs, num_classes: int, seed: int
) -> np.ndarray:
    """Train a baseline, and return the probabilities (n, classes) that it gives inputs."""
    probabilities = np.zeros((len(inputs.stored), num_classes))
    present, counts = np.unique(training.labels, return_counts=True)
    if candidate.name == "majority" or len(present) == 1:
        probabilities[:, present] = counts / counts.sum()
        return probabilities

    # Trees take any scale; classes that the site does not have keep the probability 0.
    is_linear = candidate.name == "logistic_regression"
    values = training.inputs.scaled if is_linear else training.inputs.stored
    model = _build(candidate, len(training.labels), seed).fit(values, training.labels)
    if len(probabilities):
        probabilities[:, present] = model.predict_proba(
            inputs.scaled if is_linear else inputs.stored
        )
    return probabilities


def _build(candidate: _Candidate, num_examples: int, seed: int) -> Any:
    """Return an untrained classifier of scikit-learn."""
    if candidate.name == "logistic_regression":
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        regression = LogisticRegression(C=candidate.strength, max_iter=500, random_state=seed)
        return make_pipeline(StandardScaler(), regression)

    if candidate.name == "random_forest":
        from sklearn.ensemble import RandomForestClassifier

        return RandomForestClassifier(
            candidate.trees,
            min_samples_leaf=3,
            max_samples=None if num_examples <= _MOST_OF_TREE else _MOST_OF_TREE,
            n_jobs=1,
            random_state=seed,
        )

    from sklearn.ensemble import HistGradientBoostingClassifier

    is_small = num_examples < 1_000
    return HistGradientBoostingClassifier(
        max_iter=50 if is_small else 100,
        max_leaf_nodes=4 if is_small else 16,
        min_samples_leaf=5 if is_small else 20,
        max_bins=64,
        early_stopping=False,
        random_state=seed,
    )
