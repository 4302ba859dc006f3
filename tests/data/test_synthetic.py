"""The data set whose best accuracy is known."""

from pathlib import Path

import numpy as np

from fedtailor.data import load_dataset
from fedtailor.data.datasets import synthetic


def accuracy(x: np.ndarray, y: np.ndarray, means: np.ndarray) -> float:
    """Return how often the mean that is nearest is that of the right class; ``means`` is (rows,
    classes, features)."""
    distances = np.square(x[:, np.newaxis] - means).sum(axis=2)
    return float((distances.argmin(axis=1) == y).mean())


def test_it_is_the_same_on_every_machine() -> None:
    dataset = load_dataset("synthetic", Path("nowhere"))
    assert dataset.digest == "eaa8519ceef03fe6656afbd5c98758a154d633ad71d688c874317434513410fa"
    assert not dataset.subset and dataset.tested_on == "original" and dataset.input_shape == (16,)
    assert dataset.x.dtype == np.float32 and not np.any(dataset.x * 1024 % 1)


def test_both_parts_have_every_class_of_every_domain_equally() -> None:
    dataset = load_dataset("synthetic")
    assert dataset.domains is not None
    for rows, count in ((slice(0, 4800), 24), (slice(4800, None), 6)):
        table = np.zeros((20, 10), int)
        np.add.at(table, (dataset.domains[rows], dataset.y[rows]), 1)
        assert (table == count).all()
    assert dataset.num_official_train == 4800


def test_the_best_accuracy_is_that_of_the_nearest_true_mean() -> None:
    best = synthetic.best_accuracy()
    means = synthetic.class_means()[7]
    generator = np.random.default_rng(0)
    y = generator.integers(0, 10, 100_000)
    x = means[y] + generator.standard_normal((100_000, 16))
    scores = (
        x @ means.T - np.square(means).sum(axis=1) / 2
    )  # of equal covariances and frequencies: Bayes' rule
    simulated = (scores.argmax(axis=1) == y).mean()
    assert abs(simulated - best) < 4 * np.sqrt(best * (1 - best) / 100_000)
    assert abs(best - 0.9024884377513663) < 1e-9


def test_the_examples_are_around_their_means() -> None:
    dataset, means, best = (
        load_dataset("synthetic"),
        synthetic.class_means(),
        synthetic.best_accuracy(),
    )
    assert dataset.domains is not None
    noise = dataset.x - means[dataset.domains, dataset.y]
    assert abs(noise.mean()) < 0.01 and abs(noise.std() - 1) < 0.01
    assert np.abs(np.cov(noise.T) - np.eye(16)).max() < 0.07
    assert abs(accuracy(dataset.x, dataset.y, means[dataset.domains]) - best) < 4 * np.sqrt(
        best * (1 - best) / 6000
    )


def test_who_does_not_know_the_domain_is_far_from_the_best() -> None:
    dataset, best = load_dataset("synthetic"), synthetic.best_accuracy()
    assert dataset.domains is not None
    train, test = np.arange(4800), np.arange(4800, 6000)

    def means_of(rows: np.ndarray) -> np.ndarray:
        return np.stack(
            [dataset.x[rows][dataset.y[rows] == label].mean(axis=0) for label in range(10)]
        )

    shared = means_of(train)
    own = np.stack([means_of(train[dataset.domains[train] == domain]) for domain in range(20)])
    x, y = dataset.x[test], dataset.y[test]
    assert accuracy(x, y, shared[np.newaxis]) < 0.65
    assert best - 0.04 < accuracy(x, y, own[dataset.domains[test]]) < best + 0.03
