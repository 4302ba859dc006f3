"""One row for each site: is its personalized model better than what it would use alone? No torch.

The rule is stated before any data are seen, see :func:`rule`. Predictions of several seeds, and of
the folds of a cross-validation, are paired by the positions of the examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from fedtailor.core.schedule import Measure as Measure
from fedtailor.experiment.paired import (
    AreaTest,
    Pairs,
    compare_areas,
    compare_pairs,
    count_pairs,
    holm,
    paired_interval,
    sign_flip_p_value,
    sum_by_group,
)
from fedtailor.experiment.predictions import ClientPredictions

Verdict = Literal["better", "no clear difference", "worse"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
LEVEL = 0.05
"""A difference is clear if its corrected p-value is below it."""
_STEPS = 2.0**20
"""Of log-odds, in which scores are compared."""
OWN = "own"
"""What the site would use alone."""
GLOBAL = "global"
PERSONALIZED = "personalized"
POOLED = "pooled"
"""The own kind of model on the data of all sites in one place, which only a simulation has."""
LOCAL = "local"
"""The method that trains the network of the federation at each site alone."""
MAJORITY = "majority"
"""A model that predicts the most frequent class of the site's test examples."""


def rule(measure: Measure, num_sites: int) -> str:
    """Return what the verdicts mean."""
    test = "a two-sided sign-flip test of the paired differences in"
    if measure == "auroc":
        test = "a two-sided t test, with the error of DeLong et al. (1988), of the difference in"

    correction = "corrected for the number of sites by Holm's method"
    if num_sites == 1:
        correction = "of one site alone, so it is not corrected for the number of sites"

    return (
        f"The verdict is better or worse if p < 0.05 in {test} {measure_name(measure)}, "
        f"{correction}. The test is by examples, or by groups where data.group names them. "
        "Otherwise there is no clear difference."
    )


def measure_name(measure: Measure) -> str:
    """Return a measure in words."""
    return "AUROC" if measure == "auroc" else measure.replace("_", " ")


class OwnModel(NamedTuple):
    """What a site would use alone."""

    name: str
    predictions: ClientPredictions
    """Of this model, and of the ``pooled`` one if there is one."""


class SeedPredictions(NamedTuple):
    """What one training says about test examples: that of a seed, or of one of its folds."""

    seed: int
    federated: Mapping[int, ClientPredictions]
    """By client: of ``personalized`` models, and of the ``global`` one if there is one."""
    own: Mapping[int, OwnModel]
    """By client. For the others it is the majority class."""


class Paired(NamedTuple):
    """A difference of two models on the same examples, with its 95 % interval."""

    difference: float
    low: float
    high: float


class ModelScores(NamedTuple):
    """What one model reaches at a site, over all seeds."""

    accuracy: float
    balanced_accuracy: float
    auroc: float | None
    """The mean over classes; None where the test examples have one class only."""


@dataclass(frozen=True, kw_only=True)
class SiteRow:
    """What a federation gives one site."""

    client: int
    site: str
    examples: int
    """Different test examples."""
    groups: int | None
    """In how many groups they come; None: they are not grouped."""
    majority: float
    """Share of the most frequent class among them."""
    own: Mapping[str, int]
    """In how many trainings which model is the own one, the most frequent first."""
    scores: Mapping[str, ModelScores]
    """By ``own``, ``personalized``, and ``global`` and ``pooled`` if there are such models."""
    difference: Paired | None
    """Of the personalized model from the own one, by the measure that decides; None if the site has
    no AUROC, because its examples have one class."""
    other_differences: Mapping[Measure, Paired | None]
    """By the other measures, which decide nothing."""
    p_value: float
    corrected_p_value: float
    verdict: Verdict


def decide(difference: float, corrected_p_value: float) -> Verdict:
    """Return the verdict of a site."""
    if corrected_p_value >= LEVEL or difference == 0:
        return "no clear difference"
    return "better" if difference > 0 else "worse"


def site_rows(
    trainings: Sequence[SeedPredictions],
    names: Sequence[str] = (),
    measure: Measure = "accuracy",
) -> list[SiteRow]:
    """Return a row for every client with test examples, in the order of their numbers.

    Args:
        trainings: of all seeds and folds of one method.
        names: of the clients; those without one are called by their number.
        measure: by which the models are compared.
    """
    clients = sorted({client for training in trainings for client in training.federated})
    sites = []
    for client in clients:
        tests = _gather(trainings, client)
        if tests is not None:
            sites.append((client, tests, _p_value(tests, measure)))

    # Which difference is clear depends on the number of sites.
    corrected = holm([p_value for _, _, p_value in sites])
    rows = []
    for (client, tests, p_value), corrected_p_value in zip(sites, corrected, strict=True):
        name = names[client] if client < len(names) else str(client)
        rows.append(_row(client, name, tests, measure, p_value, corrected_p_value))

    return rows


class _Tests(NamedTuple):
    """The tests of one site: an example has one in every seed."""

    trainings: np.ndarray  # (n,), the number of the training: that of a seed, or of a fold
    examples: np.ndarray  # (n,), the number of the example, from 0
    labels: np.ndarray  # (n,)
    classes: np.ndarray  # (examples,), the label of every example
    groups: np.ndarray | None  # (examples,), the number of its group, from 0
    probabilities: Mapping[str, np.ndarray]  # each (n, classes)
    own: Mapping[str, int]

    def right(self, model: str) -> np.ndarray:
        """Return which predictions are right (n,); one that is not a number is wrong."""
        probabilities = self.probabilities[model]
        is_number = ~np.isnan(probabilities).any(axis=1)
        right: np.ndarray = is_number & (probabilities.argmax(axis=1) == self.labels)
        return right

    def right_more_often(self) -> np.ndarray:
        """Return how often more the personalized model is right than the own one, by example."""
        gain = self.right(PERSONALIZED).astype(float) - self.right(OWN)
        return np.bincount(self.examples, weights=gain)

    def areas(self, model: str) -> list[float]:
        """Return the AUROC of a model for every class that has one."""
        pairs = [self._pairs(label, model) for label in self._ranked_classes()]
        return [float(one.won.sum() / one.number.sum()) for one in pairs if one.number.any()]

    def compare_areas(self) -> AreaTest | None:
        """Compare both models' AUROC, the mean over classes; None if the examples have none."""
        differences = []
        influences = []
        for label in self._ranked_classes():
            pairs = self._pairs(label, PERSONALIZED)
            if pairs.number.any():
                difference, influence = compare_pairs(pairs, self._pairs(label, OWN))
                differences.append(difference)
                influences.append(influence)

        if not differences:
            return None
        of_examples = np.bincount(self.examples, weights=np.mean(influences, axis=0))
        return compare_areas(float(np.mean(differences)), of_examples, self.classes, self.groups)

    def gains(self, measure: Measure) -> np.ndarray:
        """Return what every example adds to a difference of (balanced) accuracies (examples,)."""
        if measure == "accuracy":
            return self.right_more_often() / len(self.labels)

        counts = np.bincount(self.labels)
        sizes = counts[self.classes] * np.count_nonzero(counts)
        gains: np.ndarray = self.right_more_often() / sizes
        return gains

    def _ranked_classes(self) -> list[int]:
        """Return the classes with an AUROC against the rest; of two classes, both have the same."""
        num_classes = self.probabilities[PERSONALIZED].shape[1]
        labels: list[int] = [1] if num_classes == 2 else np.unique(self.labels).tolist()
        return labels

    def _pairs(self, label: int, model: str) -> Pairs:
        # Log-odds, as in core.scores: 32 bits tell small probabilities apart, but not large ones.
        probabilities = self.probabilities[model].astype(np.float64)
        others = np.delete(probabilities, label, axis=1).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.log(probabilities[:, label]) - np.log(others)
            scores = np.round(odds * _STEPS)

        # What is no number is the lowest score of its class, and the highest of the others.
        positive = self.labels == label
        wrong = np.where(positive, -np.inf, np.inf)
        return count_pairs(np.where(np.isnan(scores), wrong, scores), positive, self.trainings)


def _gather(trainings: Sequence[SeedPredictions], client: int) -> _Tests | None:
    """Return the tests of a client in all trainings; None if it has none."""
    parts: list[ClientPredictions] = []
    numbers = []
    own: Counter[str] = Counter()
    for training in trainings:
        part = _part(training, client)
        if part is not None and len(part.positions):
            name = training.own[client].name if client in training.own else MAJORITY
            own[name] += 1
            numbers.append(np.full(len(part.positions), len(parts)))
            parts.append(part)

    if not parts:
        return None

    positions = np.concatenate([part.positions for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    first, examples = np.unique(positions, return_index=True, return_inverse=True)[1:]

    # Groups are those of all trainings or of none, because they belong to the data.
    groups = None
    if all(part.groups is not None for part in parts):
        all_groups = np.concatenate([part.groups for part in parts if part.groups is not None])
        groups = np.unique(all_groups[first], return_inverse=True)[1]

    shared = set.intersection(*(set(part.probabilities) for part in parts))
    probabilities = {}
    for model in (OWN, GLOBAL, PERSONALIZED, POOLED):
        if model in shared or model == OWN:
            majority = np.bincount(labels[first]).argmax()
            arrays = [_of_model(part, model, int(majority)) for part in parts]
            probabilities[model] = np.concatenate(arrays)

    return _Tests(
        trainings=np.concatenate(numbers),
        examples=examples,
        labels=labels,
        classes=labels[first],
        groups=groups,
        probabilities=probabilities,
        own=dict(own.most_common()),
    )


def _part(training: SeedPredictions, client: int) -> ClientPredictions | None:
    """Return the predictions of one training, those of the own model among them."""
    federated = training.federated.get(client)
    if federated is None or PERSONALIZED not in federated.probabilities:
        return None
    if client not in training.own:
        return federated

    # Examples that both have predicted, which are all, unless a file is of another split.
    other = training.own[client].predictions
    both = np.intersect1d(federated.positions, other.positions, return_indices=True)
    rows, other_rows = both[1:]
    probabilities = {name: array[rows] for name, array in federated.probabilities.items()}
    own_probabilities = dict(other.probabilities)
    pooled = own_probabilities.pop(POOLED, None)
    if pooled is not None:
        probabilities[POOLED] = pooled[other_rows]
    (probabilities[OWN],) = (array[other_rows] for array in own_probabilities.values())
    return ClientPredictions(
        positions=federated.positions[rows],
        labels=federated.labels[rows],
        probabilities=probabilities,
        groups=None if federated.groups is None else federated.groups[rows],
    )


def _of_model(part: ClientPredictions, model: str, majority: int) -> np.ndarray:
    """Return the probabilities of a model; without an own one, those of the majority class."""
    if model in part.probabilities:
        return part.probabilities[model]

    constant = np.zeros_like(part.probabilities[PERSONALIZED])
    constant[:, majority] = 1.0
    return constant


def _row(
    client: int,
    name: str,
    tests: _Tests,
    measure: Measure,
    p_value: float,
    corrected_p_value: float,
) -> SiteRow:
    """Return the row of a site."""
    counts = np.bincount(tests.labels)
    differences = {name: _difference(tests, name) for name in MEASURES}
    difference = differences.pop(measure)
    return SiteRow(
        client=client,
        site=name,
        examples=len(tests.classes),
        groups=None if tests.groups is None else int(tests.groups.max()) + 1,
        majority=float(counts.max() / len(tests.labels)),
        own=tests.own,
        scores={model: _scores(tests, model) for model in tests.probabilities},
        difference=difference,
        other_differences=differences,
        p_value=p_value,
        corrected_p_value=corrected_p_value,
        verdict=decide(difference.difference if difference else 0.0, corrected_p_value),
    )


def _p_value(tests: _Tests, measure: Measure) -> float:
    if measure == "auroc":
        test = tests.compare_areas()
        return 1.0 if test is None else test.p_value
    return sign_flip_p_value(sum_by_group(tests.gains(measure), tests.groups))


def _difference(tests: _Tests, measure: Measure) -> Paired | None:
    """Return the difference of the personalized model from the own one, with its interval."""
    if measure == "auroc":
        test = tests.compare_areas()
        return None if test is None else Paired(test.difference, test.low, test.high)

    difference = float(tests.gains(measure).sum())

    # Examples for each of their tests: of all classes, or of the class of the example, as in gains.
    strata = None
    examples_of_test: np.ndarray | float = len(tests.classes) / len(tests.labels)
    if measure == "balanced_accuracy":
        strata = tests.classes
        examples_of_test = np.bincount(strata)[strata] / np.bincount(tests.labels)[strata]

    shares = tests.right_more_often() * examples_of_test
    return Paired(difference, *paired_interval(shares, tests.groups, strata))


def _scores(tests: _Tests, model: str) -> ModelScores:
    """Return the scores of a model over all seeds."""
    right = tests.right(model)
    recalls = [right[tests.labels == label].mean() for label in np.unique(tests.labels)]
    areas = tests.areas(model)
    return ModelScores(
        accuracy=float(right.mean()),
        balanced_accuracy=float(np.mean(recalls)),
        auroc=float(np.mean(areas)) if areas else None,
    )
