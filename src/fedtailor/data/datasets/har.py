"""UCI HAR: activities of 30 people from windows of a smartphone's signals, 561 features each.

In "UCI HAR Dataset", ``train`` and ``test`` hold ``X_train.txt`` (a window a line, 561 numbers from
-1 to 1), ``y_train.txt`` (activities 1 to 6) and ``subject_train.txt`` (people 1 to 30). Anguita,
Ghio, Oneto, Parra and Reyes-Ortiz 2013, "A public domain dataset for human activity recognition
using smartphones", ESANN.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np

from fedtailor.data.dataset import AS_THEY_ARE, Dataset, check_labels
from fedtailor.data.files import Files, wrong_content

_FOLDER = "UCI HAR Dataset"
_ACTIVITIES = tuple(
    "walking, walking upstairs, walking downstairs, sitting, standing, laying".split(", ")
)
_PEOPLE = 30
_FEATURES = 561


def load(files: Files) -> Dataset:
    """Load the windows of all people, each a domain, in the order of the people.

    The official parts divide people, not the windows of a person, so they are joined here. Windows
    overlap the next one by half. So the windows that follow each other in one activity of a person
    are a group, which no split divides.

    Raises:
        DataError: a file is missing or damaged.
    """
    windows: list[np.ndarray] = []
    activities: list[np.ndarray] = []
    people: list[np.ndarray] = []
    for part in ("train", "test"):
        folder = f"{_FOLDER}/{part}"
        path = files.find(f"{folder}/X_{part}.txt")
        windows.append(_read_windows(files.read(path), path))
        num_windows = len(windows[-1])
        for column, name, most in (
            (activities, f"y_{part}.txt", len(_ACTIVITIES)),
            (people, f"subject_{part}.txt", _PEOPLE),
        ):
            path = files.find(f"{folder}/{name}")
            column.append(_read_column(files.read(path), path, num_windows, most))

    x = np.concatenate(windows)
    y = np.concatenate(activities)
    person = np.concatenate(people)

    # By person; the order within a person stays.
    order = np.argsort(person, kind="stable")
    present, domains = np.unique(person[order], return_inverse=True)
    return Dataset(
        name=files.dataset,
        x=x[order],
        y=y[order],
        num_classes=len(_ACTIVITIES),
        class_names=_ACTIVITIES,
        domains=domains,
        domain_names=tuple(f"person {number + 1}" for number in present.tolist()),
        groups=_runs(person[order], y[order]),
        normalize=AS_THEY_ARE,
        white=1.0,
        sources=files.sources,
    )


def _read_windows(raw: bytes, path: Path) -> np.ndarray:
    """Return the features of the windows (rows, 561), float32."""
    windows = _read_numbers(raw, np.float32)
    if windows.shape[1:] != (_FEATURES,):
        allowed = f"{_FEATURES} numbers in every line"
        raise wrong_content(path, allowed, f"an array {windows.shape}")

    # NaN is refused, too: it is not <= 1.
    if not (np.abs(windows) <= 1).all():
        raise wrong_content(path, "numbers from -1 to 1", "another number")
    return windows


def _read_column(raw: bytes, path: Path, rows: int, most: int) -> np.ndarray:
    """Return whole numbers from 1 to ``most``, counted from 0: (rows,)."""
    numbers = _read_numbers(raw, np.int64)
    if numbers.shape != (rows, 1):
        raise wrong_content(path, f"{rows} lines with one number", f"an array {numbers.shape}")

    return check_labels(numbers[:, 0], most, where=str(path), first=1)


def _read_numbers(raw: bytes, kind: type[np.generic]) -> np.ndarray:
    """Return the numbers of all lines (rows, columns)."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an empty file is a warning
        return np.loadtxt(io.BytesIO(raw), dtype=kind, ndmin=2, comments=None)


def _runs(person: np.ndarray, activity: np.ndarray) -> np.ndarray:
    """Return the number of the run of each window: those with the same person and activity."""
    is_new = (np.diff(person) != 0) | (np.diff(activity) != 0)
    return np.concatenate([[0], np.cumsum(is_new)])
