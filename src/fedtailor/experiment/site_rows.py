"""One row for each site: is its personalized model better than what it would use alone? No torch.

The rule is stated before any data are seen, as :data:`RULE`. Predictions of several seeds, and of
the folds of a cross-validation, are paired by the positions of the examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from fedtailor.experiment.paired import (
    holm,
    influence_interval,
    paired_interval,
    rank_examples,
    sign_flip_p_value,
    sum_by_group,
)
from fedtailor.experiment.predictions import ClientPredictions

Verdict = Literal["better", "no clear difference", "worse"]
LEVEL = 0.05
"""A difference is clear if its corrected p-value is below it."""
_RULE = (
    "The verdict is better or worse if p < 0.05 in a two-sided sign-flip test of the paired "
    "differences in accuracy, {correction}. The test is by examples, or by groups where data.group "
    "names them; for one seed without groups it is McNemar's exact test. Otherwise there is no "
    "clear difference."
)
RULE = _RULE.format(correction="corrected for the number of sites by Holm's method")
"""What the verdicts mean."""
RULE_OF_ONE = _RULE.format(
    correction="of one site alone, so it is not corrected for the number of sites"
)
"""What the verdict of a single site means."""
OWN = "own"
"""What the site would use alone."""
GLOBAL = "global"
PERSONALIZED = "personalized"
MAJORITY = "majority"
"""A model that predicts the most frequent class of the site's test examples."""
_FEWEST_FOR_AN_AREA = 10
"""Examples of each class, from which on the difference of two areas has an interval."""


class OwnModel(NamedTuple):
    """What a site would use alone."""

    name: str
    predictions: ClientPredictions
    """Of this model only."""


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
    """By ``own``, ``global`` (if there is one) and ``personalized``."""
    difference: Paired
    """Accuracy of the personalized model minus that of the own one."""
    from_global: Paired | None
    auroc_difference: Paired | None
    """For two classes with ten examples each. It decides nothing."""
    p_value: float
    corrected_p_value: float
    verdict: Verdict


def site_rows(trainings: Sequence[SeedPredictions], names: Sequence[str] = ()) -> list[SiteRow]:
    """Return a row for every client with test examples, in the order of their numbers.

    Args:
        trainings: of all seeds and folds of one method.
        names: of the clients; those without one are called by their number.
    """
    clients = sorted({client for training in trainings for client in training.federated})
    sites = []
    for client in clients:
        tests = _gather(trainings, client)
        if tests is not None:
            sites.append((client, tests, _p_value(tests)))

    # Which difference is clear depends on the number of sites.
    corrected = holm([p_value for _, _, p_value in sites])
    rows = []
    for (client, tests, p_value), corrected_p_value in zip(sites, corrected, strict=True):
        name = names[client] if client < len(names) else str(client)
        rows.append(_row(client, name, tests, p_value, corrected_p_value))

    return rows


class _Tests(NamedTuple):
    """The tests of one site: an example has one in every seed."""

    seeds: np.ndarray  # (n,), the seed of every test
    trainings: np.ndarray  # (n,), the number of its training: that of a seed, or of a fold
    examples: np.ndarray  # (n,), the number of its example, from 0
    labels: np.ndarray  # (n,)
    groups: np.ndarray | None  # (examples,), the number of its group, from 0
    probabilities: Mapping[str, np.ndarray]  # each (n, classes)
    own: Mapping[str, int]

    def right(self, model: str) -> np.ndarray:
        """Return which predictions are right (n,); one that is not a number is wrong."""
        probabilities = self.probabilities[model]
        is_number = ~np.isnan(probabilities).any(axis=1)
        right: np.ndarray = is_number & (probabilities.argmax(axis=1) == self.labels)
        return right

    def gains(self, other: str) -> np.ndarray:
        """Return how often more the personalized model is right than another one, by example."""
        gain = self.right(PERSONALIZED).astype(float) - self.right(other)
        return np.bincount(self.examples, weights=gain)


def _gather(trainings: Sequence[SeedPredictions], client: int) -> _Tests | None:
    """Return the tests of a client in all trainings; None if it has none."""
    parts: list[ClientPredictions] = []
    seeds = []
    numbers = []
    own: Counter[str] = Counter()
    for training in trainings:
        part = _part(training, client)
        if part is not None and len(part.positions):
            name = training.own[client].name if client in training.own else MAJORITY
            own[name] += 1
            seeds.append(np.full(len(part.positions), training.seed))
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
    for model in (OWN, GLOBAL, PERSONALIZED):
        if model in shared or model == OWN:
            majority = np.bincount(labels[first]).argmax()
            arrays = [_of_model(part, model, int(majority)) for part in parts]
            probabilities[model] = np.concatenate(arrays)

    return _Tests(
        seeds=np.concatenate(seeds),
        trainings=np.concatenate(numbers),
        examples=examples,
        labels=labels,
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
    (own_probabilities,) = other.probabilities.values()
    return ClientPredictions(
        positions=federated.positions[rows],
        labels=federated.labels[rows],
        probabilities={**probabilities, OWN: own_probabilities[other_rows]},
        groups=None if federated.groups is None else federated.groups[rows],
    )


def _of_model(part: ClientPredictions, model: str, majority: int) -> np.ndarray:
    """Return the probabilities of a model; without an own one, those of the majority class."""
    if model in part.probabilities:
        return part.probabilities[model]

    constant = np.zeros_like(part.probabilities[PERSONALIZED])
    constant[:, majority] = 1.0
    return constant


def _p_value(tests: _Tests) -> float:
    return sign_flip_p_value(np.rint(sum_by_group(tests.gains(OWN), tests.groups)))


def _row(
    client: int, name: str, tests: _Tests, p_value: float, corrected_p_value: float
) -> SiteRow:
    """Return the row of a site."""
    num_examples = int(tests.examples.max()) + 1
    counts = np.bincount(tests.labels)
    difference = _difference(tests, OWN)
    verdict: Verdict = "no clear difference"
    if corrected_p_value < LEVEL:
        verdict = "better" if difference.difference > 0 else "worse"

    return SiteRow(
        client=client,
        site=name,
        examples=num_examples,
        groups=None if tests.groups is None else int(tests.groups.max()) + 1,
        majority=float(counts.max() / len(tests.labels)),
        own=tests.own,
        scores={model: _scores(tests, model) for model in tests.probabilities},
        difference=difference,
        from_global=_difference(tests, GLOBAL) if GLOBAL in tests.probabilities else None,
        auroc_difference=_auroc_difference(tests),
        p_value=p_value,
        corrected_p_value=corrected_p_value,
        verdict=verdict,
    )


def _difference(tests: _Tests, other: str) -> Paired:
    """Return the difference in accuracy of the personalized model from another one."""
    gains = tests.gains(other)
    tests_per_example = len(tests.labels) / len(gains)
    low, high = paired_interval(gains / tests_per_example, tests.groups)
    return Paired(float(gains.sum() / len(tests.labels)), low, high)


def _scores(tests: _Tests, model: str) -> ModelScores:
    """Return the scores of a model; an AUROC is the mean over the seeds."""
    right = tests.right(model)
    recalls = [right[tests.labels == label].mean() for label in np.unique(tests.labels)]
    areas = [_auroc(tests, model, seed) for seed in np.unique(tests.seeds)]
    having = [area for area in areas if area is not None]
    return ModelScores(
        accuracy=float(right.mean()),
        balanced_accuracy=float(np.mean(recalls)),
        auroc=float(np.mean(having)) if having else None,
    )


def _auroc(tests: _Tests, model: str, seed: int) -> float | None:
    """Return the mean AUROC over the classes in one seed; None if there is one class only."""
    chosen = tests.seeds == seed
    labels = tests.labels[chosen]
    probabilities = np.nan_to_num(tests.probabilities[model][chosen])

    # Of two classes, both have the same.
    classes = [1] if probabilities.shape[1] == 2 else np.unique(labels).tolist()
    areas = []
    for label in classes:
        ranked = rank_examples(probabilities[:, label], labels == label, tests.trainings[chosen])
        if ranked is not None:
            areas.append(ranked.auroc)

    return float(np.mean(areas)) if areas else None


def _auroc_difference(tests: _Tests) -> Paired | None:
    """Return the difference in AUROC of the personalized model from the own one."""
    if tests.probabilities[PERSONALIZED].shape[1] != 2:
        return None

    # An example adds its mean over the seeds to the difference.
    num_examples = int(tests.examples.max()) + 1
    seeds = np.unique(tests.seeds)
    influence = np.zeros(num_examples)
    differences = []
    for seed in seeds.tolist():
        chosen = tests.seeds == seed
        positive = tests.labels[chosen] == 1
        if min(positive.sum(), (~positive).sum()) < _FEWEST_FOR_AN_AREA:
            return None

        for model, sign in ((PERSONALIZED, 1.0), (OWN, -1.0)):
            scores = np.nan_to_num(tests.probabilities[model][chosen][:, 1])
            ranked = rank_examples(scores, positive, tests.trainings[chosen])
            if ranked is None:
                return None

            differences.append(sign * ranked.auroc)
            influence[tests.examples[chosen]] += sign * ranked.influence / len(seeds)

    difference = sum(differences) / len(seeds)
    return Paired(difference, *influence_interval(difference, influence, tests.groups))
