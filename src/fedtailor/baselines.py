"""What a site would use without a federation: simple models of its own examples, by scikit-learn.

Everything here depends on the examples only: what is drawn is always the same, and each model is
trained in one thread.

    models = train_baselines(BASELINE_NAMES, training, test, num_classes=2)
    models.best  # the one to compare a federation with, such as "random_forest"
    models.probabilities[models.best]  # (test examples, classes)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import one_line

VERSION = 5
"""Of the models: predictions of another version are made again."""
FEWEST_EXAMPLES = 10
"""Training examples without which only the majority class is of use."""
MOST_EXAMPLES = 50_000
"""Most training examples of a model; of more, some are drawn."""
_MOST_CHOSEN_ON = 5_000
"""Most training examples on which settings and models are compared; of more, some are drawn."""
_MOST_FOR_BOOSTING = 20_000
"""Features times classes, of more than two classes."""
_MOST_OF_TREE = 10_000
"""Examples of one tree of a forest."""
_FOLDS = 3
_TREES = 100
"""Of a forest."""
_TREES_OF_CHOICE = 25
"""Of a forest in the cross-validation: its log loss is 1 % above that of 50."""
_SEED = 0
"""Of all that is drawn: runs with other seeds and the same split have the same baselines."""
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
    """Of the best one."""
    best: str | None
    """The one that was best in a cross-validation on the training examples; None: there is none."""
    missing: dict[str, str]
    """Why a baseline could not be trained, by its name."""
    model: dict[str, np.ndarray] | None = None
    """The best one as arrays, if it was to be kept; see :func:`_to_arrays`."""


class _Fitted(NamedTuple):
    """A trained baseline."""

    name: str
    classifier: Any
    """Of scikit-learn, or the trees of a forest; None if it is the frequencies of the classes."""
    present: np.ndarray  # (present,)
    """The classes of the training examples."""
    shares: np.ndarray  # (present,)
    """Their frequencies."""


class _Candidate(NamedTuple):
    """A baseline with one choice of its settings."""

    name: str
    strength: float = 1.0
    trees: int = _TREES


def train_baselines(
    names: Sequence[str],
    training: LabeledInputs,
    test: Inputs,
    *,
    num_classes: int,
    keep: bool = False,
) -> TrainedBaselines:
    """Train the best baseline, and let it predict test examples, whose labels are not known here.

    * ``majority``: the class frequencies of the training examples.
    * ``logistic_regression``: of standardized inputs; its regularization is chosen by the
      cross-validation below.
    * ``random_forest``: 100 trees (25 in the cross-validation) with at least 3 examples in a leaf.
    * ``gradient_boosting``: 25 trees of 4 leaves a class, whose splits choose among half of the
      features; from 1,000 examples on, 100 of 16 leaves. Small trees were better on small tables,
      such as those of single hospitals. With three classes or more, it is left out where features
      times classes are more than 20,000.

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
        keep: whether to return the best model.
    """
    reasons = _reasons_against(names, training)
    usable = [name for name in names if name not in reasons]
    if not usable:
        return TrainedBaselines({}, None, reasons)

    with _one_quiet_thread():
        random = np.random.default_rng([_SEED, len(training.labels)])
        losses = _cross_validate(usable, _drawn(training, _MOST_CHOSEN_ON, random), num_classes)
        examples = _drawn(training, MOST_EXAMPLES, random)
        examples, test, scaler = _standardize(usable, examples, test)
        for name in _by_loss(usable, losses):
            # The first of equal ones.
            candidate = min(_candidates(name), key=lambda one: losses.get(one, 0.0))
            try:
                fitted = _fit(candidate._replace(trees=_TREES), examples)
                predicted = _predict(fitted, test, num_classes)
            except ValueError as reason:  # of scikit-learn: the next one is the best
                reasons[name] = one_line(str(reason))
                continue

            model = _to_arrays(fitted, scaler) if keep else None
            return TrainedBaselines({name: predicted.astype(np.float32)}, name, reasons, model)

    return TrainedBaselines({}, None, reasons)


class SiteExamples(NamedTuple):
    """Whose baselines are to be trained; see :func:`train_baselines`."""

    names: Sequence[str]
    training: LabeledInputs
    test: Inputs
    keep: bool = False


def train_sites(
    sites: Iterable[SiteExamples], *, num_values: int, num_classes: int
) -> Iterator[TrainedBaselines]:
    """Train the baselines of sites, each alone; yield them in the order of the sites.

    Args:
        sites: what :func:`train_baselines` gets.
        num_values: numbers in the training examples of all sites; with many, sites are shared among
            processes, which take seconds to start and change no result.
        num_classes: of the labels.
    """
    from joblib import Parallel, delayed

    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    processes = processors if num_values >= _PARALLEL_FROM else 1
    train = delayed(partial(train_baselines, num_classes=num_classes))
    jobs = (train(site.names, site.training, site.test, keep=site.keep) for site in sites)
    yield from Parallel(processes, return_as="generator")(jobs)


def end_processes() -> None:
    """End the processes of :func:`train_sites`, which would keep their memory for minutes."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


@contextmanager
def _one_quiet_thread() -> Iterator[None]:
    """Let scikit-learn use one thread, whose sums are always the same, and check nothing."""
    # Limits hold for libraries that are loaded, and this one brings threads of its own.
    import sklearn.ensemble
    from threadpoolctl import threadpool_limits

    # Small models take as long to be checked as to be trained. Values of data sets are finite.
    unchecked = sklearn.config_context(assume_finite=True, skip_parameter_validation=True)
    with threadpool_limits(limits=1), unchecked, warnings.catch_warnings():
        # Rare classes in folds, and fits that stop early. Boosting sets the filters again for every
        # column, so there is only one.
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        yield


def _reasons_against(names: Sequence[str], training: LabeledInputs) -> dict[str, str]:
    """Return why baselines cannot be trained, by their names."""
    count = len(training.labels)
    if count == 0:
        return dict.fromkeys(names, "there are no training examples.")

    reason = ""
    stored = training.inputs.stored
    num_present = len(np.unique(training.labels))
    if num_present == 1:
        reason = f"all {count} training examples have one class."
    elif count < FEWEST_EXAMPLES:
        reason = f"there are {count} training examples; {FEWEST_EXAMPLES} are needed."
    elif (stored == stored[:1]).all():
        reason = f"all {count} training examples have the same inputs."

    others = [name for name in names if name != "majority"]
    if reason:
        return dict.fromkeys(others, reason)

    # It grows a tree for every class, and looks at half of the features in each split.
    num_features = stored.shape[1]
    is_slow = num_present > 2 and num_features * num_present > _MOST_FOR_BOOSTING
    if is_slow and "gradient_boosting" in names:
        what = f"{num_features:,} features and {num_present} classes would take long"
        return {"gradient_boosting": f"{what}; at most {_MOST_FOR_BOOSTING:,} in their product."}
    return {}


def _drawn(training: LabeledInputs, limit: int, random: np.random.Generator) -> LabeledInputs:
    """Return at most ``limit`` examples."""
    count = len(training.labels)
    if count <= limit:
        return training
    return training.take(np.sort(random.choice(count, limit, replace=False)))


def _candidates(name: str) -> list[_Candidate]:
    """Return a baseline with every choice of its settings; the first one is the default."""
    if name != "logistic_regression":
        return [_Candidate(name, trees=_TREES_OF_CHOICE)]
    strengths = sorted(_STRENGTHS, key=lambda strength: abs(np.log(strength)))
    return [_Candidate(name, strength) for strength in strengths]


def _cross_validate(
    names: Sequence[str], training: LabeledInputs, num_classes: int
) -> dict[_Candidate, float]:
    """Return the log loss of every candidate; empty if the examples cannot be divided."""
    candidates = [candidate for name in names for candidate in _candidates(name)]

    # Nothing has to be compared with a single candidate.
    folds = _folds(training) if len(candidates) > 1 else []
    if not folds:
        return {}

    sums = dict.fromkeys(candidates, 0.0)
    for rows, held_out in folds:
        part, inputs, _ = _standardize(names, training.take(rows), training.inputs.take(held_out))
        for candidate in candidates:
            try:
                predicted = _predict(_fit(candidate, part), inputs, num_classes)
            except ValueError:  # of scikit-learn: what cannot be trained here is not the best one
                sums[candidate] = np.inf
                continue

            mixed = (1 - _UNIFORM) * predicted + _UNIFORM / num_classes
            labels = training.labels[held_out]
            sums[candidate] -= float(np.log(mixed[np.arange(len(labels)), labels]).sum())

    return sums


def _folds(training: LabeledInputs) -> list[tuple[np.ndarray, np.ndarray]]:
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
    folds = divide(number, shuffle=True, random_state=_SEED)
    return list(folds.split(training.labels, training.labels, training.groups))


def _by_loss(names: Sequence[str], losses: Mapping[_Candidate, float]) -> list[str]:
    """Return baselines by their loss, the best one first; without losses, the simplest one."""
    by_name: dict[str, float] = {}
    for candidate, loss in losses.items():
        by_name[candidate.name] = min(loss, by_name.get(candidate.name, loss))
    return sorted(names, key=lambda name: by_name.get(name, 0.0))


def _standardize(
    names: Sequence[str], training: LabeledInputs, others: Inputs
) -> tuple[LabeledInputs, Inputs, Any]:
    """Standardize what logistic regression gets, for all its strengths at once.

    Returns training examples, other inputs, and the scaler, which knows the training examples only.
    """
    if "logistic_regression" not in names:
        return training, others, None

    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    scaled = scaler.fit_transform(training.inputs.scaled)
    training = training._replace(inputs=training.inputs._replace(scaled=scaled))
    if len(others.scaled):
        others = others._replace(scaled=scaler.transform(others.scaled))
    return training, others, scaler


def _fit(candidate: _Candidate, training: LabeledInputs) -> _Fitted:
    """Train a baseline."""
    present, counts = np.unique(training.labels, return_counts=True)
    shares = counts / counts.sum()
    if candidate.name == "majority" or len(present) == 1:
        return _Fitted(candidate.name, None, present, shares)

    # Trees take any scale.
    if candidate.name == "random_forest":
        indicators = (training.labels[:, None] == present).astype(float)
        classifier: Any = _train_forest(training.inputs.stored, indicators, candidate.trees)
    else:
        values = _values(candidate.name, training.inputs)
        classifier = _build(candidate, len(values)).fit(values, training.labels)
    return _Fitted(candidate.name, classifier, present, shares)


def _values(name: str, inputs: Inputs) -> np.ndarray:
    return inputs.scaled if name == "logistic_regression" else inputs.stored


def _train_forest(values: np.ndarray, indicators: np.ndarray, number: int) -> list[Any]:
    """Return the trees of a random forest, trained on indicators (n, classes).

    With indicators it classifies: the squared error is Gini's impurity, and means are
    probabilities. Classifiers of scikit-learn take longer.
    """
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(
        number,
        min_samples_leaf=3,
        max_features="sqrt",
        max_samples=_MOST_OF_TREE if len(values) > _MOST_OF_TREE else None,
        random_state=_SEED,
    )
    return [tree.tree_ for tree in forest.fit(values, indicators).estimators_]


def _predict(fitted: _Fitted, inputs: Inputs, num_classes: int) -> np.ndarray:
    """Return the probabilities (n, classes) that a baseline gives inputs."""
    # Classes that the site does not have keep the probability 0.
    probabilities = np.zeros((len(inputs.stored), num_classes))
    if fitted.classifier is None:
        probabilities[:, fitted.present] = fitted.shares
    elif fitted.name == "random_forest":
        values = inputs.stored.astype(np.float32)
        for tree in fitted.classifier:
            probabilities[:, fitted.present] += tree.predict(values)[:, :, 0]
        probabilities /= len(fitted.classifier)
    elif len(probabilities):
        values = _values(fitted.name, inputs)
        probabilities[:, fitted.present] = fitted.classifier.predict_proba(values)
    return probabilities


def _to_arrays(fitted: _Fitted, scaler: Any) -> dict[str, np.ndarray]:
    """Return a model as arrays, so that it can be used without scikit-learn and stored as data.

    Scores (n, present) are ``inputs @ weight.T + bias``, or the sum over all trees of ``value`` at
    the leaf, plus ``bias``. A node sends an example to ``left`` if its ``feature`` is at most the
    ``threshold``; a leaf sends it to itself, so after ``depth`` steps from ``roots`` all are there.
    Scores are logits, those of a forest probabilities.
    """
    classifier = fitted.classifier
    present = {"present": fitted.present.astype(np.int64)}
    if classifier is None:
        return {**present, "bias": np.log(fitted.shares)}

    if fitted.name == "logistic_regression":
        weight = classifier.coef_ / scaler.scale_
        bias = classifier.intercept_ - weight @ scaler.mean_

        # Of two classes, the first one has the score 0.
        if len(weight) == 1:
            weight = np.concatenate([np.zeros_like(weight), weight])
            bias = np.concatenate([np.zeros_like(bias), bias])
        return {**present, "weight": weight.astype(float), "bias": bias.astype(float)}

    if fitted.name == "random_forest":
        trees = _trees_of_forest(classifier)
        return {**present, **_join(trees), "bias": np.zeros(len(fitted.present))}

    # Boosting: of two classes, one tree gives the score of the second one.
    start = classifier._baseline_prediction.reshape(-1)
    bias = np.zeros(len(fitted.present))
    bias[-len(start) :] = start
    return {**present, **_join(_trees_of_boosting(classifier, len(bias))), "bias": bias}


def _trees_of_forest(forest: Sequence[Any]) -> Iterator[dict[str, np.ndarray]]:
    """Yield the nodes of every tree of a random forest."""
    for tree in forest:
        value = tree.value[:, :, 0]
        yield {
            "feature": tree.feature,
            "threshold": tree.threshold,
            "left": tree.children_left,
            "right": tree.children_right,
            "value": value / value.sum(1, keepdims=True) / len(forest),
        }


def _trees_of_boosting(classifier: Any, num_present: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the nodes of every tree of gradient boosting.

    scikit-learn has no public way to read them; a test compares the predictions.
    """
    for predictors in classifier._predictors:
        for number, predictor in enumerate(predictors):
            nodes = predictor.nodes
            is_leaf = nodes["is_leaf"].astype(bool)
            value = np.zeros((len(nodes), num_present))
            value[:, number - len(predictors)] = np.where(is_leaf, nodes["value"], 0.0)
            yield {
                "feature": nodes["feature_idx"],
                "threshold": nodes["num_threshold"],
                "left": np.where(is_leaf, -1, nodes["left"].astype(np.int64)),
                "right": np.where(is_leaf, -1, nodes["right"].astype(np.int64)),
                "value": value,
            }


def _join(trees: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the nodes of all trees one after the other, with the numbers of their roots."""
    parts: dict[str, list[np.ndarray]] = {}
    roots = []
    depth = 0
    start = 0
    for tree in trees:
        numbers = np.arange(len(tree["left"]))
        is_leaf = tree["left"] < 0
        left = np.where(is_leaf, numbers, tree["left"])
        right = np.where(is_leaf, numbers, tree["right"])
        depth = max(depth, _depth(left, right))
        joined = {
            "feature": np.where(is_leaf, 0, tree["feature"]).astype(np.int64),
            "threshold": np.where(is_leaf, 0.0, tree["threshold"]),
            "left": left.astype(np.int64) + start,
            "right": right.astype(np.int64) + start,
            "value": tree["value"],
        }
        for name, array in joined.items():
            parts.setdefault(name, []).append(array)
        roots.append(start)
        start += len(numbers)

    arrays = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    return {**arrays, "roots": np.array(roots), "depth": np.array([depth])}


def _depth(left: np.ndarray, right: np.ndarray) -> int:
    """Return after how many steps from node 0 every example is at a leaf."""
    level = np.array([0])
    depth = 0
    while True:
        inner = level[left[level] != level]
        if not len(inner):
            return depth
        level = np.concatenate([left[inner], right[inner]])
        depth += 1


def _build(candidate: _Candidate, num_examples: int) -> Any:
    """Return an untrained classifier of scikit-learn."""
    if candidate.name == "logistic_regression":
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=candidate.strength, max_iter=500, random_state=_SEED)

    from sklearn.ensemble import HistGradientBoostingClassifier

    # Chosen by cross-validation on made-up tables and those that come with scikit-learn.
    by_size: dict[str, Any] = {
        "learning_rate": 0.1,
        "max_iter": 100,
        "max_leaf_nodes": 16,
        "min_samples_leaf": 20,
    }
    if num_examples < 1_000:
        by_size = {
            "learning_rate": 0.2,
            "max_iter": 25,
            "max_leaf_nodes": 4,
            "min_samples_leaf": 5,
            "l2_regularization": 1.0,
            "max_features": 0.5,
        }

    return HistGradientBoostingClassifier(
        **by_size, max_bins=64, early_stopping=False, random_state=_SEED
    )
