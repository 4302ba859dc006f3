"""Features in place of raw inputs: a frozen encoder maps every example once, and they are kept."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.engine import one_thread, physical_cores
from fedtailor.core.errors import ConfigError
from fedtailor.data.build import DividedData
from fedtailor.data.dataset import AS_THEY_ARE, Dataset, EncoderRecord
from fedtailor.data.feature_cache import FeatureCache, key_of
from fedtailor.data.files import EMBEDDING, Report, cache_entry, to_nobody
from fedtailor.data.input_specification import InputSpecification, input_specification
from fedtailor.data.tensors import model_layout
from fedtailor.encoders.encoder import KEY, Encoder, check_encoder, run_batch
from fedtailor.encoders.load import load_encoder


def embed(divided: DividedData, report: Report = to_nobody) -> DividedData:
    """Return the data of a run with the features of ``data.encoder`` in place of the inputs.

    Only examples that some client has are embedded, and only those that the cache lacks.

    Args:
        divided: the data of a run, corrupted already where they are.
        report: is told how many examples have been embedded.

    Raises:
        ConfigError: the encoder cannot be loaded or used.
        RunError: the cache cannot be written to its end.
    """
    inputs = input_specification(divided, AS_THEY_ARE)
    rows = [np.concatenate(client) for client in divided.positions]
    if divided.division.shared_test:
        published = divided.division.dataset
        rows.append(np.arange(published.num_official_train, len(published.y)))

    encoder = load_encoder(divided.division.options.encoder)
    dataset = divided.dataset
    features, notes = embed_rows(encoder, dataset, np.unique(np.concatenate(rows)), report)
    embedded = with_features(dataset, features, record_of(encoder, inputs))
    return divided._replace(dataset=embedded, notes=[*divided.notes, *notes])


def record_of(encoder: Encoder, inputs: InputSpecification) -> EncoderRecord:
    """Return what data remember of the encoder that made their features from such inputs."""
    return EncoderRecord(encoder.target, encoder.digest, encoder.license, inputs.to_record())


def with_features(dataset: Dataset, features: np.ndarray, record: EncoderRecord) -> Dataset:
    """Return a data set with features (rows, d) in place of its inputs."""
    return dataclasses.replace(
        dataset,
        x=features,
        raw=None,
        columns=None,
        encoder=record,
        white=1.0,
        normalize=AS_THEY_ARE,
    )


def embed_rows(
    encoder: Encoder, dataset: Dataset, rows: np.ndarray, report: Report = to_nobody
) -> tuple[np.ndarray, list[str]]:
    """Return features (all rows, d), float32, of which some rows are filled, and notes.

    They lie in the cache, by the digests of the encoder and of the data set, and are mapped into
    memory.

    Args:
        encoder: the encoder.
        dataset: whose examples are embedded.
        rows: numbers of the examples that are needed.
        report: is told how many examples have been embedded.

    Raises:
        ConfigError: the encoder cannot be used.
        RunError: the cache cannot be written to its end; what was written is not lost.
    """
    notes = []
    white = _white(dataset)
    key = key_of(encoder.digest, dataset.digest, white)
    folder = cache_entry("embedded", dataset.name, key)
    cache = FeatureCache.open(folder, key, len(dataset.y))
    with one_thread():
        if cache is None:
            if folder.exists():
                notes.append(f"the embedded features in '{folder}' are damaged, and made again.")
                shutil.rmtree(folder, ignore_errors=True)

            # The features have a number that only the encoder knows.
            trial = _stored(dataset, rows[: encoder.batch])
            dimension = check_encoder(encoder, trial, white)
            cache = _new_cache(folder, key, len(dataset.y), dimension, notes)

        missing, damaged = cache.missing(rows)
        if damaged:
            which = f"{damaged} of {len(rows)} examples"
            notes.append(f"the embedded features of {which} are damaged, and made again.")

        done = 0
        for count in _fill(cache, encoder, dataset, missing):
            done += count
            report(EMBEDDING, done, len(missing))

    return cache.features, notes


def _new_cache(folder: Path, key: str, rows: int, dimension: int, notes: list[str]) -> FeatureCache:
    """Return a place for features; if it cannot be in the cache, in memory, and add a note."""
    try:
        return FeatureCache.create(folder, key, rows, dimension)
    except OSError as reason:
        why = f"they cannot be kept in '{folder.parent}' ({reason.strerror or reason})"
        notes.append(f"every run embeds the examples again: {why}.")
        return FeatureCache(None, rows, dimension)


def _stored(dataset: Dataset, rows: np.ndarray) -> Tensor:
    """Return some examples as stored, in the layout of models."""
    return model_layout(torch.from_numpy(dataset.x[rows]))


def _fill(
    cache: FeatureCache, encoder: Encoder, dataset: Dataset, rows: np.ndarray
) -> Iterator[int]:
    """Yield the numbers of examples of batches as soon as their features are on the disk.

    Several batches run at once, each with one thread, so that no result depends on the number of
    cores. Who computes a batch keeps it too: a killed process loses at most one a worker.
    """
    workers: SimpleQueue[Encoder] = SimpleQueue()
    count = physical_cores()
    starts = range(0, len(rows), encoder.batch)

    def run(part: np.ndarray) -> int:
        worker = workers.get()
        try:
            features = run_batch(worker, _stored(dataset, part), _white(dataset))
        finally:
            workers.put(worker)

        expected = cache.dimension
        got = features.shape[1]
        if got != expected:
            message = f"encoder '{encoder.target}' gave {expected} features before, and {got} now."
            raise ConfigError(message, key=KEY, allowed=expected, got=got)

        cache.write(part, features.numpy())
        return len(part)

    with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for _ in range(count):
            workers.put(encoder.worker())

        # Batches that wait are row numbers only; those left after an error are not begun.
        yield from pool.map(run, [rows[start : start + encoder.batch] for start in starts])


def _white(dataset: Dataset) -> float:
    """Return the stored value that an encoder gets as 1."""
    # Models take FedCR's letters from 0 to 255; encoders do not.
    is_raw = dataset.x.dtype == np.uint8 and dataset.white == 1.0
    return 255.0 if is_raw else dataset.white
