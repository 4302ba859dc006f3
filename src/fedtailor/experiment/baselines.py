"""The baselines of a run: what its clients would use without a federation, in the run's folder.

They depend on data and split, and not on method and seed, so the runs of a comparison share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save
from torch import Tensor

from fedtailor import baselines
from fedtailor.baselines import (
    Inputs,
    LabeledInputs,
    SiteExamples,
    TrainedBaselines,
    end_processes,
    train_baselines,
    train_sites,
)
from fedtailor.core.atomic import discard, to_json, write_json, write_whole
from fedtailor.core.errors import FedtailorError
from fedtailor.core.reading import read_file, read_object
from fedtailor.core.schedule import BASELINE_NAMES
from fedtailor.data.split import ClientPositions
from fedtailor.experiment.assembly import PreparedRun
from fedtailor.experiment.predictions import (
    BASELINES_FILE,
    CHOICES_FILE,
    OWN_MODELS_FILE,
    ClientPredictions,
    baseline_names,
    write_predictions,
)
from fedtailor.experiment.reader import COMPARISON_FILE
from fedtailor.experiment.tracking import RunProgress

MOST_VALUES = 4_096
"""Of a picture or series, for logistic regression."""
_LARGEST = 2**31
_OF_PICTURES = ("majority", "logistic_regression")
_DEPTH = 3
"""Folders between that of a comparison's runs and that of one seed, or of one fold."""


def add_baselines(parts: PreparedRun, path: Path, observer: RunProgress) -> None:
    """Train the baselines of a run and write their files, unless its folder holds them.

    In a comparison, they are copied from a run with the same data, split and inputs.

    Args:
        parts: the run of one seed, which has baselines.
        path: its folder.
        observer: is told how many sites are done.

    Raises:
        RunError: a file cannot be written.
    """
    names = baseline_names(parts)
    key = _key(parts, names)
    if _read_pair(path, key) is not None or _copy(path, key):
        return

    tables = _tables_of(parts)
    pooled, sites = _train_all(parts, tables, names, observer)
    tests = {client: parts.divided.positions[client].test for client in sites}
    _write(path, names, tables, tests, sites, pooled, key=key)


def train_pooled(parts: PreparedRun) -> tuple[str, list[float | None]]:
    """Train the best baseline of all data in one place, which reality does not allow.

    It is chosen by a cross-validation on all training examples, as that of a client is on its own.

    Args:
        parts: the run, whose configuration names the baselines.

    Returns:
        Its name, and its accuracy on the test examples of every client; None without any.
    """
    tables = _tables_of(parts)
    positions = parts.divided.positions
    tests = np.concatenate([part.test for part in positions])
    trained = train_at(
        baseline_names(parts),
        tables,
        _in_one_place(parts),
        tests,
        num_classes=parts.divided.dataset.num_classes,
        keep=False,
    )
    assert trained.best is not None, "one of the clients can train"

    right = trained.probabilities[trained.best].argmax(axis=1) == tables.examples.labels[tests]
    ends = np.cumsum([len(part.test) for part in positions])
    accuracies = [
        float(of_client.mean()) if len(of_client) else None
        for of_client in np.split(right, ends[:-1])
    ]
    return trained.best, accuracies


def add_baselines_of_one(
    path: Path,
    names: Sequence[str],
    tables: InputTables,
    positions: ClientPositions,
    *,
    num_classes: int,
    keep: bool,
) -> dict[str, str]:
    """Train the baselines of the only client of a run folder, and write their files.

    Args:
        path: the folder.
        names: of the baselines.
        tables: the inputs of the client.
        positions: the division of its examples.
        num_classes: of the labels.
        keep: whether to write the best model, too.

    Returns:
        Why some could not be trained, by their names.

    Raises:
        RunError: a file cannot be written.
    """
    trained = train_at(
        names,
        tables,
        _training_of(positions),
        positions.test,
        num_classes=num_classes,
        keep=keep,
    )
    tests = {0: positions.test}
    _write(path, names, tables, tests, {0: trained}, {}, key="")
    missing = {**tables.missing, **trained.missing}
    return {name: missing[name] for name in names if name in missing}


def train_at(
    names: Sequence[str],
    tables: InputTables,
    training: np.ndarray,
    test: np.ndarray,
    *,
    num_classes: int,
    keep: bool,
) -> TrainedBaselines:
    """Train the baselines that suit the inputs; see :func:`fedtailor.baselines.train_baselines`.

    Args:
        names: of the baselines.
        tables: the inputs.
        training: the rows to train on.
        test: the rows to predict.
        num_classes: of the labels.
        keep: whether to return the best model.
    """
    return train_baselines(
        tables.trainable(names),
        tables.examples.take(training),
        tables.examples.inputs.take(test),
        num_classes=num_classes,
        keep=keep,
    )


class InputTables(NamedTuple):
    """All examples, and what stands against some baselines."""

    examples: LabeledInputs
    missing: Mapping[str, str]
    """Why a baseline does not suit the inputs, by its name."""

    @classmethod
    def of(
        cls, stored: np.ndarray, labels: np.ndarray, groups: np.ndarray | None, scaled: Tensor
    ) -> InputTables:
        """Return the inputs of examples, as they are stored and as networks get them."""
        if stored.ndim == 2:
            return cls(LabeledInputs(Inputs(scaled.numpy(), stored), labels, groups), {})

        # Logistic regression standardizes its inputs, so pictures can stay as they are stored.
        flat = stored.reshape(len(stored), -1)
        size = flat.shape[1]
        alone = (
            "pictures and series: the method 'local' trains the network of the federation at each "
            "site."
        )
        missing = {name: alone for name in BASELINE_NAMES if name not in _OF_PICTURES}
        if size > MOST_VALUES:
            reason = f"an example has {size:,} numbers; at most {MOST_VALUES:,}."
            missing["logistic_regression"] = reason
        return cls(LabeledInputs(Inputs(flat, flat), labels, groups), missing)

    def trainable(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of those that suit the inputs."""
        return tuple(name for name in names if name not in self.missing)


def _tables_of(parts: PreparedRun) -> InputTables:
    dataset = parts.divided.dataset
    return InputTables.of(dataset.x, dataset.y, dataset.groups, parts.federation.x)


def _training_of(positions: ClientPositions) -> np.ndarray:
    """Return the rows that baselines of a client are trained on."""
    return np.concatenate([positions.train, positions.val])


def _in_one_place(parts: PreparedRun) -> np.ndarray:
    """Return the training rows of all clients but new ones."""
    known = parts.divided.positions[: len(parts.divided.positions) - parts.divided.num_new]
    return np.concatenate([_training_of(part) for part in known])


def _train_all(
    parts: PreparedRun, tables: InputTables, names: tuple[str, ...], observer: RunProgress
) -> tuple[dict[str, np.ndarray], dict[int, TrainedBaselines]]:
    """Return what baselines of all data in one place say, and those of clients with test examples.

    Reality does not allow the former. New clients give it no examples, as in the run. Its arrays
    are by name, with the test examples of one client after the other.
    """
    positions = parts.divided.positions
    clients = [client for client, part in enumerate(positions) if len(part.test)]
    keep = parts.config.serve.fallback == "best"
    training = [_training_of(part) for part in positions]
    tests = np.concatenate([part.test for part in positions])

    num_values = tables.examples.inputs.stored.shape[1] * sum(map(len, training))
    num_classes = parts.divided.dataset.num_classes

    def sites() -> Iterator[SiteExamples]:
        for client in clients:
            examples = tables.examples.take(training[client])
            inputs = tables.examples.inputs.take(positions[client].test)
            yield SiteExamples(tables.trainable(names), examples, inputs, keep=keep)

    trained_sites = train_sites(sites(), num_values=num_values, num_classes=num_classes)
    by_client = {}
    for done, (client, site) in enumerate(zip(clients, trained_sites, strict=True), 1):
        observer.prepare("training baselines at sites", done, len(clients))
        by_client[client] = site

    # Of all data in one place, the kinds that any site would use.
    examples = tables.examples.take(_in_one_place(parts))
    inputs = tables.examples.inputs.take(tests)
    best = {site.best for site in by_client.values()}
    kinds = [name for name in names if name in best]
    jobs = (SiteExamples((name,), examples, inputs) for name in kinds)
    pooled: dict[str, np.ndarray] = {}
    for trained in train_sites(jobs, num_values=num_values, num_classes=num_classes):
        pooled |= trained.probabilities

    end_processes()
    return pooled, by_client


def _write(
    path: Path,
    names: Sequence[str],
    tables: InputTables,
    tests: Mapping[int, np.ndarray],
    sites: Mapping[int, TrainedBaselines],
    pooled: Mapping[str, np.ndarray],
    *,
    key: str,
) -> None:
    """Write predictions, then the choices, which say that the predictions are whole."""
    predictions = {}
    choices = {}
    end = 0
    for client, site in sites.items():
        test = tests[client]
        start = end
        end += len(test)
        probabilities = dict(site.probabilities)
        if site.best is not None and site.best in pooled:
            probabilities[f"pooled_{site.best}"] = pooled[site.best][start:end]

        choices[str(client)] = {"best": site.best, "missing": {**tables.missing, **site.missing}}
        if probabilities:
            examples = tables.examples.take(test)
            predictions[client] = ClientPredictions(
                test, examples.labels, probabilities, examples.groups
            )

    write_predictions(path / BASELINES_FILE, predictions)
    write_own_models(path, sites)
    record: dict[str, Any] = {
        "key": key,
        "names": list(names),
        "sha256": hashlib.sha256(_read(path)).hexdigest(),
        "sites": choices,
    }
    write_json(path / CHOICES_FILE, record, indent=2)


def write_own_models(path: Path, sites: Mapping[int, TrainedBaselines]) -> None:
    """Write the best baselines that were kept into a run folder, by the numbers of the clients.

    Without any, there is no file.

    Raises:
        RunError: the file cannot be written.
    """
    tensors = {}
    for client, site in sites.items():
        for name, array in (site.model or {}).items():
            tensors[f"{client}/{site.best}/{name}"] = np.ascontiguousarray(array)

    if tensors:
        write_whole(path / OWN_MODELS_FILE, save(tensors))
    else:
        discard(path / OWN_MODELS_FILE)


def _key(parts: PreparedRun, names: tuple[str, ...]) -> str:
    """Return a digest of all that the predictions of baselines depend on."""
    import sklearn

    dataset = parts.divided.dataset
    digest = hashlib.sha256()
    for array in (dataset.x, parts.federation.x.numpy() if dataset.kind == "table" else dataset.y):
        digest.update(np.ascontiguousarray(array).data)

    facts: dict[str, Any] = {
        "data": parts.split["data_sha256"],
        "split": parts.split["split_sha256"],
        "features": digest.hexdigest(),
        "names": list(names),
        "versions": [baselines.VERSION, sklearn.__version__, np.__version__],
    }
    # Where models are to be kept, those of a run without them do not do.
    if parts.config.serve.fallback == "best":
        facts["keeps_models"] = True
    return hashlib.sha256(to_json(facts).encode()).hexdigest()


def _copy(path: Path, key: str) -> bool:
    """Copy the files from another run of the same comparison; return whether there was one.

    A comparison may be one of several in a folder, as on the leaderboard.
    """
    for comparison in path.absolute().parents[1 : _DEPTH + 1]:
        if not (comparison / COMPARISON_FILE).is_file():
            continue

        for pattern in ("*/*", "*/*/*", "*/*/*/*"):
            for choices in sorted(comparison.glob(f"{pattern}/{CHOICES_FILE}")):
                if _copy_from(choices.parent, path, key):
                    return True

    return False


def _copy_from(source: Path, path: Path, key: str) -> bool:
    """Copy the files of a folder if they are whole and have this key; return whether they do."""
    pair = _read_pair(source, key)
    if pair is None:
        return False

    models = source / OWN_MODELS_FILE
    if models.is_file():
        raw = read_file(models, limit=_LARGEST, within=source)
        write_whole(path / OWN_MODELS_FILE, raw)

    write_whole(path / BASELINES_FILE, pair[0])
    write_whole(path / CHOICES_FILE, pair[1])
    return True


def _read_pair(path: Path, key: str) -> tuple[bytes, bytes] | None:
    """Return both files of a folder if they are whole and have this key."""
    try:
        record = read_object(path / CHOICES_FILE, within=path)
        if record.get("key") != key:
            return None

        raw = _read(path)
        if record.get("sha256") != hashlib.sha256(raw).hexdigest():
            return None
        return raw, read_file(path / CHOICES_FILE, limit=_LARGEST, within=path)
    except FedtailorError:  # missing or damaged
        return None


def _read(path: Path) -> bytes:
    return read_file(path / BASELINES_FILE, limit=_LARGEST, within=path)
