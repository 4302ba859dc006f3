"""Corrupted copies on disk: found again, verified, bounded, and never needed."""

import numpy as np
import pytest

from fedtailor.data.corruptions import copies as module
from fedtailor.data.corruptions import corrupt
from fedtailor.data.corruptions.copies import corrupted_copies


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "corrupted"


@pytest.fixture
def made(monkeypatch):
    """Return a list that gets the number of images of every call of ``corrupt``."""
    calls = []

    def count(images, *arguments, **options):
        calls.append(len(images))
        return corrupt(images, *arguments, **options)

    monkeypatch.setattr(module, "corrupt", count)
    return calls


ROWS = np.array([2, 3, 8])
FROST = [np.full((40, 40, 3), 100, np.uint8)]


def run(images, kind="gaussian_noise", severity=2, *, rows=ROWS, digest="d", seed=4, **options):
    return corrupted_copies(images, rows, kind, severity, digest=digest, seed=seed, **options)


def test_copies_are_the_corrupted_rows(images, cache):
    expected = corrupt(images[ROWS], "gaussian_noise", 2, rows=ROWS, seed=4)
    np.testing.assert_array_equal(run(images), expected)
    assert [path.name[:17] for path in cache.iterdir()] == ["gaussian_noise-2-"]


def test_a_second_run_makes_none(images, cache, made):
    first = run(images)
    done = []
    np.testing.assert_array_equal(run(images, progress=done.append), first)
    assert made == [3] and done == [3]


def test_progress_counts_copies(images, cache, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 2)
    done = []
    copies = run(images, progress=done.append)
    np.testing.assert_array_equal(
        copies, corrupt(images[ROWS], "gaussian_noise", 2, rows=ROWS, seed=4)
    )
    assert done == [2, 3]


def test_whatever_copies_depend_on_is_in_the_name(images, cache, made, monkeypatch):
    run(images)
    for change in (
        {"kind": "shot_noise"},
        {"severity": 3},
        {"rows": np.array([2, 3])},
        {"rows": np.array([2, 3, 9])},
        {"digest": "e"},
        {"seed": 5},
    ):
        run(images, **change)
    assert len(made) == 7
    monkeypatch.setattr(module, "COPIES_VERSION", 99)
    run(images)
    assert len(made) == 8


def test_pictures_of_frost_matter_to_frost_only(images, cache, made):
    other = [FROST[0] + 1]
    for frost in (FROST, FROST, other):
        run(images, "frost", frost=frost)
        run(images, frost=frost)
    assert len(made) == 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "no meta", "no array", "other shape"])
def test_damaged_entries_are_made_again(images, cache, made, damage):
    first = run(images)
    (array,) = cache.glob("*/copies.npy")
    raw = bytearray(array.read_bytes())
    if damage == "cut":
        array.write_bytes(raw[:-5])
    elif damage == "flipped":
        raw[-1] ^= 1
        array.write_bytes(raw)
    elif damage == "no meta":
        array.with_name("meta.json").unlink()
    elif damage == "no array":
        array.unlink()
    else:
        np.save(array, first.reshape(-1))
    np.testing.assert_array_equal(run(images), first)
    np.testing.assert_array_equal(run(images), first)
    assert made == [3, 3]  # repaired once


def test_a_folder_that_cannot_be_written_never_stops_a_run(images, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "file"))
    assert len(run(images)) == 3


def test_a_full_disk_never_stops_a_run_and_leaves_nothing(images, cache, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert len(run(images)) == 3
    assert list(cache.iterdir()) == []


def test_entries_used_longest_ago_go_first(images, cache, made, monkeypatch):
    for seed in (1, 2):
        run(images, seed=seed)
        for path in cache.iterdir():
            module.os.utime(path, (seed, seed))
    run(images, seed=1)  # used just now
    size = sum(path.stat().st_size for path in next(cache.iterdir()).iterdir())
    monkeypatch.setattr(module, "MAX_BYTES", 2 * size + 10)
    run(images, seed=3)
    assert len(list(cache.iterdir())) == 2
    before = len(made)
    run(images, seed=1)
    run(images, seed=3)
    assert len(made) == before
    run(images, seed=2)
    assert len(made) == before + 1
