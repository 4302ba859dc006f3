"""Features in place of examples: the same from the cache, after a kill, and after damage."""

import dataclasses
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import tiny_encoders
from fedtailor.core.engine import physical_cores
from fedtailor.core.errors import ConfigError, RunError
from fedtailor.data import embedding, feature_cache, load_dataset
from fedtailor.data.build import build
from fedtailor.data.dataset import Dataset
from fedtailor.data.embedding import embed, embed_rows
from fedtailor.data.feature_cache import FeatureCache
from fedtailor.data.files import EMBEDDING
from fedtailor.data.options import DataOptions
from fedtailor.data.tensors import normalization, tables
from fedtailor.encoders.encoder import BATCH
from fedtailor.encoders.load import load_encoder
from waiting import wait_for

TINY = "tiny_encoders:tiny"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "embedded"


def divided(**options):
    values = {"encoder": TINY, "clients": 4, "fraction": 0.2, "seed": 1} | options
    return build(DataOptions(**values), run_seed=0)


def divided_pictures(**options):
    """Return data of pictures that can be corrupted."""
    generator = np.random.default_rng(0)
    dataset = Dataset(
        name="pictures",
        x=generator.integers(0, 256, (80, 8, 8, 1), np.uint8),
        y=np.arange(80) % 2,
        num_classes=2,
    )
    values = {"encoder": TINY, "clients": 3, "seed": 1} | options
    return build(DataOptions(**values), run_seed=0, dataset=dataset)


def expected(dataset, rows):
    pictures = torch.from_numpy(dataset.x[rows]).permute(0, 3, 1, 2)
    return tiny_encoders.Tiny()(pictures.float() / dataset.white).detach().numpy()


def all_rows(data):
    return np.unique(np.concatenate([np.concatenate(client) for client in data.positions]))


def test_every_example_of_a_client_becomes_a_vector():
    raw = divided()
    reports = []
    data = embed(raw, lambda *report: reports.append(report))
    rows = all_rows(raw)
    assert data.dataset.input_shape == (tiny_encoders.FEATURES,)
    np.testing.assert_allclose(
        data.dataset.x[rows], expected(raw.dataset, rows), rtol=1e-5, atol=1e-6
    )
    assert reports[-1] == (EMBEDDING, len(rows), len(rows))

    encoder = data.dataset.encoder
    assert (encoder.target, encoder.license) == (TINY, "CC0-1.0")
    assert encoder.digest == load_encoder(TINY).digest
    assert encoder.inputs["kind"] == "images"
    assert encoder.inputs["shape"] == [1, 8, 8]


def test_corrupted_pictures_are_embedded_as_they_are():
    raw = divided_pictures(shift="cifar_s(clients=2)")
    data = embed(raw)
    rows = all_rows(raw)
    assert rows.max() >= len(raw.division.dataset.y)
    np.testing.assert_allclose(
        data.dataset.x[rows], expected(raw.dataset, rows), rtol=1e-5, atol=1e-6
    )


def test_official_test_examples_are_embedded_too():
    raw = divided()
    rows = len(raw.dataset.y)
    dataset = dataclasses.replace(raw.dataset, num_official_train=rows - 50)
    data = embed(
        build(
            DataOptions(encoder=TINY, clients=2, test="complete", subset=20),
            run_seed=0,
            dataset=dataset,
        )
    )
    assert data.dataset.x[-50:].any(axis=1).all()


@pytest.mark.parametrize(
    ("normalize", "mean_norm"), [("auto", None), ("l2", 1.0), ("training", None)]
)
def test_features_are_normalized_as_the_options_say(normalize, mean_norm):
    data = embed(divided(normalize=normalize))
    x, _ = tables(data.dataset, normalization(data))
    train = np.concatenate([client.train for client in data.positions])
    if normalize == "auto":
        assert np.array_equal(x.numpy(), data.dataset.x)
        assert np.shares_memory(x.numpy(), data.dataset.x)
    elif normalize == "l2":
        norms = x[train].norm(dim=1)
        torch.testing.assert_close(norms, torch.ones_like(norms))
    else:
        assert abs(float(x[train].mean())) < 1e-5
        torch.testing.assert_close(x[train].std(0, correction=0), torch.ones(x.shape[1]))


def test_pictures_have_no_unit_rows():
    with pytest.raises(ConfigError, match=r"data\.normalize must be another one for pictures"):
        normalization(divided(encoder="", normalize="l2"))


@pytest.mark.parametrize("option", ["mean", "std"])
def test_moments_of_pixels_have_no_effect_on_features(option):
    with pytest.raises(ConfigError, match=r"data\.encoder is given"):
        DataOptions(encoder=TINY, mean=(0.5,), std=(0.5,))


def counted(monkeypatch):
    """Return a list that gets the number of inputs of every batch that is encoded."""
    batches = []
    original = embedding.run_batch

    def run_batch(encoder, stored, white):
        batches.append(len(stored))
        return original(encoder, stored, white)

    monkeypatch.setattr(embedding, "run_batch", run_batch)
    return batches


def test_nothing_is_embedded_twice(monkeypatch):
    batches = counted(monkeypatch)
    first = embed(divided())
    number = sum(batches)
    assert number == len(all_rows(first))

    # Other clients, and more of their examples: only those are new that nobody had.
    second = embed(divided(clients=3, fraction=0.4))
    new = np.setdiff1d(all_rows(second), all_rows(first))
    assert sum(batches) == number + len(new)
    assert np.array_equal(first.dataset.x[all_rows(first)], second.dataset.x[all_rows(first)])


def test_another_encoder_or_other_data_have_an_entry_of_their_own(cache):
    embed(divided_pictures())
    embed(divided_pictures(encoder="tiny_encoders:other"))
    embed(divided_pictures(shift="cifar_s(clients=2)"))
    assert len(list(cache.iterdir())) == 3


class Killed(BaseException):
    pass


def test_a_killed_process_loses_the_batches_it_worked_on(monkeypatch):
    reports = []

    def kill_at(limit):
        def report(*report):
            reports.append(report)
            if report[1] >= limit:
                raise Killed

        return report

    raw = divided()
    total = len(all_rows(raw))
    with pytest.raises(Killed):
        embed(raw, kill_at(total // 2))

    written = reports[-1][1]
    batches = counted(monkeypatch)
    resumed = embed(raw)
    # Workers may be ahead of what was reported.
    assert sum(batches) <= total - written
    np.testing.assert_allclose(
        resumed.dataset.x[all_rows(raw)], expected(raw.dataset, all_rows(raw)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("kept", [0, 3])
def test_damaged_features_are_made_again(cache, kept, monkeypatch):
    raw = divided()
    before = embed(raw).dataset.x.copy()
    (entry,) = cache.iterdir()
    row = int(all_rows(raw)[5])
    with (entry / "features.bin").open("r+b") as file:
        file.seek(4 * tiny_encoders.FEATURES * row + kept)
        file.write(b"\x99")

    batches = counted(monkeypatch)
    data = embed(raw)
    assert batches == [1]
    assert np.array_equal(data.dataset.x, before)
    assert "1 of" in data.notes[-1]
    assert "damaged, and made again" in data.notes[-1]


@pytest.mark.parametrize("name", ["meta.json", "features.bin", "marks.bin"])
def test_an_entry_that_cannot_be_read_is_made_again(cache, name):
    raw = divided()
    before = embed(raw).dataset.x.copy()
    (entry,) = cache.iterdir()
    (entry / name).write_bytes(b"{}")
    data = embed(raw)
    assert np.array_equal(data.dataset.x, before)
    assert "damaged, and made again" in data.notes[-1]


def test_without_a_cache_features_stay_in_memory(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    before = embed(divided()).dataset.x
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "file"))
    data = embed(divided())
    assert np.array_equal(data.dataset.x, before)
    assert "every run embeds the examples again" in data.notes[-1]


def test_a_full_disk_is_one_sentence(monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    embed(divided())
    monkeypatch.setattr(feature_cache.os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device"):
        embed(divided(fraction=0.4))


def test_an_encoder_that_gives_other_dimensions_than_before_is_refused(cache):
    raw = divided()
    encoder = load_encoder(TINY)
    embed_rows(encoder, raw.dataset, np.arange(40))
    encoder.module.second = torch.nn.Conv2d(4, 2, 3)
    with pytest.raises(ConfigError, match="gave 6 features before, and 2 now"):
        embed_rows(encoder, raw.dataset, np.arange(60))


@pytest.mark.slow
def test_ten_kills_lose_at_most_a_batch_a_worker_each(tmp_path):
    batches = tmp_path / "batches"
    batches.write_text("")
    cache = tmp_path / "killed"
    out = tmp_path / "out"
    command = [sys.executable, "-m", "fedtailor", "data", "embed", "digits", "--out", str(out)]
    command += ["--encoder", "tiny_encoders:counting"]
    environment = os.environ | {
        "FEDTAILOR_TEST_BATCHES": str(batches),
        "FEDTAILOR_CACHE": str(cache),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    kills = 0
    for moment in range(10):
        before = len(batches.read_text())
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        wait_for(lambda limit=before + 4 + moment % 3: len(batches.read_text()) >= limit, 60)
        process.kill()
        kills += process.wait() == -signal.SIGKILL

    assert kills == 10
    assert not out.exists()
    assert subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode == 0

    # Three batches are the trial of the encoder.
    needed = math.ceil(1797 / BATCH) + 3
    assert len(batches.read_text()) <= needed + kills * physical_cores()

    with np.load(out / "train.npz") as arrays:
        dataset = load_dataset("digits")
        assert np.allclose(arrays["x"], expected(dataset, np.arange(1797)), rtol=1e-5, atol=1e-6)


def test_an_entry_of_another_process_stays(cache):
    folder = cache / "shared"
    first = FeatureCache.create(folder, "key", 3, 2)
    second = FeatureCache.create(folder, "key", 3, 2)
    first.write(np.array([1]), np.ones((1, 2), np.float32))
    assert second.missing(np.arange(3))[0].tolist() == [0, 2]
    assert first.missing(np.arange(3))[0].tolist() == [0, 2]
