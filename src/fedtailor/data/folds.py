"""Folds of a cross-validation: every example is held out once, and a group is never divided."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from fedtailor.core.errors import joined
from fedtailor.core.text import counted


def assign_folds(
    labels: np.ndarray, groups: np.ndarray | None, *, folds: int, seed: int
) -> np.ndarray:
    """Return the fold (n,) of every example, from 0; classes have equal shares in all folds.

    Where there are fewer examples or groups than folds, the last folds stay empty. Where every
    class has fewer examples than folds, shares of classes are left to chance.

    Args:
        labels: class of every example (n,).
        groups: number of the group of every example (n,); None: each is its own.
        folds: number of folds.
        seed: of the shuffle.

    Example:
        >>> assign_folds(np.array([0, 0, 1, 1]), None, folds=2, seed=0).tolist()
        [1, 0, 0, 1]
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    fold_of = np.zeros(len(labels), dtype=np.int64)
    units = len(labels) if groups is None else len(np.unique(groups))
    folds = min(folds, units)
    if folds < 2:
        return fold_of

    # As one class, examples are divided without regard to their classes.
    if np.bincount(labels).max() < folds:
        labels = np.zeros_like(labels)

    divide = StratifiedKFold if groups is None else StratifiedGroupKFold
    divider = divide(folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # classes with fewer examples than folds
        for number, (_, held_out) in enumerate(divider.split(fold_of, labels, groups)):
            fold_of[held_out] = number

    return fold_of


def notes_on_folds(
    labels: np.ndarray,
    folds_by_client: Sequence[Sequence[np.ndarray]],
    names: Sequence[str],
    class_names: Sequence[str],
) -> Iterator[str]:
    """Yield what a user should know about the folds of clients, in sentences.

    Args:
        labels: class of every example of the data set (rows,).
        folds_by_client: the test examples of every fold, by client.
        names: of the clients; empty: they have numbers only.
        class_names: empty: classes have numbers only.
    """
    without_examples = []
    without_class = []
    for client, folds in enumerate(folds_by_client):
        name = names[client] if names else f"client {client}"
        empty = sum(len(fold) == 0 for fold in folds)
        examples = sum(map(len, folds))
        if empty:
            text = f"{empty} of {len(folds)} at {name}, which has {counted(examples, 'example')}"
            without_examples.append(text)
            continue

        for label, count, lacking in _rare_classes(labels, folds):
            what = class_names[label] if class_names else str(label)
            examples_in_words = f"{counted(count, 'example')} of class '{what}'"
            without_class.append(f"{lacking} of {len(folds)} at {name} ({examples_in_words})")

    if without_examples:
        yield f"folds without test examples: {joined(without_examples)}."
    if without_class:
        yield f"folds whose test examples lack a class: {joined(without_class)}."


def _rare_classes(
    labels: np.ndarray, folds: Sequence[np.ndarray]
) -> Iterator[tuple[int, int, int]]:
    """Yield the classes of a client that some folds lack: class, examples, folds without it."""
    classes, counts = np.unique(labels[np.concatenate(folds)], return_counts=True)
    for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
        lacking = sum(not np.any(labels[fold] == label) for fold in folds)
        if lacking:
            yield label, count, lacking
