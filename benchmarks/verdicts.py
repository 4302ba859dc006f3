"""How often the verdicts of sites are wrong, see a difference, and how often intervals cover it.

    python -m benchmarks.verdicts [--quick] [--json]

A federation has four to eight sites with 60 to 300 examples each, and the rows of
``fedtailor.experiment.site_rows``. At every site, five-fold cross-validation tests two logistic
regressions: the site's own one, and one of the same expected quality, from other examples with the
same classes. So there is no difference in truth. For a true difference of five points, errors of
the second model are repaired at random, so many that this is the expected gain in accuracy. Classes
are 50:50 or 12:88; examples come alone, or as three rows of a patient that are much alike.

Intervals are also compared with what they promise for two models that are not trained again: those
of accuracies by the probability of every outcome, those of AUROCs on 10 to 60 rows by simulation.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln
from scipy.stats import norm

from benchmarks.records import describe_machine, save_record
from fedtailor.core.schedule import Measure
from fedtailor.experiment.paired import compare_areas, compare_pairs, count_pairs, paired_interval
from fedtailor.experiment.predictions import ClientPredictions
from fedtailor.experiment.site_rows import (
    MEASURES,
    OwnModel,
    SeedPredictions,
    SiteRow,
    site_rows,
)

SIZES = (60, 102, 150, 300)
FOLDS = 5
GAIN = 0.05
"""The true difference, where there is one."""
FEDERATIONS = 600
"""Without a difference, and as many with one, for every condition."""
GIVEN_SIZES = (10, 20, 30, 60, 102, 150, 300)
"""Examples of two models that are not trained again."""
DISAGREE = np.arange(4, 41, 2) / 100
"""In which share of the examples only one of them is right."""
DIFFERENCES = (0.0, 0.05, 0.1)
"""By how much the first one is right more often."""
AREAS = ((0.8, 0.8), (0.9, 0.9), (0.85, 0.75))
"""AUROC of two models whose scores are normal."""
CORRELATIONS = (0.5, 0.9)
"""Of their scores in a class."""
AREA_SIZES = (10, 20, 30, 40, 60)
POSITIVES = (0.1, 0.2, 0.3, 0.5)
_AREA_SAMPLES = 400
_FEATURES = 10
_DISTANCE = 1.6
"""Between the means of the classes, in standard deviations of a feature."""
_WITHIN = 0.5
"""Standard deviation of the rows of a patient around the patient."""
_STEPS = 7
"""Of Newton's method."""
_ROUNDING = 1e-9


class Condition(NamedTuple):
    """What the examples of a federation are like."""

    positives: float
    """Share of the rarer class."""
    rows: int
    """Of each patient."""
    seeds: int

    def __str__(self) -> str:
        classes = f"{100 * self.positives:.0f}:{100 - 100 * self.positives:.0f}"
        return f"{classes}, {self.rows} rows a patient, {self.seeds} seeds"


CONDITIONS = [
    Condition(positives, rows, seeds)
    for positives in (0.5, 0.12)
    for rows in (1, 3)
    for seeds in (1, 3)
]


class Sites(NamedTuple):
    """Predictions of the second class at sites of equal size."""

    labels: np.ndarray  # (sites, n)
    folds: np.ndarray  # (seeds, sites, n)
    own: np.ndarray  # (seeds, sites, n)
    federated: np.ndarray  # (seeds, sites, n)


def simulate_sites(
    count: int, size: int, condition: Condition, generator: np.random.Generator
) -> Sites:
    """Return what both models say about the examples of sites that are all different."""
    patients = size // condition.rows
    sick = (generator.random((count, patients)) < condition.positives).astype(float)
    labels = np.repeat(sick, condition.rows, axis=1)
    direction = np.full(_FEATURES, _DISTANCE / np.sqrt(_FEATURES))
    examples = _draw(labels, condition.rows, direction, generator)
    others = _draw(labels, condition.rows, direction, generator)

    own = np.empty((condition.seeds, *labels.shape))
    federated = np.empty_like(own)
    folds = np.empty(own.shape, np.int64)
    for seed in range(condition.seeds):
        # Stratified folds that divide no patient.
        order = np.argsort(np.argsort(sick + generator.random(sick.shape), axis=1), axis=1)
        folds[seed] = np.repeat(order % FOLDS, condition.rows, axis=1)
        for fold in range(FOLDS):
            train = (folds[seed] != fold).astype(float)
            for array, source in ((own, examples), (federated, others)):
                weights = _logistic_regression(source, labels, train)
                probabilities = _sigmoid(np.einsum("sne,se->sn", examples, weights))
                array[seed] = np.where(folds[seed] == fold, probabilities, array[seed])

    return Sites(labels, folds, own, federated)


def _draw(
    labels: np.ndarray, rows: int, direction: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Return features (sites, n, features + 1) of normal classes, and a constant."""
    sites, size = labels.shape
    values = generator.normal(size=(sites, size // rows, _FEATURES)).repeat(rows, axis=1)
    if rows > 1:
        values += _WITHIN * generator.normal(size=values.shape)
    values += labels[..., None] * direction
    return np.concatenate([values, np.ones((sites, size, 1))], axis=2)


def _logistic_regression(x: np.ndarray, y: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return the weights (sites, features + 1) of ridge 1, which the constant has not."""
    ridge = np.eye(x.shape[2])
    ridge[-1, -1] = 1e-6
    weights = np.zeros((len(x), x.shape[2]))
    for _ in range(_STEPS):
        probabilities = _sigmoid(np.einsum("sne,se->sn", x, weights))
        gradient = np.einsum("sne,sn->se", x, train * (y - probabilities)) - weights @ ridge
        curvature = train * probabilities * (1 - probabilities)
        hessian = np.matmul((x * curvature[..., None]).transpose(0, 2, 1), x) + ridge
        weights += np.linalg.solve(hessian, gradient[..., None])[..., 0]

    return weights


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    values: np.ndarray = 1 / (1 + np.exp(-logits.clip(-30, 30)))
    return values


def repair(sites: Sites, share: float, rows: int, generator: np.random.Generator) -> Sites:
    """Return the sites after a share of the patients' errors of the second model were repaired."""
    _, count, size = sites.federated.shape
    is_repaired = (generator.random((count, size // rows)) < share).repeat(rows, axis=1)
    is_wrong = (sites.federated > 0.5) != sites.labels
    right = np.where(sites.labels, 0.9, 0.1)
    return sites._replace(federated=np.where(is_wrong & is_repaired, right, sites.federated))


def judge_federation(
    members: Sequence[tuple[Sites, int]], condition: Condition
) -> dict[Measure, list[SiteRow]]:
    """Return the rows of a federation, made of sites by their places, by every measure."""
    trainings = []
    for seed, fold in itertools.product(range(condition.seeds), range(FOLDS)):
        federated = {}
        own = {}
        for client, (sites, place) in enumerate(members):
            (positions,) = np.nonzero(sites.folds[seed, place] == fold)
            labels = sites.labels[place, positions].astype(np.int64)
            groups = positions // condition.rows if condition.rows > 1 else None
            personalized = _both_classes(sites.federated[seed, place, positions])
            federated[client] = ClientPredictions(
                positions, labels, {"personalized": personalized}, groups
            )
            predictions = {"x": _both_classes(sites.own[seed, place, positions])}
            own[client] = OwnModel("own", ClientPredictions(positions, labels, predictions))

        trainings.append(SeedPredictions(seed, federated, own))

    return {measure: site_rows(trainings, measure=measure) for measure in MEASURES}


def _both_classes(probabilities: np.ndarray) -> np.ndarray:
    return np.stack([1 - probabilities, probabilities], axis=1).astype(np.float32)


def measure(
    condition: Condition, federations: int, gain: float, generator: np.random.Generator
) -> dict[Measure, list[SiteRow]]:
    """Return the rows of all sites of many federations, by every measure."""
    sizes = [generator.choice(SIZES, generator.integers(4, 9)) for _ in range(federations)]
    counts = {size: sum(int((of_one == size).sum()) for of_one in sizes) for size in SIZES}

    # A site is in one federation only.
    pool: dict[int, list[tuple[Sites, int]]] = {}
    for size in SIZES:
        sites = simulate_sites(counts[size], size, condition, generator)
        if gain:
            error = ((sites.federated > 0.5) != sites.labels).mean()
            sites = repair(sites, min(1.0, gain / error), condition.rows, generator)
        pool[size] = [(sites, place) for place in range(counts[size])]

    rows: dict[Measure, list[SiteRow]] = {name: [] for name in MEASURES}
    for of_one in sizes:
        members = [pool[size].pop() for size in of_one.tolist()]
        for name, of_federation in judge_federation(members, condition).items():
            rows[name] += of_federation
    return rows


def exact_coverage(size: int) -> list[float]:
    """Return how often intervals of accuracies hold the difference, in percent, for given models.

    One number for every share of disagreement and difference: the sum of the probabilities of all
    outcomes whose interval holds it.
    """
    outcomes = [(b, c) for b in range(size + 1) for c in range(size + 1 - b)]
    better, worse = np.array(outcomes).T
    ends = []
    for outcome in outcomes:
        paired = np.zeros(size)
        paired[: outcome[0]] = 1
        paired[size - outcome[1] :] = -1
        ends.append(paired_interval(paired, None))

    low, high = np.array(ends).T
    coefficients = gammaln(size + 1) - gammaln(better + 1) - gammaln(worse + 1)
    coefficients -= gammaln(size - better - worse + 1)

    coverage = []
    for disagree, difference in itertools.product(DISAGREE, DIFFERENCES):
        if disagree > difference:
            first = (disagree + difference) / 2
            second = (disagree - difference) / 2
            logarithms = better * np.log(first) + worse * np.log(second)
            logarithms += (size - better - worse) * np.log(1 - disagree)
            is_held = (low <= difference + _ROUNDING) & (difference - _ROUNDING <= high)
            coverage.append(100 * float(np.exp(coefficients + logarithms)[is_held].sum()))
    return coverage


def area_coverage(size: int, generator: np.random.Generator) -> list[float]:
    """Return how often intervals of AUROCs hold the difference, in percent, for given models.

    One number for every share of positives, pair of AUROCs, and correlation.
    """
    coverage = []
    for share, areas, correlation in itertools.product(POSITIVES, AREAS, CORRELATIONS):
        labels = np.zeros(size, np.int64)
        labels[: max(2, round(share * size))] = 1
        shifts = np.sqrt(2) * norm.ppf(areas)
        covariance = [[1, correlation], [correlation, 1]]
        held = 0
        for _ in range(_AREA_SAMPLES):
            scores = generator.multivariate_normal([0, 0], covariance, size)
            scores += labels[:, None] * shifts
            pairs = [count_pairs(of_model, labels == 1, labels * 0) for of_model in scores.T]
            test = compare_areas(*compare_pairs(*pairs), labels, None)
            held += test.low <= areas[0] - areas[1] <= test.high

        coverage.append(100 * held / _AREA_SAMPLES)
    return coverage


def _range(coverage: Sequence[float]) -> dict[str, float]:
    return {
        "mean": round(float(np.mean(coverage)), 1),
        "least": round(min(coverage), 1),
        "largest": round(max(coverage), 1),
    }


def _summary(equal: Sequence[SiteRow], better: Sequence[SiteRow]) -> dict[str, Any]:
    """Return the numbers of a condition by one measure, in percent of sites."""
    power = {}
    covers_nothing = {}
    covers = []
    for size in SIZES:
        of_size = [row.difference for row in equal if row.examples == size and row.difference]
        covers_nothing[size] = _percent([paired.low <= 0 <= paired.high for paired in of_size])
        rows = [row for row in better if row.examples == size]
        power[size] = _percent([row.verdict == "better" for row in rows])

        # By accuracy the expected difference is GAIN; by all measures it is the mean of many sites.
        differences = [row.difference for row in rows if row.difference is not None]
        expected = float(np.mean([paired.difference for paired in differences]))
        covers += [paired.low <= expected <= paired.high for paired in differences]

    without = [row.difference for row in equal if row.difference is not None]
    return {
        "sites": len(equal),
        "told_better_or_worse": _percent([row.verdict != "no clear difference" for row in equal]),
        "uncorrected": _percent([row.p_value < 0.05 for row in equal]),
        "covers_no_difference": _percent([paired.low <= 0 <= paired.high for paired in without]),
        "covers_no_difference_by_size": covers_nothing,
        "covers_difference": _percent(covers),
        "power": power,
        "called_worse_though_better": _percent([row.verdict == "worse" for row in better]),
    }


def _percent(outcomes: Sequence[bool]) -> float:
    return round(100 * float(np.mean(outcomes)), 1) if outcomes else float("nan")


def main() -> None:
    """Measure all conditions and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the federations")
    parser.add_argument("--json", action="store_true", help="write the record")
    options = parser.parse_args()

    begin = time.perf_counter()
    federations = FEDERATIONS // 10 if options.quick else FEDERATIONS
    given = {}
    for size in GIVEN_SIZES:
        given[size] = _range(exact_coverage(size))
        print(f"given models, accuracy, {size} examples: {given[size]}", flush=True)

    areas = {}
    for size in AREA_SIZES:
        areas[size] = _range(area_coverage(size, np.random.default_rng(size)))
        print(f"given models, auroc, {size} examples: {areas[size]}", flush=True)

    summaries = []
    for number, condition in enumerate(CONDITIONS):
        generator = np.random.default_rng(number)
        rows = {}
        for gain in (0.0, GAIN):
            rows[gain] = measure(condition, federations, gain, generator)
        for name in MEASURES:
            numbers = _summary(rows[0.0][name], rows[GAIN][name])
            summaries.append({"condition": str(condition), "measure": name, **numbers})
            print(f"{condition}, {name}: {numbers}", flush=True)

    print(f"{time.perf_counter() - begin:.0f} s")
    if options.json:
        record = {
            "machine": describe_machine(),
            "conditions": summaries,
            "accuracy_of_given_models": given,
            "auroc_of_given_models": areas,
        }
        save_record("verdicts", "quick" if options.quick else "full", record)


if __name__ == "__main__":
    main()
